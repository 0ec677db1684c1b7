"""Widths: groups of channels worked out by hand, and what narrower networks compute and cost."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import natpp
from natpp.arch.decisions import Decisions
from natpp.core.budget import BudgetError
from natpp.decisions.width import Width
from natpp.fx import follow
from natpp.fx.channels import find_channels
from natpp.fx.trace import trace
from natpp.subjects.module import Module
from tests.decisions.width_models import CASES, Residual, conv, example
from tests.fx.fx_models import SMALL
from tests.fx.promises import outputs, random_plan, saved_is_the_same, warmed

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def subject(name: str) -> Module:
    torch.manual_seed(0)
    return Module(trace(warmed(CASES[name].make(), example(name)), example(name)), Decisions(kinds=("width",)))


@pytest.mark.parametrize("name", CASES)
def test_groups_are_those_worked_out_by_hand(name: str) -> None:
    found = find_channels(trace(CASES[name].make().eval(), example(name)))
    assert [(group.name, len(group.channels), group.times) for group in found.groups] == CASES[name].groups


@pytest.mark.parametrize("name", CASES)
def test_any_width_costs_what_is_counted_and_runs(name: str) -> None:
    module, x = subject(name), example(name)
    start = (0,) * len(module.decisions)
    assert {one.kind for one in module.decisions[module.seen :]} == {"width"}
    assert torch.equal(module.apply(start)(x), module.given(x))
    generator = np.random.default_rng(0)
    for _ in range(6):
        plan = random_plan(module, generator)
        made, cost = module.built(plan)  # it compares the blueprint with what is measured
        assert made(x).shape == module.given(x).shape
        assert module.tally.at(plan).cost[:2] == (cost.params, cost.madds)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("next", "group_norm", "sliced", "heads", "products")]
)
def test_channels_that_nothing_reads_can_go_without_a_change(name: str) -> None:
    """The narrower network computes what the original does when no weight reads what goes."""
    module, x = subject(name), example(name)
    plan = tuple(len(one.options) // 2 if one.kind == "width" else 0 for one in module.decisions)
    (kind,) = {place.by for place in module.elsewhere}
    assert isinstance(kind, Width)
    assert kind.channels is not None
    values = [one.options[option].value for one, option in zip(module.decisions, plan, strict=True)][module.seen :]
    pairs = enumerate(zip(kind.channels.groups, values, strict=True))
    gone = np.concatenate(
        [kind._removed(module.traced, number, value // group.times) for number, (group, value) in pairs]
    )
    with torch.no_grad():
        for node, axes in kind.channels.axes.items():
            for axis in axes:
                part = module.traced.parts.get(str(node.target))
                weight = getattr(part, axis.tensor, None) if axis.tensor else part
                if axis.dim == 1 and isinstance(weight, Tensor):
                    positions = np.flatnonzero(np.isin(axis.channels, gone))
                    grouped = getattr(part, "groups", 1)
                    assert grouped in (1, 3)  # its groups lose the same places
                    weight[:, torch.from_numpy(positions)] = 0
    (before,), (after,) = outputs(module.given, x)[0], outputs(module.apply(plan), x)[0]
    assert torch.allclose(before, after, atol=1e-5)


def test_the_largest_weights_stay() -> None:
    layers = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), conv(8, 2))
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([3.0, 1, 7, 2, 8, 0, 5, 4])[:, None, None, None].expand(8, 3, 3, 3))
        layers[1].weight.copy_(torch.arange(8.0))
    module = Module(trace(layers.eval(), X), Decisions(kinds=("width",)))
    *others, width = module.decisions
    assert [one.value for one in width.options] == list(range(8, 0, -1))
    assert module.apply((*(0 for _ in others), 4)).get_submodule("1").weight.tolist() == [2, 4, 6, 7]


def test_wide_groups_keep_multiples_of_eight() -> None:
    layers = nn.Sequential(conv(3, 64), conv(64, 20), nn.ReLU(), conv(20, 64, groups=4), conv(64, 4))
    module = Module(trace(layers.eval(), X), Decisions(kinds=("width",)))
    values = [[option.value for option in one.options] for one in module.decisions if one.kind == "width"]
    assert values == [[64, 56, 48, 40, 32, 24, 16, 8], [20, 16, 12, 8, 4], [64, 56, 48, 40, 32, 24, 16, 8]]


def test_inputs_outputs_and_kept_parts_stay() -> None:
    x, module = example("residual"), Residual().eval()
    traced = trace(module, x)
    assert [group.name for group in find_channels(traced).groups] == ["stem", "inner"]
    assert [
        group.name for group in find_channels(traced, ("inner",)).groups
    ] == []  # it reads the sums and makes its own
    assert [group.name for group in find_channels(traced, ("last",)).groups] == ["inner"]
    alone = trace(nn.Sequential(conv(3, 8), nn.ReLU()).eval(), x)
    assert find_channels(alone).groups == ()


class Rolled(nn.Module):
    """Operations that channels cannot be followed through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = conv(3, 8), conv(8, 8), conv(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).roll(1, 1)).flip(2))


def test_what_is_not_understood_keeps_its_groups_and_is_named() -> None:
    module = Module(trace(Rolled().eval(), X), Decisions(kinds=("width",)))
    assert [one.name for one in module.decisions if one.kind == "width"] == [
        "second (width)"
    ]  # a flip moves no channels
    assert "the widths next to roll are kept, since channels cannot be followed there" in module.notes
    tokens = find_channels(trace(CASES["tokens"].make().eval(), example("tokens")))
    assert "MultiheadAttention" in tokens.notes[0]


class Reversed(nn.Module):
    """A layer of another package that mixes channels; fresh weights hide it. Its in-place count keeps it whole."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
        return x * self.scale.flip(0)[:, None, None]


def test_a_stranger_that_mixes_channels_keeps_its_groups() -> None:
    found = find_channels(trace(nn.Sequential(conv(3, 8), Reversed(), conv(8, 6), conv(6, 2)).eval(), X))
    assert [group.name for group in found.groups] == ["2"]
    assert "Reversed" in found.notes[0]


def test_groups_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    own = follow.alike

    def counted(*given: Any) -> bool:
        tried.append(type(given[0]).__name__)
        return own(*given)

    monkeypatch.setattr(follow, "alike", counted)
    layers = [part for _ in range(3) for part in (nn.Conv2d(8, 8, 1), nn.InstanceNorm2d(8, affine=True))]
    traced = trace(nn.Sequential(conv(3, 8), *layers, conv(8, 4)).eval(), X)
    found = find_channels(traced)
    assert len(found.groups) == 4
    assert tried == ["InstanceNorm2d"]  # three alike
    assert find_channels(traced) is found
    assert len(find_channels(traced, ("2",)).groups) < 4


def test_a_narrower_stranger_is_saved_and_restored(tmp_path: Path) -> None:
    module, x = subject("strange"), example("strange")
    found = natpp.optimize(module.given, budget={"madds": 0.5}, example_input=x, decisions=Decisions(kinds=("width",)))
    restored = natpp.restore(found.save(tmp_path / "saved"), module.given)
    assert torch.equal(restored(x), found.module(x))


class Asked(nn.Module):
    """A forward that checks a width, and one that computes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = conv(3, 8), conv(8, 8), conv(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.second(x) if x.shape[1] % 4 == 0 else x
        return self.last(x / x.shape[1])


def test_a_number_of_channels_that_the_forward_uses_stays() -> None:
    assert find_channels(trace(Asked().eval(), X)).groups == ()


def test_a_width_excludes_another_operation_at_the_same_site() -> None:
    module = Module(trace(SMALL["resnet"]().eval(), X), Decisions(kinds=("operation", "term", "width")))
    site = next(number for number, one in enumerate(module.decisions) if one.name == "layer1.0.conv1")
    width = next(number for number, one in enumerate(module.decisions) if one.name == "layer1.0.conv1 (width)")
    other = next(number for number, one in enumerate(module.decisions) if one.name == "layer2.1.conv1 (width)")
    plan = [0] * len(module.decisions)
    plan[site], plan[other] = module.decisions[site].allowed[1], 1
    assert module.fits(tuple(plan))
    module.built(tuple(plan))
    plan[width] = 1
    assert not module.fits(tuple(plan))
    assert module.blueprint.cost(tuple(plan)) is None
    repaired = module.repaired(tuple(plan), [0.0] * len(plan))
    assert (repaired[site], repaired[width], repaired[other]) == (plan[site], 0, 1)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*SMALL, *CASES]), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_any_plan_of_all_kinds_costs_what_is_counted(name: str, seed: int, changed: float) -> None:
    module = all_kinds(name)
    plan = random_plan(module, np.random.default_rng(seed), changed)
    _, cost = module.built(plan)
    tally = module.tally.at(plan)
    assert (*tally.cost[:2], tally.missing) == (cost.params, cost.madds, 0)
    (total,), (connected,) = module.blueprint.costs(np.array([plan]))
    assert connected
    assert (total[0], total[1]) == (cost.params, cost.madds)


KNOWN: dict[str, Module] = {}


def all_kinds(name: str) -> Module:
    if name not in KNOWN:
        module, x = (SMALL[name](), X) if name in SMALL else (CASES[name].make(), example(name))
        KNOWN[name] = Module(trace(module.eval(), x), Decisions(kinds=("operation", "term", "width"), strict=False))
    return KNOWN[name]


BUDGETS = {"mobilenet": 0.2, "bottleneck": 0.1, "mobile": 0.4, "next": 0.4, "halves": 0.1, "flat": 0.18, "line": 0.7}


@pytest.mark.parametrize("name", [*BUDGETS, "tokens"])
def test_a_budget_that_other_kinds_cannot_meet_is_met_by_widths(name: str) -> None:
    module, x = (SMALL[name](), X) if name in SMALL else (CASES[name].make(), example(name))
    module, budget = warmed(module, x), {"madds": BUDGETS.get(name, 0.9)}
    usual = natpp.Decisions(kinds=("operation", "term"))
    with pytest.raises(BudgetError):
        natpp.optimize(module, budget=budget, example_input=x, decisions=usual)
    result = natpp.optimize(module, budget=budget, example_input=x)
    assert result.cost_after.madds <= budget["madds"] * result.cost_before.madds
    assert {change.kind for change in result.changes} == {"width"}
    assert all(change.probability is None for change in result.changes)
    saved_is_the_same(result, x)


@pytest.mark.parametrize("method", ["random", "nat++:mode=sample"])
def test_other_methods_pick_widths_too(method: str) -> None:
    every = natpp.Decisions(kinds=("operation", "term", "width"))
    for budget in ("strict", {"madds": 0.5}):
        result = natpp.optimize(SMALL["bottleneck"]().eval(), method, budget, example_input=X, decisions=every)
        assert result.subject.fits(result.plan)
        assert result.cost_after.madds <= result.cost_before.madds
    chance = natpp.optimize(SMALL["bottleneck"]().eval(), "random", budget="strict", example_input=X, decisions=every)
    assert "width" in {change.kind for change in chance.changes}


def test_a_budget_that_no_kind_meets_names_the_nearest_result() -> None:
    module, x = CASES["flat"].make().eval(), example("flat")
    shares = []
    for kinds in (("width",), ("operation", "term"), ()):
        asked = natpp.Decisions(kinds=kinds)
        with pytest.raises(BudgetError, match="nearest allowed") as error:
            natpp.optimize(module, budget={"madds": 0.001}, example_input=x, decisions=asked)
        shares.append(error.value.above)
    assert shares[2] <= min(shares[:2])


def test_a_budget_that_other_kinds_meet_is_met_by_them() -> None:
    module = SMALL["resnet"]()
    result = natpp.optimize(module, budget={"madds": 0.6}, example_input=X)
    assert {change.kind for change in result.changes} <= {"operation", "term"}
    assert not any("width" in one.kind for one in result.subject.decisions)


PRUNING = importlib.util.find_spec("torch_pruning")


@pytest.mark.skipif(
    PRUNING is None, reason="torch-pruning is not installed: pip install --no-deps torch-pruning==1.6.1"
)
@pytest.mark.parametrize("name", [*SMALL, "residual", "mobile", "flat", "next"])
def test_groups_are_those_of_torch_pruning(name: str) -> None:
    import torch_pruning

    module, x = (SMALL[name](), X) if name in SMALL else (CASES[name].make(), example(name))
    module = module.eval()
    found = find_channels(trace(module, x))
    graph = torch_pruning.DependencyGraph().build_dependency(module, example_inputs=x, verbose=False)
    paths = {part: path for path, part in module.named_modules()}
    for group in found.groups:
        makers = {str(node.target) for node, _ in group.makers}
        layer = module.get_submodule(str(group.makers[0][0].target))
        theirs = graph.get_pruning_group(layer, graph.get_pruner_of_module(layer).prune_out_channels, [0])
        made = {
            paths[item.dep.target.module]
            for item in theirs
            if item.dep.target.module in paths
            and isinstance(item.dep.target.module, nn.Conv2d | nn.Linear)
            and item.dep.handler.__name__ == "prune_out_channels"
            and getattr(item.dep.target.module, "groups", 1) == 1
        }
        assert makers == made, group.name
