"""The page's data about edges; identical distributions and cost tables are written only once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REASONS = {
    "rule": "the rule does not allow it",
    "ops": "it is not one of the requested operations",
    "cost": "it would raise the cost here",
    "shape": "its shape does not fit here",
    "connection": "it would disconnect the network",
    "kept": "it was set to stay unchanged",
}


@dataclass(frozen=True)
class Change:
    """A row of the table of changes."""

    edge: int | None
    """index in the book; None if it is not a single edge"""
    name: str
    before: str
    after: str
    probability: float | None
    params: int | None
    """saved cost; None if the file does not contain it"""
    madds: int | None


@dataclass
class Book:
    """Edges by index, for the page's script."""

    edges: list[dict[str, Any]] = field(default_factory=list)
    chances: list[Any] = field(default_factory=list)
    costs: list[Any] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        *,
        name: str,
        before: str,
        after: str,
        alive: tuple[bool, bool],
        place: str,
        chances: Mapping[str, float],
        masked: Mapping[str, str],
        costs: Mapping[str, tuple[int, int]],
        note: str,
    ) -> int:
        """Add an edge; returns its index."""
        ordered = sorted(chances.items(), key=lambda item: -item[1])
        groups: dict[str, list[str]] = {}
        for op, reason in masked.items():
            groups.setdefault(str(reason), []).append(op)
        told = [[reason, REASONS.get(reason, reason), ops] for reason, ops in groups.items()]
        self.edges.append(
            {
                "name": name,
                "before": before,
                "after": after,
                "alive": list(alive),
                "place": place,
                "chances": self._number(self.chances, [[[op, _short(share)] for op, share in ordered], told]),
                "costs": self._number(self.costs, {op: list(cost) for op, cost in sorted(costs.items())}),
                "note": note,
            }
        )
        return len(self.edges) - 1

    def _number(self, shelf: list[Any], value: Any) -> int:
        key = f"{id(shelf)} {json.dumps(value)}"
        if key not in self._places:
            shelf.append(value)
            self._places[key] = len(shelf) - 1
        return self._places[key]

    def data(self) -> dict[str, Any]:
        """The data for the page."""
        return {"edges": self.edges, "chances": self.chances, "costs": self.costs}


def _short(share: float) -> float:
    return float(f"{share:.4g}")


def cost_text(value: float) -> str:
    """A cost with three digits and its unit, such as 528 M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
