"""Settings as values: frozen dataclasses whose annotated fields are the only definition of a setting.

The checks of a value, its JSON, its text (`scores=20,population=8`) and its help all follow from the fields.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import textwrap
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar, get_args, get_origin

from natpp.errors import FormatError, SettingError, did_you_mean
from natpp.hints import Among, At, Form, Plain, alternatives, cut, fits, marked, parsed, split, unfit, word_of

__all__ = ["Among", "At", "Config", "Form", "Plain", "fields_of", "helps"]
FIELDS: dict[type, dict[str, Any]] = {}  # cached fields of configs
HELPS: dict[type, dict[str, str]] = {}
C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """The base of all settings: checked when made, read from and written to JSON and text.

    A field's annotation gives the allowed values, a string under the field is its help. Checks that involve several
    fields go into `check`.

    Examples:
        >>> from natpp.methods.evolution import Evolution
        >>> Evolution.parse("scores=20").changed()
        {'scores': 20}
        >>> Evolution(scores=0)
        Traceback (most recent call last):
        natpp.errors.SettingError: scores is 0, expected a whole number from 1 up
        >>> Evolution.parse("score=20")
        Traceback (most recent call last):
        natpp.errors.SettingError: Evolution has no setting 'score'. Did you mean 'scores'?
    """

    def __post_init__(self) -> None:
        for name, hint in fields_of(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, list) and fits(hint, tuple(value)):
                object.__setattr__(self, name, tuple(value))
            elif not fits(hint, value):
                raise SettingError(unfit(name, hint, value))
        self.check()

    def check(self) -> None:
        """Raise a SettingError where fields do not go together."""

    def changed(self: C, since: C | None = None) -> dict[str, Any]:
        """The settings that differ from the defaults (or from those of `since`), nested ones as `learn.steps`."""
        found: dict[str, Any] = {}
        for name in fields_of(type(self)):
            value, before = getattr(self, name), _default(type(self), name) if since is None else getattr(since, name)
            if isinstance(value, Config):
                known = before if type(before) is type(value) else None
                inner = value.changed(known) if known is not None else _all(value)
                found |= {f"{name}.{key}": one for key, one in inner.items()}
            elif value != before:
                found[name] = value
        return found

    def to_dict(self) -> dict[str, Any]:
        """All settings, for JSON."""
        return {name: _data(getattr(self, name)) for name in fields_of(type(self))}

    def to_json(self) -> str:
        """All settings as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls: type[C], data: object) -> C:
        """The settings that `to_dict` wrote; those it does not name have their defaults."""
        if not isinstance(data, Mapping):
            raise FormatError(f"the settings of {cls.__name__} are damaged: {cut(data)} is not a JSON object")
        known = fields_of(cls)
        _check_names(cls, data, FormatError, cls.__name__)
        read = {name: _read(known[name], value, name) for name, value in data.items()}
        return cls._made(None, read)

    @classmethod
    def from_json(cls: type[C], text: str) -> C:
        """The settings that `to_json` wrote."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise FormatError(f"the settings of {cls.__name__} are damaged: {error}") from None
        return cls.from_dict(data)

    def to_text(self: C, since: C | None = None) -> str:
        """What differs from the defaults (or from `since`) as text, such as `scores=20,population=8`."""
        return ",".join(f"{name}={word_of(value)}" for name, value in self.changed(since).items())

    def to_flags(self: C, since: C | None = None) -> list[str]:
        """What differs from the defaults as words of a command: `--evaluations 160 --nodes 4,5 --extras`."""
        words: list[str] = []
        for name, value in self.changed(since).items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif isinstance(value, Mapping):
                words += [f"--{flag}", ",".join(f"{key}={one}" for key, one in value.items())]
            else:
                words += [f"--{flag}", value if isinstance(value, str) else word_of(value)]
        return words

    @classmethod
    def parse(cls: type[C], text: str, since: C | None = None, of: str = "") -> C:
        """Settings from a text; others keep their defaults, or their values in `since`. `of` names them in errors."""
        given: dict[str, str] = {}
        name = ""
        for part in split(text):
            key, equals, value = part.partition("=")
            if equals and '"' not in key:
                name = key.strip()
                if name in given:
                    raise SettingError(f"{cut(text)} gives {name} twice")
                given[name] = value.strip()
            elif name:  # a comma inside a value
                given[name] += f",{part.strip()}"
            else:
                raise SettingError(
                    f"{cut(text)} starts without the name of a setting: write {next(iter(fields_of(cls)))}=…"
                )
        return cls._parsed(given, since, of or cls.__name__)

    @classmethod
    def _parsed(cls: type[C], given: Mapping[str, str], since: C | None, of: str) -> C:
        """The settings of words by name, nested ones by dotted names."""
        known = fields_of(cls)
        _check_names(cls, [name.partition(".")[0] for name in given], SettingError, of)
        read: dict[str, Any] = {}
        nested: dict[str, dict[str, str]] = {}
        for name, text in given.items():
            first, dot, rest = name.partition(".")
            if dot:
                nested.setdefault(first, {})[rest] = text
            else:
                read[name] = parsed(name, known[name], text)
        for name, inner in nested.items():
            kinds = [kind for kind, _ in alternatives(known[name]) if _is_config(kind)]
            if not kinds:
                raise SettingError(f"{name} of {of} has no nested settings")
            before = _default(cls, name) if since is None else getattr(since, name)
            kind = type(before) if isinstance(before, Config) else kinds[0]
            read[name] = kind._parsed(inner, before if isinstance(before, Config) else None, f"{name} of {of}")
        return cls._made(since, read)

    @classmethod
    def _made(cls: type[C], since: C | None, read: dict[str, Any]) -> C:
        if since is not None:
            return dataclasses.replace(since, **read)
        for name in fields_of(cls):
            if name not in read and _default(cls, name) is MISSING:
                raise SettingError(f"{cls.__name__} needs a value for {name}")
        return cls(**read)


def fields_of(config: type[Config]) -> dict[str, Any]:
    """The annotations of a config's settings, by name."""
    if config not in FIELDS:
        found = typing.get_type_hints(config, include_extras=True)
        FIELDS[config] = {
            one.name: found[one.name] for one in dataclasses.fields(config) if not marked(found[one.name], Plain)
        }
    return FIELDS[config]


def helps(config: type[Config]) -> dict[str, str]:
    """What the settings mean: the strings under the fields, read from the source of the class, its bases' first."""
    if config not in HELPS:
        HELPS[config] = {
            name: text for base in reversed(config.__mro__[:-1]) for name, text in _strings_under_fields(base).items()
        }
    return HELPS[config]


def _strings_under_fields(config: type) -> dict[str, str]:
    try:
        source = inspect.getsource(config)
    except OSError:  # typed in, not in a file
        return {}
    (tree,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id: " ".join(after.value.value.split())
        for node, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
    }


def _data(value: Any) -> Any:
    """A value for JSON."""
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _data(one) for key, one in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [_data(one) for one in value] if isinstance(value, tuple) else value


def _read(hint: Any, data: Any, name: str) -> Any:
    """The value that JSON has for a field; invalid values are left to the field's check."""
    for kind, _ in alternatives(hint):
        inner = get_args(kind)
        if _is_config(kind) and isinstance(data, Mapping):
            return kind.from_dict(data)
        if get_origin(kind) is tuple and isinstance(data, list):
            each = [inner[0]] * len(data) if inner[-1] is ... else inner
            return tuple(_read(one, part, name) for one, part in zip(each, data, strict=False))
    return data


def _default(config: type[Config], name: str) -> Any:
    """The default of a field; MISSING if it has none."""
    field = next(one for one in dataclasses.fields(config) if one.name == name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def _all(config: Config) -> dict[str, Any]:
    """All settings by name, nested ones by dotted names."""
    found: dict[str, Any] = {}
    for name in fields_of(type(config)):
        value = getattr(config, name)
        found |= (
            {f"{name}.{key}": one for key, one in _all(value).items()} if isinstance(value, Config) else {name: value}
        )
    return found


def _check_names(
    config: type[Config], given: Iterable[object], error: type[SettingError | FormatError], of: str
) -> None:
    """Raise an error for an unknown setting that suggests the nearest known one."""
    for name in given:
        if name not in fields_of(config):
            raise error(f"{of} has no setting {name!r}. {did_you_mean(str(name), fields_of(config))}")


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Config)
