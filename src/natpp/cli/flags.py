"""Flags from dataclasses: the kinds of values they take, and one line for a wrong one."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import tyro

from natpp.arch.networks import Setting, setting
from natpp.errors import SettingError, shortened

POSITIONAL = ("arch", "archs", "op", "which", "name", "what")  # fields that are no flags
Arch = Annotated[
    str, tyro.conf.Positional, tyro.conf.arg(metavar="ARCH", help="a zoo name, a file, '-' or the text itself")
]

Subject = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="ARCH|NETWORK|FILE.py:FUNCTION",
        help="an architecture: a zoo name, a file, '-' or the text itself; "
        "or a model: a network of the zoo, or what a function of your own file makes",
    ),
]


def _whole(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"expected a whole number, not {shortened(words[0])}") from None


def _number(words: list[str]) -> float:
    try:
        return float(words[0])
    except ValueError:
        raise ValueError(f"expected a number, not {shortened(words[0])}") from None


Whole = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="N",
        instance_from_str=_whole,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
WholeOrDefault = Annotated[
    int | None,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="N",
        instance_from_str=lambda words: None if words == ["auto"] else _whole(words),
        is_instance=lambda value: value is None or isinstance(value, int),
        str_from_instance=lambda value: ["auto" if value is None else str(value)],
    ),
]
NumberOrDefault = Annotated[
    float | None,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="X",
        instance_from_str=lambda words: None if words == ["auto"] else _number(words),
        is_instance=lambda value: value is None or isinstance(value, int | float),
        str_from_instance=lambda value: ["auto" if value is None else str(value)],
    ),
]
# A word, whatever it is: tyro would read "None" as nothing.
Word = Annotated[
    str | None,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="ARCH",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: [value or "nothing"],
    ),
]
Shapes = Annotated[Word, tyro.conf.arg(metavar="1,3,224,224")]
Output = Annotated[Word, tyro.conf.arg(name="output", aliases=("-o",), metavar="FILE")]
Switch = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    json: Switch = False
    """print JSON, and nothing else on standard output"""
    quiet: Switch = False
    """say nothing on the way: no progress, no remarks; errors are still told"""


@dataclass(frozen=True)
class NetworkFlags(Common):
    """The network an architecture stands in."""

    network: str = "cifar"
    """cifar, imagenet or nasbench201"""
    channels: WholeOrDefault = None
    """channels of the first cells; auto is the network's own, here and below"""
    cells: WholeOrDefault = None
    """number of cells (nasbench201: a stage)"""
    classes: WholeOrDefault = None
    """number of classes"""
    size: WholeOrDefault = None
    """height and width of the image"""

    def setting(self) -> Setting:
        return setting(self.network, channels=self.channels, cells=self.cells, classes=self.classes, size=self.size)


def summary(flags_type: type[Any]) -> str:
    return (flags_type.__doc__ or "").splitlines()[0]


def parse(flags_type: type[Any], verb: str, arguments: list[str]) -> Any:
    """The flags of a verb; what tyro says of wrong ones in a box becomes one line."""
    said, help_text = io.StringIO(), io.StringIO()
    plain = contextlib.redirect_stdout(help_text) if os.environ.get("NO_COLOR") else contextlib.nullcontext()
    try:
        with contextlib.redirect_stderr(said), plain:  # tyro colours its help whenever it talks to a terminal
            return tyro.cli(flags_type, prog=f"natpp {verb}", description=summary(flags_type), args=arguments)
    except SystemExit as stop:
        if not stop.code:
            print(help_text.getvalue(), end="")
            raise SystemExit(0) from None
        message = _one_line(said.getvalue())
        if wrong := re.match(r"Unrecognized options: (--[\w-]+)", message):
            near = difflib.get_close_matches(wrong[1][2:], _names(flags_type), n=1, cutoff=0.6)
            message = f"unknown flag {wrong[1]}." + (f" Did you mean '--{near[0]}'?" if near else "")
        raise SettingError(f"{message} (natpp {verb} --help tells the flags)") from None


def _names(flags_type: type[Any]) -> list[str]:
    """The flags as they are typed, without their dashes."""
    hints = get_type_hints(flags_type, include_extras=True)
    said = {
        name: [getattr(one, "name", None) for one in getattr(hint, "__metadata__", ())] for name, hint in hints.items()
    }
    return [
        next(filter(None, said[field.name]), field.name.replace("_", "-"))
        for field in fields(flags_type)
        if field.name not in POSITIONAL
    ]


def _one_line(boxed: str) -> str:
    """The message of a box with a title, up to its first ruled line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", boxed)
    lines = [line.strip(" ╭╮╰╯│─") for line in plain.strip().splitlines()[1:]]
    ruled = [not line.strip("-") for line in lines]
    start = ruled.index(False) if False in ruled else len(lines)
    end = ruled.index(True, start) if True in ruled[start:] else len(lines)
    return " ".join(lines[start:end]).rstrip(".") or "wrong flags"
