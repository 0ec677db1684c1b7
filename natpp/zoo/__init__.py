"""Architectures people already have, by name, with their source and what was published about them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from natpp.arch.formats import from_dict
from natpp.arch.graph import Architecture
from natpp.registry import ZOO


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


@dataclass(frozen=True)
class Entry:
    """An architecture of the zoo."""

    name: str
    arch: Architecture
    kind: str  # input, result of NAT, result of NAT++
    source: str
    published: tuple[Published, ...] = ()
    optimized_from: str | None = None
    note: str | None = None


@cache
def published_rows() -> tuple[Published, ...]:
    """All rows of the paper's tables, also of models whose cells are not in the zoo (GHN, PR-DARTS)."""
    return tuple(Published(**row) for row in _read("published.json"))


def _rows_of(models: list[str], method: str | None, data: str | None) -> tuple[Published, ...]:
    return tuple(
        row for row in published_rows() if row.model in models and row.method == method and data in (None, row.data)
    )


def _read(name: str) -> Any:
    return json.loads(resources.files(__name__).joinpath(name).read_text(encoding="utf-8"))


def _add_cells() -> None:
    cell_keys = ("normal", "normal_concat", "reduce", "reduce_concat")
    for name, data in _read("cells.json").items():
        ZOO.add(
            name,
            Entry(
                name=name,
                arch=from_dict({key: data[key] for key in cell_keys}),
                kind=data["kind"],
                source=data["source"],
                published=_rows_of(data["models"], data.get("method"), data.get("data")),
                optimized_from=data.get("optimized_from"),
                note=data.get("note"),
            ),
        )


_add_cells()
