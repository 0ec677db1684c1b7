"""The errors natpp raises. Each message says what was given, what was expected and what to try."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from types import FrameType, TracebackType

NOT_THE_USERS = {"natpp", "torch", *sys.stdlib_module_names} - {"__main__"}


class NatppError(Exception):
    """Wrong input. The message is one readable line; the command line prints it and exits with `status`.

    Examples:
        >>> try:
        ...     natpp.load("dart")
        ... except natpp.NatppError as error:
        ...     print(error)
        unknown architecture 'dart'. Did you mean 'darts'? Or give a file, '-' or the text itself.
    """

    status = 2


class UnknownNameError(NatppError, KeyError):
    """A name that is not registered."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


class FormatError(NatppError):
    """A text or file that is not an architecture natpp can read."""


class GraphError(NatppError):
    """An invalid graph: a bad source, a missing concat node, a third input."""


class SettingError(NatppError):
    """An invalid setting: 0 channels, an unknown network, an image that is too small."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the closest known name, or lists all of them if none is close."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Known: {', '.join(names)}."


def line_of(error: BaseException) -> str:
    """The line of the user's code that led to an error, such as `my_file.py, line 3`; empty if there is none."""
    found, step = "", error.__traceback__
    while isinstance(step, TracebackType):
        if is_the_users(step.tb_frame):
            found = line_in(step.tb_frame, step.tb_lineno)
        step = step.tb_next
    return found


def line_in(frame: FrameType, number: int) -> str:
    """The line a frame is running, as `my_file.py, line 3`."""
    return f"{os.path.basename(frame.f_code.co_filename)}, line {number}"


def is_the_users(frame: FrameType) -> bool:
    """Whether a frame runs code from outside natpp, torch and the standard library."""
    return frame.f_globals.get("__name__", "").partition(".")[0] not in NOT_THE_USERS


def counted(number: int, thing: str) -> str:
    """A number with its noun: 1 epoch, 2 epochs, 3 classes."""
    return f"{number} {thing}{'' if number == 1 else 'es' if thing.endswith('s') else 's'}"


def shortened(text: str, limit: int = 60) -> str:
    """The text in quotes on one line, truncated if it is long; for error messages."""
    line = " ".join(text.split())
    return repr(line if len(line) <= limit else line[: limit - 1] + "…")
