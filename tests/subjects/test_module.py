"""A policy applied to modules: masks, connection, budgets, and what the result says."""

import sys
from collections import Counter
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.functional import one_hot

import natpp
from natpp.arch.decisions import Decisions
from natpp.arch.graph import NULL, SKIP
from natpp.core.budget import SAVES_NOTHING, BudgetError, excess
from natpp.core.decision import Decision, Plan
from natpp.core.measures import figures_of
from natpp.core.solve import with_option
from natpp.errors import GraphError, NatppError, SettingError
from natpp.fx import rewrite as written
from natpp.fx.fake import Values
from natpp.fx.trace import trace
from natpp.methods.candidates import Candidates, View
from natpp.nets import measure
from natpp.nets.measure import module_cost
from natpp.nets.policy import GraphBatch, Policy, Transitions, masked_log_softmax
from natpp.policies import load_named
from natpp.registry import MODELS
from natpp.subjects import module
from natpp.subjects.module import Module
from natpp.subjects.rows import perturbed
from natpp.training.task import Task
from tests.fx.fx_models import SMALL, BasicBlock
from tests.fx.promises import changed_keeps_promises, random_policy, warmed
from tests.optimizing import by_policy, view

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
X32 = torch.randn(1, 3, 32, 32)


def asked(name: str, budget: Any) -> View:
    return view(SMALL[name](), X, budget)


@pytest.mark.parametrize("name", SMALL)
def test_the_shipped_policy_changes_something(name: str) -> None:
    result = natpp.optimize(SMALL[name](), budget="strict", example_input=X)
    assert result.changes
    assert result.cost_after.params <= result.cost_before.params
    assert result.cost_after.madds <= result.cost_before.madds
    assert result.log_prob < 0


class Shortcuts(Policy):
    """Puts in every shortcut there is room for, and changes nothing else."""

    def forward(self, batch: GraphBatch) -> Transitions:
        wanted = batch.ops.masked_fill(batch.ops == self.ops.index(NULL), self.ops.index(SKIP))
        return Transitions(batch, masked_log_softmax(10.0 * one_hot(wanted, len(self.ops)), batch.mask))


def test_a_result_that_saves_nothing_says_so_and_what_to_do() -> None:
    result = by_policy(nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8)), torch.randn(1, 8, 8, 8), Shortcuts())
    assert result.changes
    assert {change.after for change in result.changes} == {SKIP}
    assert str(result).endswith(f"note: {SAVES_NOTHING}")
    cut = by_policy(BasicBlock(8, 8), torch.randn(1, 8, 8, 8), Shortcuts(), budget={"madds": 0.7})
    assert SAVES_NOTHING not in cut.notes


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_random_policies_keep_the_promises(name: str, share: bool) -> None:
    module = warmed(SMALL[name](), X)
    for seed in range(3):
        result = by_policy(module, X, random_policy(seed), mode="sample", seed=seed, share_blocks=share)
        changed_keeps_promises(module, X, result)


def small(name: str, share: bool = True) -> Module:
    return Module(trace(SMALL[name](), X), Decisions(ops=load_named().ops, share_blocks=share))


def allowed(decision: Decision) -> set[str]:
    return {str(option.value) for option in decision.options if option.allowed}


def why_not(decision: Decision, value: str) -> str:
    return decision.options[decision.number(value)].why_not


def test_masks_worked_out_by_hand() -> None:
    found = small("resnet")
    names = [block.name for block in found.first]
    part = found.parts[names.index("layer1.0")]
    normal = found.decisions[part.start : part.stop]
    shortcut = {"null", "skip_connect"}
    conv = {"conv_3x3", "conv_1x1", "sep_conv_3x3", "dil_conv_3x3", "max_pool_3x3", "avg_pool_3x3", *shortcut}
    # node 2: the block needs its input; nodes 3 and 4: convolutions; node 5: one of two terms must stay
    expected = [shortcut, {"skip_connect"}, shortcut, conv, shortcut, conv, shortcut, shortcut]
    assert [allowed(one) for one in normal] == expected
    assert [one.kind for one in normal] == ["term", "term", "term", "operation"] + ["term", "operation"] + ["term"] * 2
    part = found.parts[names.index("conv1")]
    stem = found.decisions[part.start : part.stop]
    assert "null" not in allowed(stem[3])  # nothing else reaches the output
    assert why_not(stem[3], "null") == "connection"
    assert why_not(stem[2], "skip_connect") == "shape"
    assert why_not(normal[3], "conv_5x5") == "rule"


def test_a_projection_stays_or_goes() -> None:
    found = small("resnet")
    part, block = next(pair for pair in zip(found.parts, found.first, strict=True) if pair[1].kind == "reduce")
    by_name = {found.decisions[number].name: found.decisions[number] for number in part}
    assert allowed(by_name["layer2.0.downsample.0"]) == {"skip_connect", "null"}
    first = part[block.ops.index("conv_3x3")]  # of stride 2: as a skip it is a factorized 1x1, which costs less
    assert "skip_connect" in allowed(found.decisions[first])


def test_a_kind_that_is_not_asked_for_stays_as_it_is() -> None:
    found = Module(trace(SMALL["resnet"](), X), Decisions(kinds=("operation",)))
    for one in found.decisions:
        assert one.kind == "operation" or all(option.why_not == "kept" for option in one.options[1:])
    assert any(len(allowed(one)) > 1 for one in found.decisions)
    with pytest.raises(NatppError, match="unknown kind of decision"):
        Decisions(kinds=("operations",)).full()


def test_kept_parts_keep_everything() -> None:
    module = SMALL["resnet"]()
    result = natpp.optimize(
        module, budget="strict", example_input=X, decisions=natpp.Decisions(keep=("layer1", "conv1"))
    )
    assert result.changes
    assert all(change.name.startswith("layer2") for change in result.changes)
    nothing = natpp.optimize(
        module, budget="strict", example_input=X, decisions=natpp.Decisions(keep=(nn.Conv2d, BasicBlock))
    )
    assert not nothing.changes
    assert "nothing" in nothing.notes[-1]
    assert torch.equal(nothing.module.eval()(X), module.eval()(X))


def test_a_kept_stem_leaves_the_branches_behind_it_free() -> None:
    module = natpp.zoo.network("mobilenetv2").eval()
    stem = next(name for name, part in module.named_modules() if isinstance(part, nn.Conv2d))
    keep = natpp.Decisions(keep=[stem])
    result = natpp.optimize(module, budget=0.5, decisions=keep, example_input=torch.randn(1, 3, 64, 64))
    assert result.cost_after.madds <= 0.5 * result.cost_before.madds
    assert torch.equal(result.module.get_submodule(stem).weight, module.get_submodule(stem).weight)


class Twice(nn.Module):
    """Two blocks that add in a kept layer: each alone may drop it, but not both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.kept = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 7, padding=3)
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        kept = self.kept(x)
        return torch.cat([self.first(x) + kept, self.second(x) + kept], 1)


def test_one_of_two_paths_from_a_kept_layer_remains() -> None:
    module = Module(trace(Twice(), X), Decisions(ops=load_named().ops, share_blocks=False))
    plan = [0] * len(module.decisions)
    for name, fits in (("add [0 → 3]", True), ("add_1 [0 → 3]", False)):
        number = next(number for number, one in enumerate(module.decisions) if one.name == name)
        plan[number] = module.decisions[number].number("null")
        assert module.fits(tuple(plan)) == fits
    assert sum(map(bool, module.repaired(tuple(plan), [1.0] * len(plan)))) == 1
    for seed in range(4):
        asked = natpp.Decisions(kinds=("term",), share_blocks=False), natpp.Run(seed=seed)
        made = natpp.optimize(Twice(), "random", decisions=asked[0], run=asked[1], budget=0.8, example_input=X)
        assert "kept.weight" in made.module.state_dict()


def test_a_network_without_sites_comes_back() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    result = natpp.optimize(module, budget="strict", example_input=torch.randn(2, 3, 2, 2))
    assert not result.changes
    assert "nothing changed" in str(result)


@pytest.mark.parametrize("budget", [{"madds": 0.6}, {"params": 0.5}, {"madds": 0.7, "params": 0.8}, {"params": 2000}])
@pytest.mark.parametrize("name", SMALL)
def test_budgets_are_met(name: str, budget: dict[str, float]) -> None:
    module = warmed(SMALL[name](), X)
    for policy in (load_named(), random_policy(1)):
        try:
            result = by_policy(module, X, policy, budget=budget, share_blocks=False)
        except BudgetError:
            assert name == "mobilenet"  # the shapes of its 1x1 convolutions let little go
            continue
        after, before = result.cost_after, result.cost_before
        for cost, wanted in budget.items():
            own = getattr(before, cost)
            assert getattr(after, cost) <= (own * wanted if wanted <= 1 else wanted)
        changed_keeps_promises(module, X, result)


@pytest.mark.parametrize("name", ["resnet20", "resnet56", "shufflenet", "vgg16"])
def test_a_budget_is_met_and_not_undercut_by_much(name: str) -> None:
    model = MODELS[name]
    result = natpp.optimize(model.build(), example_input=torch.randn(1, *model.input_shape), budget={"madds": 0.6})
    assert 0.5 < result.cost_after.madds / result.cost_before.madds <= 0.6
    assert result.settings["share_blocks"] is False  # each block by itself comes nearer
    assert not natpp.optimize(SMALL["vgg"](), example_input=X, budget={"madds": 1.0}).changes  # met as it is


def test_no_change_is_in_vain_or_could_be_milder() -> None:
    """Preferences that favour a cheap change lead there first; another one makes it superfluous, or too strong."""
    found = asked("vgg", {"madds": 0.7})
    for seed in range(5):
        table = perturbed(found.table, np.random.default_rng(seed))
        preferences, plan = found.module.preferences(table), found.within(table)
        for number, option in enumerate(plan):
            for other in found.module.allowed[number] if option else ():
                if not other or preferences[number][other] > preferences[number][option]:
                    milder = found.module.blueprint.cost(with_option(plan, number, other))
                    assert milder is None or milder.living[1] > found.limits["madds"]


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        *((name, {"memory": 0.8}) for name in ("resnet", "bottleneck")),
        *((name, {"memory": 0.9, "madds": 0.8}) for name in ("resnet", "bottleneck")),
        *(("shuffle", {"madds": share}) for share in (0.4, 0.7)),  # blocks go with a dropped branch
    ],
)
def test_no_change_is_in_vain_as_built(name: str, budget: dict[str, float]) -> None:
    found = asked(name, budget)

    def fits(plan: Plan) -> bool:
        return excess(module_cost(found.module.rewritten(plan), X), found.limits) <= 0

    candidates = Candidates(found, found.limits)  # as learning draws them
    for seed in range(4):
        table = perturbed(found.table, np.random.default_rng(seed))
        for plan in (found.within(table), candidates.drawn(table)):
            assert fits(plan)
            for number in np.flatnonzero(plan):
                other = with_option(plan, int(number), 0)
                assert not found.module.fits(other) or not fits(other)


def test_a_budget_of_what_is_counted_builds_only_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    builds, usual = 0, Module.rewritten

    def counting(*given: Any) -> Any:
        nonlocal builds
        builds += 1
        return usual(*given)

    monkeypatch.setattr(Module, "rewritten", counting)
    model = natpp.zoo.network("shufflenet")
    result = natpp.optimize(model, example_input=torch.randn(1, 3, 32, 32), budget={"madds": 0.4})
    assert len(result.changes) > 10
    assert builds == 2  # the module as it is, to measure its peak memory, and the answer


def test_drawn_preferences_draw_from_the_policy() -> None:
    found = asked("resnet", {"madds": 0.8})
    drawn = {found.within(perturbed(found.table, np.random.default_rng(seed))) for seed in range(6)}
    assert len(drawn) > 2
    first, second = (
        by_policy(SMALL["resnet"](), X, load_named(), mode="sample", seed=3, budget={"madds": 0.8}) for _ in range(2)
    )
    assert first.plan == second.plan


def test_a_branch_of_other_operations_is_not_dropped_to_meet_a_budget() -> None:
    """Convolutions that are not square are no sites: they stay."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.squeeze = nn.Conv2d(12, 6, (1, 2), padding="same")
            self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
            self.expand = nn.Conv2d(6, 12, (1, 2), padding="same")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + self.expand(self.depthwise(self.squeeze(x).flip(1))))

    module = nn.Sequential(nn.Conv2d(3, 12, 1), *(Narrow() for _ in range(4)), nn.Conv2d(12, 2, 1))
    kept = {name for name, part in module.named_modules() if name.endswith(("squeeze", "expand"))}
    for seed in range(4):
        result = by_policy(module, X, random_policy(seed), budget={"madds": 0.9}, share_blocks=False)
        assert result.cost_after.madds <= 0.9 * result.cost_before.madds
        assert kept <= {name for name, _ in result.module.named_modules()}
    with pytest.raises(BudgetError, match="nearest allowed"):
        by_policy(module, X, random_policy(0), budget={"madds": 0.5}, share_blocks=False, kinds=("operation", "term"))


def test_memory_and_latency_are_measured() -> None:
    module = SMALL["bottleneck"]().eval()
    result = natpp.optimize(module, example_input=X, budget={"memory": 0.9})
    assert result.cost_after.peak_memory_bytes <= 0.9 * result.cost_before.peak_memory_bytes
    assert result.cost_after.latency_ms is None
    result = natpp.optimize(module, budget=natpp.Budget(timed=True), example_input=X)
    assert result.cost_before.latency_ms > 0
    assert result.cost_after.latency_ms > 0
    assert "latency" in str(result)
    with pytest.raises(BudgetError, match=r"nearest allowed result has .* ms|ms"):
        natpp.optimize(module, example_input=X, budget={"latency": 1e-9})


def test_a_budget_out_of_reach_says_how_near_one_gets() -> None:
    with pytest.raises(BudgetError, match=r"multiply-adds were asked for, the nearest allowed result has .*of the"):
        natpp.optimize(SMALL["vgg"](), example_input=X, budget={"madds": 0.001})
    with pytest.raises(BudgetError, match="parameters"):
        natpp.optimize(nn.Sequential(nn.Flatten(), nn.Linear(768, 3)), example_input=X, budget={"params": 0.5})


@pytest.mark.parametrize(
    ("budget", "keep", "why"),
    [
        ({"madds": 0.001}, (), r"% is in layers whose other options are ruled out \(.*connection.*\)"),
        ({"madds": 0.1}, ("layer1",), r"Of what remains, \d+% is in parts to keep"),
        ({"memory": 0.01}, (), "None of the changes that are left saves any"),
    ],
)
def test_a_budget_out_of_reach_carries_the_nearest_result(
    budget: dict[str, float], keep: tuple[str, ...], why: str
) -> None:
    model, (name,) = natpp.zoo.network("resnet20").eval(), budget
    asked = natpp.Decisions(keep=keep)
    with pytest.raises(BudgetError, match=why) as error:
        natpp.optimize(model, budget=budget, example_input=X32, decisions=asked)
    found = error.value.nearest
    assert found is error.value.nearest
    assert found.module(X32).shape == model(X32).shape
    assert found.settings["name"] == "CifarResNet"
    before, after = figures_of(found.cost_before)[name], figures_of(found.cost_after)[name]
    assert after / before == error.value.shares[name]
    assert error.value.above == pytest.approx(after / before / budget[name] - 1)
    if name == "madds":
        again = natpp.optimize(model, budget=after, example_input=X32, decisions=asked)
        assert again.cost_after.madds <= after


def test_the_nearest_result_is_fitted_to_the_inputs_of_a_task() -> None:
    model = natpp.zoo.network("resnet20").eval()
    with pytest.raises(BudgetError) as error:
        natpp.optimize(model, "nat++", 0.001, example_input=X32, task=Task.inputs([torch.randn(8, 3, 32, 32)]))
    assert any("fitted to what the original computes" in note for note in error.value.nearest.notes)


def test_layers_that_cannot_change_are_named() -> None:
    with pytest.raises(BudgetError, match=r"100% is in layers that natpp cannot change \(Linear\)"):
        natpp.optimize(nn.Sequential(nn.Flatten(), nn.Linear(768, 3)), example_input=X, budget={"params": 0.5})


def test_wrong_settings_say_what_is_wrong() -> None:
    module = SMALL["vgg"]()
    for options, message in (
        ({"budget": {"flops": 0.5}}, "unknown cost 'flops'"),
        ({"budget": {"madds": 0}}, "fraction"),
        ({"budget": "loose"}, "unknown budget"),
        ({"method": "nat++:mode=gredy"}, "greedy"),
        ({"decisions": natpp.Decisions(setting="cifar")}, "only be given with an architecture"),
        ({"scorer": "short"}, "does not use a scorer: leave it out"),
        ({"method": "evolution"}, "evolution chooses by scores: give a scorer, or a task"),
        ({"method": "evolution", "scorer": "table.csv"}, "a table scores architectures"),
    ):
        with pytest.raises(NatppError, match=message):
            natpp.optimize(module, **{"budget": "strict", "example_input": X} | options)
    with pytest.raises(
        SettingError, match=r"a module needs a budget.*natpp.optimize\(model, budget=0.5, example_input"
    ):
        natpp.optimize(module, example_input=X)
    with pytest.raises(SettingError, match="example input"):
        natpp.optimize(module, budget="strict")
    with pytest.raises(SettingError, match="only be given with a module"):
        natpp.optimize("darts", budget="strict", example_input=X)
    with pytest.raises(NatppError, match="expected an architecture"):
        natpp.optimize(3, budget="strict", example_input=X)


def test_the_result_says_what_and_why() -> None:
    result = natpp.optimize(SMALL["vgg"](), budget="strict", example_input=X)
    lines = str(result).splitlines()
    assert lines[0].startswith("features.")
    assert "probability" in lines[0]
    assert any(line.startswith("multiply-adds") for line in lines)
    change = result.changes[0]
    assert result.probabilities[change.name][change.after] == pytest.approx(change.probability)
    assert all(abs(sum(table.values()) - 1) < 1e-5 for table in result.probabilities.values())
    assert set(result.masked["features.0"].values()) <= {"rule", "cost", "shape", "connection"}


def test_what_goes_with_another_block_is_told() -> None:
    """Block 2 reads only its older input, so that block 1 goes too."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *(BasicBlock(4, 4) for _ in range(3)))
    subject = Module(trace(module, X), Decisions(ops=load_named().ops, share_blocks=False))
    plan = [0] * len(subject.decisions)
    for index, op in enumerate(("skip_connect", "null")):
        number = subject.choices[2][index].decision
        plan[number] = subject.decisions[number].number(op)
    made = subject.rewritten(tuple(plan))
    assert not any(name.startswith("1.") for name, _ in made.named_parameters())
    *_, first, second = subject.changes(tuple(plan))
    assert [(one.name, one.after) for one in (first, second)] == [("1.conv1", "null"), ("1.conv2", "null")]


def test_a_block_that_another_bypasses_may_lose_everything() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *(BasicBlock(4, 4) for _ in range(3)))
    subject = Module(trace(module, X), Decisions(ops=load_named().ops, share_blocks=False))
    plan = [0] * len(subject.decisions)

    def choose(block: int, index: int, op: str) -> None:
        number = subject.choices[block][index].decision
        plan[number] = subject.decisions[number].number(op)

    for index, before in enumerate(subject.blocks[1].ops):
        if before != NULL:
            choose(1, index, NULL)
    assert not subject.fits(tuple(plan))  # block 2 still reads it
    with pytest.raises(GraphError, match="nothing reaches the output"):
        subject.rewritten(tuple(plan))
    for index, op in enumerate((SKIP, NULL)):
        choose(2, index, op)
    assert subject.fits(tuple(plan))
    made, _ = subject.built(tuple(plan))
    assert not any(name.startswith("1.") for name, _ in made.named_parameters())
    bypassed = [0 if subject.part_of[number] == 1 else option for number, option in enumerate(plan)]
    assert torch.equal(made(X), subject.rewritten(tuple(bypassed))(X))
    assert {one.name for one in subject.changes(tuple(plan)) if one.after == NULL} >= {"1.conv1", "1.conv2"}


def test_statistics_follow_when_data_is_given() -> None:
    module = warmed(SMALL["resnet"](), X)
    batches = [torch.randn(8, 3, 16, 16) for _ in range(2)]
    plain = natpp.optimize(module, budget="strict", example_input=X).module
    fresh = natpp.optimize(module, budget="strict", example_input=X, task=natpp.Task.inputs(batches)).module
    norms = [name for name, _ in fresh.named_buffers() if name.endswith("running_mean")]
    assert any(not torch.equal(fresh.get_buffer(name), plain.get_buffer(name)) for name in norms)


def test_work_grows_with_the_network() -> None:
    """Calls of functions are counted, which say what time would and do not depend on what else runs."""

    def calls(count: int) -> int:
        module, made = nn.Sequential(*(BasicBlock(4, 4) for _ in range(count))), 0

        def counted(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal made
            made += event == "call"

        sys.setprofile(counted)
        try:
            natpp.optimize(module, budget="strict", example_input=torch.randn(1, 4, 8, 8))
        finally:
            sys.setprofile(None)
        return made

    calls(4)
    small, large = calls(15), calls(60)
    assert large < 5 * small  # four times the sites: linear, but for a little


def test_optimize_copies_and_measures_each_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counter[str]()

    def counted(place: Any, name: str) -> None:
        own = getattr(place, name)

        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return own(*args, **options)

        monkeypatch.setattr(place, name, call)

    counted(module, "module_cost")
    counted(module, "rewrite")
    counted(written, "copied")
    counted(fx.Tracer, "trace")
    counted(measure, "call")
    natpp.optimize(SMALL["resnet"](), budget="strict", example_input=X)
    expected = {"trace": 1, "copied": 1, "rewrite": 2, "module_cost": 3, "call": 3}
    assert counts == expected  # the original, the same as natpp writes it, and the result


def test_subjects_of_one_trace_count_and_measure_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    run, cost = Values.run, module.module_cost

    def noted(what: str, own: Any) -> Any:
        return lambda *args, **kwargs: counted.append(what) or own(*args, **kwargs)

    traced = trace(SMALL["resnet"](), X)
    monkeypatch.setattr(Values, "run", noted("run", run))
    monkeypatch.setattr(module, "module_cost", noted("cost", cost))
    first = Module(traced, Decisions(kinds=("term",)))
    costs = first.own_cost()
    assert {"run", "cost"} == set(counted)
    counted.clear()
    second = Module(traced, Decisions(kinds=("width",)))
    assert second.own_cost() == costs
    assert counted == []
    assert second.blueprint.cost((0,) * len(second.decisions)) is not None
