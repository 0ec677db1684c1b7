"""Rows of operations within a strict budget: the least probable changes are taken back, and nothing gets dearer."""

from collections.abc import Sequence

import numpy as np

from natpp.arch.cost import counts
from natpp.arch.graph import Architecture, Edge, Graph
from natpp.arch.networks import Setting, setting
from natpp.registry import OPS, RULES
from natpp.subjects.cells import Cells, Frame, cells_of
from natpp.subjects.many import Subjects
from tests.strategies import random_architecture

NAMES = tuple(OPS)


def random_setting(generator: np.random.Generator) -> Setting:
    network = str(generator.choice(["cifar", "imagenet", "nasbench201"]))
    return setting(
        network,
        channels=int(generator.integers(2, 48)),
        cells=int(generator.integers(1, 3 if network == "nasbench201" else 6)),
        classes=int(generator.integers(1, 100)),
        size=int(generator.integers(1, 100)),
    )


def test_a_strict_budget_holds_over_3000_random_cases() -> None:
    generator = np.random.default_rng(0)
    rules = tuple(RULES)
    networks = [random_setting(generator) for _ in range(150)]
    repaired = 0
    for case in range(3_000):
        arch = random_architecture(generator)
        where = networks[generator.integers(len(networks))]
        rule = rules[case % 3]
        # half of the transformations ignore the first filter, to try the repair hard
        mask = Cells(arch, Frame(rule, where, strict=case % 2 == 0), NAMES).mask
        row = (generator.random(mask.shape) * mask).argmax(axis=1)
        inputs = Subjects(cells_of([arch], Frame(rule, where), NAMES))
        found = inputs.repaired(0, row, generator.random(len(row)))
        before, now = counts(arch, where), counts(inputs.transformed(0, found), where)
        assert inputs.subjects[0].spent(found)[0] == (now.live_params, now.live_madds)
        assert now.live_params <= before.live_params
        assert now.live_madds <= before.live_madds
        repaired += found is not row
    assert repaired > 150  # else the test would not try anything


def repaired(arch: Architecture, where: Setting, normal: Sequence[str], probability: Sequence[float] = ()) -> list[str]:
    """The operations of the normal cell that these become within the budget."""
    inputs = Subjects(cells_of([arch], Frame("nat", where), NAMES))
    row = np.array([NAMES.index(op) for op in (*normal, *arch.graph("reduce").ops)])
    worth = np.array([*(probability or [1.0] * len(normal)), *[1.0] * (len(row) - len(normal))])
    return [NAMES[op] for op in inputs.repaired(0, row, worth)[: len(normal)]]


def test_the_least_probable_change_goes_first() -> None:
    """Two changes, each alone within budget, together over it: the less probable one is taken back."""
    graph = Graph((Edge("null", 0, 2), Edge("null", 1, 2), Edge("conv_3x3", 2, 3), Edge("conv_3x3", 1, 3)), (3,))
    arch, where = Architecture(graph, graph), setting(channels=8, cells=3)
    fits = ["null", "skip_connect", "conv_3x3", "skip_connect"]
    assert repaired(arch, where, fits) == fits
    revived = ["null", "skip_connect", "conv_3x3", "conv_3x3"]
    assert repaired(arch, where, revived) == list(graph.ops)  # null → skip brought a dead 3x3 conv to life
    cheaper = ["null", "skip_connect", "conv_3x3", "conv_1x1"]
    assert repaired(arch, where, cheaper, [1, 0.2, 1, 0.9]) == ["null", "null", "conv_3x3", "conv_1x1"]


def test_a_new_loose_end_that_widens_the_output_is_over_budget() -> None:
    graph = Graph((Edge("conv_3x3", 0, 2), Edge("conv_3x3", 1, 2), Edge("skip_connect", 2, 3), Edge("null", 0, 3)))
    arch, where = Architecture(graph, graph), setting(channels=8, cells=6)
    after = ["conv_3x3", "conv_3x3", "null", "null"]
    assert counts(arch.with_ops({"normal": after}), where).live_params > counts(arch, where).live_params
    assert repaired(arch, where, after) == list(graph.ops)
