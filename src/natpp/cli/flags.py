"""Flags from the parameters of a command: those that are configs become groups, with checks and help from their fields.

Errors in a command line are reported in one line.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import io
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from natpp.config import Config, fields_of, helps
from natpp.errors import SettingError
from natpp.hints import AUTO, Form, alternatives, parsed, word_of

JSON_HELP = "print only JSON on standard output"
QUIET_HELP = "no progress and no remarks; errors are still printed"
MOST_NAMES = 4  # maximum number of names that a placeholder lists
METAVARS: dict[Any, str] = {int: "N", float: "X", bool: "true|false"}


@dataclass(frozen=True)
class Flag:
    """A parameter of a command: the help and other properties of its flag."""

    help: str
    metavar: str | None = None
    name: str | None = None
    """name of the flag, if it is not the parameter's"""
    short: str | None = None
    positional: bool = False
    several: bool = False
    """any number of words"""


@dataclass(frozen=True)
class Group:
    """Which fields of a config are flags of a command, and how they differ there."""

    leave_out: Collection[str] = ()
    required: Collection[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    """flags whose names differ from their fields"""
    changes: bool = False
    """take only the given flags, as changes to another config"""


Command = Callable[..., None]


class Asked(NamedTuple):
    """One flag or word that a command takes."""

    field: str
    hint: Any
    flag: Flag
    default: Any
    """MISSING if it is required"""
    word: str
    """what messages call its value"""

    @property
    def typed(self) -> str:
        """How it is typed, such as `--seed`; for a word, its placeholder."""
        switched_off = "no-" if self.default is True else ""
        return self.metavar if self.flag.positional else f"--{switched_off}{_typed(self.flag.name or self.field)}"

    @property
    def metavar(self) -> str:
        return self.flag.metavar or _metavar(self.hint, _typed(self.flag.name or self.field))

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        kinds = [kind for kind, _ in alternatives(self.hint) if kind is not type(None)]
        return kinds == [bool] and self.default is not None

    def __str__(self) -> str:
        return f"{self.typed}{'' if self.flag.positional else f' {self.metavar}'} ({self.flag.help})"


def parse(command: Command, verb: str, arguments: list[str]) -> tuple[Callable[[], None], bool]:
    """The command with the parameters that were given, and whether it is to be quiet."""
    wanted = _wanted(command)
    said, help_text = io.StringIO(), io.StringIO()
    plain = contextlib.redirect_stdout(help_text) if os.environ.get("NO_COLOR") else contextlib.nullcontext()
    try:
        with contextlib.redirect_stderr(said), plain:  # tyro colours its help on a terminal
            config = (tyro.conf.OmitArgPrefixes,)
            described = summary(command)
            found: Any = tyro.cli(wanted, prog=f"natpp {verb}", description=described, args=arguments, config=config)
    except SystemExit as stop:
        if not stop.code:
            print(help_text.getvalue(), end="")
            raise SystemExit(0) from None
        message = _reworded(_one_line(said.getvalue()), command, verb, arguments)
        raise SettingError(f"{message} (natpp {verb} --help lists the flags)") from None
    given = {name: _value(getattr(found, name), *_config_of(hint)) for name, hint in _hints(command).items()}
    return functools.partial(command, **given), found.quiet


def summary(command: Command) -> str:
    """The first line of a command's docstring."""
    return (command.__doc__ or "").splitlines()[0]


def flag_names(command: Command) -> list[str]:
    """The names of a command's flags, without dashes."""
    return [one.typed[2:] for own in _asked(command).values() for one in own if not one.flag.positional]


def _asked(command: Command) -> dict[str, list[Asked]]:
    """What a command takes, by parameter: the fields of a config, or the parameter itself."""
    found = {}
    for name, hint in _hints(command).items():
        config, group = _config_of(hint)
        if config is not None:
            found[name] = [_of_field(one, config, group) for one in fields(config) if one.name in fields_of(config)]
            found[name] = [one for one in found[name] if one.field not in group.leave_out]
        else:
            flag = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Flag)), Flag(JSON_HELP))
            default = inspect.signature(command).parameters[name].default
            found[name] = [Asked(name, hint, flag, MISSING if default is inspect.Parameter.empty else default, name)]
    return found | {"quiet": [Asked("quiet", bool, Flag(QUIET_HELP), False, "quiet")]}


def _of_field(one: Field[Any], config: type[Config], group: Group) -> Asked:
    """The flag of a config's field."""
    hint = fields_of(config)[one.name]
    default = MISSING if one.name in group.required else None if group.changes else one.default
    name = group.names.get(one.name, one.name)
    flag = Flag(helps(config).get(one.name, "").replace("None:", f"{AUTO}:"), name=name)  # as it is typed
    return Asked(one.name, hint | None if group.changes else hint, flag, default, name)


def _wanted(command: Command) -> type:
    """The dataclass that tyro makes flags from."""
    required: list[Any] = []
    others: list[Any] = []
    hints = _hints(command)
    for name, own in _asked(command).items():
        config, _ = _config_of(hints.get(name))
        if config is not None:
            made = make_dataclass(config.__name__, map(_made, own), kw_only=True, frozen=True)
            made.__doc__ = (config.__doc__ or "").split(". ")[0].splitlines()[0]
            others.append((name, made, field()))
        else:
            (required if own[0].default is MISSING else others).append(_made(own[0]))
    return make_dataclass(summary(command), [*required, *others], kw_only=True, frozen=True)


def _made(one: Asked) -> tuple[str, Any, Any]:
    """A field that tyro makes a flag from."""
    name, hint, flag, default, word = one
    named = _typed(flag.name or name)
    marks: list[Any] = [tyro.conf.arg(name=named, help=flag.help, aliases=[flag.short] if flag.short else None)]
    if flag.positional:
        marks = [tyro.conf.Positional, tyro.conf.arg(metavar=flag.metavar or named.upper(), help=flag.help)]
    elif flag.several:
        marks = [tyro.conf.arg(name=named, metavar=flag.metavar, help=flag.help)]
    if one.is_switch:
        return name, Annotated[(tyro.conf.FlagCreatePairsOff[bool], *marks)], field(default=default)
    made = field() if default is MISSING else field(default=default)
    if flag.several:
        return name, Annotated[(hint, *marks)], made
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=one.metavar,
        instance_from_str=lambda words: words[0] if _is_word(hint) else parsed(word, hint, words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [_shown(value, hint)],
    )
    return name, Annotated[(object, spec, *marks)], made


def _reworded(message: str, command: Command, verb: str, arguments: list[str]) -> str:
    """A message of tyro in our words: what was given, what was expected, what to try."""
    every = [one for own in _asked(command).values() for one in own]
    if found := re.match(r"Missing value for argument '(?:-\w/)?(--[\w-]+)'", message):
        return f"{found[1]} has no value, expected {next(one for one in every if one.typed == found[1])}"
    if message.startswith("Missing from"):
        needed = [str(one) for one in every if one.default is MISSING and one.typed in message]
        return f"{verb} needs {' and '.join(needed)}"
    if not (found := re.match(r"Unrecognized options: ([^\s,]+)", message)):
        return message
    word = found[1]
    if word.startswith("-"):
        near = difflib.get_close_matches(word.lstrip("-"), flag_names(command), n=1, cutoff=0.6)
        return f"unknown flag {word}." + (f" Did you mean '--{near[0]}'?" if near else "")
    for switch in (one.typed for one in every if one.is_switch):
        if f"{switch}={word}" in arguments or (switch, word) in pairwise(arguments):
            return f"{switch} takes no value, but is followed by {word!r}: leave that out"
    words = [one.typed for one in every if one.flag.positional]
    return f"{verb} takes {f'one {words[0]}' if words else 'only flags'}: {word!r} is one word too many"


def _value(found: Any, config: type[Config] | None, group: Group) -> Any:
    """The arguments of a command from tyro's result."""
    if config is None:
        return found
    given = {one.name: getattr(found, one.name) for one in fields(found)}
    if group.changes:
        return {name: value for name, value in given.items() if value is not None}
    return config(**given)


def _hints(command: Command) -> dict[str, Any]:
    hints = get_type_hints(command, include_extras=True)
    return {name: hints[name] for name in inspect.signature(command).parameters}


def _config_of(hint: Any) -> tuple[type[Config] | None, Group]:
    """The config of a parameter, and how its flags differ."""
    marks = getattr(hint, "__metadata__", ())
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    group = next((one for one in marks if isinstance(one, Group)), Group())
    return (kind, group) if isinstance(kind, type) and issubclass(kind, Config) else (None, group)


def _is_word(hint: Any) -> bool:
    """Whether any text is a valid value."""
    kinds = alternatives(hint)
    return any(kind is str and not any(hasattr(mark, "names") for mark in marks) for kind, marks in kinds)


def _typed(name: str) -> str:
    return name.replace("_", "-")


def _metavar(hint: Any, name: str) -> str:
    """The placeholder for a value in the help."""
    kind, marks = alternatives(hint)[0]
    if forms := [mark.text for mark in marks if isinstance(mark, Form)]:
        return forms[0]
    names = [str(name) for mark in marks for name in getattr(mark, "names", ())]
    if 0 < len(names) <= MOST_NAMES:
        return "|".join(names)
    if get_origin(kind) is tuple:
        return f"{_metavar(get_args(kind)[0], 'NAME')},…"
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is not None:
        return "NAME=X,…"
    return METAVARS.get(kind, name.upper())


def _shown(value: Any, hint: Any) -> str:
    """A default as the help shows it."""
    if value is None:
        return "nothing" if _is_word(hint) else AUTO
    return value if isinstance(value, str) else word_of(value)


def _one_line(boxed: str) -> str:
    """The message of a box with a title, up to its first ruled line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", boxed)
    lines = [line.strip(" ╭╮╰╯│─") for line in plain.strip().splitlines()[1:]]
    ruled = [not line.strip("-") for line in lines]
    start = ruled.index(False) if False in ruled else len(lines)
    end = ruled.index(True, start) if True in ruled[start:] else len(lines)
    return " ".join(lines[start:end]).rstrip(".") or "wrong flags"
