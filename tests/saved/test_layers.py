"""The layers of a result: their costs add up to those of the result, and every change can be read off them."""

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import natpp
from natpp.core.result import Result
from natpp.registry import LAYERS
from natpp.zoo import network

KINDS = ("operation", "term", "width", "rank")


class Mixed(nn.Module):
    """Functions with parameters or other arguments in training, a layer that is called twice, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.twice = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.weight = nn.Parameter(torch.randn(32, 4, 3, 3))
        self.unused = nn.Parameter(torch.randn(7))
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.twice(self.twice(x)))
        x = F.conv2d(x, self.weight, stride=2, padding=1, groups=4).flatten(2).transpose(1, 2)
        x = F.dropout(x, 0.1, self.training)
        return self.last(self.attention(x, x, x)[0].mean(1))


def changed(result: Result, plan: tuple[int, ...]) -> Result:
    """The result under another plan."""
    after, cost = result.subject.made(plan)
    return replace(result, plan=plan, after=after, cost_after=cost, changes=result.subject.changes(plan))


def result_of(module: nn.Module, size: int = 16) -> Result:
    asked = natpp.Decisions(kinds=KINDS)
    return natpp.optimize(module, budget=0.97, example_input=torch.randn(1, 3, size, size), decisions=asked)


def assert_adds_up(result: Result) -> None:
    rows = result.layers
    for figure in ("params", "madds"):
        costs = (getattr(cost, f"live_{figure}") for cost in (result.cost_before, result.cost_after))
        assert [sum(row[figure][side] for row in rows) for side in (0, 1)] == list(costs)


@pytest.mark.parametrize("name", list(LAYERS))
def test_every_list_of_layers_is_json_and_adds_up(name: str) -> None:
    results = {one.subject.name: one for one in (result_of(network("resnet20"), 32), natpp.optimize("darts"))}
    rows = LAYERS[name](results[name])
    assert json.loads(json.dumps(rows)) == rows
    assert len({row["name"] for row in rows}) == len(rows) > 0
    assert_adds_up(results[name])


@pytest.mark.parametrize("make", [lambda: network("resnet20"), lambda: network("shufflenet"), Mixed])
def test_the_costs_add_up_under_every_plan(make: Callable[[], nn.Module]) -> None:
    result, generator = result_of(make(), 32), random.Random(0)
    for share in (0.1, 0.5, 0.9):
        options = [
            generator.choice(one.allowed) if generator.random() < share else 0 for one in result.subject.decisions
        ]
        one = changed(result, result.subject.repaired(tuple(options), [0.0] * len(options)))
        assert_adds_up(one)
        rest = [row for row in one.layers if row["name"] == "everything else"]
        assert [row["params"] for row in rest] == ([[7, 0]] if make is Mixed else [])
        assert all(row["madds"] == [0, 0] for row in rest)


def test_a_layer_says_what_it_is() -> None:
    found = {row["name"]: row for row in result_of(Mixed(), 32).layers}
    whole = {name: row["before"] for name, row in found.items()}
    assert whole["first"] == [{"op": "3x3", "channels": [3, 16]}]
    assert whole["twice"] == [{"op": "3x3", "channels": [16, 16]}]
    assert whole["weight"] == [{"op": "3x3 in 4 groups", "channels": [16, 32]}]
    assert whole["attention"] == [{"op": "MultiheadAttention"}]
    assert whole["last"] == [{"op": "linear", "channels": [32, 10]}]
    assert "norm" not in found
    assert found["first"]["params"][0] == 3 * 16 * 9 + 16 + 2 * 16  # the norm counts here
    assert found["twice"]["madds"][0] == 2 * 16 * 16 * 9 * 32 * 32


def test_widths_and_chains_can_be_read() -> None:
    result = result_of(network("resnet20"), 32)
    names = [one.name for one in result.subject.decisions]
    width, rank = names.index("layer3.1.conv1 (width)"), names.index("layer3.2.conv2 (rank)")
    plan = [0] * len(names)
    plan[width] = result.subject.decisions[width].number(40)
    plan[rank] = result.subject.decisions[rank].number("tucker 2/8 3/8")
    found = changed(result, tuple(plan)).layers
    moved = {row["name"]: row["after"] for row in found if row["before"] != row["after"]}
    assert moved == {
        "layer3.1.conv1": [{"op": "3x3", "channels": [64, 40]}],
        "layer3.1.conv2": [{"op": "3x3", "channels": [40, 64]}],
        "layer3.2.conv2": [
            {"op": "1x1", "channels": [64, 16]},
            {"op": "3x3", "channels": [16, 24]},
            {"op": "1x1", "channels": [24, 64]},
        ],
    }
    assert [row["name"] for row in found][-3:] == ["layer3.2.conv1", "layer3.2.conv2", "fc"]


def test_a_result_that_was_converted_is_still_listed() -> None:
    result = result_of(network("resnet20"), 32)
    before = result.layers
    result.module.double()
    assert result.layers == before
    assert replace(result, after=nn.Identity()).layers == before  # another module has taken its place


def test_an_architecture_lists_none() -> None:
    assert natpp.optimize("darts").layers == []
