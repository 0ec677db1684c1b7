"""Operations: every registered one keeps its promises, and adding one touches one place."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import natpp
from natpp.arch.graph import Architecture, Edge, Graph
from natpp.arch.layers import BatchNorm, Chain, Conv, ReLU
from natpp.arch.networks import setting
from natpp.arch.ops import PAPER_OPS, Op, Place
from natpp.arch.rules import allowed, masks
from natpp.decisions.edits import block_edits
from natpp.errors import NatppError, SettingError
from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.sites import find_items
from natpp.fx.trace import trace
from natpp.registry import OPS, RULES, Registry
from natpp.testing import check_op, check_rule


@pytest.mark.parametrize("name", list(OPS))
def test_every_operation_keeps_its_promises(name: str) -> None:
    check_op(name)


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_keeps_its_promises(name: str) -> None:
    check_rule(name)


def test_the_thirteen_and_the_extras() -> None:
    assert len(PAPER_OPS) == 13
    extras = {"sep_conv_7x7", "conv_1x3_3x1", "conv_1x7_7x1", "conv_7x1_1x7", "avg_pool_2x2", "max_pool_2x2"}
    assert extras <= {name for name, op in OPS.items() if op.extra}


@pytest.mark.parametrize(
    ("name", "stride", "params", "madds"),
    [
        # worked out by hand for 128 channels on 32 x 32
        ("conv_3x3", 1, 128 * 128 * 9 + 256, 128 * 128 * 9 * 1024),
        ("sep_conv_5x5", 1, 2 * (128 * 25 + 128 * 128 + 256), 2 * (128 * 25 + 128 * 128) * 1024),
        ("sep_conv_5x5", 2, 2 * (128 * 25 + 128 * 128 + 256), 2 * (128 * 25 + 128 * 128) * 256),
        ("dil_conv_3x3", 1, 128 * 9 + 128 * 128 + 256, (128 * 9 + 128 * 128) * 1024),
        ("skip_connect", 1, 0, 0),
        ("skip_connect", 2, 128 * 128 + 256, 128 * 128 * 256),
        ("conv_1x7_7x1", 1, 2 * 128 * 128 * 7 + 256, 2 * 128 * 128 * 7 * 1024),
        ("conv_1x7_7x1", 2, 2 * 128 * 128 * 7 + 256, 128 * 128 * 7 * (512 + 256)),
        ("max_pool_5x5", 2, 0, 0),
        ("null", 2, 0, 0),
    ],
)
def test_costs_worked_out_by_hand(name: str, stride: int, params: int, madds: int) -> None:
    assert OPS[name].cost(Place(128, 128, stride)) == (params, madds)


def test_average_pooling_leaves_the_padding_out() -> None:
    ones = torch.ones(1, 2, 5, 5)
    for name in ("avg_pool_2x2", "avg_pool_3x3", "avg_pool_5x5"):
        for stride in (1, 2):
            out = OPS[name].build(Place(2, 2, stride, (5, 5)))(ones)
            assert torch.equal(out, torch.ones_like(out)), (name, stride)


def test_pooling_2x2_by_hand() -> None:
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    for kind, at_1, at_2 in (
        ("max", [[4, 5, 5], [7, 8, 8], [7, 8, 8]], [[4, 5], [7, 8]]),
        ("avg", [[2, 3, 3.5], [5, 6, 6.5], [6.5, 7.5, 8]], [[2, 3.5], [6.5, 8]]),
    ):
        for stride, expected in ((1, at_1), (2, at_2)):
            out = OPS[f"{kind}_pool_2x2"].build(Place(1, 1, stride, (3, 3)))(image)
            assert torch.equal(out[0, 0], torch.tensor(expected, dtype=torch.float))


def test_a_factorized_reduction_reads_both_diagonals() -> None:
    """With identity weights its halves are x at even pixels and x at odd pixels; beyond an odd border is zero."""
    reduction = OPS["skip_connect"].build(Place(1, 2, 2, (3, 3)))[1]
    torch.nn.init.ones_(reduction.conv_1.weight)
    torch.nn.init.ones_(reduction.conv_2.weight)
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    even, odd = reduction(image)[0]
    assert torch.equal(even, torch.tensor([[0.0, 2], [6, 8]]))
    assert torch.equal(odd, torch.tensor([[4.0, 0], [0, 0]]))
    even, odd = reduction(torch.arange(16.0).reshape(1, 1, 4, 4))[0]
    assert torch.equal(even, torch.tensor([[0.0, 2], [8, 10]]))
    assert torch.equal(odd, torch.tensor([[5.0, 7], [13, 15]]))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((0, 4), "channels, expected at least 1"),
        ((10**9, 4), "must be at most"),
        ((4, 4, 3), "expected 1 or 2"),
        ((4, 4, 1, (0, 4)), "expected at least 1 x 1"),
    ],
)
def test_no_place_to_stand(place: tuple[int, ...], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Place(*place)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "x y"}, "letters, digits and underscores"),
        ({"family": "convv"}, "Did you mean 'conv'?"),
        ({"kernel": -1}, "a kernel of 0 or more"),
        ({"layers": None}, "a function that returns its layers"),
    ],
)
def test_what_is_no_operation_is_refused(options: dict[str, object], words: str) -> None:
    proper = {"name": "x", "family": "conv", "kernel": 3, "layers": OPS["conv_3x3"].layers}
    with pytest.raises(SettingError) as caught:
        Op(**proper | options)
    assert words in str(caught.value)


@pytest.fixture
def ghost() -> Iterator[Op]:
    """An operation added from outside: a grouped 3x3 conv."""

    def layers(place: Place) -> tuple[ReLU, Conv, BatchNorm]:
        groups = 1 if place.channels_in % 2 or place.channels_out % 2 else 2
        stride = (place.stride, place.stride)
        conv = Conv(place.channels_in, place.channels_out, (3, 3), stride, groups=groups)
        return ReLU(), conv, BatchNorm(place.channels_out)

    op = OPS.add("grouped_conv_3x3", Op("grouped_conv_3x3", "conv", 3, layers))
    yield op
    OPS.remove("grouped_conv_3x3")


def test_adding_an_operation_touches_one_place(ghost: Op) -> None:
    check_op(ghost.name)
    graph = Graph((Edge(ghost.name, 0, 2), Edge("conv_5x5", 1, 2)), (2,))
    arch = Architecture(graph, graph)
    where = setting(channels=4, cells=3)
    network = natpp.build(arch, "cifar:channels=4,cells=3")
    assert sum(p.numel() for p in network.parameters()) == natpp.cost(arch, "cifar:channels=4,cells=3").params
    mask = masks(arch, "nat++", where)["normal"]
    assert mask.shape == (2, len(OPS))
    assert mask[1, tuple(OPS).index(ghost.name)]
    assert natpp.load(natpp.arch.formats.to_json(arch)) == arch
    for rule in RULES:
        check_rule(rule)
        assert allowed(rule, Place(4, 4)).shape == (len(OPS), len(OPS))


def test_an_operation_of_one_place_replaces_sites_of_modules() -> None:
    def light(place: Place) -> Chain:
        depthwise = Conv(place.channels_in, place.channels_in, (9, 9), (place.stride,) * 2, groups=place.channels_in)
        return ReLU(), depthwise, Conv(place.channels_in, place.channels_out), BatchNorm(place.channels_out)

    x = torch.randn(1, 4, 16, 16)
    module = nn.Sequential(nn.Conv2d(4, 8, 11, padding=5), nn.Conv2d(8, 8, 9, padding=4, groups=8), nn.Conv2d(8, 8, 3))
    assert find_items(trace(module, x)) == []
    OPS.add("light", Op("light", "sep_conv", 9, light))
    OPS.add("wide", Op("wide", "conv", 11, lambda place: (Conv(place.channels_in, place.channels_out, (11, 11)),)))
    try:
        traced = trace(module, x)
        assert [item.op for item in find_items(traced)] == ["wide", "light"]
        blocks = find_blocks(traced)
        light_ones = [["light" if op == "wide" else op for op in block.ops] for block in blocks]
        made = rewrite(traced, block_edits(blocks, light_ones))
        assert [tuple(part.weight.shape) for part in made.get_submodule("0")] == [(4, 1, 9, 9), (8, 4, 1, 1)]
        assert made(x).shape == module(x).shape
    finally:
        OPS.remove("light")
        OPS.remove("wide")


def test_what_cannot_replace_a_site_says_so(ghost: Op) -> None:
    for op in (ghost, OPS["conv_1x7_7x1"]):
        assert not op.replaces_sites
        with pytest.raises(SettingError, match="cannot replace a site of a module"):
            op.forms(Place(4, 4))


def test_a_registry_answers_with_the_nearest_name() -> None:
    registry: Registry[int] = Registry("number")
    registry.add("seven", 7)
    registry.add("eight", 8)
    with pytest.raises(NatppError, match=r"unknown number 'sevn'\. Did you mean 'seven'\?"):
        registry["sevn"]
    with pytest.raises(NatppError, match="Known: seven, eight"):
        registry["q"]
    with pytest.raises(NatppError, match="already a number named 'seven'"):
        registry.add("seven", 1)
    assert registry.get("nine") is None
    assert dict(registry) == {"seven": 7, "eight": 8}
