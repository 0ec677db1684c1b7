"""Settings of every optimization: what may change in an architecture or a module, and by which rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from natpp.config import Among, Config, Form, Plain
from natpp.registry import KINDS, OPS, RULES


@dataclass(frozen=True)
class Decisions(Config):
    """What may change, and by which rule.

    Examples:
        >>> natpp.Decisions(keep=("layer4",)).changed()
        {'keep': ('layer4',)}
    """

    rule: Annotated[str, Among(RULES)] | None = None
    """which operation may replace which: nat, nat++ or cost; by default the rule of the method, or else nat++"""
    kinds: tuple[str, ...] = ()
    """kinds of decisions, separated by commas; by default all but width, which is used where a budget needs it"""
    ops: tuple[str, ...] = ()
    """operations that may be chosen, separated by commas; by default all that the method knows"""
    keep: Annotated[tuple[Any, ...], Form("layer4,head")] = ()
    """for a model: parts to leave unchanged, separated by commas; in Python also types of modules"""
    share_blocks: bool | None = None
    """for a model: decide for identical blocks together; by default yes, unless the budget has limits"""
    setting: Annotated[Any, Plain] = None
    """for an architecture: the network it is built into, as a name, a text or a `Setting`; by default that of CIFAR-10,
    or that of NAS-Bench-201 for an architecture of one cell"""
    columns: Annotated[tuple[str, ...], Plain] = ()
    """the operations that a method knows, if not all"""
    strict: Annotated[bool, Plain] = True
    """no operation costs more than the one it replaces; set by the budget"""

    def __post_init__(self) -> None:
        one: Any = self.keep
        if isinstance(one, str | type):
            object.__setattr__(self, "keep", (one,))
        elif isinstance(one, Iterable):
            object.__setattr__(self, "keep", tuple(one))
        super().__post_init__()

    def full(self) -> Decisions:
        """The same with every default filled in."""
        for kind in self.kinds:
            KINDS[kind]  # raises for an unknown name
        for op in self.ops:
            OPS[op]
        columns = self.columns or self.ops or tuple(OPS)
        usual = tuple(name for name, kind in KINDS.items() if getattr(kind, "used", "always") == "always")
        kinds, rule = self.kinds or usual, self.rule or "nat++"
        return replace(self, rule=rule, kinds=kinds, columns=columns, share_blocks=bool(self.share_blocks))
