"""Weights of a changed module fitted in closed form, layer by layer, to what the original computes on a few inputs.

Layers are fitted in the order in which they run. Each reads what the fitted layers before it compute; its target is
what the original computes there. A layer before a residual sum also compensates for the change in the shortcut. Where a
ReLU follows, a negative target only has to stay negative. A fit is kept if the error on held-out inputs does not rise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node, map_arg
from torch.nn.modules.batchnorm import _BatchNorm

from natpp.config import At, Config
from natpp.decisions.moments import Moments, separated, solved
from natpp.errors import SettingError
from natpp.fx.aliasing import mutated
from natpp.fx.rewrite import CUTS, STANDS
from natpp.nets.measure import evaluating

MOST_TOGETHER = 4096  # most weights of a depthwise convolution that is fitted together with the pointwise one after it
AT_ONCE, PARTS = 128, 8  # most inputs in a batch, and fewest batches, whatever batches were given


@dataclass(frozen=True)
class Refit(Config):
    """How layers are fitted."""

    ridge: Annotated[float, At(above=0)] = 1e-4
    """ridge, as a share of the mean of the inputs' second moments"""
    rounds: Annotated[int, At(least=0)] = 3
    """further fits of a layer before a ReLU, with negative targets moved to the layer's predictions"""
    replaced_only: bool = False
    """fit only what was replaced, not the layers after it"""
    held_out: Annotated[float, At(above=0, below=1)] = 0.125
    """share of the inputs held out to check each fit"""


class Fitted(NamedTuple):
    """A layer that was fitted."""

    name: str
    before: float
    """mean squared error on the held-out inputs, relative to the mean square of the target"""
    after: float
    """the same with the fitted weights"""
    kept: bool
    """whether it has these weights: the error did not rise"""


@torch.no_grad()
def refit(
    module: fx.GraphModule,
    original: fx.GraphModule,
    batches: Iterable[Any],
    config: Refit = Refit(),
    kept: Collection[str] = (),
) -> list[Fitted]:
    """Fit the layers of a changed module, in place; `original` is the same module rewritten without a change.

    Layers that are unchanged and whose inputs are unchanged are left alone, and so is all that lies in `kept` parts.
    """
    given = _joined(batches)
    found: list[Fitted] = []
    with evaluating(module), evaluating(original):
        now, before = _Run(module, given), _Run(original, given)
        known = original.meta[STANDS]
        named = {known[node.name]: node for node in original.graph.nodes if node.name in known}
        stands = {node: named.get(module.meta[STANDS].get(node.name, "")) for node in module.graph.nodes}
        shared = _shared(module)
        for node in module.graph.nodes:
            old = stands[node]
            place = None if old is None else _place(module, node, old, stands)
            if place is not None and old is not None and place.layer not in shared and not _lies_in(kept, place):
                new = now.replaced(node, before, old)
                if (new or (not config.replaced_only and now.reads_other(node, before, old))) and _alike(place, before):
                    found.append(_fit(place, now, before, config))
            now.step(node)
            if old is not None:
                before.until(old)
    return found


def _shared(module: fx.GraphModule) -> set[nn.Module]:
    """Layers that are called more than once, or share a weight with another: no single fit suits all their places."""
    calls = Counter(str(node.target) for node in module.graph.nodes if node.op == "call_module")
    found = {one for path, count in calls.items() if count > 1 for one in module.get_submodule(path).modules()}
    owners: dict[int, nn.Module] = {}
    for part in set(module.modules()):
        for parameter in part.parameters(recurse=False):
            if (other := owners.setdefault(id(parameter), part)) is not part:
                found |= {part, other}
    return found


def _lies_in(kept: Collection[str], place: _Place) -> bool:
    """Whether a layer, or the norm that would get its bias, lies in one of these parts."""
    paths = [place.path, *([] if place.norm is None else [str(next(iter(place.node.users)).target)])]
    return any(f"{path}.".startswith(f"{one}.") for path in paths for one in kept) or "" in kept


class _Place(NamedTuple):
    """A layer to fit: where it is, what comes after it, and what the original has there."""

    node: Node
    path: str
    first: Sequence[nn.Module]  # layers of the same replacement that come before it
    layer: nn.Conv2d | nn.Linear
    norm: _BatchNorm | None
    other: Node | None  # what is added after the norm
    target: Node  # of the original: the value after the norm, or after the sum
    channels: list[int] | None  # those of the target that the layer still has; None: all
    relu: bool


def _place(module: fx.GraphModule, node: Node, old: Node, stands: Mapping[Node, Node | None]) -> _Place | None:
    """A call of a layer that can be fitted, with what follows it in both graphs; None for other nodes."""
    if node.op != "call_module":
        return None
    part = module.get_submodule(str(node.target))
    layers = list(part) if isinstance(part, nn.Sequential) else [part]
    if not layers or not isinstance(layers[-1], nn.Conv2d | nn.Linear):
        return None
    layer, norm, other, relu = layers[-1], None, None, False
    odd = isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str))
    if layer.weight.is_meta or odd:
        return None
    last, target = node, old
    follower = _only_reader(last)
    if follower is not None and follower.op == "call_module":
        after = module.get_submodule(str(follower.target))
        if isinstance(after, _BatchNorm) and after.track_running_stats and stands[follower] in target.users:
            norm, last, target = after, follower, cast(Node, stands[follower])
            follower = _only_reader(last)
    if follower is not None and _is_sum(follower):
        old_sum = stands.get(follower)
        if old_sum is not None and old_sum in target.users and _is_sum(old_sum):
            first, second = (one for one in follower.args if isinstance(one, Node))
            if first is not second and not _depends(second if first is last else first, node):
                other, target, last = second if first is last else first, old_sum, follower
                follower = _only_reader(last)
    relu = follower is not None and _is_relu(module, follower)
    channels = module.meta[CUTS].get(node.name)
    return _Place(node, str(node.target), layers[:-1], layer, norm, other, target, channels, relu)


def _only_reader(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_sum(node: Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    values = [one for one in node.args if isinstance(one, Node)]
    return node.op in ("call_function", "call_method") and name in ("add", "add_", "iadd") and len(values) == 2


def _is_relu(module: fx.GraphModule, node: Node) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.ReLU)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in ("relu", "relu_")


def _depends(node: Node, on: Node) -> bool:
    """Whether a value depends on another."""
    waiting, seen = [node], set[Node]()
    while waiting:
        one = waiting.pop()
        if one is on:
            return True
        if one not in seen:
            seen.add(one)
            waiting += one.all_input_nodes
    return False


class _Run:
    """A module that runs node by node on several batches; a value is freed after its last reader."""

    def __init__(self, module: fx.GraphModule, batches: Sequence[tuple[Any, ...]]):
        self.module, self.order = module, list(module.graph.nodes)
        self.at = {node: number for number, node in enumerate(self.order)}
        self.names = [node for node in self.order if node.op == "placeholder"]
        self.parts = dict(module.named_modules())
        self.values: dict[Node, list[Any]] = {}
        self.waiting = {node: set(node.users) for node in self.order}
        self.batches, self.place = batches, 0

    def until(self, node: Node) -> None:
        """Run everything up to a node."""
        while self.place <= self.at[node]:
            self.step(self.order[self.place])

    def need(self, node: Node) -> list[Any]:
        """The values of a node, which is run out of order if it has not run yet; they are kept."""
        if node not in self.values:
            for one in node.all_input_nodes:
                self.need(one)
            self._run(node)
        return self.values[node]

    def step(self, node: Node) -> None:
        """Run one node, and free what nothing reads any more."""
        if node not in self.values:
            self._run(node)
        self.place = max(self.place, self.at[node] + 1)
        for one in node.all_input_nodes:
            self.waiting[one].discard(node)
            if not self.waiting[one]:
                self.values.pop(one, None)

    def _run(self, node: Node) -> None:
        touched, found = mutated(node, self.parts), list[Any]()
        for number, batch in enumerate(self.batches):
            if node.op == "placeholder":
                place = self.names.index(node)
                found.append(batch[place] if place < len(batch) else node.args[0])
            elif node.op == "output":
                found.append(None)
            else:  # values that are changed in place may be read again
                found.append(self._call(node, *map_arg((node.args, node.kwargs), self._reader(number, touched))))
        self.values[node] = found

    def _reader(self, number: int, touched: Node | None) -> Callable[[Node], Any]:
        return lambda one: self.values[one][number].clone() if one is touched else self.values[one][number]

    def _call(self, node: Node, args: Any, kwargs: Any) -> Any:
        if node.op == "call_module":
            return self.parts[str(node.target)](*args, **kwargs)
        if node.op == "get_attr":
            holder: Any = self.module
            for part in str(node.target).split("."):
                holder = getattr(holder, part)
            return holder
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def replaced(self, node: Node, other: _Run, old: Node) -> bool:
        """Whether the layer is not the original's."""
        own, theirs = self.parts[str(node.target)], other.parts.get(str(old.target))
        if theirs is None or type(own) is not type(theirs):
            return True
        state, before = own.state_dict(), theirs.state_dict()
        return state.keys() != before.keys() or any(not torch.equal(one, before[key]) for key, one in state.items())

    def reads_other(self, node: Node, other: _Run, old: Node) -> bool:
        """Whether the layer's input differs from the original's."""
        values = self.need(node.all_input_nodes[0]), other.need(old.all_input_nodes[0])
        return not all(torch.equal(one, two) for one, two in zip(*values, strict=True))


def _fit(place: _Place, now: _Run, before: _Run, config: Refit) -> Fitted:
    """Fit one layer; it keeps its old weights if the fit raises the error on held-out inputs."""
    layer, norm = place.layer, place.norm
    given = now.need(place.node.all_input_nodes[0])
    depthwise = _depthwise(place)
    first = place.first if depthwise is None else place.first[:-1]
    inputs = [_through(first, one) for one in given]
    shifts = [None] * len(inputs) if place.other is None else now.need(place.other)
    wanted = [_some(one, place) for one in before.need(place.target)]
    targets = _Targets(place, [] if depthwise is None else [depthwise], wanted, shifts)
    number = max(1, round(len(inputs) * config.held_out))
    cut = len(inputs) - number or len(inputs)  # a single batch is used for both
    learn, check = slice(0, cut), slice(cut if cut < len(inputs) else 0, None)
    intercept: Tensor | None = layer.bias if norm is None or layer.bias is not None else norm.running_mean
    sign = 1 if intercept is layer.bias else -1  # a bias before a norm is the same as a lower mean
    kernels = None if depthwise is None else depthwise.weight
    changed: list[Tensor] = [one for one in (layer.weight, intercept, kernels) if one is not None]
    own = [one.clone() for one in changed]
    error = targets.error(inputs[check], check)
    mixed, free = depthwise is not None, intercept is not None
    moments = Moments(depthwise or layer, inputs[learn], free=free, mixed=mixed)
    for turn in range(1 + (config.rounds if place.relu else 0)):
        cross = moments.with_outputs(targets.goals(inputs[learn], learn, aware=turn > 0))
        if depthwise is None:
            weight, bias = solved(moments, cross, config.ridge)
        else:
            found, weight, bias = separated(moments, cross, depthwise.weight, layer.weight, config.ridge)
            depthwise.weight.copy_(found)
        layer.weight.copy_(weight.reshape(layer.weight.shape))
        if intercept is not None:
            intercept.copy_(bias if sign > 0 else own[1].to(bias) - bias)
    after = targets.error(inputs[check], check)
    good = math.isfinite(after) and after <= error
    for tensor, value in zip(changed, own, strict=True):
        if not good:
            tensor.copy_(value)
    return Fitted(place.path, error, after, good)


def _depthwise(place: _Place) -> nn.Conv2d | None:
    """The depthwise convolution directly before a pointwise one of the same replacement: both are fitted together."""
    one, layer = place.first[-1] if place.first else None, place.layer
    if not isinstance(one, nn.Conv2d) or not isinstance(layer, nn.Conv2d):
        return None
    if one.bias is not None or isinstance(one.padding, str):
        return None
    pointwise = layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.groups == 1
    fits = one.groups == one.in_channels == one.out_channels and one.weight.numel() <= MOST_TOGETHER
    return one if pointwise and fits and one.padding_mode == "zeros" else None


class _Targets:
    """The output a layer should have, so that the value after its norm and sum is the original's."""

    def __init__(
        self, place: _Place, first: Sequence[nn.Module], wanted: Sequence[Tensor], shifts: Sequence[Tensor | None]
    ):
        self.place, self.first, self.wanted, self.shifts = place, first, wanted, shifts
        norm = place.norm
        self.scale, self.offset = None, None
        if norm is not None:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            deviation = (norm.running_var + norm.eps).sqrt()
            gain = deviation.new_ones(len(deviation)) if norm.weight is None else norm.weight
            self.scale = gain / deviation
            shift = 0 if norm.bias is None else norm.bias
            self.offset = shift - norm.running_mean * self.scale

    def goals(self, inputs: Sequence[Tensor], which: slice, *, aware: bool) -> Iterator[Tensor]:
        """Per batch, the output that the layer should have."""
        for x, wanted, shift in zip(inputs, self.wanted[which], self.shifts[which], strict=True):
            total = wanted if shift is None else wanted - shift
            if aware:  # where the sum should be negative, any negative value will do
                free = wanted <= 0
                most = torch.zeros_like(wanted) if shift is None else -shift
                total = torch.where(free, torch.minimum(self.given(x), most), total)
            yield self._before_norm(total)

    def given(self, x: Tensor) -> Tensor:
        """The current output of the layer and its norm."""
        made: Tensor = self.place.layer(_through(self.first, x))
        return made if self.place.norm is None else cast(Tensor, self.place.norm(made))

    def error(self, inputs: Sequence[Tensor], which: slice) -> float:
        """Mean squared error after the norm, the sum and the ReLU, relative to the mean square of the target."""
        wrong, size = 0.0, 0.0
        for x, wanted, shift in zip(inputs, self.wanted[which], self.shifts[which], strict=True):
            total = self.given(x) if shift is None else self.given(x) + shift
            goal = wanted
            if self.place.relu:
                total, goal = total.relu(), goal.relu()
            wrong += float((total - goal).double().square().sum())
            size += float(goal.double().square().sum())
        return wrong / max(size, 1e-30)

    def _before_norm(self, total: Tensor) -> Tensor:
        if self.scale is None:
            return total
        shape = (1, -1, *(1 for _ in total.shape[2:]))
        scale, offset = self.scale.reshape(shape), cast(Tensor, self.offset).reshape(shape)
        safe = torch.where(scale.abs() < 1e-8, torch.ones_like(scale), scale)
        return torch.where(scale.abs() < 1e-8, torch.zeros_like(total), (total - offset) / safe)


def _alike(place: _Place, before: _Run) -> bool:
    """Whether a layer's output has as many channels as its target."""
    layer, (target, *_) = place.layer, before.need(place.target)
    linear = isinstance(layer, nn.Linear)
    return _some(target, place).shape[-1 if linear else 1] == (layer.out_features if linear else layer.out_channels)


def _some(target: Tensor, place: _Place) -> Tensor:
    """The channels of a target that a layer still has."""
    if place.channels is None:
        return target
    return target[..., place.channels] if isinstance(place.layer, nn.Linear) else target[:, place.channels]


def _through(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _joined(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Inputs as tuples of arguments, in batches small enough that some can be held out."""
    given, sizes = list[tuple[Any, ...]](), list[int]()
    for number, batch in enumerate(batches):
        if isinstance(batch, Mapping):
            raise SettingError(
                "layers cannot be fitted on inputs given by name: give a tuple, in the order of the arguments"
            )
        given.append(tuple(batch) if isinstance(batch, tuple | list) else (batch,))
        tensors = [one for one in given[-1] if isinstance(one, Tensor) and one.dim()]
        if not all(one.isfinite().all() for one in tensors if one.is_floating_point()):
            raise SettingError(f"batch {number} of the inputs has NaN or infinite values: give finite inputs")
        sizes.append(max((len(one) for one in tensors), default=1))
    step = max(1, min(AT_ONCE, sum(sizes) // PARTS))
    return [
        tuple([_part(one, size, slice(start, start + step)) for one in some])
        for some, size in zip(given, sizes, strict=True)
        for start in range(0, size, step)
    ]


def _part(value: Any, size: int, which: slice) -> Any:
    """Some rows of a tensor that has one for each input; anything else as it is."""
    many = isinstance(value, Tensor) and value.dim() > 0 and len(value) == size
    return value[which] if many else value
