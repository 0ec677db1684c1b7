"""The replaceable parts of a traced graph: operations with their norm and activation, and sums of feature maps.

A site is a convolution or pooling that has a name in the vocabulary of the paper, with the norm and the activation
before or after it. A depthwise convolution counts as separable, with or without a pointwise one directly behind it.
A separate zero padding (`ZeroPad2d`, `F.pad`) belongs to the convolution that reads it, if that does not pad itself.
Everything else stays unchanged: operations without a name (7x7, transposed, other strides and paddings, 1-D and 3-D),
modules that are called twice, share weights, or have hooks or a parametrization, and what the user keeps.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx.node import Node
from torch.nn import functional as F
from torch.nn.utils import parametrize

from natpp.arch.layers import Form, Size, halved
from natpp.arch.ops import Place
from natpp.errors import SettingError, did_you_mean
from natpp.fx.aliasing import changed_values, idle, mutated, shared_tensors
from natpp.fx.forms import arguments_of, channels_of, conv_form, is_map, module_form, op_of, padded, pool_form
from natpp.fx.traced import Traced, some_of, value

Keep = str | type[nn.Module] | Iterable[str | type[nn.Module]]

NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, nn.GroupNorm, nn.InstanceNorm2d)
ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Hardswish, nn.Hardtanh, nn.Softplus, nn.Tanh),
)
ACTIVATION_FUNCTIONS = {
    *(torch.relu, torch.relu_, F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish),
    *(F.hardswish, F.hardtanh, F.softplus, torch.tanh, F.tanh, "relu", "relu_", "tanh"),
}
POINTWISE = ("conv", 1, 1, 1)  # kind, kernel, stride and groups of a 1x1 convolution behind a depthwise one
ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_", "__add__", "__iadd__"}
CONVOLUTIONS = {F.conv2d, torch.ops.aten.conv2d.default}  # also as torch.export writes them
PADS = {F.pad, torch.ops.aten.pad.default}
ADDITIONS |= {torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor}
ACTIVATION_FUNCTIONS |= {torch.ops.aten.relu.default, torch.ops.aten.relu_.default, torch.ops.aten.silu.default}


@dataclass(frozen=True, eq=False)
class Site:
    """A replaceable operation with its norm and activation."""

    name: str
    """the path of its module; for a functional call, the path of its weight or of the call"""
    op: str
    place: Place
    form: Form
    pointwise: Form | None
    """the 1x1 convolution directly behind a depthwise one, if both form one site"""
    source: Node
    before: tuple[Node, ...]
    pad: tuple[Node, ...]
    """the zero padding before its convolution, if that is a separate step"""
    main: tuple[Node, ...]
    after: tuple[Node, ...]

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.before, *self.pad, *self.main, *self.after)

    @property
    def sources(self) -> tuple[Node, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of feature maps of one shape, with the activation behind it."""

    name: str
    terms: tuple[Node, ...]
    additions: tuple[Node, ...]
    after: tuple[Node, ...]

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.additions, *self.after)

    @property
    def sources(self) -> tuple[Node, ...]:
        return self.terms


Item = Site | Sum


def find_items(traced: Traced, keep: Keep = ()) -> list[Item]:
    """The sites and sums of a graph, in the order in which they run."""
    return Finder(traced, keep).items()


def free_layers(traced: Traced, keep: Keep = ()) -> list[tuple[Node, nn.Module]]:
    """The layers with one input that a decision may replace, each with its node."""
    return list(Finder(traced, keep).layers())


def kept_parts(keep: Keep) -> tuple[str | type[nn.Module], ...]:
    """What to keep, as a tuple; a single name or type may be given alone."""
    if not isinstance(keep, str | type | Iterable):
        raise SettingError(f"keep takes names of parts and types of modules, not {keep!r}")
    return (keep,) if isinstance(keep, str | type) else tuple(keep)


def called_twice(traced: Traced) -> list[str]:
    """A note that names the convolutions that are called more than once, if any."""
    calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    found = [path for path, count in calls.items() if count > 1 and isinstance(traced.parts[path], nn.Conv2d)]
    return [f"{some_of(found)}: called more than once, and left unchanged"] if found else []


def own_modes(traced: Traced) -> list[str]:
    """A note that names the modules with their own `train()` that the result no longer contains."""
    kept = {str(node.target) for node in traced.graph.nodes if node.op == "call_module"}
    found = [
        type(part).__name__
        for path, part in traced.module.named_modules()
        if type(part).train is not nn.Module.train and not any(f"{path}.".startswith(f"{one}.") for one in kept)
    ]
    whose = ", ".join(dict.fromkeys(found))
    return [f"{whose} overrides train(), but the result does not: its train() applies to every part"] if found else []


class Finder:
    def __init__(self, traced: Traced, keep: Keep):
        self.parts = traced.parts
        self.graph = traced.graph
        self.position = {node: index for index, node in enumerate(traced.graph.nodes)}
        self.calls = Counter(node.target for node in self.graph.nodes if node.op == "call_module")
        self.shared = shared_tensors(traced)
        self.kept = kept_paths(traced.module, keep)
        self.claimed: dict[Node, Item] = {}
        self.changed = changed_values(self.graph, self.parts)

    def items(self) -> list[Item]:
        found: list[Item] = []
        for node in self.graph.nodes:
            if node not in self.claimed and (item := self._site(node) or self._sum(node)):
                found.append(item)
                self.claimed.update(dict.fromkeys(item.nodes, item))
        return sorted(found, key=lambda item: self.position[item.output])

    # Sites.

    def _site(self, node: Node) -> Site | None:
        source = node.args[0] if node.args else node.kwargs.get("input")
        pad: tuple[Node, ...] = ()
        if isinstance(source, Node) and (sides := self._pad(source)) and (form := self._form(node, sides)):
            pad, source = (source,), source.args[0]
        else:
            form = self._form(node)
        if form is None or self.keeps(node):
            return None
        if not isinstance(source, Node) or not is_map(source) or not is_map(node):
            return None
        main: tuple[Node, ...] = (node,)
        pointwise = None
        if form.depthwise and (behind := self._only_reader(node)) is not None:
            second = self._form(behind)
            plain = second is not None and (second.kind, second.kernel, second.stride, second.groups) == POINTWISE
            if plain and not self.keeps(behind) and behind not in self.claimed:
                main, pointwise = (node, behind), second
        size, size_out = _size(source), _size(main[-1])
        channels_out = pointwise.channels_out if pointwise else form.channels_out
        op = op_of(form)
        if op is None or size_out != halved(size, (form.stride, form.stride)) or size == (1, 1):
            return None
        after = self._chain_after(main[-1])
        before, first = self._chain_before(source)
        output = after[-1] if after else main[-1]
        if output in self.changed or first in self.changed:
            return None
        name = _site_name(node)
        place = Place(form.channels_in, channels_out, form.stride, size)
        return Site(name, op, place, form, pointwise, first, before, pad, main, after)

    def _pad(self, node: Node) -> tuple[int, ...] | None:
        """By how much a step pads a feature map with zeros, for one reader: left, right, top, bottom."""
        if len(node.users) > 1 or node in self.claimed or self.keeps(node) or not is_map(node):
            return None
        if node.op == "call_module":
            module = self.parts[str(node.target)]
            return tuple(module.padding) if type(module) is nn.ZeroPad2d and self.owns(node, module) else None
        if node.target not in PADS:
            return None
        bound = arguments_of(node, "input pad mode value", (None, None, "constant", None))
        plain = bound["mode"] == "constant" and not bound["value"] and len(bound["pad"]) == 4
        sides = tuple(bound["pad"]) if plain else ()
        return sides if sides and all(isinstance(side, int) for side in sides) and node.args else None

    def _form(self, node: Node, pad: tuple[int, ...] | None = None) -> Form | None:
        """What a convolution or pooling looks like; `pad` is a separate padding before."""
        if node.op == "call_module":
            module = self.parts[str(node.target)]
            if len(node.args) != 1 or node.kwargs or not self.owns(node, module):
                return None
            return module_form(module, node, pad)
        return self._function_form(node, pad) if node.op == "call_function" else None

    def owns(self, node: Node, module: nn.Module) -> bool:
        """Whether a module is called once, shares no tensor, and has no hooks or parametrization."""
        tensors = [*module.parameters(), *module.buffers()]
        alone = self.calls[node.target] == 1 and not any(id(tensor) in self.shared for tensor in tensors)
        hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        return not hooks and not parametrize.is_parametrized(module) and (alone or not tensors)

    def layers(self) -> Iterator[tuple[Node, nn.Module]]:
        unread = idle(self.graph, self.parts)
        for node in self.graph.nodes:
            if node.op == "call_module" and node not in unread and node not in self.changed and not self.keeps(node):
                layer = self.parts[str(node.target)]
                if len(node.all_input_nodes) == len(node.args) == 1 and not node.kwargs and self.owns(node, layer):
                    yield node, layer

    def _function_form(self, node: Node, pad: tuple[int, ...] | None) -> Form | None:
        if node.target in CONVOLUTIONS:
            bound = arguments_of(
                node, "input weight bias stride padding dilation groups", (None, None, None, 1, 0, 1, 1)
            )
            tensors = [tensor for tensor in (bound["weight"], bound["bias"]) if tensor is not None]
            if not all(self._parameter(tensor) for tensor in tensors):
                return None
            weight = self.parts[bound["weight"].target]
            shape = (weight.shape[1] * bound["groups"], weight.shape[0], tuple(weight.shape[2:]))
            bias = bound["bias"] is not None
            geometry = (bound["stride"], padded(bound["padding"], pad), bound["dilation"], bound["groups"])
            return conv_form(*shape, *geometry, bias)
        if pad is None and node.target in (F.max_pool2d, torch.max_pool2d, F.avg_pool2d):
            kind = "avg" if node.target is F.avg_pool2d else "max"
            names = "input kernel_size stride padding"
            bound = arguments_of(node, names, (None, None, None, 0))
            plain = node.kwargs.get("dilation", 1) in (1, (1, 1)) and not node.kwargs.get("return_indices", False)
            if not plain or node.kwargs.get("divisor_override") is not None or not isinstance(bound["input"], Node):
                return None
            return pool_form(kind, bound["kernel_size"], bound["stride"], channels_of(bound["input"]))
        return None

    def _parameter(self, given: Any) -> bool:
        """Whether an argument is a parameter without another reader."""
        if not isinstance(given, Node) or given.op != "get_attr" or len(given.users) != 1:
            return False
        return id(self.parts[str(given.target)]) not in self.shared

    def _chain_after(self, node: Node) -> tuple[Node, ...]:
        """At most one norm and one activation behind a node, each the only reader of the one before."""
        chain: list[Node] = []
        seen: set[str] = set()
        while (reader := self._only_reader(chain[-1] if chain else node)) is not None:
            role = self._role(reader)
            if role is None or role in seen or self.keeps(reader):
                break
            seen.add(role)
            chain.append(reader)
        while chain and self._role(chain[-1]) == "nothing":
            chain.pop()
        return tuple(chain)

    def _chain_before(self, source: Node) -> tuple[tuple[Node, ...], Node]:
        """At most one norm and one activation before a site that no other site uses, and their input."""
        chain: list[Node] = []
        seen: set[str] = set()
        while source not in self.claimed and len(source.users) == 1:
            role = self._role(source)
            read = source.args[0] if source.args else None
            if role is None or role in seen or self.keeps(source) or not isinstance(read, Node) or not is_map(read):
                break
            if mutated(source, self.parts) is not None and len(read.users) > 1:
                break
            seen.add(role)
            chain.insert(0, source)
            source = read
        return tuple(chain), source

    def _only_reader(self, node: Node) -> Node | None:
        readers = list(node.users)
        return readers[0] if len(readers) == 1 and readers[0].op != "output" else None

    def _role(self, node: Node) -> str | None:
        """norm, activation, nothing (an identity), or None."""
        if not node.args or not isinstance(node.args[0], Node) or not is_map(node):
            return None
        others = [part for part in node.all_input_nodes if part is not node.args[0]]
        if node.op == "call_module":
            module = self.parts[str(node.target)]
            if others or not self.owns(node, module):
                return None
            if type(module) in NORMS:
                return "norm"
            if type(module) in ACTIVATIONS:
                return "activation"
            return "nothing" if type(module) is nn.Identity else None
        by_mode = [part for part in others if part.op == "call_module" and not part.all_input_nodes]
        constant = all(part.op == "get_attr" or part in by_mode for part in others)
        if node.target is F.batch_norm and constant:
            return "norm" if all(len(part.users) == 1 for part in others) else None
        return "activation" if node.target in ACTIVATION_FUNCTIONS and not others else None

    # Sums.

    def _sum(self, node: Node) -> Sum | None:
        if not self._addition(node) or self.keeps(node):
            return None
        reader = self._only_reader(node)
        if reader is not None and self._addition(reader) and not self.keeps(reader):
            return None  # it becomes part of the outer sum
        additions: list[Node] = []
        terms = self._terms(node, additions)
        if len(set(terms)) < len(terms):
            return None
        chain = self._chain_after(node)
        after = chain[:1] if chain and self._role(chain[0]) == "activation" else ()
        if (after or (node,))[-1] in self.changed or any(term in self.changed for term in terms):
            return None
        return Sum(node.name, tuple(terms), tuple(sorted(additions, key=self.position.__getitem__)), after)

    def _addition(self, node: Node) -> bool:
        if node.op not in ("call_function", "call_method") or node.target not in ADDITIONS or node.kwargs:
            return False
        if len(node.args) != 2 or not all(isinstance(arg, Node) and is_map(arg) for arg in node.args):
            return False
        added = value(node).shape, value(node).dtype
        alike = all((value(read).shape, value(read).dtype) == added for read in node.all_input_nodes)
        return alike and node not in self.changed

    def _terms(self, node: Node, additions: list[Node]) -> list[Node]:
        additions.append(node)
        terms: list[Node] = []
        for arg in node.args:
            assert isinstance(arg, Node)
            inner = self._addition(arg) and len(arg.users) == 1 and not self.keeps(arg)
            terms += self._terms(arg, additions) if inner else [arg]
        return terms

    # What must stay.

    def keeps(self, node: Node) -> bool:
        if not self.kept:
            return False
        paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        return "" in self.kept or any(name in self.kept for path in paths for name in _upwards(path))


def _site_name(node: Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return f"{stack[-1][0]}.{node.name}" if stack else node.name


def _size(node: Node) -> Size:
    height, width = value(node).shape[2:]
    return int(height), int(width)


def _upwards(path: str) -> Iterator[str]:
    """The path of a module and of all its parents."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def kept_paths(module: nn.Module, keep: Keep) -> set[str]:
    """Paths of the modules to keep; the module itself has the empty path."""
    names: set[str] = set()
    for given in kept_parts(keep):
        if isinstance(given, str):
            known = [name for name, _ in module.named_modules() if name]
            if given not in known:
                raise SettingError(
                    f"keep names {given!r}, but {type(module).__name__} has no such part. {did_you_mean(given, known)}"
                )
            names.add(given)
        elif isinstance(given, type) and issubclass(given, nn.Module):
            every = module.named_modules(remove_duplicate=False)
            names.update(path for path, part in every if isinstance(part, given))
        else:
            raise SettingError(f"keep takes names of parts and types of modules, not {given!r}")
    return names
