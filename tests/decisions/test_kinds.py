"""Kinds of decisions: the contract of each, and decisions about nodes anywhere in a module."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.node import Node

import natpp
import natpp.decisions
from natpp.arch.decisions import Decisions
from natpp.core.decision import Decision, Option
from natpp.core.solve import with_option
from natpp.decisions.base import NodeKind, NodePlace, Values
from natpp.decisions.layer import LayerKind
from natpp.fx.rewrite import Draft
from natpp.fx.sites import free_layers
from natpp.fx.trace import trace
from natpp.fx.traced import Traced, value
from natpp.registry import KINDS
from natpp.report.contents import page_of
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.testing import NETWORKS, check_decision
from tests.fx.fx_models import SMALL
from tests.fx.promises import random_plan, random_policy, saved_is_the_same

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_of_decision_keeps_its_promises(name: str) -> None:
    check_decision(name)


class Slim(LayerKind):
    """Convolutions and linear layers get a narrow layer in front, a PReLU becomes a ReLU; in sites, too."""

    def options(self, layer: nn.Module) -> Iterable[int]:
        if isinstance(layer, nn.PReLU):
            return (0,)
        return (2, 1) if type(layer) in (nn.Conv2d, nn.Linear) and getattr(layer, "groups", 1) == 1 else ()

    def build(self, layer: Any, option: Any) -> nn.Module:
        if isinstance(layer, nn.PReLU):
            return nn.ReLU()
        like, bias = {"device": layer.weight.device}, layer.bias is not None
        if isinstance(layer, nn.Linear):
            first = nn.Linear(layer.in_features, option, bias=False, **like)
            return nn.Sequential(first, nn.Linear(option, layer.out_features, bias=bias, **like))
        shape = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        first = nn.Conv2d(layer.in_channels, option, *shape, bias=False, **like)
        return nn.Sequential(first, nn.Conv2d(option, layer.out_channels, 1, bias=bias, **like))


class Parts(NodeKind):
    """Two decisions about one linear layer: its rank, and whether it keeps its bias."""

    def find(self, traced: Traced, ask: Decisions) -> Iterator[NodePlace]:
        for node, layer in free_layers(traced, ask.keep):
            if isinstance(layer, nn.Linear):
                yield NodePlace(Decision(f"{node.target} rank", "", (Option("full"), Option(1))), (node,))
                yield NodePlace(Decision(f"{node.target} bias", "", (Option("yes"), Option("no"))), (node,))

    def price(self, traced: Traced, node: Node, values: Values) -> tuple[int, int]:
        layer, (rank, bias) = traced.parts[str(node.target)], values
        weights = layer.weight.numel() if rank == "full" else layer.in_features + layer.out_features
        return weights + layer.out_features * (bias == "yes"), weights * len(value(node))

    def apply(self, draft: Draft, node: Node, values: Values, find: Callable[[Node], Node]) -> Node:
        layer = draft.traced.parts[str(node.target)]
        sides = (
            (layer.in_features, layer.out_features)
            if values[0] == "full"
            else (layer.in_features, 1, layer.out_features)
        )
        bias = values[1] == "yes"

        def make() -> nn.Module:
            layers = [nn.Linear(*pair, bias=bias and pair[1] == sides[-1]) for pair in pairwise(sides)]
            return nn.Sequential(*layers)

        return draft.call(str(node.target), values, make, find(node.all_input_nodes[0]))


@pytest.fixture
def slim() -> Iterator[None]:
    KINDS.add("slim", Slim())
    yield
    KINDS.remove("slim")


@pytest.fixture
def parts() -> Iterator[None]:
    KINDS.add("parts", Parts())
    yield
    KINDS.remove("parts")


@pytest.mark.usefixtures("slim", "parts")
@pytest.mark.parametrize("name", ["slim", "parts"])
def test_kinds_about_nodes_keep_the_promises(name: str) -> None:
    check_decision(name)


@pytest.mark.usefixtures("slim")
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("make", [*NETWORKS, SMALL["resnet"], SMALL["mobilenet"], SMALL["shuffle"]])
def test_decisions_of_every_kind_together_cost_what_is_counted(make: Callable[[], nn.Module], share: bool) -> None:
    x = X[:, :, :8, :8] if make in NETWORKS else X
    module, generator = Module(trace(make().eval(), x), Decisions(share_blocks=share)), np.random.default_rng(0)
    kinds = set()
    for _ in range(12):
        plan = random_plan(module, generator, 0.7)
        made = module.apply(plan)  # it asserts that
        assert made(x).shape == module.given(x).shape
        assert module.plan(module.row(plan)) == plan
        assert module.mask[np.arange(len(plan)), module.row(plan)].all()
        kinds |= {module.decisions[number].kind for number, option in enumerate(plan) if option}
    assert kinds >= {"operation", "slim"}


@pytest.mark.usefixtures("slim")
def test_a_layer_keeps_its_place_in_a_block() -> None:
    """A convolution of a site may change by two decisions: what replaces it as a whole wins."""
    module = Module(trace(SMALL["resnet"]().eval(), X), Decisions(rule="cost"))
    numbers = {one.name: number for number, one in enumerate(module.decisions)}
    assert {"layer1.0.conv1", "layer1.0.conv1 (slim)"} <= numbers.keys()
    start = (0,) * len(module.decisions)
    plan = with_option(start, numbers["layer1.0.conv1 (slim)"], 1)
    made = module.apply(plan)
    assert [part.out_channels for part in made.get_submodule("layer1.0.conv1")] == [
        2,
        module.given.layer1[0].conv1.out_channels,
    ]
    assert made.get_submodule("layer1.0.bn1").weight.equal(module.given.layer1[0].bn1.weight)
    own = module.decisions[numbers["layer1.0.conv1"]]
    skipped = with_option(plan, numbers["layer1.0.conv1"], own.number("skip_connect"))
    assert "layer1.0.conv1" not in dict(module.apply(skipped).named_modules())
    assert [change.name for change in module.other_changes(plan)] == ["layer1.0.conv1 (slim)"]
    assert module.other_changes(skipped) == []
    alone = with_option(start, numbers["layer1.0.conv1"], own.number("skip_connect"))
    assert len({module.key(start), module.key(plan), module.key(skipped)}) == 3
    assert module.key(skipped) == module.key(alone)
    elsewhere = module.told(skipped, ())["elsewhere"]
    assert next(one["spent"][1] for one in elsewhere if one["name"] == "layer1.0.conv1 (slim)") is None


@pytest.mark.usefixtures("slim", "parts")
def test_two_kinds_that_decide_about_one_node_exclude_each_other() -> None:
    module = Module(trace(nn.Sequential(nn.Linear(8, 8)), torch.randn(2, 8)))
    assert [one.kind for one in module.decisions] == ["slim", "parts", "parts"]
    assert module.fits((1, 0, 0))
    assert module.fits((0, 1, 1))
    for plan in ((1, 1, 0), (1, 0, 1)):
        assert not module.fits(plan)
        assert module.blueprint.cost(plan) is None
        assert module.repaired(plan, (1.0, 1.0, 1.0)) == (1, 0, 0)


@pytest.mark.usefixtures("slim")
def test_a_policy_sees_operations_and_terms_only() -> None:
    given = SMALL["resnet"]().eval()
    all_kinds = Module(trace(given, X))
    terms = Module(trace(given, X), Decisions(kinds=("operation", "term")))
    assert all_kinds.seen == terms.seen == len(terms.decisions) < len(all_kinds.decisions)
    assert all_kinds.decisions[: terms.seen] == terms.decisions
    assert len(all_kinds.parts) == len(terms.parts) + len(all_kinds.decisions) - terms.seen
    batches = (Subjects([module]).batch([0]) for module in (all_kinds, terms))
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    result = natpp.optimize(given, random_policy(0), budget="strict", example_input=X)
    assert {change.kind for change in result.changes} <= {"operation", "term"}  # it leaves the others alone


@pytest.mark.usefixtures("slim")
def test_what_a_policy_does_not_see_may_still_meet_a_budget(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 64), nn.Linear(64, 4))
    x = X
    result = natpp.optimize(given.eval(), example_input=x, budget={"params": 0.2})
    (change,) = [change for change in result.changes if change.kind == "slim"]
    assert (change.name, change.before, change.after, change.probability) == ("3", "Linear", 2, None)
    assert "3: Linear → 2\n" in str(result)
    saved_is_the_same(result, x)
    data = json.loads(json.dumps(result.to_dict()))
    place = next(place for place in data["elsewhere"] if place["name"] == "3")
    assert (place["kind"], place["spent"]) == ("slim", [[131136, 262144], [4288, 8448]])
    assert [option["cost"] for option in place["options"]] == [[131136, 262144], [4288, 8448], [2176, 4224]]
    (row,) = [row for row in page_of(data)["changes"] if row["name"] == "3"]
    assert (row["before"], row["after"], row["params"]) == ("Linear", "2", 131136 - 4288)
    assert result.report(tmp_path / "page.html").is_file()


def test_a_decision_is_found_in_a_module_without_blocks(slim: None) -> None:
    given = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))
    for budget in ("strict", {"params": 0.5}):
        result = natpp.optimize(given, example_input=torch.randn(2, 16), budget=budget)
        assert bool(result.changes) == (budget != "strict")
        assert "there is nothing here that natpp can replace" not in result.notes
