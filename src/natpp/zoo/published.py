"""What the tables of the NAT++ paper say, row by row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Published:
    """A row of the tables of the NAT++ paper: one model, as it was or as a method left it."""

    table: str  # hand-crafted, nas-based, face or random
    data: str  # CIFAR, ImageNet or face verification
    model: str
    method: str | None  # None: the model as its authors published it
    params_m: float
    madds_m: float | None
    accuracy: dict[str, float]  # per cent, by test
    sd: dict[str, float] = field(default_factory=dict)  # where the row is a mean


@cache
def published_rows() -> tuple[Published, ...]:
    """All rows of the paper's tables, also of models whose cells are not in the zoo (GHN, PR-DARTS)."""
    return tuple(Published(**row) for row in read_json("published.json"))


def rows_of(models: list[str], method: str | None, data: str | None) -> tuple[Published, ...]:
    """The rows of some models as a method left them, on one kind of data or on all."""
    return tuple(
        row for row in published_rows() if row.model in models and row.method == method and data in (None, row.data)
    )


def read_json(name: str) -> Any:
    """The content of a JSON file of the zoo."""
    return json.loads(resources.files("natpp.zoo").joinpath(name).read_text(encoding="utf-8"))
