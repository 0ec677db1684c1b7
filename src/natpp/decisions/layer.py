"""Kinds of decisions about single layers: what a layer may become, and how that is built. The rest follows."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import nn
from torch.fx.node import Node

from natpp.arch.decisions import Decisions
from natpp.core.decision import Decision, Option, Plan
from natpp.decisions.base import Given, NodeKind, NodePlace, Table, Values
from natpp.decisions.lowrank import Form, form_of
from natpp.fx.narrow import bare_copy
from natpp.fx.rewrite import Draft
from natpp.fx.sites import free_layers
from natpp.fx.traced import Traced, value
from natpp.nets.measure import MultiplyAdds, unfused


class LayerKind(NodeKind):
    """A kind of decision about single layers. What an option costs is measured on a replacement without data.

    Examples:
        >>> from natpp.decisions.layer import LayerKind
        >>> class Cheap(LayerKind):
        ...     def options(self, layer):
        ...         return ("ReLU",) if isinstance(layer, torch.nn.PReLU) else ()
        ...     def build(self, layer, option):
        ...         return torch.nn.ReLU()
        >>> Cheap().options(torch.nn.PReLU()), Cheap().options(torch.nn.ReLU())
        (('ReLU',), ())
    """

    @abstractmethod
    def options(self, layer: nn.Module) -> Iterable[Hashable]:
        """What a layer may become, the smallest change first; nothing if this kind does not decide it."""

    @abstractmethod
    def build(self, layer: nn.Module, option: Hashable) -> nn.Module:
        """What a layer becomes, with weights from the original, which may be on the meta device."""

    def form(self, layer: nn.Module, option: Hashable) -> Form | None:
        """The chain of smaller layers that an option makes of a layer, if it makes one."""
        made = self.build(layer, option)
        return form_of(list(made)) if isinstance(made, nn.Sequential) else None

    def find(self, traced: Traced, ask: Decisions) -> Iterable[NodePlace]:
        """One decision for every layer that may become something else; option 0 is its class."""
        for node, layer in free_layers(traced, ask.keep):
            own, found = type(layer).__name__, list(self.options(layer))
            before = self.price(traced, node, (own,)) if found else (0, 0)
            after = [self.price(traced, node, (one,)) if ask.strict else before for one in found]
            dearer = [price[0] > before[0] or price[1] > before[1] for price in after]
            options = [Option(one, "cost" if more else "") for one, more in zip(found, dearer, strict=True)]
            if found:
                yield NodePlace(Decision(str(node.target), "layer", (Option(own), *options)), (node,))

    def price(self, traced: Traced, node: Node, values: Values) -> tuple[int, int]:
        """Parameters and multiply-adds of a node."""
        return self._cost(traced.parts[str(node.target)], node, values[0])

    def tables_after(
        self, traced: Traced, node: Node, decisions: Sequence[Decision], first: NodeKind
    ) -> Iterable[tuple[Plan, Table]]:
        """What the first decision adds to the layers that the others make, which are of a kind that reshapes."""
        own, *others = decisions
        found = dict[Plan, tuple[int, int]]()
        for plan in itertools.product(*(one.allowed for one in others)):
            values = tuple(one.options[option].value for one, option in zip(others, plan, strict=True))
            layer = first.given(traced, node, values, bare=True).make()
            before = self._cost(layer, node, own.options[0].value)
            for option in own.allowed:
                after = self._cost(layer, node, own.options[option].value) if option else before
                found[(option, *plan)] = after[0] - before[0], after[1] - before[1]
        yield tuple(range(len(decisions))), found

    def cost(self, layer: nn.Module, option: Hashable, shape: torch.Size) -> tuple[int, int]:
        """Parameters and multiply-adds of a replacement on inputs of a shape, measured on the meta device."""
        bare = bare_copy(layer)
        made, counter = bare if option == type(layer).__name__ else self.build(bare, option), MultiplyAdds()
        like = next(iter(layer.parameters()), torch.empty(0))
        with unfused(made), torch.no_grad(), counter:
            made(torch.empty(shape, dtype=like.dtype, device="meta"))
        return sum(one.numel() for one in made.parameters()), counter.total

    def _cost(self, layer: nn.Module, node: Node, option: Hashable) -> tuple[int, int]:
        shape = list(value(node.all_input_nodes[0]).shape)
        if isinstance(layer, nn.Linear):
            shape[-1] = layer.in_features
        elif isinstance(layer, nn.Conv2d):
            shape[1] = layer.in_channels
        return self.cost(layer, option, torch.Size(shape))

    def apply(
        self, draft: Draft, node: Node, values: Values, find: Callable[[Node], Node], given: Given | None = None
    ) -> Node:
        """A call of the replacement."""
        layer = draft.traced.parts[str(node.target)]
        make = (lambda: layer) if given is None else given.make
        key = values if given is None else (*values, given.key)
        source = find(node.all_input_nodes[0])
        made = draft.call(str(node.target), key, lambda: self.build(make(), values[0]), source, node)
        if given is not None and given.outputs is not None:
            draft.cuts[made] = given.outputs
        return made
