"""natpp: an architecture optimizer for PyTorch.

Nothing here imports torch until something is built or measured.
"""

from natpp import arch as _arch  # fills the registries
from natpp import zoo as _zoo
from natpp.arch.decisions import Decisions
from natpp.arch.graph import Architecture
from natpp.arch.load import load
from natpp.core.budget import Budget, BudgetError
from natpp.core.measures import Cost
from natpp.errors import NatppError
from natpp.fx.leaf import leaf
from natpp.run import Run
from natpp.runs.benchmark import Benchmark
from natpp.runs.scoring import Short
from natpp.runs.search import Search
from natpp.saved import writers as _writers
from natpp.training.recipe import Recipe
from natpp.verbs import (
    benchmark,
    build,
    cost,
    draw,
    evaluate,
    export,
    finetune,
    optimize,
    restore,
    sample,
    score,
    search,
    train,
)

__all__ = [
    "Architecture",
    "Benchmark",
    "Budget",
    "BudgetError",
    "Cost",
    "Decisions",
    "NatppError",
    "Recipe",
    "Run",
    "Search",
    "Short",
    "benchmark",
    "build",
    "cost",
    "draw",
    "evaluate",
    "export",
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


def __getattr__(name: str) -> object:
    """`natpp.Task`, which needs torch and is imported when it is asked for."""
    if name == "Task":
        from natpp.training.task import Task

        return Task
    raise AttributeError(f"module 'natpp' has no attribute {name!r}")


__version__ = "0.2.0"
del _arch, _writers, _zoo
