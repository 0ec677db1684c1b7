"""What commands print and write: tables, JSON, pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natpp.errors import SettingError
from natpp.files import write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from natpp.report.scene import Scene


def new_table(*headers: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        number = header.lower().endswith(("params", "madds")) or header in ("alive", "listed")
        table.add_column(header, justify="right" if number else "left", no_wrap=number)
    return table


def print_table(table: Table) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 140
    Console(width=width, highlight=False).print(table)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def picture_suffix(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".svg", ".png"):
        raise SettingError(f"a picture is .svg or .png, not {path!r}")
    return suffix


def write_picture(path: str, picture: Scene) -> None:
    from natpp.report.scene import to_png, to_svg

    write_whole(path, to_svg(picture) if picture_suffix(path) == ".svg" else to_png(picture))
