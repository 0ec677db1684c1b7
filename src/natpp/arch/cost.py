"""The exact cost of an architecture in a network, computed without building it.

`params` and `madds` count all listed edges and both input convs of each cell, the convention of published tables;
`live_params` and `live_madds` count only what is live, which is what `build` builds. Multiply-adds are those of
convolutions and linear layers for one image. Peak memory is in bytes of activations, for one float32 image.
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
    """Parameters and multiply-adds, of everything and of the live parts."""

    params: int
    madds: int
    live_params: int
    live_madds: int


def cost_of(arch: Architecture, where: Setting) -> Cost:
    """The exact cost of an architecture in a network."""
    _, blueprint, _, plan = drawing(arch, where)
    return Cost(*counts(arch, where), peak_memory_bytes=peak_memory(blueprint, plan))


def counts(arch: Architecture, where: Setting) -> Counts:
    """Parameters and multiply-adds only, the costs that a budget limits."""
    _, blueprint, _, plan = drawing(arch, where)
    listed, living, _ = blueprint.spent(plan)
    return Counts(*listed, *living)


def counts_by_block(arch: Architecture, where: Setting) -> list[tuple[int, int]]:
    """Live parameters and multiply-adds of each block in order, and finally of the head."""
    _, blueprint, starts, plan = drawing(arch, where)
    found = [(0, 0)] * len(starts)
    for number, (step, alive) in enumerate(zip(blueprint.steps, blueprint.flow(plan).alive, strict=True)):
        if (alive or step.fixed) and (price := step.prices[tuple([plan[one] for one in step.by])]):
            block = bisect_right(starts, number) - 1
            found[block] = found[block][0] + price[0], found[block][1] + price[1]
    return found
