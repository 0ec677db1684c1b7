"""Blocks of real networks are those the paper writes."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import natpp
from natpp.arch.graph import Graph
from natpp.decisions.adopt import adopt
from natpp.decisions.edits import block_edits
from natpp.errors import SettingError
from natpp.fx.blocks import Block, find_blocks, grouped
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from tests.fx.fx_models import MOBILE, SMALL, VGG, VGG16, BasicBlock, MobileNetV2, ResNet

NETWORKS = {
    "vgg_block": (lambda: VGG(VGG16), 32),
    "resnet_block": (lambda: ResNet(BasicBlock, (3, 3, 3), width=16), 32),
    "mobilenetv2_block": (lambda: MobileNetV2(MOBILE, stride=1), 64),
}


def blocks_of(module: nn.Module, size: int = 16) -> list[Block]:
    return find_blocks(trace(module, torch.empty(1, 3, size, size)))


def plain(graph: Graph) -> tuple[object, ...]:
    """A graph with every pooling 3x3, skips put in front or convolutions repeated left out."""
    nodes = [[(op.replace("2x2", "3x3"), source) for op, source in inputs] for inputs in graph.inputs]
    kept: list[tuple[tuple[str, int], ...]] = []
    names = {0: 0, 1: 1}
    for number, inputs in enumerate(nodes, start=2):
        found = tuple(sorted((op, names[source]) for op, source in inputs))
        only = [pair for pair in found if pair[0] != "null"]
        last = kept[-1] if kept else None
        repeated = len(only) == 1 and last is not None and only[0][0] in [op for op, _ in last] and "conv" in only[0][0]
        put_in = number == 2 and len(only) == 1 and only[0] == ("skip_connect", 1)
        if put_in:
            names[number] = 1
        elif repeated and only[0][1] == len(kept) + 1:
            names[number] = len(kept) + 1
        else:
            kept.append(found)
            names[number] = len(kept) + 1
    return tuple(kept)


@pytest.mark.parametrize("name", NETWORKS)
def test_traced_blocks_are_the_published_ones(name: str) -> None:
    make, size = NETWORKS[name]
    published = natpp.load(name)
    found = blocks_of(make(), size)
    inner = [block for block in found if sum(site.startswith(("conv", "sep")) for site in block.ops) > 1]
    assert len(inner) >= 5
    for block in inner:
        graph = published.graph(block.kind)
        if name == "mobilenetv2_block" and len(block.items) == 2:
            continue  # the first block has no expansion
        if name == "mobilenetv2_block" and block.kind == "normal" and block.ops[-2] == "null":
            graph = published.graph("reduce")  # the width changes, so there is no shortcut
        if "sep_conv_3x3" in block.ops or name != "mobilenetv2_block":
            assert plain(block.graph) == plain(graph), block.name
    if name == "resnet_block":
        assert all(block.graph == published.graph(block.kind) for block in inner)


@pytest.mark.parametrize("method", ["nat", "natpp"])
@pytest.mark.parametrize("name", NETWORKS)
def test_published_results_can_be_applied(name: str, method: str) -> None:
    make, size = NETWORKS[name]
    module, x = make().eval(), torch.randn(1, 3, size, size)
    traced = trace(module, x)
    blocks = find_blocks(traced)
    ops = adopt(blocks, natpp.load(name), natpp.load(f"{method}_{name}"))
    changed = sum(new != block.ops for new, block in zip(ops, blocks, strict=True))
    assert changed >= 4
    made = rewrite(traced, block_edits(blocks, ops)).eval()
    with torch.no_grad():
        assert made(x).shape == module(x).shape
        if (method, name) == ("nat", "resnet_block"):  # shortcuts alone: nothing changes at first
            assert torch.equal(made(x), module(x))


def test_alike_blocks_are_one_decision() -> None:
    blocks = blocks_of(SMALL["resnet"]())
    groups = grouped(blocks)
    names = [[blocks[index].name for index in group] for group in groups]
    assert names == [["conv1"], ["layer1.0", "layer1.1", "layer1.2", "layer2.1", "layer2.2"], ["layer2.0"]]
    assert len(grouped(blocks, share=False)) == len(blocks)


def test_the_older_input_is_what_the_block_before_read() -> None:
    blocks = blocks_of(SMALL["resnet"]())
    for before, block in pairwise(blocks):
        assert block.inputs[0] is before.inputs[1]


def test_kept_parts_are_no_sites() -> None:
    module, x = SMALL["resnet"](), torch.randn(1, 3, 16, 16)
    traced = trace(module, x)
    names = {block.name for block in find_blocks(traced, keep=["layer1"])}
    assert names == {"conv1", "layer2.0", "layer2.1", "layer2.2"}
    assert not find_blocks(traced, keep=[nn.Conv2d, BasicBlock])
    with pytest.raises(SettingError, match=r"layer3.*Did you mean 'layer1'|layer3"):
        find_blocks(traced, keep=["layer3"])
    with pytest.raises(SettingError, match="names of parts and types"):
        find_blocks(traced, keep=[3])


def test_a_far_shortcut_leaves_inner_blocks_alone() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 8, 3, padding=1)
            self.body = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8), nn.Conv2d(8, 8, 3, padding=1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.head(x)
            return x + self.body(x)

    blocks = blocks_of(Outer())
    inner = natpp.load("resnet_block").normal
    assert [block.graph == inner for block in blocks] == [False, True, True, False]
    older, newer = blocks[-1].inputs
    assert older is blocks[0].items[-1].output
    assert newer is blocks[2].items[-1].output


def test_chains_end_after_a_pooling_and_do_not_grow_for_ever() -> None:
    module = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(12)))
    assert [len(block.items) for block in blocks_of(module)] == [5, 5, 2]
    blocks = blocks_of(VGG(("M",), norm=False)) + blocks_of(VGG((4, 4, "M", 8, "M", 8)))
    assert [len(block.items) for block in blocks] == [1, 3, 2, 1]
