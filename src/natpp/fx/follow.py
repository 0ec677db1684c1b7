"""Follows the channels that layers make, node by node, through a traced graph.

Elements that have to stay or go together get the same channel. An operation that is not understood
fixes the channels that it reads.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.node import Node, map_arg

from natpp.fx.aliasing import idle
from natpp.fx.alike import call_key
from natpp.fx.labels import ASKED, PIECE, SHAPE, SIZE, SLICE, USES, Book, Known, Labels, Numbers
from natpp.fx.moves import (
    PRODUCTS,
    SAME,
    STOP,
    alike,
    concatenated,
    elementwise,
    is_tensor,
    moved,
    multiplied,
    name_of,
    operand,
    reshaped,
    sizes_of,
)
from natpp.fx.narrow import narrowed
from natpp.fx.sites import ACTIVATIONS, Finder, Keep
from natpp.fx.traced import Traced, value

WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
FUNCTIONAL = ("conv1d", "conv2d", "conv3d", "linear")
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm)
ELEMENTWISE = (
    *(*ACTIVATIONS, nn.Identity, nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.Dropout, nn.Dropout1d),
    *(nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Threshold),
)
SPATIAL = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.LPPool2d, nn.Upsample),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d),
    *(nn.ReflectionPad2d, nn.ReplicationPad2d, nn.ConstantPad2d, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
)
LOOKS = {"dim", "ndimension", "ndim", "dtype", "device", "is_floating_point", "requires_grad", "layout", "is_cuda"}


def followed(traced: Traced, keep: Keep) -> Follower:
    """Channels followed; where a reshape splits them, by the last dimension along which any of them can go."""
    turns: dict[Node, int] = {}
    while True:
        follower = Follower(traced, keep, turns)
        follower.run()
        stuck = {
            node: turns.get(node, 0) + 1
            for node, (channels, count) in follower.book.splits.items()
            if not follower.book.free(channels) and turns.get(node, 0) + 1 < count
        }
        if not stuck:
            return follower
        turns |= stuck


class Follower:
    """Follows channels through a graph; afterwards it has the axes, and what fixed them."""

    def __init__(self, traced: Traced, keep: Keep, turns: Mapping[Node, int] = MappingProxyType({})):
        self.traced, self.parts, self.finder = traced, traced.parts, Finder(traced, keep)
        self.unread = idle(traced.graph, traced.parts)
        self.book = Book()
        self.book.turns = turns
        self.sizes: dict[Node, list[Labels | None]] = {}  # of numbers and tuples of numbers that were sizes
        self.stopped: dict[str, None] = {}

    def run(self) -> None:
        """Follow every node."""
        for node in self.traced.graph.nodes:
            self.book.known[node] = self._of(node)

    def _of(self, node: Node) -> Known:
        if node.op == "placeholder":
            return None
        if node.op == "output":
            for read in node.all_input_nodes:
                self.book.fix(self.book.known[read])
            return None
        counts = not isinstance(value(node), Tensor | tuple | list) or isinstance(value(node), torch.Size)
        if self.finder.keeps(node) or (node in self.unread and not counts):
            self._kept(node)
            return None
        if node.op == "get_attr":
            return self._parameter(node)
        if counts:
            self._number(node)
            return None
        if node.op == "call_module":
            found = self._module(node, self.parts[str(node.target)])
        else:
            found = self._function(node)
        if found is STOP:
            self._stop(node)
            return None
        written = self._written(node)
        for read in node.all_input_nodes:
            for one in self.sizes.get(read, ()):
                if read not in written:
                    self.book.fix(one)
                elif one is not None:
                    self.book.note(node, ASKED, one.dim, one.channels)
        return found  # type: ignore[no-any-return]

    def _written(self, node: Node) -> set[Node]:
        """The sizes in the arguments of a node that are rewritten."""
        own = [axis for axis in self.book.axes[-len(node.args) - 9 :] if axis.node is node]
        if own and own[0].tensor.startswith((PIECE, SLICE)):
            return set(node.all_input_nodes)
        sizes = sizes_of(node)
        return {sizes[axis.dim] for axis in own if axis.tensor == SIZE and isinstance(sizes[axis.dim], Node)}

    def _kept(self, node: Node) -> None:
        for read in node.all_input_nodes:
            self.book.fix(self.book.known[read])
            self._fix_sizes(self.sizes.get(read, ()))

    def _stop(self, node: Node) -> None:
        free = sum(self.book.fix(self.book.known[read]) for read in node.all_input_nodes)
        for read in node.all_input_nodes:
            self._fix_sizes(self.sizes.get(read, ()))
        if free:
            module = self.parts[str(node.target)] if node.op == "call_module" else None
            self.stopped[name_of(node) if module is None else type(module).__name__] = None

    def _fix_sizes(self, sizes: Iterable[Labels | None]) -> None:
        for one in sizes:
            self.book.fix(one)

    def _parameter(self, node: Node) -> Known:
        """A parameter or buffer with one dimension that may be channels."""
        tensor = self.parts[str(node.target)]
        if not isinstance(tensor, Tensor) or id(tensor) in self.finder.shared:
            return None
        if any(name_of(one) in FUNCTIONAL and operand(one, 1, "weight") is node for one in node.users):
            return None  # the call says what its dimensions are
        long = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        calls = [one for one in self.traced.graph.nodes if one.op == "get_attr" and one.target == node.target]
        if len(calls) > 1:
            return None
        if len(long) != 1:
            if len(node.users) == 1:
                self.book.loose.add(node)
            return None
        made = Labels(long[0], self.book.fresh(tensor.shape[long[0]]))
        self.book.note(node, "", long[0], made.channels)
        return made

    def _number(self, node: Node) -> None:
        """Remember sizes; fix channels whose number is used for anything else."""
        name = name_of(node)
        asked = node.args[1] if name == "getattr" else name
        if asked in ("shape", "size") and isinstance(given := node.args[0], Node) and isinstance(value(given), Tensor):
            found = self.book.known[given]
            every = [
                found if isinstance(found, Labels) and found.dim == dim else None for dim in range(value(given).dim())
            ]
            which = node.args[1] if asked == "size" and len(node.args) > 1 else node.kwargs.get("dim")
            self.sizes[node] = [every[which]] if isinstance(which, int) else every
            return
        if name == "getitem" and isinstance(node.args[0], Node) and isinstance(node.args[1], int | slice):
            if node.args[0] in self.sizes:
                sizes, at = self.sizes[node.args[0]], node.args[1]
                self.sizes[node] = sizes[at] if isinstance(at, slice) else [sizes[at]]
            return
        read = [one for one in node.all_input_nodes if one in self.sizes]
        if asked not in LOOKS:
            for one in node.all_input_nodes:
                self.book.fix(self.book.known[one])
        if isinstance(value(node), int | float) and not isinstance(value(node), bool):
            self.sizes[node] = [label for one in read for label in self.sizes[one]]
        else:
            self._fix_sizes(label for one in read for label in self.sizes[one])

    # Layers.

    def _module(self, node: Node, module: nn.Module) -> Any:
        given = _given(node)
        if len(node.all_input_nodes) != 1 or given is None:
            return None if not node.all_input_nodes else STOP
        labels, shape = self.book.known[given], value(given).shape
        if isinstance(labels, tuple) and not isinstance(labels, Labels):
            return STOP
        learned = any(True for _ in itertools.chain(module.parameters(), module.buffers()))
        if learned and not self.finder.owns(node, module):
            return STOP
        if type(module) in ELEMENTWISE:
            return self._prelu(node, module, labels) if isinstance(module, nn.PReLU) else labels
        if type(module) in SPATIAL:
            return labels if labels is None or (labels.dim == 1 and is_tensor(node)) else STOP
        if type(module) in WEIGHTED:
            return self._convolution(node, module, labels, len(shape))
        if type(module) in NORMS:
            return None if labels is None else self._norm(node, module, labels, len(shape))
        if type(module) is nn.Flatten:
            return reshaped(self.book, node, labels, shape)
        return self._unknown(node, module, given, labels)

    def _unknown(self, node: Node, module: nn.Module, given: Node, labels: Labels | None) -> Any:
        """The same channels, if a module treats each independently; then its tensors have one value for each."""
        if labels is None:
            return STOP
        key = self._key(node, module, labels)
        if key is None or key not in self.traced.found:
            self.traced.found[key] = self._apart(node, module, given, labels)
        sides = self.traced.found[key]
        if sides is None:
            return STOP
        for name, dim in sides:
            self.book.note(node, name, dim, labels.channels)
        return labels

    def _key(self, node: Node, module: nn.Module, labels: Labels) -> Hashable | None:
        """The key of a call of a module that may treat each channel independently; None if it has none."""
        args, kwargs = map_arg((node.args, node.kwargs), value)
        key = call_key(module, args, kwargs)
        single = [one.item() for one in (*module.parameters(), *module.buffers()) if one.numel() == 1]
        return None if key is None else ("apart", key, labels.dim, *single)

    def _apart(self, node: Node, module: nn.Module, given: Node, labels: Labels) -> list[tuple[str, int]] | None:
        """The dimensions of its tensors that have channels, if a module treats each independently."""
        whole, count = copy.deepcopy(module).cpu().eval(), len(labels.channels)
        sides = list[tuple[str, int]]()
        for name, tensor in (*whole.named_parameters(), *whole.named_buffers()):
            long = [dim for dim, size in enumerate(tensor.shape) if size > 1]
            if [tensor.shape[dim] for dim in long] not in ([], [count]):
                return None
            sides += [(name, dim) for dim in long]
            if long:  # fresh weights are often all the same
                tensor.data = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(len(sides))) + 0.5
        some = np.arange(0, count, 2)
        part = narrowed(whole, [(name, dim, some) for name, dim in sides]) if sides else whole
        return sides if alike(whole, part, node, given, labels) else None

    def _prelu(self, node: Node, module: nn.PReLU, labels: Labels | None) -> Any:
        if labels is not None and module.num_parameters > 1:
            if labels.dim != 1:
                return STOP
            self.book.note(node, "weight", 0, labels.channels)
        return labels

    def _norm(self, node: Node, module: nn.Module, labels: Labels, ndim: int) -> Any:
        layer = isinstance(module, nn.LayerNorm)
        if labels.dim != (ndim - 1 if layer else 1) or (layer and len(module.normalized_shape) > 1):  # type: ignore[arg-type]
            return STOP
        if isinstance(module, nn.GroupNorm):
            self.book.tied(labels.channels, module.num_groups)
        for name in ("weight", "bias", "running_mean", "running_var"):
            if getattr(module, name, None) is not None:
                self.book.note(node, name, 0, labels.channels)
        if layer:
            self.book.note(node, SHAPE, 0, labels.channels)
        return labels

    def _convolution(self, node: Node, module: Any, labels: Labels | None, ndim: int) -> Any:
        """The channels that a convolution or linear layer makes from those that it reads."""
        linear = isinstance(module, nn.Linear)
        dim, groups = (ndim - 1, 1) if linear else (1, module.groups)
        if (not linear and ndim != module.weight.dim()) or (labels is not None and labels.dim != dim):
            return STOP
        made = self._weighted(node, "weight", tuple(module.weight.shape[:2]), groups, labels)
        if module.bias is not None:
            self.book.note(node, "bias", 0, made)
        return Labels(dim, made)

    def _weighted(
        self,
        node: Node,
        tensor: str,
        shape: Sequence[int],
        groups: int,
        labels: Labels | None,
        uses: Node | None = None,
    ) -> Numbers:
        """The channels made by a weight (out, in / groups); notes the weight, and a call that uses it."""
        count, count_in = shape[0], shape[1] * groups
        own = np.zeros(count_in, dtype=np.int64) if labels is None else labels.channels
        made, makes = np.repeat(own, count // groups), not 1 < groups == count_in
        if makes:
            read = self.book.tied(own, groups)
            made = np.tile(self.book.fresh(count // groups), groups)
            self.book.note(node, tensor, 1, read)
            if uses is not None:
                self.book.note(uses, USES, 1, read)
        self.book.note(node, tensor, 0, made, makes=makes)
        if uses is not None:
            self.book.note(uses, USES, 0, made)
        return made

    # Functions and methods.

    def _function(self, node: Node) -> Any:
        name, given = name_of(node), _given(node)
        if name == "getitem" and given is not None and not is_tensor(given):
            found = self.book.known[given]
            return found[node.args[1]] if isinstance(found, tuple) and isinstance(node.args[1], int) else None
        if name in ("cat", "concat", "concatenate"):
            return concatenated(self.book, node)
        if name in FUNCTIONAL:
            return self._functional(node, name)
        if SAME.fullmatch(name):
            return elementwise(self.book, node)
        if name in PRODUCTS or name == "scaled_dot_product_attention":
            return multiplied(self.book, node)
        return moved(self.book, node, given) if given is not None and is_tensor(given) else STOP

    def _functional(self, node: Node, name: str) -> Any:
        """The same for a convolution or linear layer that is called as a function, with parameters of its own."""
        weight, bias = operand(node, 1, "weight"), operand(node, 2, "bias")
        given, groups = operand(node, 0, "input"), operand(node, 6, "groups") or 1
        if not (is_tensor(given) and self._free(weight) and isinstance(groups, int)) or (bias and not self._free(bias)):
            return STOP
        labels, ndim, shape = self.book.known[given], value(given).dim(), value(weight).shape
        dim = ndim - 1 if name == "linear" else 1
        if (
            len(shape) < 2
            or (name != "linear" and ndim != len(shape))
            or (isinstance(labels, Labels) and labels.dim != dim)
        ):
            return STOP
        made = self._weighted(weight, "", shape[:2], groups, labels if isinstance(labels, Labels) else None, node)
        if isinstance(held := self.book.known.get(bias), Labels):
            self.book.join(made, held.channels)
        return Labels(dim, made)

    def _free(self, node: Any) -> bool:
        """Whether a node is a parameter that nothing else reads."""
        if not isinstance(node, Node) or node.op != "get_attr" or sum(not _kernel(one) for one in node.users) != 1:
            return False
        own = self.parts[str(node.target)]
        once = sum(one.op == "get_attr" and one.target == node.target for one in self.traced.graph.nodes) == 1
        return once and isinstance(own, nn.Parameter) and id(own) not in self.finder.shared


def _kernel(node: Node) -> bool:
    """Whether a node reads only the sizes of a weight's kernel, which come after those of its channels."""
    if node.args[1:] != ("shape",) and (name_of(node) != "size" or node.args[1:]):
        return False
    return all(name_of(one) == "getitem" and _kernel_index(one.args[1]) for one in node.users)


def _kernel_index(index: Any) -> bool:
    start = index.start if isinstance(index, slice) else index
    return isinstance(start, int) and start in (2, 3, 4, -2, -1)


def _given(node: Node) -> Node | None:
    given = node.args[0] if node.args else node.kwargs.get("input", node.kwargs.get("x"))
    return given if isinstance(given, Node) else None
