"""Registries of named entries that can be extended; packages fill them when they are imported.

`import natpp` imports all but methods, tasks and kinds of decisions, which need torch and come with
`import natpp.methods`, `natpp.training.task` and `natpp.decisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from natpp.config import Config
from natpp.errors import NatppError, SettingError, UnknownNameError, did_you_mean, shortened

if TYPE_CHECKING:
    from natpp.arch.networks import Skeleton
    from natpp.arch.ops import Op
    from natpp.arch.rules import Rule
    from natpp.core.measures import Measure
    from natpp.core.result import Result
    from natpp.decisions.base import NodeKind, TermKind
    from natpp.methods.base import Method
    from natpp.runs.scoring import Scoring
    from natpp.training.recipe import Recipe
    from natpp.training.task import MakeTask
    from natpp.zoo.cells import Entry
    from natpp.zoo.models import Model

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A dict in order of registration; the error for an unknown name suggests the nearest known one.

    Examples:
        >>> from natpp.registry import OPS
        >>> "conv_3x3" in OPS
        True
        >>> OPS["conv3x3"]
        Traceback (most recent call last):
        natpp.errors.UnknownNameError: unknown operation 'conv3x3'. Did you mean 'conv_3x3'?
    """

    def __init__(self, kind: str):
        self.kind = kind  # what one entry is, for messages: "operation"
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        """Register an entry under a new name."""
        if name in self._entries:
            raise NatppError(f"there is already a {self.kind} named {name!r}. Choose another name.")
        self._entries[name] = entry
        return entry

    def remove(self, name: str) -> T:
        """Remove an entry."""
        entry = self[name]
        del self._entries[name]
        return entry

    def given(self, what: str | T) -> T:
        """The entry of a name, with the settings that follow it (`evolution:scores=20`); an entry as it is."""
        if not isinstance(what, str):
            return self._own(what)
        name, _, text = what.partition(":")
        entry = self[name.strip()]
        if not text:
            return entry
        if not isinstance(entry, Config):
            raise SettingError(f"the {self.kind} {name!r} has no settings, but {shortened(text)} was given")
        return type(entry).parse(text, entry, f"the {self.kind} {name!r}")

    def text_of(self, entry: T) -> str:
        """The shortest text that `given` reads as the entry."""
        assert isinstance(entry, Config)
        texts = {name: entry.to_text(one) for name, one in self.items() if type(one) is type(entry)}  # type: ignore[arg-type]
        name = min(texts, key=lambda one: len(texts[one]))
        return f"{name}:{texts[name]}" if texts[name] else name

    def _own(self, what: T) -> T:
        """The value, if its type is one of the registered entries'."""
        kinds = {type(entry) for entry in self.values()}
        if isinstance(what, tuple(kinds)):
            return what
        known = " or ".join(sorted(one.__name__ for one in kinds))
        raise SettingError(f"expected a {self.kind}'s name or {known}, not {shortened(repr(what))}")

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            given = str(name)
            raise UnknownNameError(
                f"unknown {self.kind} {shortened(given)}. {did_you_mean(given, self._entries)}"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


OPS: Registry[Op] = Registry("operation")
RULES: Registry[Rule] = Registry("rule")
NETWORKS: Registry[Skeleton] = Registry("network")
ZOO: Registry[Entry] = Registry("architecture")
MODELS: Registry[Model] = Registry("model")
METHODS: Registry[Method] = Registry("method")
SCORERS: Registry[Scoring] = Registry("scorer")
RECIPES: Registry[Recipe] = Registry("recipe")
TASKS: Registry[MakeTask] = Registry("task")
KINDS: Registry[TermKind | NodeKind] = Registry("kind of decision")
MEASURES: Registry[Measure] = Registry("cost")
WRITERS: Registry[Callable[..., Any]] = Registry("way to write a result")
LAYERS: Registry[Callable[[Result], list[dict[str, Any]]]] = Registry("list of layers")
