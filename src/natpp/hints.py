"""Check values against annotations, describe what was expected, and convert values to and from text."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from natpp.errors import SettingError, did_you_mean

M = TypeVar("M")
AUTO = "auto"  # how None is written as text
PART = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^",])+')  # of a text, between commas that stand outside quotes
PAIR = re.compile(r'("(?:[^"\\]|\\.)*"|[^":=]*)[:=](.*)')  # an entry of a mapping
BARE = re.compile(r"[A-Za-z_./~+-][^,=:\"\\\s]*")  # a word that needs no quotes
ENDS = (("above", "above {}"), ("least", "from {}"), ("below", "below {}"), ("most", "{}"))


class At(NamedTuple):
    """The range of a number: `least` and `most` belong to it, `above` and `below` do not."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a number is within the range."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        ends = [words.format(_end(getattr(self, name))) for name, words in ENDS if getattr(self, name) is not None]
        return " to ".join(ends) if len(ends) == 2 else f"{ends[0]} up" if self.least is not None else "".join(ends)


@dataclass(frozen=True, eq=False)  # an annotation has to be hashable, a registry is not
class Among:
    """The allowed names of a word, for example a registry; looked up when a value is checked."""

    names: Collection[str]


class Form(NamedTuple):
    """How a value is written, for help."""

    text: str


class Plain:
    """Marks a field that is not a setting: neither checked, nor kept, nor given as text."""


def alternatives(hint: Any, marks: tuple[Any, ...] = ()) -> list[tuple[Any, tuple[Any, ...]]]:
    """The types that a value may have, each with its other annotations."""
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        return alternatives(inner, (*marks, *more))
    if get_origin(hint) in (typing.Union, types.UnionType):
        return [one for arg in get_args(hint) for one in alternatives(arg, marks)]
    return [(hint, marks)]


def fits(hint: Any, value: object) -> bool:
    """Whether a value matches an annotation."""
    return any(_fits(*one, value) for one in alternatives(hint))


def unfit(name: str, hint: Any, value: object) -> str:
    """The error message for an invalid value: what was given and what was expected."""
    options = [one for one in alternatives(hint) if one[0] is not types.NoneType]
    choices = [choice for one in options for choice in _choices(*one)]
    if isinstance(value, str) and choices and len(options) == 1:
        return f"unknown {name} {cut(value)}. {did_you_mean(value, map(str, choices))}"
    return f"{name} is {cut(value)}, expected {' or '.join(dict.fromkeys(_words(*one) for one in options))}"


def parsed(name: str, hint: Any, text: str) -> Any:
    """The value of a text for a setting with such an annotation."""
    quoted = text.startswith('"')
    for kind, marks in sorted(alternatives(hint), key=lambda one: one[0] is str):  # every text is a word
        try:
            value = _from_text(kind, marks, text, quoted)
        except (ValueError, KeyError, StopIteration, SettingError):
            continue
        if _fits(kind, marks, value):
            return value
    raise SettingError(unfit(name, hint, _number(text)))


def word_of(value: Any) -> str:
    """A value as the text that `parsed` reads."""
    if value is None:
        return AUTO
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        bare = BARE.fullmatch(value) and value not in (AUTO, "true", "false") and isinstance(_number(value), str)
        return value if bare else json.dumps(value)
    if isinstance(value, Mapping):
        return ",".join(f"{word_of(key)}:{word_of(one)}" for key, one in value.items())
    if isinstance(value, os.PathLike):
        return word_of(os.fspath(value))
    return ",".join(map(word_of, value)) if isinstance(value, tuple) else repr(value)


def _fits(kind: Any, marks: tuple[Any, ...], value: object) -> bool:
    """Whether a value has a type, and is in the range or among the names of its annotation."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any or kind is types.NoneType:
        return kind is Any or value is None
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if origin in (int, float):
        right = isinstance(value, int if origin is int else (int, float)) and not isinstance(value, bool)
        finite = right and (isinstance(value, int) or math.isfinite(value))  # type: ignore[arg-type]
        return finite and all(at.holds(value) for at in _of(marks, At))  # type: ignore[arg-type]
    if origin is str:
        return isinstance(value, str) and all(value in among.names for among in _of(marks, Among))
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each = [inner[0]] * len(value) if inner[-1] is ... else inner
        return len(each) == len(value) and all(fits(one, part) for one, part in zip(each, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(inner[0], key) and fits(inner[1], one) for key, one in value.items()
        )
    return isinstance(value, origin) if isinstance(origin, type) else callable(value)


def _words(kind: Any, marks: tuple[Any, ...]) -> str:
    """What is expected, in words."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    range_of = "".join(f" {at}" for at in _of(marks, At))
    if choices := _choices(kind, marks):
        return " or ".join(map(str, choices))
    if origin in (int, float):
        return f"a {'whole ' if origin is int else ''}number{range_of}"
    if origin is tuple and inner[-1] is ...:
        return f"a tuple (as text: separated by commas), each {_any_words(inner[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping from {_any_words(inner[0])} to {_any_words(inner[1])}"
    known = {str: "a word", bool: "true or false"}
    return known[origin] if origin in known else str(getattr(origin, "__name__", origin))


def _any_words(hint: Any) -> str:
    return " or ".join(_words(*one) for one in alternatives(hint))


def _choices(kind: Any, marks: tuple[Any, ...]) -> list[Any]:
    return list(get_args(kind)) if get_origin(kind) is Literal else [one for a in _of(marks, Among) for one in a.names]


def _from_text(kind: Any, marks: tuple[Any, ...], text: str, quoted: bool) -> Any:
    """The value of a text as a type; a ValueError if it does not parse."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is tuple:
        parts = split(text)
        each = [inner[0]] * len(parts) if inner[-1] is ... else inner
        return tuple(parsed("part", one, part.strip()) for one, part in zip(each, parts, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = [PAIR.fullmatch(part.strip()) for part in split(text)]
        if None in pairs:
            raise ValueError(text)
        return {parsed("key", inner[0], one[1]): parsed("value", inner[1], one[2]) for one in pairs if one is not None}
    if quoted:
        value = json.loads(text)
        if isinstance(value, str) and origin in (str, Literal):
            return value
        raise ValueError(text)
    if kind is types.NoneType or origin is bool:
        return {AUTO: None}[text] if kind is types.NoneType else {"true": True, "false": False}[text]
    if origin is Literal:
        return next(one for one in inner if str(one) == text)
    return origin(text) if origin in (int, float, str) else text


def split(text: str) -> list[str]:
    """The parts of a text between its commas, except commas in quotes."""
    parts = PART.findall(text)
    if ",".join(parts) != text:
        raise SettingError(f"{cut(text)} has an unclosed quote, or two commas in a row")
    return parts


def marked(hint: Any, mark: type) -> bool:
    """Whether an annotation has a mark."""
    return any(one is mark or isinstance(one, mark) for _, marks in alternatives(hint) for one in marks)


def _of(marks: Sequence[Any], kind: type[M]) -> list[M]:
    return [one for one in marks if isinstance(one, kind)]


def cut(value: object, limit: int = 60) -> str:
    """A value as it is written in Python, on one line, cut where it is long."""
    line = " ".join(repr(value).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _number(text: str) -> float | str:
    """The number that a text is, so that a message shows it as one; else the text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _end(value: float) -> str:
    """An end of a range, 2^63 - 1 as such."""
    power = int(value).bit_length()
    return f"2^{power} - 1" if power > 40 and int(value) == 2**power - 1 else f"{value:g}"
