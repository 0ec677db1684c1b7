"""What the page's script knows about edges; equal distributions and cost tables are written only once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from natpp.core.decision import REASONS


class Book:
    """Edges by number."""

    def __init__(self) -> None:
        self.edges: list[dict[str, Any]] = []
        self._chances: dict[str, int] = {}  # what was written as JSON, with its number
        self._costs: dict[str, int] = {}

    def add(self, edge: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> int:
        """Add an edge with its options, as a result lists them; returns its number."""
        likely = sorted((one for one in options if "probability" in one), key=lambda one: -float(one["probability"]))
        chances = [[str(one["value"]), float(f"{one['probability']:.4g}")] for one in likely]
        masked: dict[str, list[str]] = {}
        for one in options:
            if "why_not" in one:
                masked.setdefault(str(one["why_not"]), []).append(str(one["value"]))
        costs = {str(one["value"]): list(map(int, one["cost"])) for one in options if "cost" in one}
        told = [chances, [[reason, REASONS.get(reason, reason), ops] for reason, ops in masked.items()]]
        number = {
            "chances": self._chances.setdefault(json.dumps(told), len(self._chances)),
            "costs": self._costs.setdefault(json.dumps(costs, sort_keys=True), len(self._costs)),
        }
        self.edges.append({**edge, **number})
        return len(self.edges) - 1

    def data(self) -> dict[str, Any]:
        """The data for the page."""
        return {
            "edges": self.edges,
            "chances": list(map(json.loads, self._chances)),
            "costs": list(map(json.loads, self._costs)),
        }
