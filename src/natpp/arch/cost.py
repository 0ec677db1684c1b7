"""What an architecture costs in a network, counted to the digit without building it.

`params` and `madds` count every listed edge and both input convs of a cell, the convention of
published tables; `live_params` and `live_madds` count what is alive, which is what `build` builds.
Multiply-adds are those of convolutions and linear layers for one image. Peak memory is the most
bytes of activations that the living network holds at once for one float32 image, the image among
them and weights not: every value is freed after its last reader.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from natpp.arch.blueprints import drawing
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.core.measures import Cost
from natpp.core.memory import peak_memory


class Counts(NamedTuple):
    """Parameters and multiply-adds, of everything and of what is alive."""

    params: int
    madds: int
    live_params: int
    live_madds: int


def cost_of(arch: Architecture, where: Setting) -> Cost:
    """The exact cost of an architecture in a network."""
    _, blueprint, _, plan = drawing(arch, where)
    return Cost(*counts(arch, where), peak_memory_bytes=peak_memory(blueprint, plan))


def counts(arch: Architecture, where: Setting) -> Counts:
    """Parameters and multiply-adds alone: what a budget compares."""
    _, blueprint, _, plan = drawing(arch, where)
    listed, living, _ = blueprint.spent(plan)
    return Counts(*listed, *living)


def counts_by_block(arch: Architecture, where: Setting) -> list[tuple[int, int]]:
    """Living parameters and multiply-adds of every block in order, and last of the head."""
    _, blueprint, starts, plan = drawing(arch, where)
    found = [(0, 0)] * len(starts)
    for number, (step, alive) in enumerate(zip(blueprint.steps, blueprint.flow(plan).alive, strict=True)):
        if (alive or step.fixed) and (price := step.prices[tuple([plan[one] for one in step.by])]):
            block = bisect_right(starts, number) - 1
            found[block] = found[block][0] + price[0], found[block][1] + price[1]
    return found
