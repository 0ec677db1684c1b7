"""Every registered method keeps the promises of a method, on architectures and on modules."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import natpp
from natpp import methods  # noqa: F401 (registers the methods)
from natpp.arch.decisions import Decisions
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace
from natpp.core.budget import Budget
from natpp.core.scores import Scores
from natpp.core.subject import Candidate
from natpp.fx.trace import trace
from natpp.methods.base import Method, picked
from natpp.methods.constant import Constant
from natpp.methods.learning import LearnConfig
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import PolicyConfig
from natpp.policies import load_named
from natpp.registry import METHODS, OPS
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.testing import check_method
from tests.fx.fx_models import SMALL as MODULES
from tests.methods.test_learning import OPS5, RULE, SMALL, STRICT, number

FEW_BLOCKS = MODULES["resnet"]
QUICK = LearnConfig(steps=60, inputs=16, learning_rate=5e-3, policy=PolicyConfig(width=16))


def quick(name: str) -> Method:
    """A registered method that learns fast."""
    method = METHODS[name]
    return replace(method, learn=QUICK) if isinstance(method, PolicyMethod) else method


def refused(name: str, subject: str) -> bool:
    """Whether a method says that it cannot work on such subjects: one sentence that names another way."""
    why = METHODS[name].refuses.get(subject, "natpp")
    assert "natpp" in why
    assert "\n" not in why
    return subject in METHODS[name].refuses


@pytest.mark.parametrize("frame", [RULE, STRICT])
@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_keeps_its_promises(name: str, frame: Frame) -> None:
    if not refused(name, "architecture"):
        check_method(quick(name), Subjects(cells_of(SMALL, frame, OPS5)), number)


def few_convolutions(candidates: Sequence[Candidate]) -> Scores:
    """A score of candidates for a module."""
    return -np.array([sum(op.startswith("conv") for block in one.key for op in block) for one in candidates], float)


@pytest.mark.parametrize("budget", ["strict", "rule", {"madds": 0.7}])
@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_works_on_modules(name: str, budget: Any) -> None:
    wanted = Budget.of(budget)
    ask = Decisions(columns=tuple(load_named().ops), share_blocks=not wanted.limits, strict=wanted.strict)
    subjects = Subjects([Module(trace(FEW_BLOCKS(), torch.randn(1, 3, 8, 8)), ask)], wanted)
    if name == "tuned":
        return  # learned on data: tests/methods/test_tuned.py
    if not refused(name, "module"):
        check_method(quick(name), subjects, few_convolutions)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "tuned"])
def test_every_method_makes_a_result_of_either_subject(name: str) -> None:
    for subject, score, asked in (
        ("darts", number_of_pools, {}),
        (FEW_BLOCKS(), few_convolutions, {"example_input": torch.randn(1, 3, 8, 8)}),
    ):
        for budget in ("strict", {"madds": 0.7}):
            scorer = score if METHODS[name].ready("nat++").needs_scores else None
            result = natpp.optimize(subject, name, budget, scorer=scorer, **asked)
            before, after = result.cost_before.live_madds, result.cost_after.live_madds
            assert after <= (before if budget == "strict" else 0.7 * before)
            assert json.loads(json.dumps(result.to_dict()))["settings"]["method"] == name
            assert (result.log_prob is None) == (not isinstance(METHODS[name], PolicyMethod))
            assert str(result)


def number_of_pools(archs: Sequence[Architecture]) -> Scores:
    return np.array([sum("pool" in op for _, graph in arch.cells() for op in graph.ops) for arch in archs], float)


def mean_reached(name: str) -> float:
    inputs = Subjects(cells_of(SMALL, RULE, OPS5))
    generator = np.random.default_rng(0)
    method = quick(name).fit(inputs, number, generator)
    rows = method.propose(inputs, 1, number, generator)
    return float(number([inputs.transformed(index, row) for index, (row,) in enumerate(rows)]).mean())


def test_methods_that_look_at_scores_beat_those_that_do_not() -> None:
    blind = mean_reached("random")
    for name in ("nat++", "constant", "random-best-of-10", "evolution"):
        assert mean_reached(name) > blind + 0.5, name


def test_picking_takes_the_first_best() -> None:
    inputs = Subjects(cells_of(SMALL[:2], RULE, OPS5))
    rows = [[np.array([0, 0, 0]), np.array([1, 1, 1]), np.array([1, 1, 1])], [np.array([0, 0, 0])]]
    chosen = picked(inputs, rows, number)
    assert chosen[0] is rows[0][1]
    assert chosen[1] is rows[1][0]


def test_a_map_for_every_kind_of_cell_serves_graphs_of_all_sizes() -> None:
    space = CellSpace((3, 4, 5))
    inputs = Subjects(
        cells_of(space.draw(40, np.random.default_rng(0)), Frame("nat++", setting("cifar"), strict=True), tuple(OPS))
    )

    def pools(archs: Sequence[Architecture]) -> Scores:
        counted = [[op.count("pool") for op in graph.ops] for arch in archs for _, graph in arch.cells()]
        return -np.array([sum(one) + sum(other) for one, other in zip(counted[::2], counted[1::2], strict=True)], float)

    method = Constant(by_edge=False).fit(inputs, pools, np.random.default_rng(0))
    assert {kind for (kind, _), _ in method.map} == {"normal", "reduce"}
    assert len(method.map) == 2 * 13
    rows = method.propose(inputs, 1, pools, np.random.default_rng(0))
    after = [inputs.transformed(index, row) for index, (row,) in enumerate(rows)]
    assert pools(after).sum() > 0.2 * pools(inputs.given).sum()  # most pools became something else
    going_on = Constant(by_edge=False, sweeps=0, map=dict(method.map))
    assert going_on.fit(inputs, pools, np.random.default_rng(0)).map == method.map
    check_method(Constant(by_edge=False), Subjects(cells_of(SMALL, STRICT, OPS5)), number)


def test_a_knapsack_takes_the_changes_that_are_worth_most() -> None:
    """Worth is known for every change: the plan within the limits is the one that loses the least of it."""
    images = torch.randn(1, 3, 8, 8)
    module = Module(trace(FEW_BLOCKS(), images), Decisions(columns=tuple(load_named().ops), kinds=("operation",)))
    start, chance = (0,) * len(module.decisions), np.random.default_rng(0)
    worth = [chance.uniform(-1, -0.1, len(one.options)) for one in module.decisions]

    def known(candidates: Sequence[Candidate]) -> Scores:
        return np.array([sum(worth[n][option] for n, option in enumerate(one.plan) if option) for one in candidates])

    def total(plan: tuple[int, ...]) -> float:
        return float(known([Candidate(module, plan)])[0])

    subjects = Subjects([module], Budget.of(0.6))
    found = METHODS["knapsack"].answer(subjects, known, natpp.Run()).plan
    limit = subjects.limits(0)["madds"]
    assert module.living(found)["madds"] <= limit
    for _ in range(200):
        drawn = tuple(int(chance.choice(one.allowed)) for one in module.decisions)
        if module.fits(drawn) and module.living(drawn)["madds"] <= limit:
            assert total(drawn) <= total(found) + 1e-9
    assert METHODS["knapsack"].answer(Subjects([module]), known, natpp.Run()).plan == start  # nothing gains
