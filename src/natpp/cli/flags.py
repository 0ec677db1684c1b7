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
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from natpp.config import Config, fields_of, helps
from natpp.errors import SettingError
from natpp.hints import AUTO, Form, alternatives, parsed, word_of

JSON_HELP = "print only JSON on standard output"
QUIET_HELP = "no progress and no remarks; errors are still printed"
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


def parse(command: Command, verb: str, arguments: list[str]) -> tuple[Callable[[], None], bool]:
    """The command with the parameters that were given, and whether it is to be quiet."""
    wanted = _wanted(command)
    said, help_text = io.StringIO(), io.StringIO()
    plain = contextlib.redirect_stdout(help_text) if os.environ.get("NO_COLOR") else contextlib.nullcontext()
    try:
        with contextlib.redirect_stderr(said), plain:  # tyro colours its help on a terminal
            found: Any = tyro.cli(
                wanted,
                prog=f"natpp {verb}",
                description=summary(command),
                args=arguments,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        if not stop.code:
            print(help_text.getvalue(), end="")
            raise SystemExit(0) from None
        message = _one_line(said.getvalue())
        if wrong := re.match(r"Unrecognized options: (--[\w-]+)", message):
            near = difflib.get_close_matches(wrong[1][2:], flag_names(command), n=1, cutoff=0.6)
            message = f"unknown flag {wrong[1]}." + (f" Did you mean '--{near[0]}'?" if near else "")
        raise SettingError(f"{message} (natpp {verb} --help lists the flags)") from None
    given = {name: _value(getattr(found, name), *_config_of(hint)) for name, hint in _hints(command).items()}
    return functools.partial(command, **given), found.quiet


def summary(command: Command) -> str:
    """The first line of a command's docstring."""
    return (command.__doc__ or "").splitlines()[0]


def flag_names(command: Command) -> list[str]:
    """The names of a command's flags, without dashes."""
    found = ["quiet"]
    for name, hint in _hints(command).items():
        config, group = _config_of(hint)
        flag = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Flag)), None)
        if config is not None:
            found += [_typed(group.names.get(one, one)) for one in fields_of(config) if one not in group.leave_out]
        elif flag is None or not flag.positional:
            found.append(_typed(name if flag is None or flag.name is None else flag.name))
    return found


def _wanted(command: Command) -> type:
    """The dataclass that tyro makes flags from."""
    required: list[Any] = []
    others: list[Any] = []
    for name, hint in _hints(command).items():
        config, group = _config_of(hint)
        if config is not None:
            others.append((name, _group(config, group), field()))
            continue
        flag = Flag(JSON_HELP) if name == "json" else next(one for one in hint.__metadata__ if isinstance(one, Flag))
        default = inspect.signature(command).parameters[name].default
        made = _flag(name, hint, flag, default)
        (required if default is inspect.Parameter.empty else others).append(made)
    others.append(_flag("quiet", bool, Flag(QUIET_HELP), False))
    return make_dataclass(summary(command), [*required, *others], kw_only=True, frozen=True)


def _group(config: type[Config], group: Group) -> type:
    """A dataclass with the flags of a config."""
    found, told = [], helps(config)
    for one in fields(config):
        if one.name not in fields_of(config) or one.name in group.leave_out:
            continue
        default = one.default if one.default is not MISSING else inspect.Parameter.empty
        if group.changes:
            default = None
        if one.name in group.required:
            default = inspect.Parameter.empty
        name = group.names.get(one.name, one.name)
        hint = fields_of(config)[one.name]
        flag = Flag(told.get(one.name, ""), name=name)
        found.append(_flag(one.name, (hint | None) if group.changes else hint, flag, default))
    made = make_dataclass(config.__name__, found, kw_only=True, frozen=True)
    made.__doc__ = (config.__doc__ or "").split(". ")[0].splitlines()[0]
    return made


def _flag(name: str, hint: Any, flag: Flag, default: Any) -> tuple[str, Any, Any]:
    """A field that tyro makes a flag from."""
    kinds = [kind for kind, _ in alternatives(hint) if kind is not type(None)]
    named = _typed(flag.name or name)
    short = [flag.short] if flag.short else None
    marks: list[Any] = [tyro.conf.arg(name=named, help=flag.help, aliases=short)]
    if flag.positional:
        marks = [tyro.conf.Positional, tyro.conf.arg(metavar=flag.metavar or named.upper(), help=flag.help)]
    elif flag.several:
        marks = [tyro.conf.arg(name=named, metavar=flag.metavar, help=flag.help)]
    if kinds == [bool] and default is not None:
        return name, Annotated[(tyro.conf.FlagCreatePairsOff[bool], *marks)], field(default=default)
    made = field() if default is inspect.Parameter.empty else field(default=default)
    if flag.several:
        return name, Annotated[(hint, *marks)], made
    spec = tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=flag.metavar or _metavar(hint, named),
        instance_from_str=lambda words: words[0] if _is_word(hint) else parsed(name, hint, words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [_shown(value, hint)],
    )
    return name, Annotated[(object, spec, *marks)], made


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
