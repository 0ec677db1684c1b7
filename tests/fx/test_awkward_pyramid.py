"""Feature pyramids: a value whose shape is looked at is not computed for its shape alone."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import natpp
from natpp.decisions.edits import block_edits
from natpp.fx.blocks import find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from tests.fx.promises import keeps_promises


def conv(wide: int, out: int, stride: int = 1, kernel: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(wide, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)
    )


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(3, 4), conv(4, 8, 2), conv(8, 16, 2)])
        self.lateral = nn.ModuleList(conv(wide, 8, kernel=1) for wide in (4, 8, 16))
        self.smooth = nn.ModuleList(conv(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for down, lateral in zip(self.down, self.lateral, strict=True):
            x = down(x)
            maps.append(lateral(x))
        for index in (1, 0):
            size = maps[index].shape[2:]
            maps[index] = maps[index] + F.interpolate(maps[index + 1], size=size, mode="nearest")
        return [smooth(given) for smooth, given in zip(self.smooth, maps, strict=False)]


def test_pyramid() -> None:
    keeps_promises(Pyramid(), torch.randn(2, 3, 8, 8), seeds=2, deploys=False)


def test_what_is_looked_at_goes_on_being_read() -> None:
    result = natpp.optimize(Pyramid(), budget="strict", example_input=torch.randn(2, 3, 8, 8))
    assert result.masked["add [0 → 3]"]["null"] == "connection"


class Fused(nn.Module):
    """Two resolutions that add each other in after blocks with activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 4, kernel=7)
        self.wide = nn.ModuleList(nn.Sequential(conv(4, 4), nn.Conv2d(4, 4, 1)) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)
        self.down, self.narrow = conv(4, 8, 2), conv(4, 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        first, second = (self.relu(wide(x) + x) for wide in self.wide)
        return self.narrow(first) + self.down(second)


def test_what_nothing_reads_any_more_goes_with_its_copy() -> None:
    traced = trace(Fused(), torch.randn(2, 3, 8, 8))
    blocks, gone = find_blocks(traced), ("wide.1.0.0", "down.0")
    names = [[block.edge_name(index) for index in range(len(block.terms))] for block in blocks]
    ops = [
        ["null" if name in gone else op for name, op in zip(row, block.ops, strict=True)]
        for row, block in zip(names, blocks, strict=True)
    ]
    made = rewrite(traced, block_edits(blocks, ops))  # wide.1 is only its shortcut, copied for the activation; unread
    assert not [node for node in made.graph.nodes if not node.users and node.op != "output"]
