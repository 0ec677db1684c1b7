"""Kinds of decisions about single layers: what a layer may become, and how that is built. The rest follows."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable

import torch
from torch import nn
from torch.fx.node import Node

from natpp.arch.decisions import Decisions
from natpp.core.decision import Decision, Option
from natpp.decisions.base import NodeKind, NodePlace, Values
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
        """Parameters and multiply-adds, measured on the meta device."""
        layer, seen = traced.parts[str(node.target)], value(node.all_input_nodes[0])
        bare = copy.deepcopy(layer, {id(one): _bare(one) for one in (*layer.parameters(), *layer.buffers())})
        made, counter = bare if values[0] == type(layer).__name__ else self.build(bare, values[0]), MultiplyAdds()
        with unfused(made), torch.no_grad(), counter:
            made(torch.empty(seen.shape, dtype=seen.dtype, device="meta"))
        return sum(one.numel() for one in made.parameters()), counter.total

    def apply(self, draft: Draft, node: Node, values: Values, find: Callable[[Node], Node]) -> Node:
        """A call of the replacement."""
        layer = draft.traced.parts[str(node.target)]
        source = find(node.all_input_nodes[0])
        return draft.call(str(node.target), values, lambda: self.build(layer, values[0]), source, node)


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the meta device."""
    bare = tensor.detach().to("meta")
    return nn.Parameter(bare, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else bare
