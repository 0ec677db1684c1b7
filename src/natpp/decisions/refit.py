"""Weights of a changed module fitted in closed form, layer by layer, to what the original computes on a few inputs.

Layers are fitted in the order in which they run. Each reads what the fitted layers before it compute; its target is
what the original computes there. A layer before a residual sum also compensates for the change in the shortcut. Where a
ReLU follows, a negative target only has to stay negative. A fit is kept if the error on held-out inputs does not rise.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.nn.modules.batchnorm import _BatchNorm

from natpp.config import At, Config
from natpp.decisions.lowrank import ROUNDS, composed, factors, form_of, whole
from natpp.decisions.moments import Moments, ridged, separated, solved
from natpp.decisions.running import Run, joined
from natpp.decisions.sensitivity import Sensitivity, is_sum
from natpp.fx.rewrite import CUTS, STANDS
from natpp.nets.measure import evaluating

MOST_TOGETHER = 4096  # most weights of a depthwise convolution that is fitted together with the pointwise one after it


@dataclass(frozen=True)
class Refit(Config):
    """How layers are fitted."""

    ridge: Annotated[float, At(above=0)] = 1e-4
    """ridge, as a share of the mean of the inputs' second moments"""
    rounds: Annotated[int, At(least=0)] = 3
    """further fits of a layer before a ReLU, with negative targets moved to the layer's predictions"""
    replaced_only: bool = False
    """fit only what was replaced, not the layers after it"""
    metric: bool = True
    """weigh errors of chains of smaller layers by what they change at the outputs"""
    held_out: Annotated[float, At(above=0, below=1)] = 0.125
    """share of the inputs held out to check each fit"""


class Fitted(NamedTuple):
    """A layer that was fitted."""

    name: str
    before: float
    """mean squared error on the held-out inputs, relative to the target's mean square; for a chain, both are weighed"""
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
    sensitivity: Sensitivity | None = None,
    runs: tuple[Run, Run] | None = None,
) -> list[Fitted]:
    """Fit the layers of a changed module, in place; `original` is the same module rewritten without a change.

    Layers that are unchanged and whose inputs are unchanged are left alone, and so is all that lies in `kept` parts.
    The `sensitivity` of the original is worked out once if it is given to several fits. `runs` of both modules that
    have begun are continued, and need no batches.
    """
    if runs is None:
        given = joined(batches)
        runs = Run(module, given), Run(original, given)
    now, before = runs
    sensitivity = sensitivity or Sensitivity(original, now.batches)
    found: list[Fitted] = []
    with evaluating(module), evaluating(original):
        known = original.meta[STANDS]
        named = {known[node.name]: node for node in original.graph.nodes if node.name in known}
        stands = {node: named.get(module.meta[STANDS].get(node.name, "")) for node in module.graph.nodes}
        places = dict(_places(module, stands, kept))
        new = {node for node, place in places.items() if now.replaced(node, before, cast(Node, stands[node]))}
        waiting = set(new) if config.replaced_only else set(places)
        for node in module.graph.nodes:
            if not waiting:
                break
            old = stands[node]
            if node in waiting:
                waiting.discard(node)
                place = places[node]
                if (node in new or now.reads_other(node, before, cast(Node, old))) and _alike(place, before):
                    found.append(_fit(place, now, before, config, sensitivity))
            now.step(node)
            if old is not None:
                before.until(old)
    return found


def _places(
    module: fx.GraphModule, stands: Mapping[Node, Node | None], kept: Collection[str]
) -> Iterator[tuple[Node, _Place]]:
    """The calls of layers that can be fitted."""
    shared = _shared(module)
    for node, old in stands.items():
        place = None if old is None else _place(module, node, old, stands)
        if place is not None and place.layer not in shared and not _lies_in(kept, place):
            yield node, place


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
    if follower is not None and is_sum(follower):
        old_sum = stands.get(follower)
        if old_sum is not None and old_sum in target.users and is_sum(old_sum):
            first, second = (one for one in follower.args if isinstance(one, Node))
            if first is not second and not _depends(second if first is last else first, node):
                other, target, last = second if first is last else first, old_sum, follower
                follower = _only_reader(last)
    relu = follower is not None and _is_relu(module, follower)
    channels = module.meta[CUTS].get(node.name)
    return _Place(node, str(node.target), layers[:-1], layer, norm, other, target, channels, relu)


def _only_reader(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


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


def _fit(place: _Place, now: Run, before: Run, config: Refit, sensitivity: Sensitivity) -> Fitted:
    """Fit one layer; it keeps its old weights if the fit raises the error on held-out inputs."""
    layer, norm = place.layer, place.norm
    together = _together(place)
    first = place.first[: len(place.first) + 1 - len(together)]
    inputs = [_through(first, one) for one in now.need(place.node.all_input_nodes[0])]
    shifts = [None] * len(inputs) if place.other is None else now.need(place.other)
    wanted = [_some(one, place) for one in before.need(place.target)]
    targets = _Targets(place, together, wanted, shifts)
    number = max(1, round(len(inputs) * config.held_out))
    cut = len(inputs) - number or len(inputs)  # a single batch is used for both
    learn, check = slice(0, cut), slice(cut if cut < len(inputs) else 0, None)
    intercept: Tensor | None = layer.bias if norm is None or layer.bias is not None else norm.running_mean
    sign = 1 if intercept is layer.bias else -1  # a bias before a norm is the same as a lower mean
    changed: list[Tensor] = [*(one.weight for one in together), *([] if intercept is None else [intercept])]
    own = [one.clone() for one in changed]
    solve = _Solve(together, inputs[learn], intercept is not None, config)
    if solve.form is not None and config.metric:
        solve.metric = targets.weigh(sensitivity.of(place.target))
    error = targets.error(inputs[check], check)
    rounds = config.rounds if place.relu else 0
    for turn in range(1 + rounds):
        solve.step(targets.goals(solve, learn), final=turn == rounds)
    found = [
        *solve.weights,
        *([] if intercept is None else [solve.bias if sign > 0 else own[-1].to(solve.bias) - solve.bias]),
    ]
    for tensor, value in zip(changed, found, strict=True):
        tensor.copy_(value.reshape(tensor.shape))
    after = targets.error(inputs[check], check)
    good = math.isfinite(after) and after <= error
    for tensor, value in zip(changed, own, strict=True):
        if not good:
            tensor.copy_(value)
    return Fitted(place.path, error, after, good)


def _together(place: _Place) -> list[nn.Conv2d | nn.Linear]:
    """The layers of a replacement that are fitted as one: a chain, a depthwise and a pointwise one, or the last."""
    layers = cast("list[nn.Conv2d | nn.Linear]", [*place.first, place.layer])
    if form_of(layers) is not None:
        return layers
    one, layer = layers[-2] if place.first else None, place.layer
    if not isinstance(one, nn.Conv2d) or not isinstance(layer, nn.Conv2d):
        return [layer]
    if one.bias is not None or isinstance(one.padding, str) or one.padding_mode != "zeros":
        return [layer]
    pointwise = layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.groups == 1
    fits = one.groups == one.in_channels == one.out_channels and one.weight.numel() <= MOST_TOGETHER
    return [one, layer] if pointwise and fits else [layer]


class _Solve:
    """Weights of layers that are fitted as one, and a bias, from target outputs that come again and again."""

    def __init__(self, layers: Sequence[nn.Conv2d | nn.Linear], inputs: Sequence[Tensor], free: bool, config: Refit):
        self.layers, self.ridge = layers, config.ridge
        self.form = form_of(layers)
        self.separable = self.form is None and len(layers) > 1
        seen = layers[0] if self.form is None else whole(layers)
        self.moments = Moments(seen, inputs, free=free, mixed=self.separable)
        self.metric: Tensor | None = None
        self.weights: list[Tensor] = []
        self.bias = torch.zeros(0)

    def step(self, goals: Iterable[Tensor], *, final: bool) -> None:
        """Fit to these outputs; what is not final may be rougher."""
        moments, cross = self.moments, self.moments.with_outputs(goals)
        if self.separable:
            kernels, pointwise = (one.weight for one in self.layers) if not self.weights else self.weights
            kernels, pointwise, self.bias = separated(moments, cross, kernels, pointwise, self.ridge)
            self.weights = [kernels, pointwise]
            return
        weight, self.bias = solved(moments, cross, self.ridge)
        self.weights = [weight]
        if self.form is not None:
            shape = composed([one.weight.to("meta") for one in self.layers]).shape
            second = ridged(moments.second, self.ridge)[0]
            rounds = ROUNDS if final else 0
            self.weights = factors(weight.reshape(shape), self.form, second, self.metric, rounds)
            self.bias = cross.mean[0] - composed(self.weights).flatten(1) @ moments.mean[0]

    def guesses(self) -> Iterator[Tensor]:
        """The outputs that the current weights give, as (rows, outputs)."""
        rows = self.moments.rows()
        weight = composed(self.weights) if self.form is not None else self.weights[-1]
        for part in rows:
            seen = part
            if self.separable:
                kernels = self.weights[0].flatten(1).to(part)
                seen = torch.einsum("rct,ct->rc", part.reshape(len(part), *kernels.shape), kernels)[:, None]
            groups, count = seen.shape[1], seen.shape[2]
            flat = weight.to(part).reshape(groups, -1, count)
            yield torch.einsum("rgd,god->rgo", seen, flat).flatten(1) + self.bias.to(part)


class _Targets:
    """The output a layer should have, so that the value after its norm and sum is the original's."""

    def __init__(
        self, place: _Place, together: Sequence[nn.Module], wanted: Sequence[Tensor], shifts: Sequence[Tensor | None]
    ):
        self.place, self.together, self.wanted, self.shifts = place, together, wanted, shifts
        norm = place.norm
        self.scale, self.offset = None, None
        self.weights: Tensor | None = None  # of errors after the norm and the sum
        if norm is not None:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            deviation = (norm.running_var + norm.eps).sqrt()
            gain = deviation.new_ones(len(deviation)) if norm.weight is None else norm.weight
            self.scale = gain / deviation
            shift = 0 if norm.bias is None else norm.bias
            self.offset = shift - norm.running_mean * self.scale

    def goals(self, solve: _Solve, which: slice) -> Iterator[Tensor]:
        """The output that the layer should have, as (rows, outputs); after a first fit, aware of the ReLU."""
        moments, shifted = solve.moments, self.place.other is not None
        sums = moments.picked(self.wanted[which])
        shifts = moments.picked(cast("Sequence[Tensor]", self.shifts[which])) if shifted else itertools.repeat(None)
        guesses = solve.guesses() if solve.weights else itertools.repeat(None)
        for wanted, shift, guess in zip(sums, shifts, guesses, strict=False):
            total = wanted if shift is None else wanted - shift
            if guess is not None:  # where the sum should be negative, any negative value will do
                given = guess if self.scale is None else guess * self.scale + cast(Tensor, self.offset)
                most = torch.zeros_like(wanted) if shift is None else -shift
                total = torch.where(wanted <= 0, torch.minimum(given, most), total)
            yield self._before_norm(total)

    def weigh(self, after: Tensor | None) -> Tensor | None:
        """Weigh errors by what they cost after the norm and the sum; what errors of the layer's output cost then."""
        if after is not None and self.place.channels is not None:
            after = after[self.place.channels][:, self.place.channels]
        self.weights = after
        if after is None or self.scale is None:
            return after
        scale = self.scale.double().cpu()
        return scale[:, None] * after * scale

    def error(self, inputs: Sequence[Tensor], which: slice) -> float:
        """Mean squared error after the norm, the sum and the ReLU, relative to the mean square of the target."""
        wrong, size = 0.0, 0.0
        for x, wanted, shift in zip(inputs, self.wanted[which], self.shifts[which], strict=True):
            made: Tensor = _through(self.together, x)
            normed = made if self.place.norm is None else cast(Tensor, self.place.norm(made))
            total, goal = normed if shift is None else normed + shift, wanted
            if self.place.relu:
                total, goal = total.relu(), goal.relu()
            wrong += self._size(total - goal)
            size += self._size(goal)
        return wrong / max(size, 1e-30)

    def _size(self, value: Tensor) -> float:
        """The sum of squares, weighed if errors are."""
        value = value.double()
        if self.weights is None:
            return float(value.square().sum())
        rows = value if isinstance(self.place.layer, nn.Linear) else value.movedim(1, -1)
        return float((rows @ self.weights.to(rows) * rows).sum())

    def _before_norm(self, total: Tensor) -> Tensor:
        if self.scale is None:
            return total
        offset = cast(Tensor, self.offset)
        safe = torch.where(self.scale.abs() < 1e-8, torch.ones_like(self.scale), self.scale)
        return torch.where(self.scale.abs() < 1e-8, torch.zeros_like(total), (total - offset) / safe)


def _alike(place: _Place, before: Run) -> bool:
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
