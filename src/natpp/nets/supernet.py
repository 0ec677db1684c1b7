"""A supernet: one network with weights for every operation on every edge; runs any architecture of a space.

The architectures of a step run side by side, each with its own images and batch statistics, so its output is the same
as if it ran alone. Tensors are (architectures * images, channels, height, width).

Batch norms always use batch statistics, also when scoring, since running statistics would mix architectures. Pools are
followed by a batch norm without weights, as in the paper. Nodes that an architecture does not concatenate are zero in
the output of its cell. Two edges between the same nodes share the weights of an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from natpp import kernels
from natpp.arch.graph import Architecture
from natpp.arch.layers import BatchNorm, Chain
from natpp.arch.modules import Batched, along
from natpp.arch.networks import Block, CellBlock, Setting, layout_of
from natpp.arch.ops import Op, Place
from natpp.arch.space import Space
from natpp.errors import FormatError, SettingError
from natpp.files import write_whole
from natpp.nets.routes import Route, Routed, apart, chosen, needed, only, summed, zeros
from natpp.registry import OPS

OUTSIDE = "the architecture is outside the space that it was built for"


class Drawn:
    """Architectures as one argument that module wrappers pass on as it is, unlike lists and dataclasses."""

    def __init__(self, archs: Sequence[Architecture]):
        self.archs = list(archs)


class Supernet(nn.Module):
    """Images to logits for any architectures of a space, in the network of a setting."""

    def __init__(self, space: Space, where: Setting):
        super().__init__()
        self.space = space
        self.where = where
        layout = layout_of(where, (len(space.outputs("normal")), len(space.outputs("reduce"))))
        self.blocks = nn.ModuleList(
            SharedCell(block, space) if isinstance(block, CellBlock) else SharedSum(block) for block in layout.blocks
        )
        self.head = Shared(layout.head)

    def forward(self, images: Tensor, archs: Sequence[Architecture] | Drawn | Routed) -> Tensor:
        """Logits (images, architectures, classes).

        Images are (images, 3, height, width), the same for all, or (images, architectures, 3, height, width).
        """
        routes = (archs if isinstance(archs, Routed) else self.routed(archs, images.device)).routes
        count = routes[0].count
        if images.dim() == 4:
            images = images[:, None]
        if images.shape[1] not in (1, count):
            raise SettingError(f"got images for {images.shape[1]} architectures, expected {count}")
        value = images.transpose(0, 1).expand(count, -1, -1, -1, -1).flatten(0, 1)
        values = [value.contiguous(memory_format=torch.channels_last) if value.is_cuda else value]
        for block, route in zip(self.blocks, routes, strict=True):
            assert isinstance(block, SharedCell | SharedSum)
            values.append(block([values[value] for value in block.block.reads], route))
        logits: Tensor = self.head(values[-1], count)
        return apart(logits, count).transpose(0, 1)

    def routed(self, archs: Sequence[Architecture] | Drawn, device: torch.device) -> Routed:
        """Which architectures need which parts; raises an error if one is not in the space."""
        routes = needed(archs.archs if isinstance(archs, Drawn) else archs, self.where, device)
        for block, route in zip(self.blocks, routes, strict=True):
            if isinstance(block, SharedCell):
                block.check(route)
        return Routed(routes)

    def save(self, path: str | Path) -> None:
        """Write the weights as one safetensors file."""
        from safetensors.torch import save

        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_whole(path, save(weights, metadata={"natpp": "supernet"}))

    def load(self, path: str | Path) -> None:
        """Load weights saved by a supernet of the same space and setting; nothing in the file is executed."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            self.load_state_dict(load_file(path))
        except OSError as error:
            raise FormatError(f"cannot read the supernet {str(path)!r}: {error.strerror or error}") from None
        except (SafetensorError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise FormatError(
                f"{str(path)!r} does not hold the weights of this supernet, or it is damaged: {reason}"
            ) from None


class Shared(nn.Module):
    """A chain of layers applied to many architectures at once, each with its own batch statistics."""

    def __init__(self, chain: Chain):
        super().__init__()
        layers = [BatchStatistics(one.features) if isinstance(one, BatchNorm) else one.build() for one in chain]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, count: int) -> Tensor:
        def call(layer: nn.Module, value: Tensor) -> Tensor:
            found: Tensor = layer(value, count) if isinstance(layer, BatchStatistics) else layer(value)
            return found

        return along(list(self.layers), x, call, count)


class BatchStatistics(Batched):
    """Batch norm with separate statistics for each architecture, always those of the batch."""

    def __init__(self, features: int | None = None):
        super().__init__()
        self.weight = None if features is None else nn.Parameter(torch.ones(features))
        self.bias = None if features is None else nn.Parameter(torch.zeros(features))

    def of_batch(self) -> kernels.Norm | None:
        return None if self.weight is None or self.bias is None else kernels.Norm(self.weight, self.bias)

    def forward(self, x: Tensor, count: int) -> Tensor:
        if kernels.fast(x):
            return kernels.batch_norm(x, self.weight, self.bias, groups=count)[0]
        by_image = apart(x, count).transpose(0, 1)
        weight, bias = (None if one is None else one.repeat(count) for one in (self.weight, self.bias))
        found = F.batch_norm(by_image.flatten(1, 2), None, None, weight, bias, training=True)
        return found.view(by_image.shape).transpose(0, 1).reshape(x.shape)


class SharedSum(nn.Module):
    """A stem or residual block, shared by all architectures."""

    def __init__(self, block: Block):
        super().__init__()
        self.block = block
        self.branches = nn.ModuleList(Shared(chain) for chain in block.branches)

    def forward(self, reads: list[Tensor], route: Route) -> Tensor:
        total: Tensor = self.branches[0](reads[0], route.count)
        for branch in list(self.branches)[1:]:
            total = total + branch(reads[0], route.count)
        return only(total, route.hearing, route.count)


class SharedCell(nn.Module):
    """A cell with every operation that its edges may carry."""

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

    def check(self, route: Route) -> None:
        """Raise an error for architectures outside the space of this supernet."""
        for target, source, op in route.edges:
            if op not in self.choices.get((source, target), ()):
                raise SettingError(
                    f"the supernet has no weights for {op} from node {source} to node {target} of a "
                    f"{self.block.kind} cell: {OUTSIDE}"
                )
        for node in route.outputs:
            if node not in self.outputs:
                raise SettingError(f"the supernet's cells do not concatenate node {node}: {OUTSIDE}")

    def forward(self, reads: list[Tensor], route: Route) -> Tensor:
        inputs: dict[int, Tensor] = {}
        for node, members in enumerate(route.inputs):
            if members is not None:
                mapped = self.inputs[node](chosen(reads[node], members, route.count), members.size)
                inputs[node] = summed([(mapped, members)], route.count)
        return self._output(reads[1], route.states(inputs, self._along), route)

    def _along(self, source: int, target: int, op: str, x: Tensor, count: int) -> Tensor:
        found: Tensor = self.edges[f"{source}_{target}_{op}"](x, count)
        return found

    def _output(self, read: Tensor, states: dict[int, Tensor], route: Route) -> Tensor:
        """The nodes of the concat list of each architecture, zeros in the places of others."""
        shape = len(read), self.block.channels, *(-(-side // self.block.stride) for side in read.shape[2:])
        nodes: list[Tensor] = []
        for node in self.outputs:
            if node not in states or node not in route.outputs:
                nodes.append(zeros(shape, read))
            else:
                nodes.append(only(states[node], route.outputs[node], route.count))
        return nodes[0] if len(nodes) == 1 else torch.cat(nodes, dim=1)


def _shared_op(op: Op, place: Place) -> Shared:
    """An operation; pools get a batch norm without weights, so that all operations have outputs of the same scale."""
    chain = op.layers(place)
    shared = Shared(chain)
    if op.family == "pool" and not any(isinstance(layer, BatchNorm) for layer in chain):
        shared.layers.append(BatchStatistics())
    return shared
