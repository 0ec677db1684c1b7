"""The supernet: every architecture computes what it would alone, whoever runs beside it."""

import numpy as np
import pytest
import torch
from torch import nn

import natpp
from natpp.arch.graph import Architecture, Graph
from natpp.arch.networks import Setting, setting
from natpp.arch.space import CellSpace, Space, dealt_again, nasbench201_space, space_around
from natpp.errors import SettingError
from natpp.nets.network import Network, build_network
from natpp.nets.routes import Dealt, Members, chosen, summed, zeros
from natpp.nets.supernet import SharedCell, SharedSum, Supernet

CELLS = setting("cifar", channels=4, cells=3, size=8)
NASBENCH = setting("nasbench201", channels=4, cells=1, size=8)


def supernet(space: Space, where=CELLS) -> Supernet:
    torch.manual_seed(0)
    net = Supernet(space, where).double()
    with torch.no_grad():
        for parameter in net.parameters():  # so that scales, shifts and biases count
            parameter.add_(0.3 * torch.randn_like(parameter))
    return net


def copied(net: Supernet, arch: Architecture) -> Network:
    """A network of its own, built by other code, with the supernet's weights."""
    alone = build_network(arch, net.where).double().train()
    parts = alone.placed.parts

    def copy(shared: nn.Module, chain: nn.Module, value: int = 0) -> None:
        """Where a chain reads the output of a cell, only the columns of nodes that the architecture concatenates."""
        columns = None
        if value and isinstance(block := net.blocks[value - 1], SharedCell):
            graph, width = parts[value - 1].graph, block.block.channels
            places = [block.outputs.index(graph.names[node]) for node in graph.outputs]
            columns = [width * place + channel for place in places for channel in range(width)]
        for mine, theirs in zip(shared.parameters(), chain.parameters(), strict=True):
            theirs.data = mine.data[:, columns] if columns and mine.dim() > 1 else mine.data

    for block, part in zip(net.blocks, parts, strict=True):
        if part.block.name not in alone.blocks:
            continue
        built = alone.blocks[part.block.name]
        if isinstance(block, SharedSum):
            for mine, theirs in zip(block.branches, built.branches, strict=True):
                copy(mine, theirs)
            continue
        for node, chain in built.inputs.items():
            copy(block.inputs[int(node)], chain, part.block.reads[int(node)])
        names = part.graph.names
        for index, op in built.edges.items():
            edge = part.graph.edges[int(index)]
            if not edge.fixed:
                copy(block.edges[f"{names[edge.source]}_{names[edge.target]}_{edge.op}"], op)
    copy(net.head, alone.head, len(parts))
    return alone


def _convs(module: nn.Module) -> list[nn.Conv2d]:
    return [one for one in module.modules() if isinstance(one, nn.Conv2d)]


def without_pools(arch: Architecture) -> Architecture:
    """Pools have a batch norm only in the supernet."""
    return arch.with_ops(
        {kind: ["conv_1x1" if "pool" in op else op for op in graph.ops] for kind, graph in arch.cells()}
    )


@pytest.mark.parametrize("seed", range(6))
def test_an_architecture_computes_what_its_own_network_does(seed: int) -> None:
    """With the same weights, batch statistics, concat list and dead parts."""
    generator = np.random.default_rng(seed)
    space = CellSpace((2, 4))
    net = supernet(space)
    images = torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for arch in map(without_pools, space.draw(4, generator)):
        fewer = Architecture(
            Graph(arch.normal.edges, tuple(arch.normal.outputs[-2:])), Graph(arch.reduce.edges, concat=None)
        )
        for one in (arch, fewer):
            if duplicated(one):  # one set of weights in the supernet, two in a network
                continue
            expected = copied(net, one)(images)
            torch.testing.assert_close(net(images, [one])[:, 0], expected)


def duplicated(arch: Architecture) -> bool:
    return any(len(set(inputs)) < len(inputs) for _, graph in arch.cells() for inputs in graph.inputs)


def test_nasbench201_architectures_too() -> None:
    space = nasbench201_space()
    net = supernet(space, NASBENCH)
    images = torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for arch in map(without_pools, space.draw(8, np.random.default_rng(0))):
        torch.testing.assert_close(net(images, [arch])[:, 0], copied(net, arch)(images))
    assert len(net.blocks[1].edges) == 6 * 4  # six edges, four operations besides null


def test_side_by_side_is_as_if_alone_gradients_too() -> None:
    space = CellSpace((3, 4))
    net = supernet(space)
    archs = space.draw(7, np.random.default_rng(1))
    archs[3] = archs[2]  # one that shares every launch
    images = torch.randn(4, 7, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        found = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(net.parameters(), found, strict=True)]

    together = net(images, archs)
    alone = [net(images[:, [i]], [arch]) for i, arch in enumerate(archs)]
    torch.testing.assert_close(together, torch.cat(alone, dim=1))
    for one, other in zip(gradients(together.square().sum()), gradients(torch.cat(alone).square().sum()), strict=True):
        torch.testing.assert_close(one, other)


def test_the_same_operation_on_the_same_edge_is_launched_once() -> None:
    space = nasbench201_space()
    net = supernet(space, NASBENCH)
    arch = natpp.load("|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|none~0|none~1|nor_conv_3x3~2|")
    other = natpp.load("|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|none~0|none~1|nor_conv_1x1~2|")
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)

    def launches(archs: list[Architecture]) -> int:
        calls = []
        hooks = [conv.register_forward_hook(lambda *_: calls.append(1)) for conv in _convs(net)]
        net(images, archs)
        for hook in hooks:
            hook.remove()
        return len(calls)

    alone = launches([arch])
    assert launches([arch] * 9) == alone
    assert launches([arch] * 5 + [other] * 4) == alone + 3  # one cell a stage, one edge more each


def test_nothing_of_the_image_gives_a_constant() -> None:
    space = nasbench201_space()
    net = supernet(space, NASBENCH)
    dead = natpp.load("|none~0|+|none~0|none~1|+|none~0|none~1|none~2|")
    alive = natpp.load("|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|none~0|none~1|nor_conv_3x3~2|")
    logits = net(torch.randn(3, 3, 8, 8, dtype=torch.float64), [dead, alive])
    assert (logits[:, 0] == logits[:1, 0]).all()
    assert (logits[:, 1] != logits[:1, 1]).any()
    alone = net(torch.randn(3, 3, 8, 8, dtype=torch.float64), [dead])
    torch.testing.assert_close(alone[:1, 0], logits[:1, 0])


def test_a_space_around_an_architecture_has_weights_for_what_it_may_become() -> None:
    for name in ("darts", "enas", "naonet"):
        arch = natpp.load(name)
        space = space_around(arch, "nat++", CELLS, strict=False)
        net = Supernet(space, CELLS)
        drawn = space.draw(5, np.random.default_rng(0), fair=True)
        assert net(torch.randn(2, 3, 8, 8), [arch, *drawn]).shape == (2, 6, 10)
        assert all([e.source for e in one.normal.edges] == [e.source for e in arch.normal.edges] for one in drawn)
        with pytest.raises(SettingError, match="no weights for"):
            net(torch.randn(2, 3, 8, 8), [natpp.sample(7, seed=1)])


def test_wrong_images_are_refused() -> None:
    space = nasbench201_space()
    net = Supernet(space, NASBENCH)
    with pytest.raises(SettingError, match="images for 2 architectures"):
        net(torch.randn(2, 2, 3, 8, 8), space.draw(3, np.random.default_rng(0)))


FEW = CellSpace((2, 3), ("null", "skip_connect", "sep_conv_3x3", "avg_pool_3x3"))


@pytest.mark.parametrize(
    ("space", "where", "count"),
    [
        pytest.param(nasbench201_space(), setting("nasbench201", channels=4, cells=2, size=8), 10, id="nasbench201"),
        pytest.param(nasbench201_space(), NASBENCH, 7, id="some operations twice"),
        pytest.param(FEW, CELLS, 6, id="cells"),
    ],
)
def test_dealt_architectures_compute_the_same_in_shapes_that_stay(space: Space, where: Setting, count: int) -> None:
    """Also those of which parts, or the whole, hear nothing; gradients too."""
    net = supernet(space, where)
    images = torch.randn(3, count, 3, 8, 8, dtype=torch.float64)
    generator = np.random.default_rng(0)
    graph = space.one_graph(generator)
    assert Dealt.suits(graph, count)
    hand = graph.draw(count, generator, fair=True)
    dealt, deaf, dead = Dealt(hand, where, torch.device("cpu")), 0, 0
    for _ in range(12):
        archs = dealt_again(hand, generator)
        assert dealt.set(archs)
        found = []
        for given in (archs, dealt):
            logits = net(images, given)
            loss = (logits * torch.arange(1.0, 11.0, dtype=torch.float64)).square().sum()
            found.append((logits, *torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True)))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)
        deaf += sum(not all(arch.normal.liveness().reached) for arch in archs)
        dead += sum(not arch.normal.liveness().output for arch in archs)
    assert deaf
    assert dead or space is FEW


def test_terms_of_two_precisions_are_summed_in_the_higher_one() -> None:
    ones, halves = torch.ones(1, 2, 2, 2, dtype=torch.bfloat16), torch.full((1, 2, 2, 2), 2.0**-10)
    members = Members(torch.tensor([0]), 1)
    for terms in ([(ones, members), (halves, members)], [(halves, members), (ones, members)]):
        found = summed(terms, 2)
        assert found.dtype == torch.float32
        assert (found[0] == 1 + 2.0**-10).all()
        assert (found[1] == 0).all()


def test_other_shapes_are_not_taken_for_the_same() -> None:
    hands = [FEW.one_graph(np.random.default_rng(seed)).draw(4, np.random.default_rng(0), fair=True) for seed in (0, 1)]
    dealt = Dealt(hands[0], CELLS, torch.device("cpu"))
    before = dealt.numbers.clone()
    assert not dealt.set(hands[1])
    assert torch.equal(dealt.numbers, before)
    assert not dealt.set(hands[0][:3])


def test_what_has_no_fixed_shapes_is_not_dealt() -> None:
    assert Dealt.suits(nasbench201_space(), 13)
    assert not Dealt.suits(nasbench201_space(), 4)  # some edge may have nothing but null
    around = space_around(natpp.load("amoebanet"), "nat++", CELLS, strict=False)
    doubled = [(e.source, e.target) for _, graph in around.arch.cells() for e in graph.edges]
    assert len(set(doubled)) < len(doubled)
    assert not Dealt.suits(around, 100)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_values_keep_their_memory_format(memory: torch.memory_format) -> None:
    """Kernels for a GPU read channels-last memory only, so what picks and sums architectures must keep it."""
    value = torch.randn(6, 4, 3, 5).to(memory_format=memory).requires_grad_()
    members = Members(torch.tensor([2, 0]), 2)
    some = chosen(value, members, 3)
    assert some.is_contiguous(memory_format=memory)
    assert torch.equal(some, torch.cat([value[4:], value[:2]]))
    total = summed([(some, members), (some.contiguous(), Members(torch.tensor([1, 0]), 2))], 3)
    assert total.is_contiguous(memory_format=memory)
    torch.testing.assert_close(total, torch.cat([value[:2] + value[:2], value[4:], value[4:]]))
    (gradient,) = torch.autograd.grad(total.sum(), value)
    assert gradient.is_contiguous(memory_format=memory)
    assert zeros((2, 4, 3, 5), value).is_contiguous(memory_format=memory)
