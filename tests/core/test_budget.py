"""Budgets in figures: met where they can be, by what the policy minds least, and by no more than it takes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import natpp
from natpp.arch.cost import cost_of
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.cli import main
from natpp.core.budget import SAVES_NOTHING, BudgetError, excess, limits_of
from natpp.core.decision import Plan
from natpp.core.measures import Cost, figures_of
from natpp.core.solve import solve, with_option
from natpp.errors import SettingError
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import Policy, PolicyConfig
from natpp.registry import OPS, ZOO
from natpp.subjects import cells as cells_module
from natpp.subjects.cells import Cells, Frame
from tests.strategies import random_architecture

WHERE = setting(channels=8, cells=5)
NAMES = tuple(OPS)


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(1)
    return Policy(PolicyConfig(width=16)).eval()


@pytest.mark.parametrize("name", list(ZOO))
def test_every_zoo_cell_is_cut(name: str) -> None:
    for budget in ({"madds": 0.8}, {"params": 0.6, "madds": 0.9}):
        found = natpp.optimize(name, budget=budget, decisions=natpp.Decisions(setting=WHERE))
        before, after = figures_of(found.cost_before), figures_of(found.cost_after)
        assert all(after[figure] <= share * before[figure] for figure, share in budget.items())
        assert found.cost_after == cost_of(found.after, WHERE)
        for change in found.changes:
            assert change.after in found.probabilities[change.name]  # the rule allows it
        assert found.settings["budget"] == budget
        assert json.loads(json.dumps(found.to_dict()))["settings"]["budget"] == budget


def test_an_answer_that_is_cheap_enough_stays(policy: Policy) -> None:
    plain = natpp.optimize("darts", policy)
    share = plain.cost_after.live_madds / plain.cost_before.live_madds
    assert share < 0.9
    assert natpp.optimize("darts", policy, budget={"madds": 0.9}).after == plain.after
    assert natpp.optimize("darts", policy, budget={"madds": plain.cost_after.live_madds}).after == plain.after
    assert natpp.optimize("darts", policy, budget={"madds": share * 0.9}).after != plain.after


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.3, 0.95), st.sampled_from(["params", "madds", "memory"]))
def test_limits_hold_and_no_change_is_in_vain_or_could_be_milder(seed: int, share: float, figure: str) -> None:
    generator = np.random.default_rng(seed)
    cells = Cells(random_architecture(generator), Frame("nat++", WHERE), NAMES)
    table = np.log(generator.dirichlet(np.ones(len(NAMES)), size=len(cells.decisions)))
    start, preferences = (0,) * len(cells.decisions), cells.preferences(table)
    limits = limits_of({figure: share}, cost_of(cells.arch, WHERE))

    def fits(plan: Plan) -> bool:
        return cells.fits(plan) and excess(cost_of(cells.apply(plan), WHERE), limits) <= 0

    try:
        plan = solve(cells, start, preferences, limits, measure=lambda plan: cost_of(cells.apply(plan), WHERE))
    except BudgetError:
        return
    assert fits(plan)
    assert all(option in one.allowed for one, option in zip(cells.decisions, plan, strict=True))
    for one, option in enumerate(plan):
        for other in cells.decisions[one].allowed if option else ():
            if other == 0 or preferences[one][other] > preferences[one][option]:
                assert not fits(with_option(plan, one, other))


def test_what_is_minded_least_goes_first() -> None:
    """Two convs that cost the same: the one whose loss the policy minds less goes, to what it minds least."""
    arch = natpp.load("Genotype(normal=[('conv_3x3', 0), ('conv_3x3', 1)], normal_concat=[2], "
                      "reduce=[('skip_connect', 0), ('skip_connect', 1)], reduce_concat=[2])")  # fmt: skip
    cells = Cells(arch, Frame("nat++", WHERE), NAMES)
    start, limits = (0,) * len(cells.decisions), limits_of({"madds": 0.99}, cost_of(arch, WHERE))
    convs = [one for one, decision in enumerate(cells.decisions) if decision.options[0].value == "conv_3x3"]
    for gone in convs:
        for op in ("sep_conv_3x3", "max_pool_3x3"):
            preferences = [np.full(len(NAMES), -9.0) for _ in start]
            for row in preferences:
                row[0] = -0.1
            option = cells.decisions[gone].number(op)
            preferences[gone][option] = -0.5
            plan = solve(cells, start, preferences, limits, measure=lambda plan: cost_of(cells.apply(plan), WHERE))
            assert plan == with_option(start, gone, option)


def test_a_policy_that_knows_no_null_cuts_too() -> None:
    policy = Policy(
        PolicyConfig(width=8), ops=["conv_3x3", "sep_conv_3x3", "max_pool_3x3", "skip_connect", "dil_conv_3x3"]
    )
    found = natpp.optimize("darts", policy.eval(), budget={"madds": 0.6})
    assert found.cost_after.live_madds <= 0.6 * found.cost_before.live_madds
    with pytest.raises(BudgetError, match="nearest allowed") as error:
        natpp.optimize("darts", policy, budget={"madds": 0.01})
    nearest = error.value.nearest
    assert nearest.cost_after.live_madds == error.value.shares["madds"] * nearest.cost_before.live_madds


def test_latency_is_measured_now_and_then(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def timed(arch: Architecture, where: Setting, *, latency: bool = False) -> Cost:
        assert latency
        found = cost_of(arch, where)
        measured.append(arch)
        return Cost(*list(vars(found).values())[:5], latency_ms=found.live_madds / 1e6, latency_spread_ms=0.1)

    monkeypatch.setattr(cells_module, "network_cost", timed)
    found = natpp.optimize("naonet", policy, budget={"latency": 0.3})
    before, after = found.cost_before.latency_ms, found.cost_after.latency_ms
    assert before is not None
    assert after is not None
    assert after <= 0.3 * before
    assert len(measured) < 8
    assert f"{after:.2f}  ({after / before - 1:+.1%})" in str(found)
    both = natpp.optimize("naonet", policy, budget={"latency": 0.3, "params": 0.1})
    assert both.cost_after.live_params <= 0.1 * both.cost_before.live_params
    with pytest.raises(BudgetError, match=r"0\.001674 ms were asked for, the nearest allowed result has"):
        natpp.optimize("naonet", policy, budget={"latency": 1e-6})


def test_a_latency_is_really_measured(policy: Policy) -> None:
    where = setting(channels=2, cells=2, size=8)
    found = natpp.optimize(  # a million milliseconds
        "darts", policy, {"latency": 1e6}, decisions=natpp.Decisions(setting=where)
    )
    assert found.cost_before.latency_ms is not None
    assert found.cost_after.latency_ms is not None


def test_who_saves_nothing_is_told_of_budgets() -> None:
    note = f"note: {SAVES_NOTHING}"
    nothing = Policy()
    for parameter in nothing.parameters():
        parameter.data.zero_()  # the first allowed operation of every edge, which for a skip is itself
    kept = natpp.load("Genotype(normal=[('skip_connect', 0), ('skip_connect', 1)], normal_concat=[2], "
                      "reduce=[('skip_connect', 0), ('skip_connect', 1)], reduce_concat=[2])")  # fmt: skip
    assert str(natpp.optimize(kept, nothing.eval())).endswith(note)
    assert note not in str(natpp.optimize("naonet"))
    assert note not in str(natpp.optimize("darts", budget={"madds": 1}))


def test_modes_keep_to_it(policy: Policy) -> None:
    seen: list[Architecture] = []

    def score(archs: Any) -> Any:
        seen.extend(archs)
        return np.arange(len(archs), dtype=float)

    for mode, scorer, samples in (("sample", None, 10), ("best-of", score, 4)):
        found = natpp.optimize(
            "darts", PolicyMethod(learned=policy, mode=mode, samples=samples), {"madds": 0.4}, scorer=scorer
        )
        assert found.cost_after.live_madds <= 0.4 * found.cost_before.live_madds
    most = 0.4 * natpp.cost("darts").live_madds
    assert all(natpp.cost(arch).live_madds <= most for arch in seen if arch != natpp.load("darts"))


def test_from_the_command_line_to_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["optimize", "darts", "--budget", "madds=0.8,params=0.9", "--report", str(page), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["settings"]["budget"] == {"madds": 0.8, "params": 0.9}
    assert data["cost_after"]["live_madds"] <= 0.8 * data["cost_before"]["live_madds"]
    assert "with the budget madds 0.8, params 0.9." in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"mads": 0.5}, "unknown cost 'mads' in the budget. Did you mean 'madds'"),
        ({"madds": 0}, "the budget of madds is 0, expected a fraction"),
        ({"madds": True}, "the budget of madds is True"),
        ("strickt", "Did you mean 'strict'"),
        ([0.5], "expected 'strict', 'rule' or limits such as"),
        (0.0, "the budget of madds is 0.0, expected a fraction"),
        ("madds=0.5,madds=0.4", "which limits the same cost twice"),
    ],
)
def test_wrong_budgets_are_refused(budget: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        natpp.optimize("darts", budget=budget)
