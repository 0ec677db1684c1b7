"""What an architecture costs in a network, counted to the digit without building it.

`params` and `madds` count every listed edge and both input convs of a cell, the convention of
published tables; `live_params` and `live_madds` count what is alive, which is what `build` builds.
Multiply-adds are those of convolutions and linear layers for one image. Peak memory is the most
bytes of activations that the living network holds at once for one float32 image, the image among
them and weights not: every value is freed after its last reader.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from natpp.arch.graph import Architecture
from natpp.arch.memory import peak_memory
from natpp.arch.networks import CellPart, Plan, Setting, plan
from natpp.registry import OPS


@dataclass(frozen=True)
class Cost:
    """What a network costs for one forward pass.

    Examples:
        >>> cost = natpp.cost("vgg_block")
        >>> cost.params, cost.live_params
        (3797974, 3626038)
    """

    params: int
    """trainable parameters of everything listed"""
    madds: int
    """multiply-adds of everything listed"""
    live_params: int
    """parameters of what is alive"""
    live_madds: int
    """multiply-adds of what is alive"""
    peak_memory_bytes: int
    """most bytes of activations held at once"""
    latency_ms: float | None = None
    """median time of a forward pass, None unless measured"""
    latency_spread_ms: float | None = None
    """interquartile range of that time, None unless measured"""

    def to_dict(self) -> dict[str, Any]:
        """The cost as JSON data; the spread is there when the latency was measured."""
        data = asdict(self)
        if self.latency_spread_ms is None:
            del data["latency_spread_ms"]
        return data


class Counts(NamedTuple):
    """Parameters and multiply-adds, of everything and of what is alive."""

    params: int
    madds: int
    live_params: int
    live_madds: int


def cost_of(arch: Architecture, where: Setting) -> Cost:
    """The exact cost of an architecture in a network."""
    planned = plan(arch, where)
    return Cost(*plan_counts(planned), peak_memory_bytes=peak_memory(planned))


def counts(arch: Architecture, where: Setting) -> Counts:
    """Parameters and multiply-adds alone: what a budget compares."""
    return plan_counts(plan(arch, where))


def plan_counts(planned: Plan) -> Counts:
    """The same of an architecture whose plan is known."""
    return Counts(*map(sum, zip(*part_counts(planned), strict=True)))


def part_counts(planned: Plan) -> list[Counts]:
    """The counts of every part of a plan in order, and last those of its head."""
    found_in_order = []
    seen: dict[object, Counts] = {}  # blocks alike cost alike
    for part, first in zip(planned.parts, planned.layout.alike, strict=True):
        if isinstance(part, CellPart):
            key = first, part.liveness
            found = seen.get(key)
            if found is None:
                found = seen[key] = _cell_counts(part)
        else:
            found = Counts(*part.block.cost, *part.block.cost)
        found_in_order.append(found)
    head = planned.layout.head_cost
    return [*found_in_order, Counts(*head, *head)]


def _cell_counts(part: CellPart) -> Counts:
    block, _, graph, liveness = part
    costs = [*block.input_costs, *(OPS[edge.op].cost(block.place(edge.source)) for edge in graph.edges)]
    params = madds = live_params = live_madds = 0
    for cost, alive in zip(costs, (*liveness.inputs, *liveness.live), strict=True):
        params += cost[0]
        madds += cost[1]
        if alive:
            live_params += cost[0]
            live_madds += cost[1]
    return Counts(params, madds, live_params, live_madds)
