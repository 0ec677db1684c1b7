"""Sampling: uniform, repeatable, the same one at a time and by the thousand."""

import numpy as np
import pytest

import natpp
from natpp.arch.formats import to_nasbench201
from natpp.arch.networks import setting
from natpp.arch.ops import PAPER_OPS, Place
from natpp.arch.rules import allowed, masks
from natpp.arch.space import CellSpace, dealt_again, named_space, nasbench201_space, sample_batch, space_around
from natpp.errors import NatppError
from natpp.registry import OPS
from natpp.verbs import samples


def test_a_seed_gives_one_architecture() -> None:
    assert natpp.sample(seed=3) == natpp.sample(seed=3) != natpp.sample(seed=4)
    assert samples(20, seed=3)[:5] == samples(5, seed=3)
    assert samples(1, seed=3) == [natpp.sample(seed=3)]
    assert natpp.sample(nodes=7).normal.concat == tuple(range(2, 9))


def test_the_draw_is_uniform() -> None:
    batch = sample_batch(40_000, nodes=4, generator=np.random.default_rng(0))
    shares = np.bincount(batch.ops.ravel(), minlength=13) / batch.ops.size
    assert np.abs(shares - 1 / 13).max() < 0.003  # null included
    for edge in range(8):
        earlier = 2 + edge // 2
        shares = np.bincount(batch.sources[:, :, edge].ravel()) / (2 * len(batch))
        assert len(shares) == earlier
        assert np.abs(shares - 1 / earlier).max() < 0.01
    both = batch.sources[:, 0, 0] == batch.sources[:, 0, 1]
    assert abs(both.mean() - 0.5) < 0.02  # with repetition


def test_masks_of_a_batch_are_those_of_its_architectures() -> None:
    batch = sample_batch(50, nodes=5, generator=np.random.default_rng(1))
    for rule in ("nat", "nat++", "cost"):
        found = batch.masks(rule, channels=16)
        assert found.shape == (50, 2, 10, 13)
        for index in range(50):
            arch = batch[index]
            for cell, (kind, graph) in enumerate(arch.cells()):
                for edge, row in zip(graph.edges, found[index, cell], strict=True):
                    stride = 2 if kind == "reduce" and edge.source < 2 else 1
                    expected = allowed(rule, Place(16, 16, stride), PAPER_OPS)[PAPER_OPS.index(edge.op)]
                    assert (row == expected).all()


@pytest.mark.parametrize("options", [{"nodes": 0}, {"nodes": 1.5}, {"seed": -1}, {"seed": "a"}])
def test_bad_draws_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(NatppError, match="expected a whole number"):
        natpp.sample(**options)


def test_more_than_fits_is_refused() -> None:
    with pytest.raises(NatppError, match="draw fewer"):
        natpp.sample(nodes=10**14)


def test_a_fair_draw_deals_every_operation_out() -> None:
    space = CellSpace((4, 5))
    drawn = space.draw(13, np.random.default_rng(0), fair=True)
    assert {len(arch.normal.edges) for arch in drawn} == {8, 10}
    for kind in ("normal", "reduce"):
        for edge in range(8):
            assert sorted(arch.graph(kind).ops[edge] for arch in drawn) == sorted(PAPER_OPS)
    firsts = [space.draw(1, np.random.default_rng(seed), fair=True)[0].normal.ops[0] for seed in range(2000)]
    shares = np.bincount([PAPER_OPS.index(op) for op in firsts], minlength=13) / 2000
    assert np.abs(shares - 1 / 13).max() < 0.025  # one alone is uniform


def test_one_graph_of_a_space_has_the_same_nodes_read_by_all() -> None:
    space = CellSpace((4, 5))
    graphs = [space.one_graph(np.random.default_rng(seed)) for seed in range(1000)]
    assert {len(graph.arch.normal.edges) for graph in graphs} == {8, 10}
    for kind in ("normal", "reduce"):
        read = [(edge.source, edge.target) for graph in graphs for edge in graph.arch.graph(kind).edges]
        assert set(read) == set(space.choices(kind))
        last = np.array([source for source, target in read if target == 6])
        assert np.abs(np.bincount(last) / len(last) - 1 / 6).max() < 0.03
    for graph in graphs[:20]:
        drawn = graph.draw(15, np.random.default_rng(0), fair=True)
        for kind, cell in graph.arch.cells():
            assert all(len({edge.source for edge in cell.edges if edge.target == node}) == 2 for node in cell.concat)
            assert graph.choices(kind).items() <= space.choices(kind).items()
            assert {tuple((e.source, e.target) for e in arch.graph(kind).edges) for arch in drawn} == {
                tuple((e.source, e.target) for e in cell.edges)
            }
    assert nasbench201_space().one_graph(np.random.default_rng(0)) == nasbench201_space()


def test_operations_dealt_again_are_the_same_on_every_edge() -> None:
    hand = CellSpace((4,)).one_graph(np.random.default_rng(0)).draw(16, np.random.default_rng(1), fair=True)
    again = dealt_again(hand, np.random.default_rng(2))
    assert len(again) == 16
    for kind in ("normal", "reduce"):
        for edge in range(8):
            before, after = ([arch.graph(kind).ops[edge] for arch in some] for some in (hand, again))
            assert sorted(before) == sorted(after)
            assert before != after
    orders = [dealt_again(hand, np.random.default_rng(seed))[0].normal.ops[0] for seed in range(1600)]
    share = [op for arch in hand for op in arch.normal.ops[:1]].count(hand[0].normal.ops[0]) / 16
    assert abs(orders.count(hand[0].normal.ops[0]) / 1600 - share) < 0.03


def test_nasbench201_is_a_space_of_one_graph() -> None:
    space = nasbench201_space()
    assert len(space.ops) == 5
    assert list(space.choices("normal")) == [(1, 2), (1, 3), (2, 3), (1, 4), (2, 4), (3, 4)]
    assert space.outputs("normal") == (4,)
    drawn = space.draw(3000, np.random.default_rng(0))
    assert all("~" in to_nasbench201(arch) for arch in drawn[:20])
    assert 2600 < len(set(drawn)) < 2800  # of 15,625: 2,731 expected


def test_a_space_around_an_architecture_holds_what_it_may_become() -> None:
    darts = natpp.load("darts")
    where = setting("cifar", channels=16, cells=5)
    space = space_around(darts, "nat++", where, strict=True)
    allowed_ops = masks(darts, "nat++", where, strict=True)["normal"]
    for arch in space.draw(50, np.random.default_rng(0), fair=True):
        for number, edge in enumerate(arch.normal.edges):
            assert allowed_ops[number, list(OPS).index(edge.op)]
            assert (edge.source, edge.target) == (darts.normal.edges[number].source, darts.normal.edges[number].target)
    loose = natpp.load("enas")  # concatenates loose ends: which they are depends on the operations
    if loose.normal.concat is None:
        assert len(space_around(loose, "nat++", where, strict=True).outputs("normal")) == len(loose.normal.inputs)


def test_a_space_by_name() -> None:
    assert named_space("cells", [5, 4, 4]) == CellSpace((4, 5))
    assert "sep_conv_7x7" in named_space("cells", extras=True).ops
    assert named_space("nasbench201") == nasbench201_space()
    with pytest.raises(NatppError, match="Did you mean 'cells'"):
        named_space("cell")
    with pytest.raises(NatppError, match="whole numbers from 1 up"):
        named_space("cells", [0])


def test_the_names_of_nodes_are_those_of_inputs() -> None:
    graph = natpp.load("|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_1x1~1|+|skip_connect~0|none~1|avg_pool_3x3~2|").normal
    assert graph.names == (0, 1, 2, 3, 4, 4)  # a node of three inputs is carried by two
