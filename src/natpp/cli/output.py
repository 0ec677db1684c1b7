"""What commands print and write: tables, JSON, pictures."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from natpp.errors import SettingError
from natpp.files import write_whole

if TYPE_CHECKING:
    from rich.table import Table

    from natpp.report.scene import Scene
    from natpp.run import Watch


COMMAND: ContextVar[str] = ContextVar("COMMAND", default="")  # the command line as typed, for reports
QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)


@contextmanager
def quietly(quiet: bool) -> Iterator[None]:
    """Silence progress and remarks inside the block, if `quiet`."""
    logger = logging.getLogger("natpp")
    level, before = logger.level, QUIET.set(quiet)
    if quiet:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        QUIET.reset(before)
        logger.setLevel(level)


def print_table(table: Table) -> None:
    """The table as wide as the terminal, or wider if names and figures would be cut off."""
    from rich.console import Console

    width = max(Console().width, _least_width(table)) if sys.stdout.isatty() else 140
    Console(width=width, highlight=False).print(table)


def _least_width(table: Table) -> int:
    """The width of a table if all columns that may wrap do so between words."""
    from rich.cells import cell_len

    total = 0
    for column in table.columns:
        texts = [str(column.header), *map(str, column.cells)]
        words = texts if column.no_wrap else [word for text in texts for word in text.split()]
        total += max(map(cell_len, words), default=0) + 3  # including the separator
    return total


@contextmanager
def shown_progress() -> Iterator[Watch]:
    """Progress with time left on standard error: a bar on a terminal, else a line now and then."""
    if QUIET.get():
        yield lambda phase, done, total, figures: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines()
        return
    count = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description:<8}"), *count, TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def watch(phase: str, done: int, total: int, figures: dict[str, float]) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase, figures="")
            progress.update(tasks[phase], completed=done, total=total, figures=_figures(figures))

        yield watch


def _lines() -> Watch:
    told: dict[str, int] = {}
    started: dict[str, tuple[float, int]] = {}

    def watch(phase: str, done: int, total: int, figures: dict[str, float]) -> None:
        now = time.monotonic()
        since, first = started.setdefault(phase, (now, done))
        tenth = 10 * done // total
        if total > 1 and tenth > told.get(phase, -1):  # a single step needs no progress
            told[phase] = tenth
            left = f"{(now - since) / (done - first) * (total - done):.0f} s left, " if done > first else ""
            print(f"{phase} {done}/{total}, {left}{_figures(figures)}", file=sys.stderr, flush=True)

    return watch


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())


def say(message: str) -> None:
    """Print a line that the user should see on standard error."""
    if not QUIET.get():
        print(f"natpp: {message}", file=sys.stderr, flush=True)


def remark(message: str) -> None:
    """Print a line that explains the result above it."""
    if not QUIET.get():
        print(f"({message})")


def is_first_process() -> bool:
    """Whether this process speaks for all that `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def picture_suffix(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".svg", ".png"):
        raise SettingError(f"a picture must end in .svg or .png, not {path!r}")
    return suffix


def write_picture(path: str, picture: Scene) -> None:
    from natpp.report.scene import to_png, to_svg

    write_whole(path, to_svg(picture) if picture_suffix(path) == ".svg" else to_png(picture))
