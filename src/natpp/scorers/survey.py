"""What changes of single layers would lose, estimated from one run of the original.

Of every convolution and linear layer, the second moments of its inputs are kept, and what errors of its outputs cost
at the outputs of the module. The error of fewer inputs, fewer outputs or smaller ranks then follows in closed form, and
so do the weights that the changed layer should have.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.nn.modules.batchnorm import _BatchNorm

from natpp.decisions.base import Given, Shaping, shaping
from natpp.decisions.elimination import Reader, obs_order
from natpp.decisions.layer import LayerKind
from natpp.decisions.lowrank import Form, channel_errors, composed, error, factors
from natpp.decisions.moments import Moments, ridged
from natpp.decisions.running import Run
from natpp.decisions.sensitivity import Sensitivity
from natpp.decisions.width import Width
from natpp.fx.narrow import bare_copy
from natpp.fx.rewrite import STANDS
from natpp.nets.measure import evaluating
from natpp.subjects.module import Module

WIDEST = 2304  # inputs of a layer, times its taps, up to which it is surveyed
ROUNDED = 1e-6  # share of squared means that may be lost to rounding where they are subtracted
ROUGH = 0  # rounds in which factors are improved while errors are only estimated


@dataclass(frozen=True, eq=False)
class Seen:
    """What is known of a layer."""

    weight: Tensor  # (outputs, inputs, *kernel), in double precision
    second: Tensor  # second moments of its unfolded inputs, centred if it is free
    mean: Tensor
    cost: Tensor | None  # what errors of two outputs cost together
    free: bool  # whether it, or a norm after it, can add a constant

    def columns(self, inputs: list[int] | None) -> Tensor | None:
        """The unfolded inputs that stay."""
        if inputs is None:
            return None
        taps = self.weight[0, 0].numel()
        return (torch.tensor(inputs)[:, None] * taps + torch.arange(taps)).flatten()


class Narrow:
    """A layer with some inputs and outputs only, whose weights make up for what is gone."""

    def __init__(self, seen: Seen, given: Given | None):
        outputs = None if given is None else given.outputs
        columns = seen.columns(None if given is None else given.inputs)
        rows = slice(None) if outputs is None else outputs
        self.cost = None if seen.cost is None else seen.cost[rows][:, rows]
        own = seen.weight[rows]
        flat = own.flatten(1)
        self.wanted_mean = flat @ seen.mean
        if columns is None:
            self.weight, self.second, self.mean, self.lost = own, seen.second, seen.mean, 0.0
            return
        self.second, self.mean = seen.second[columns][:, columns], seen.mean[columns]
        made = torch.linalg.solve(self.second, seen.second[columns] @ flat.T).T
        whole = torch.zeros_like(flat)
        whole[:, columns] = made
        self.weight = made.reshape(len(own), -1, *own.shape[2:])
        self.lost = error(own, whole.reshape(own.shape), seen.second, self.cost)

    @functools.cached_property
    def by_channels(self) -> Tensor:
        """The error of every number of channels between two layers."""
        return channel_errors(self.weight, self.second, self.cost)

    def loss(self, form: Form | None) -> float:
        """The error that a form adds to that of the missing inputs."""
        if form is None:
            return self.lost
        if form.kind == "channel":
            return self.lost + float(self.by_channels[form.ranks[0]])
        made = factors(self.weight, form, self.second, self.cost, ROUGH)
        return self.lost + error(self.weight, composed(made), self.second, self.cost)

    def weights(self, form: Form | None) -> tuple[list[Tensor], Tensor]:
        """The weights of the layer or chain, and what its outputs are short of on average."""
        made = [self.weight] if form is None else factors(self.weight, form, self.second, self.cost)
        whole = self.weight if form is None else composed(made)
        return made, self.wanted_mean - whole.flatten(1) @ self.mean


class Survey:
    """The layers of a module on some inputs."""

    def __init__(
        self,
        module: Module,
        original: fx.GraphModule,
        batches: list[tuple[Any, ...]],
        ridge: float,
        sensitivity: Sensitivity,
    ):
        self.module = module
        self.shapings = shaping(module.elsewhere)
        self.seen: dict[Node, Seen] = {}
        known = {original.meta[STANDS].get(node.name, ""): node for node in original.graph.nodes}
        wanted = {known[node.name]: node for node in self.shapings if node.name in known}
        run = Run(original, batches)
        with evaluating(original), torch.no_grad():
            for node in original.graph.nodes:
                part = run.parts.get(str(node.target)) if node.op == "call_module" else None
                if node in wanted and _dense(part):
                    found = _seen(part, node, run, ridge, sensitivity)  # type: ignore[arg-type]
                    if found is not None:
                        self.seen[wanted[node]] = found
                run.step(node)
        for kind in {one.kind for some in self.shapings.values() for one in some}:
            if isinstance(kind, Width):
                self._arrange(kind)
        self._forms: dict[object, Form | None] = {}
        self._narrow: dict[object, Narrow] = {}
        self._losses: dict[object, float] = {}

    def _arrange(self, kind: Width) -> None:
        """Let those channels of each width go first that the layers reading them can make up for best."""
        assert kind.channels is not None
        for number, group in enumerate(kind.channels.groups):
            readers = list[Reader]()
            for node in group.nodes:
                for axis in kind.channels.axes.get(node, ()) if node in self.seen else ():
                    own = np.isin(axis.channels, group.channels)
                    if axis.tensor == "weight" and axis.dim == 1 and own.any():
                        seen = self.seen[node]
                        places = [np.flatnonzero(axis.channels == channel).tolist() for channel in group.channels]
                        rows = torch.stack([cast(Tensor, seen.columns(some)) for some in places])
                        readers.append(Reader(seen.second, seen.weight, seen.cost, rows))
            if readers:
                order, _ = obs_order(readers)
                kind.orders[number] = np.array(order[::-1], dtype=np.int64)

    def loss(self, changes: Mapping[int, int]) -> float | None:
        """The estimated loss of some options, by decision; None if they are not about layers that are known."""
        found = self._changed(changes)
        return None if found is None else sum(self._loss(*one) for one in found)

    def fill(self, made: fx.GraphModule, changes: Mapping[int, int]) -> bool:
        """Give a module under these options the weights that follow; False if they are not about known layers."""
        found = self._changed(changes)
        if found is None:
            return False
        stands = {made.meta[STANDS].get(node.name, ""): node for node in made.graph.nodes}
        for node, form, given in found:
            _fill(made, stands[node.name], *self._narrowed(node, given).weights(form), self.seen[node].free)
        return True

    def _changed(self, changes: Mapping[int, int]) -> list[tuple[Node, Form | None, Given | None]] | None:
        """The known layers that some options change, each with its new form and its inputs and outputs."""
        module, found = self.module, list[tuple[Node, Form | None, Given | None]]()
        changed = {number - module.seen: option for number, option in changes.items() if option}
        if any(number < 0 for number in changed):
            return None
        for node in dict.fromkeys(node for number in changed for node in module.elsewhere[number].nodes):
            if node not in self.seen:
                if _dense(module.traced.parts.get(str(node.target))):
                    return None
                continue
            form, given = None, None
            for one in self.shapings[node]:
                if not any(number in changed for number in one.numbers):
                    continue
                values = tuple(
                    module.elsewhere[number].decision.options[changed.get(number, 0)].value for number in one.numbers
                )
                if one.kind.reshapes:
                    given = one.kind.given(module.traced, node, values, bare=True)
                    continue
                form = self._form(node, one, values, given)
                if form is None:
                    return None
            found.append((node, form, given))
        return found

    def _form(self, node: Node, one: Shaping, values: tuple[Any, ...], given: Given | None) -> Form | None:
        """The form of the chain that an option of a kind makes of a layer; None if it makes something else."""
        if not isinstance(one.kind, LayerKind):
            return None
        key = node, values, None if given is None else given.key
        if key not in self._forms:
            layer = bare_copy(self.module.traced.parts[str(node.target)]) if given is None else given.make()
            self._forms[key] = one.kind.form(layer, values[0])
        return self._forms[key]

    def _narrowed(self, node: Node, given: Given | None) -> Narrow:
        key = node, None if given is None else given.key
        if key not in self._narrow:
            self._narrow[key] = Narrow(self.seen[node], given)
        return self._narrow[key]

    def _loss(self, node: Node, form: Form | None, given: Given | None) -> float:
        key = node, form, None if given is None else given.key
        if key not in self._losses:
            self._losses[key] = self._narrowed(node, given).loss(form)
        return self._losses[key]


def _dense(part: Any) -> bool:
    """Whether a layer is one that can be surveyed."""
    if isinstance(part, nn.Conv2d):
        plain = part.groups == 1 and part.padding_mode == "zeros" and not isinstance(part.padding, str)
        return plain and part.weight[0].numel() <= WIDEST
    return isinstance(part, nn.Linear) and part.in_features <= WIDEST


def _seen(layer: nn.Conv2d | nn.Linear, node: Node, run: Run, ridge: float, sensitivity: Sensitivity) -> Seen | None:
    if layer.weight.is_meta:
        return None
    free = layer.bias is not None or _norm_after(run.module, node) is not None
    moments = Moments(layer, run.need(node.all_input_nodes[0]), free=free)
    (second,), (mean,) = ridged(moments.second, ridge), moments.mean
    second.diagonal().add_(ROUNDED * mean.square().mean())
    return Seen(layer.weight.detach().double().cpu(), second, mean, sensitivity.of(node), free)


def _norm_after(module: fx.GraphModule, node: Node) -> _BatchNorm | None:
    """The batch norm that alone reads a node, if it has statistics."""
    readers = list(node.users)
    if len(readers) != 1 or readers[0].op != "call_module":
        return None
    part = module.get_submodule(str(readers[0].target))
    return part if isinstance(part, _BatchNorm) and part.running_mean is not None else None


def _fill(made: fx.GraphModule, node: Node, weights: list[Tensor], short: Tensor, free: bool) -> None:
    """Give a layer, or a chain of them, these weights; its bias, or the norm after it, adds what is short."""
    part = made.get_submodule(str(node.target))
    layers = cast("list[nn.Conv2d | nn.Linear]", list(part) if isinstance(part, nn.Sequential) else [part])
    with torch.no_grad():
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.copy_(weight.reshape(layer.weight.shape))
        norm = _norm_after(made, node)
        if free and layers[-1].bias is not None:
            layers[-1].bias += short.to(layers[-1].bias)
        elif free and norm is not None:
            mean = cast(Tensor, norm.running_mean)
            mean -= short.to(mean)
