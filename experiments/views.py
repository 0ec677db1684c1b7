"""What value models of the space of cells see of an architecture, beside what every search sees."""

from __future__ import annotations

import functools
import math
from collections import defaultdict

from natpp.arch.cost import counts
from natpp.arch.graph import NUM_INPUTS, Architecture
from natpp.arch.networks import setting
from natpp.scorers.features import Features, Name

WHERE = setting("cifar", channels=16, cells=8, classes=10, size=32)  # of the longer training: costs are counted in it
MOST_SEEN = 1 << 16
TYPES = ("sep", "dil", "conv", "max", "avg", "skip")  # by the beginning of an operation's name


@functools.lru_cache(MOST_SEEN)
def cost_features(arch: Architecture) -> Features:
    """What an architecture costs."""
    cost = counts(arch, WHERE)
    return {("params",): math.log1p(cost.live_params), ("madds",): math.log1p(cost.live_madds)}


@functools.lru_cache(MOST_SEEN)
def place_features(arch: Architecture) -> Features:
    """Which operations stand where, and how far they see.

    Of either kind of cell: how many there are of every operation, and of every type at the cell's inputs and further
    in; by how many pixels the field of view grows on a random way back from an output, and on the widest; and the
    sizes of all depthwise kernels together.
    """
    found: defaultdict[Name, float] = defaultdict(float)
    for kind, graph in arch.cells():
        nodes, concat = graph.living()
        mean, widest = [0.0] * NUM_INPUTS, [0] * NUM_INPUTS
        for inputs in nodes:
            mean.append(sum(mean[source] + grown(op) for op, source in inputs) / max(len(inputs), 1))
            widest.append(max((widest[source] + grown(op) for op, source in inputs), default=0))
            for op, source in inputs:
                type_of = next((name for name in TYPES if op.startswith(name)), "other")
                found[kind, "op", op] += 1
                found[kind, "type", type_of] += 1
                found[kind, "at inputs" if source < NUM_INPUTS else "further in", type_of] += 1
                found[kind, "depthwise"] += (1 + grown(op)) * (type_of in ("sep", "dil"))
        outputs = [node for node in concat if nodes[node - NUM_INPUTS]]
        found[kind, "field"] = sum(mean[node] for node in outputs) / max(len(outputs), 1)
        found[kind, "widest field"] = max((widest[node] for node in outputs), default=0)
    return dict(found)


def grown(op: str) -> int:
    """Pixels by which the field of view grows through an operation, along one side: one less than it sees."""
    size = max((int(part) for part in op.split("_")[-1].split("x") if part.isdigit()), default=1) - 1
    return 2 * size if op.startswith(("sep", "dil")) else size  # twice one after the other, or at every other pixel
