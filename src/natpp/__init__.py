"""natpp: an architecture optimizer for PyTorch.

Nothing here imports torch until something is built or measured.
"""

from natpp import arch as _arch  # fills the registries
from natpp import zoo as _zoo
from natpp.arch.graph import Architecture
from natpp.core.measures import Cost
from natpp.errors import NatppError
from natpp.fx.leaf import leaf
from natpp.saved import writers as _writers
from natpp.verbs import build, cost, draw, finetune, load, optimize, restore, sample, score, search, train

__all__ = [
    "Architecture",
    "Cost",
    "NatppError",
    "build",
    "cost",
    "draw",
    "finetune",
    "leaf",
    "load",
    "optimize",
    "restore",
    "sample",
    "score",
    "search",
    "train",
]
__version__ = "0.1.0"
del _arch, _writers, _zoo
