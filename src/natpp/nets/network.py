"""Networks of any architecture: stem, cells and head, as a trainable `nn.Module`.

`prune=False` also builds what is dead. The names of parameters and the function stay the same: a node without live
inputs is zero, and an edge from it adds nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from natpp.arch.blueprints import CellPart, Placed, alive_in
from natpp.arch.cost import cost_of
from natpp.arch.graph import NUM_INPUTS, Architecture, Graph, Liveness
from natpp.arch.layers import build_chain
from natpp.arch.modules import Layers
from natpp.arch.networks import Block, CellBlock, Setting
from natpp.core.measures import Cost
from natpp.errors import SettingError
from natpp.nets.measure import with_latency
from natpp.registry import OPS


def build_network(
    arch: Architecture, where: Setting, *, prune: bool = True, auxiliary: bool = False, drop_path: float = 0.0
) -> Network:
    """A trainable network of an architecture, with fresh weights."""
    return Network(alive_in(arch, where), prune=prune, auxiliary=auxiliary, drop_path=drop_path)


def network_cost(arch: Architecture, where: Setting, *, latency: bool = False) -> Cost:
    """The exact cost of an architecture; with `latency`, also builds its network and times it on this device."""
    found = cost_of(arch, where)
    if not latency:
        return found
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        image = torch.zeros(1, 3, where.size, where.size, device=device)
        return with_latency(found, build_network(arch, where).to(device), image)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(
            f"cannot time the network on this device: {reason}. Lower channels, cells or size"
        ) from error


class Network(nn.Module):
    """Images (batch, 3, size, size) to logits (batch, classes); in training also auxiliary logits, if any."""

    def __init__(self, placed: Placed, *, prune: bool = True, auxiliary: bool = False, drop_path: float = 0.0):
        super().__init__()
        layout = placed.layout
        self.placed = placed
        self.blocks = nn.ModuleDict()
        for part in placed.parts:
            if prune and not part.live:
                continue
            if isinstance(part, CellPart):
                self.blocks[part.block.name] = Cell(part, prune=prune)
            else:
                self.blocks[part.block.name] = Sum(part.block, reached=placed.reached[part.block.reads[0]])
        self.head = build_chain(layout.head)
        self.auxiliary = AuxiliaryHead(placed) if auxiliary else None
        self._readers = _last_blocks(placed, prune=prune)
        self.drop_path = drop_path

    @property
    def drop_path(self) -> float | Tensor:
        """Probability of dropping an edge for an image in training; a tensor can change between replays of a step."""
        return self._drop_path

    @drop_path.setter
    def drop_path(self, probability: float | Tensor) -> None:
        number = isinstance(probability, int | float) and 0 <= probability < 1
        if not number and not (isinstance(probability, Tensor) and probability.numel() == 1):
            raise SettingError(f"drop_path is {probability!r}, expected a probability from 0 to below 1")
        self._drop_path = probability
        for module in self.blocks.values():
            if isinstance(module, Cell):
                module.drop_path = probability

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        layout = self.placed.layout
        values: dict[int, Tensor] = {0: images}
        extra: Tensor | None = None
        for index, block in enumerate(layout.blocks):
            if block.name not in self.blocks:
                continue
            values[index + 1] = self.blocks[block.name](*self._read(block, values))
            if self.auxiliary is not None and self.training and index + 1 == self.auxiliary.value:
                extra = self.auxiliary(values[index + 1])
            for value in [value for value in values if value and self._readers.get(value, -1) <= index]:
                del values[value]
        if self.placed.reached[-1]:
            last = values[len(layout.blocks)]
        else:  # no live path from the image: the output is constant
            last = images.new_zeros(images.shape[0], layout.width, 1, 1)
        logits: Tensor = self.head(last)
        return logits if extra is None else (logits, extra)

    def _read(self, block: Block | CellBlock, values: dict[int, Tensor]) -> list[Tensor | None]:
        """The values a block reads; a stem or residual block after a dead cell reads zeros."""
        if isinstance(block, Block) and block.reads[0] not in values:
            images = values[0]
            height, width = (-(-side // 2**block.halvings_in) for side in images.shape[2:])
            return [images.new_zeros(images.shape[0], block.channels_in, height, width)]
        return [values.get(value) for value in block.reads]


class Sum(nn.Module):
    """A stem or residual block: the sum of its branches."""

    def __init__(self, block: Block, *, reached: bool):
        super().__init__()
        self.branches = nn.ModuleList(build_chain(chain) for chain in block.branches)
        self.reached = reached  # if not, its value is zero by definition, whatever its batch norms add

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branches[0](x)
        for branch in list(self.branches)[1:]:
            total = total + branch(x)
        return total if self.reached else torch.zeros_like(total)


class Cell(nn.Module):
    """A cell in its place of the network: maps the two values it reads to its concatenated output."""

    def __init__(self, part: CellPart, *, prune: bool):
        super().__init__()
        block, _, graph, liveness = part
        self.block = block
        self.graph = graph
        self.reached = liveness.reached
        self.prune = prune
        self.drop_path: float | Tensor = 0.0
        self.inputs = nn.ModuleDict()
        for node in range(NUM_INPUTS):
            if liveness.inputs[node] or not prune:
                self.inputs[str(node)] = build_chain(block.inputs[node])
        self.edges = nn.ModuleDict()
        for index, edge in enumerate(graph.edges):
            if liveness.live[index] or not (prune or edge.is_null):
                self.edges[str(index)] = OPS[edge.op].build(block.place(edge.source))
        readers = _last_readers(graph, liveness) if prune else {}
        self._freed = [
            [state for state in range(node) if prune and readers.get(state, -1) <= node]
            for node in range(graph.num_nodes)
        ]

    def forward(self, older: Tensor | None, newer: Tensor | None) -> Tensor:
        states: list[Tensor | None] = [None] * self.graph.num_nodes
        for node, value in enumerate((older, newer)):
            if str(node) in self.inputs:
                mapped = self.inputs[str(node)](value)
                states[node] = mapped if self.reached[node] else torch.zeros_like(mapped)
                del mapped
        for node in range(NUM_INPUTS, self.graph.num_nodes):
            states[node] = self._node(node, states)
            for freed in self._freed[node]:
                states[freed] = None
        return self._output(states)

    def _node(self, node: int, states: list[Tensor | None]) -> Tensor | None:
        """The sum over the edges into a node; None if there are none and the network is pruned."""
        total: Tensor | None = None
        for index in self.graph.into(node):
            if str(index) in self.edges:
                total = self._added(total, index, states)
        if total is None and not self.prune:
            source = states[0]
            assert source is not None
            height, width = (-(-side // self.block.stride) for side in source.shape[2:])
            return source.new_zeros(source.shape[0], self.block.channels, height, width)
        return total

    def _added(self, total: Tensor | None, index: int, states: list[Tensor | None]) -> Tensor | None:
        source = self.graph.edges[index].source
        op = self.edges[str(index)]
        state = states[source]
        dropping = self.training and (isinstance(self.drop_path, Tensor) or self.drop_path > 0)
        if isinstance(op, Layers) and total is not None and state is not None and self.reached[source] and not dropping:
            return op.added_to(total, state)
        result: Tensor = op(state)
        if not self.reached[source]:
            return total
        if dropping and not isinstance(op, nn.Identity):
            result = dropped(result, self.drop_path)
        return result if total is None else total + result

    def _output(self, states: list[Tensor | None]) -> Tensor:
        outputs = self.graph.outputs
        found = [state for state in (states[node] for node in outputs) if state is not None]
        if len(outputs) == 1:
            return found[0]
        if len(found) == len(outputs):
            return torch.cat(found, dim=1)
        zeros = torch.zeros_like(found[0])  # a zero node keeps its channels in the concatenation
        whole = [zeros if state is None else state for state in (states[node] for node in outputs)]
        return torch.cat(whole, dim=1)


class AuxiliaryHead(nn.Module):
    """The published auxiliary classifier on the features after the second reduction, for training only."""

    def __init__(self, placed: Placed):
        super().__init__()
        layout = placed.layout
        if layout.auxiliary is None:
            raise SettingError(f"the {layout.setting.network} network has no auxiliary head. Leave out auxiliary")
        self.value, self.stride = layout.auxiliary
        if not placed.parts[self.value - 1].live:
            raise SettingError("nothing live reaches the auxiliary head. Leave out auxiliary")
        block = layout.blocks[self.value - 1]
        self._check(block.size_out, layout.setting.size)
        self.features = nn.Sequential(
            nn.ReLU(),
            nn.AvgPool2d(5, stride=self.stride, count_include_pad=False),
            nn.Conv2d(block.channels_out, 128, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.Conv2d(128, 768, 2, bias=False),
            nn.BatchNorm2d(768),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(768, layout.setting.classes)

    def forward(self, x: Tensor) -> Tensor:
        self._check((x.shape[2], x.shape[3]), None)
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits

    def _check(self, size: tuple[int, int], image: int | None) -> None:
        largest = 5 + 2 * self.stride - 1
        if not all(5 + self.stride <= side <= largest for side in size):
            given = f"images of {image} x {image} give it" if image else "it was given"
            raise SettingError(
                f"the auxiliary head reads features of {5 + self.stride} to {largest} pixels a side, "
                f"but {given} {size[0]} x {size[1]}. Leave out auxiliary or change the image size"
            )


def dropped(x: Tensor, probability: float | Tensor) -> Tensor:
    """Zeroes whole images of x with this probability, and scales up the others to keep the mean."""
    keep = 1 - probability
    kept = torch.rand(x.shape[0], 1, 1, 1, device=x.device) < keep
    return x * (kept / keep).to(x.dtype)


def _last_readers(graph: Graph, liveness: Liveness) -> dict[int, int]:
    """For each node that a live edge or the output reads, its last reader (the output is the node count)."""
    readers = {}
    for edge, alive in zip(graph.edges, liveness.live, strict=True):
        if alive:
            readers[edge.source] = edge.target
    return readers | dict.fromkeys(graph.outputs, graph.num_nodes)


def _last_blocks(placed: Placed, *, prune: bool) -> dict[int, int]:
    """For each value that is read (with `prune`, by what is live), the last block to do so; the head reads the last."""
    readers = {}
    for index, part in enumerate(placed.parts):
        for slot, value in enumerate(part.block.reads):
            if not prune or not isinstance(part, CellPart) or part.liveness.inputs[slot]:
                readers[value] = index
    return readers | {len(placed.parts): len(placed.parts)}
