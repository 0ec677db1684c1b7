"""Rules, masks and budgets."""

import numpy as np
import pytest

import natpp
from natpp.arch.formats import parse
from natpp.arch.graph import Architecture, Graph
from natpp.arch.networks import setting
from natpp.arch.ops import PAPER_OPS, Place
from natpp.arch.rules import allowed, changes, masks
from natpp.errors import NatppError
from natpp.registry import OPS, RULES, ZOO

ROW_SIZES = {
    "conv_1x1": 3,
    "conv_3x3": 8,
    "conv_5x5": 13,
    "sep_conv_3x3": 6,
    "sep_conv_5x5": 10,
    "dil_conv_3x3": 5,
    "dil_conv_5x5": 8,
    "max_pool_3x3": 4,
    "max_pool_5x5": 6,
    "avg_pool_3x3": 4,
    "avg_pool_5x5": 6,
    "skip_connect": 2,
    "null": 2,
}
PLACE = Place(128, 128)


def targets(rule: str, op: str, place: Place = PLACE) -> set[str]:
    names = tuple(OPS)
    return {names[column] for column in np.flatnonzero(allowed(rule, place)[names.index(op)])}


def test_the_two_level_rule_has_77_pairs() -> None:
    table = allowed("nat++", PLACE, PAPER_OPS)
    assert table.shape == (13, 13)
    assert dict(zip(PAPER_OPS, table.sum(axis=1).tolist(), strict=True)) == ROW_SIZES
    assert table.sum() == 77


def test_rows_worked_out_by_hand() -> None:
    assert targets("nat", "conv_5x5") == {"conv_5x5", "skip_connect", "null"}
    assert targets("nat", "null") == {"null", "skip_connect"}
    assert targets("nat++", "sep_conv_3x3") == {
        *("sep_conv_3x3", "dil_conv_3x3", "max_pool_3x3", "avg_pool_3x3", "skip_connect", "null")
    }
    assert targets("nat++", "conv_1x1") == {"conv_1x1", "skip_connect", "null"}
    assert targets("nat++", "max_pool_3x3") == {"max_pool_3x3", "avg_pool_3x3", "skip_connect", "null"}
    free = {"null", "skip_connect", "max_pool_3x3", "max_pool_5x5", "avg_pool_3x3", "avg_pool_5x5"}
    assert targets("cost", "null") == targets("cost", "skip_connect") == free
    assert targets("cost", "null", Place(128, 128, 2)) == free - {"skip_connect"}


def test_nat_is_a_part_of_the_two_level_rule() -> None:
    for stride in (1, 2):
        place = Place(36, 36, stride)
        assert not (allowed("nat", place) & ~allowed("nat++", place)).any()


def test_under_cost_nothing_gets_dearer_at_random_places() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        place = Place(
            int(generator.integers(1, 200)),
            int(generator.integers(1, 200)),
            int(generator.integers(1, 3)),
            (int(generator.integers(1, 60)), int(generator.integers(1, 60))),
        )
        table = allowed("cost", place, PAPER_OPS)
        for row, source in enumerate(PAPER_OPS):
            before = OPS[source].cost(place)
            for column, target in enumerate(PAPER_OPS):
                cheaper = all(a <= b for a, b in zip(OPS[target].cost(place), before, strict=True))
                assert table[row, column] == cheaper


def test_extras_stay_or_become_one_of_the_thirteen_that_costs_no_more() -> None:
    assert targets("nat++", "sep_conv_7x7") == set(PAPER_OPS) - {"conv_1x1", "conv_3x3", "conv_5x5"} | {"sep_conv_7x7"}
    assert targets("nat++", "conv_1x3_3x1") == set(ROW_SIZES) - {
        *("conv_3x3", "conv_5x5", "sep_conv_5x5", "dil_conv_5x5", "max_pool_5x5", "avg_pool_5x5")
    } | {"conv_1x3_3x1"}
    assert targets("nat++", "avg_pool_2x2") == {"avg_pool_2x2", "skip_connect", "null"}
    assert targets("nat++", "avg_pool_2x2", Place(128, 128, 2)) == {"avg_pool_2x2", "null"}  # a skip is a conv there
    assert targets("nat", "conv_7x1_1x7") == {"conv_7x1_1x7", "skip_connect", "null"}


def test_masks_at_real_places() -> None:
    arch = natpp.load("vgg_block")
    names = tuple(OPS)
    skip = names.index("skip_connect")
    for strict in (True, False):
        found = masks(arch, "nat", setting(), strict=strict)
        assert {kind: mask.shape for kind, mask in found.items()} == {"normal": (8, len(OPS)), "reduce": (8, len(OPS))}
        assert found["normal"][0, skip]  # null → skip is free at stride 1
        assert found["reduce"][0, skip] == (not strict)  # and a convolution at stride 2
        assert found["normal"].dtype == bool


def test_a_cell_without_reduction_obeys_at_both_strides() -> None:
    arch = Architecture(Graph.from_inputs([[("null", 1), ("conv_3x3", 1)]], [2]))
    skip = tuple(OPS).index("skip_connect")
    assert masks(arch, "nat", setting("nasbench201"))["normal"][0, skip]
    assert not masks(arch, "nat", setting("cifar"))["normal"][0, skip]


def test_fixed_edges_keep_what_they_have() -> None:
    arch = parse("|none~0|+|none~0|none~1|+|none~0|none~1|none~2|")
    mask = masks(arch, "cost", setting("nasbench201"))["normal"]
    for row, edge in zip(mask, arch.normal.edges, strict=True):
        assert (row.sum() == 1) == edge.fixed


def test_the_cell_a_network_does_not_use_still_obeys_the_rule() -> None:
    mask = masks(natpp.load("darts"), "nat", setting("nasbench201"))["reduce"]
    assert (mask.sum(axis=1) <= 3).all()


def test_changes_lists_the_edges_that_differ() -> None:
    found = changes(natpp.load("darts"), natpp.load("natpp_darts"))
    assert [(c.name, c.before, c.after) for c in found] == [
        ("normal 0 → 3", "sep_conv_3x3", "null"),
        ("normal 1 → 3", "sep_conv_3x3", "skip_connect"),
        ("normal 1 → 4", "sep_conv_3x3", "dil_conv_3x3"),
        ("reduce 0 → 2", "max_pool_3x3", "avg_pool_3x3"),
        ("reduce 1 → 3", "max_pool_3x3", "skip_connect"),
        ("reduce 0 → 4", "max_pool_3x3", "avg_pool_3x3"),
    ]
    with pytest.raises(NatppError, match="different graphs"):
        changes(natpp.load("darts"), natpp.load("enas"))


@pytest.mark.parametrize(
    ("method", "rule", "breaches"),
    [
        ("nat", "nat", {"naonet": [("reduce 1 → 2", "avg_pool_2x2", "avg_pool_3x3")]}),
        (
            "natpp",
            "nat++",
            {
                "naonet": [
                    ("normal 0 → 4", "conv_1x1", "max_pool_3x3"),
                    ("reduce 0 → 3", "conv_1x1", "avg_pool_3x3"),
                ]
            },
        ),
    ],
)
def test_published_results_keep_their_rule_but_for_naonet(method: str, rule: str, breaches: dict[str, object]) -> None:
    for name in ("darts", "enas", "naonet", "vgg_block", "resnet_block", "mobilenetv2_block"):
        result = ZOO[f"{method}_{name}"]
        broken = [
            (one.name, one.before, one.after)
            for one in changes(ZOO[name].arch, result.arch)
            if not RULES[rule](OPS[one.before], OPS[one.after], PLACE)
        ]
        assert broken == breaches.get(name, [])
        assert ("breaks" in (result.note or "")) == bool(broken)
