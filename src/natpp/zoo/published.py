"""The tables of the NAT++ paper, row by row."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Published:
    """A row of a table of the NAT++ paper: a model as published, or after a method was applied."""

    table: str  # hand-crafted, nas-based, face or random
    data: str  # CIFAR, ImageNet or face verification
    model: str
    method: str | None  # None: the original model
    params_m: float
    madds_m: float | None
    accuracy: dict[str, float]  # test accuracy in percent
    sd: dict[str, float] = field(default_factory=dict)  # if the row is a mean


@cache
def published_rows() -> tuple[Published, ...]:
    """All rows of the paper's tables, including models whose cells are not in the zoo (GHN, PR-DARTS)."""
    return tuple(Published(**row) for row in read_json("published.json"))


def rows_of(models: list[str], method: str | None, data: str | None) -> tuple[Published, ...]:
    """The rows of some models after a method, for one kind of data or for all."""
    return tuple(
        row for row in published_rows() if row.model in models and row.method == method and data in (None, row.data)
    )


def read_json(name: str) -> Any:
    """The contents of a JSON file of the zoo."""
    return json.loads(resources.files("natpp.zoo").joinpath(name).read_text(encoding="utf-8"))
