"""A supernet: one network with weights for every operation on every edge, that runs any architecture of a space.

Architectures of a step run side by side: those that picked the same operation on the same edge share
its kernel launches. Each keeps its own images and its own batch statistics, so that it computes what
it would alone. Tensors are (images, architectures, channels, height, width): seen as images times
architectures for a convolution, as architectures times channels for a batch norm, without a copy.

Statistics are always those of the batch, also when scoring: running ones would mix architectures. A
pool is followed by a batch norm without weights, as in the paper. The output of a cell has room for
every node it may concatenate; what an architecture's own list leaves out is zero, so the weights that
read it do not count. Two edges from one node to another share weights where they carry the same operation.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from natpp.arch.graph import NUM_INPUTS, Architecture
from natpp.arch.layers import BatchNorm, Chain
from natpp.arch.layout import Block, CellBlock, CellPart, Setting, layout_of, plan
from natpp.arch.ops import Op, Place
from natpp.arch.space import Space
from natpp.errors import FormatError, SettingError
from natpp.files import write_whole
from natpp.registry import OPS

Term = tuple[Tensor, list[int]]  # a value for some architectures of a step, and their numbers


class Drawn:
    """Architectures as one argument: wrappers of modules look into lists and dataclasses, and leave this alone."""

    def __init__(self, archs: Sequence[Architecture]):
        self.archs = list(archs)


class Supernet(nn.Module):
    """Images to logits for any architectures of a space, in a network of this setting."""

    def __init__(self, space: Space, where: Setting):
        super().__init__()
        self.space = space
        self.where = where
        layout = layout_of(where, (len(space.outputs("normal")), len(space.outputs("reduce"))))
        self.blocks = nn.ModuleList(
            SharedCell(block, space) if isinstance(block, CellBlock) else SharedSum(block) for block in layout.blocks
        )
        self.head = Shared(layout.head)

    def forward(self, images: Tensor, archs: Sequence[Architecture] | Drawn) -> Tensor:
        """Logits (images, architectures, classes).

        Images are (images, 3, height, width), the same for all, or (images, architectures, 3, height, width).
        """
        archs = archs.archs if isinstance(archs, Drawn) else archs
        if images.dim() == 4:
            images = images[:, None]
        if images.shape[1] not in (1, len(archs)):
            raise SettingError(f"images for {images.shape[1]} architectures, but {len(archs)} architectures")
        values = [images]
        for block, route in zip(self.blocks, self.routes(archs), strict=True):
            assert isinstance(block, SharedCell | SharedSum)
            values.append(block([values[value] for value in block.block.reads], route))
        logits: Tensor = self.head(values[-1].expand(-1, len(archs), -1, -1, -1))
        return logits

    def routes(self, archs: Sequence[Architecture]) -> list[Route]:
        """Per block, which architectures need what of it; what is dead in an architecture is left out."""
        routes = [Route(len(archs)) for _ in self.blocks]
        for number, arch in enumerate(archs):
            planned = plan(arch, self.where)
            for block, route, part in zip(self.blocks, routes, planned.parts, strict=True):
                if isinstance(part, CellPart):
                    assert isinstance(block, SharedCell)
                    _add_route(route, number, part, block)
                elif planned.hears[part.block.reads[0]]:
                    route.hearing.append(number)
        return routes

    def save(self, path: str | Path) -> None:
        """Write the weights as one safetensors file."""
        from safetensors.torch import save

        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_whole(path, save(weights, metadata={"natpp": "supernet"}))

    def load(self, path: str | Path) -> None:
        """Read weights that a supernet of the same space and setting wrote; nothing in the file is executed."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            self.load_state_dict(load_file(path))
        except OSError as error:
            raise FormatError(f"cannot read the supernet {str(path)!r}: {error.strerror or error}") from None
        except (SafetensorError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise FormatError(f"{str(path)!r} holds no weights of this supernet, or damaged ones: {reason}") from None


@dataclass
class Route:
    """Which architectures of a step use which part of a block."""

    count: int  # architectures of the step
    hearing: list[int] = field(default_factory=list)  # of a stem or residual block: those with something to read
    inputs: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    edges: dict[tuple[int, int, str], list[int]] = field(default_factory=dict)  # by target, source, operation
    outputs: dict[int, list[int]] = field(default_factory=dict)  # per node: those that concatenate it


def _add_route(route: Route, number: int, part: CellPart, block: SharedCell) -> None:
    names = part.graph.names
    for node, live in enumerate(part.liveness.inputs):
        if live:
            route.inputs[node].append(number)
    for edge, live in zip(part.graph.edges, part.liveness.live, strict=True):
        if live and not edge.fixed:
            source, target = names[edge.source], names[edge.target]
            if (source, target) not in block.choices or edge.op not in block.choices[source, target]:
                raise SettingError(
                    f"the supernet has no weights for {edge.op} from node {source} to node {target} of a "
                    f"{block.block.kind} cell: the architecture is not of the space it was made for"
                )
            route.edges.setdefault((target, source, edge.op), []).append(number)
    if not part.live:
        return
    for node in part.graph.outputs:
        name = names[node]
        if name not in block.outputs:
            raise SettingError(f"the supernet's cells do not concatenate node {name}: it was made for another space")
        route.outputs.setdefault(name, []).append(number)


class Shared(nn.Module):
    """A chain of layers that many architectures go through at once, each with its own batch statistics."""

    def __init__(self, chain: Chain):
        super().__init__()
        layers = [BatchStatistics(one.features) if isinstance(one, BatchNorm) else one.build() for one in chain]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        sizes = x.shape[:2]
        for layer in self.layers:
            if isinstance(layer, BatchStatistics):
                x = layer(x)
            else:
                flat = layer(x.flatten(0, 1))
                x = flat.view(*sizes, *flat.shape[1:])
        return x


class BatchStatistics(nn.Module):
    """Batch norm over (images, architectures, channels, height, width), for each architecture by itself."""

    def __init__(self, features: int | None = None):
        super().__init__()
        self.weight = None if features is None else nn.Parameter(torch.ones(features))
        self.bias = None if features is None else nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        weight, bias = (None if one is None else one.repeat(count) for one in (self.weight, self.bias))
        return F.batch_norm(x.flatten(1, 2), None, None, weight, bias, training=True).view(x.shape)


class SharedSum(nn.Module):
    """A stem or a residual block, the same for all."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = block
        self.branches = nn.ModuleList(Shared(chain) for chain in block.branches)

    def forward(self, reads: list[Tensor], route: Route) -> Tensor:
        total: Tensor = self.branches[0](reads[0])
        for branch in list(self.branches)[1:]:
            total = total + branch(reads[0])
        return _only(total, route.hearing, route.count)


class SharedCell(nn.Module):
    """A cell's place with every operation that may stand in it."""

    def __init__(self, block: CellBlock, space: Space):
        super().__init__()
        self.block = block
        self.choices = space.choices(block.kind)
        self.outputs = space.outputs(block.kind)
        self.inputs = nn.ModuleList(Shared(chain) for chain in block.inputs)
        self.edges = nn.ModuleDict()
        for (source, target), ops in self.choices.items():
            for op in ops:
                if OPS[op].family != "null":
                    self.edges[f"{source}_{target}_{op}"] = _shared_op(OPS[op], block.place(source))

    def forward(self, reads: list[Tensor], route: Route) -> Tensor:
        states: dict[int, Tensor] = {}
        for node in range(NUM_INPUTS):
            if members := route.inputs[node]:
                value = reads[node].expand(-1, route.count, -1, -1, -1)
                states[node] = _sum([(self.inputs[node](_of(value, members)), members)], route.count)
        for target, group in groupby(sorted(route.edges), key=itemgetter(0)):
            terms: list[Term] = []
            for edge in group:
                members = route.edges[edge]
                _, source, op = edge
                terms.append((self.edges[f"{source}_{target}_{op}"](_of(states[source], members)), members))
            states[target] = _sum(terms, route.count)
        return self._output(reads[1], states, route)

    def _output(self, read: Tensor, states: dict[int, Tensor], route: Route) -> Tensor:
        """The nodes of the concat list of each architecture, zeros in the places of others."""
        shape = read.shape[0], route.count, self.block.channels, *(-(-s // self.block.stride) for s in read.shape[3:])
        nodes: list[Tensor] = []
        for node in self.outputs:
            members = route.outputs.get(node, [])
            if node not in states or not members:
                nodes.append(read.new_zeros(shape))
            else:
                nodes.append(_only(states[node], members, route.count))
        return nodes[0] if len(nodes) == 1 else torch.cat(nodes, dim=2)


def _shared_op(op: Op, place: Place) -> Shared:
    """An operation; a pool without a batch norm gets one without weights, so that it does not drown its rivals."""
    chain = op.layers(place)
    shared = Shared(chain)
    if op.family == "pool" and not any(isinstance(layer, BatchNorm) for layer in chain):
        shared.layers.append(BatchStatistics())
    return shared


def _of(value: Tensor, members: list[int]) -> Tensor:
    """What some of the architectures have of a value."""
    if _everyone(members, value.shape[1]):
        return value
    return value.index_select(1, torch.tensor(members, device=value.device))


def _sum(terms: list[Term], count: int) -> Tensor:
    """For every architecture the sum of its terms: each is known for some of them and zero for others."""
    whole = [term for term, members in terms if _everyone(members, count)]
    parts = [(term, members) for term, members in terms if not _everyone(members, count)]
    if not parts:
        return functools.reduce(torch.add, whole)
    first = parts[0][0]
    total = first.new_zeros(first.shape[0], count, *first.shape[2:])
    for term, members in parts:
        total.index_add_(1, torch.tensor(members, device=term.device), term)
    return functools.reduce(torch.add, whole, total)


def _only(value: Tensor, members: list[int], count: int) -> Tensor:
    """The value where these architectures are, zero for others."""
    if _everyone(members, count):
        return value
    chosen = torch.zeros(count, 1, 1, 1, dtype=value.dtype, device=value.device)
    chosen[members] = 1
    return value * chosen


def _everyone(members: list[int], count: int) -> bool:
    """Whether all architectures of a step are meant, each once."""
    return members == list(range(count))
