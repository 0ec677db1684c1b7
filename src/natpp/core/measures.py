"""What a network costs, and the measures that a budget may limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from natpp.core.decision import Plan
from natpp.core.subject import Subject
from natpp.registry import MEASURES


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
        """The cost as JSON data; it includes the spread if the latency was measured."""
        data = asdict(self)
        if self.latency_spread_ms is None:
            del data["latency_spread_ms"]
        return data


def _living(name: str) -> Callable[[Subject, Plan], float]:
    return lambda subject, plan: subject.living(plan)[name]


@dataclass(frozen=True)
class Measure:
    """One figure that a budget may limit."""

    unit: str
    of: Callable[[Cost], float]
    """reads the figure from a cost, counting only what is alive"""
    of_plan: Callable[[Subject, Plan], float] | None = None
    """the same for a plan, without building it; None: it has to be measured"""
    adds_up: bool = False
    """it is a sum over the steps of a blueprint, and one of the blueprint's figures"""


MEASURES.add("params", Measure("parameters", lambda cost: cost.live_params, _living("params"), adds_up=True))
MEASURES.add("madds", Measure("multiply-adds", lambda cost: cost.live_madds, _living("madds"), adds_up=True))
MEASURES.add(
    "memory", Measure("bytes of peak memory", lambda cost: cost.peak_memory_bytes, lambda one, plan: one.memory(plan))
)
MEASURES.add("latency", Measure("ms", lambda cost: cost.latency_ms or 0.0))
COUNTED = tuple(name for name, measure in MEASURES.items() if measure.adds_up)


def figures_of(cost: Cost) -> dict[str, float]:
    """What a budget compares, by measure."""
    return {name: measure.of(cost) for name, measure in MEASURES.items()}
