"""Published cells by name, with their source and published results."""

from __future__ import annotations

from dataclasses import dataclass

from natpp.arch.formats import from_dict
from natpp.arch.graph import Architecture
from natpp.registry import ZOO
from natpp.zoo.published import Published, read_json, rows_of


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


def _add_cells() -> None:
    cell_keys = ("normal", "normal_concat", "reduce", "reduce_concat")
    for name, data in read_json("cells.json").items():
        ZOO.add(
            name,
            Entry(
                name=name,
                arch=from_dict({key: data[key] for key in cell_keys}),
                kind=data["kind"],
                source=data["source"],
                published=rows_of(data["models"], data.get("method"), data.get("data")),
                optimized_from=data.get("optimized_from"),
                note=data.get("note"),
            ),
        )


_add_cells()
