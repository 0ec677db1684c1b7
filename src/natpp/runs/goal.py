"""What a search is for, and what a run's folder records: its supernet and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from natpp.arch.formats import from_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import Space, named_space, space_around
from natpp.config import Config, fields_of
from natpp.core.budget import NAMED
from natpp.data.named import Data
from natpp.errors import FormatError, SettingError, did_you_mean
from natpp.folder import read_search
from natpp.nets.supernet import Supernet
from natpp.runs.search import Search
from natpp.runs.tasks import make_task, named
from natpp.scorers.supernet import SupernetScorer
from natpp.subjects.cells import Frame

if TYPE_CHECKING:
    from natpp.runs.scoring import Wanted

C = TypeVar("C", bound=Config)


class Goal(NamedTuple):
    """What a policy is learned for: inputs from a space, or one architecture, within rule and budget."""

    space: Space
    frame: Frame
    arch: Architecture | None

    @staticmethod
    def of(search: Search, on: str | Architecture, budget: str) -> Goal:
        """For a space by its name, or for a single architecture."""
        if budget not in NAMED:
            raise SettingError(f"unknown budget {budget!r}. {did_you_mean(budget, NAMED)}")
        if isinstance(on, Architecture):
            where = setting("cifar" if on.reduce is not None else "nasbench201")
            space: Space = space_around(on, search.rule, where, strict=budget == "strict")
        else:
            where = setting("nasbench201" if on == "nasbench201" else "cifar")
            space = named_space(on, search.nodes, extras=search.extras)
        frame = Frame(search.rule, where, strict=budget == "strict")
        return Goal(space, frame, on if isinstance(on, Architecture) else None)

    @property
    def network(self) -> str:
        """The network around the architectures."""
        return self.frame.where.network


def run_supernet(folder: str, wanted: Wanted) -> SupernetScorer:
    """The supernet of a run, on the validation images of that run."""
    kept = read_search(folder)
    if kept.get("trained") is None or kept.get("scorer") != "supernet":
        raise SettingError(f"the run {folder!r} has no supernet: its scores came from {kept.get('scorer')}")
    try:
        search, data = kept_in(Search, kept), kept_in(Data, kept)
        on = kept["space"] if kept["arch"] is None else from_dict(kept["arch"])
        goal = Goal.of(search, on, kept["budget"])
        supernet = Supernet(goal.space, Setting(**kept["trained"]))
    except (KeyError, TypeError, SettingError) as error:
        raise FormatError(f"the settings of the run {folder!r} are damaged: {error}") from None
    file = Path(folder) / "supernet.safetensors"
    if not file.is_file():
        raise FormatError(f"the run {folder!r} has no supernet yet, since it has not ended: continue it with --resume")
    fabric = wanted.fabric
    given = replace(data, root=named(wanted.task).root or data.root)
    batches = make_task(given, fabric).batches(fabric.device)
    supernet.load(file)
    supernet.to(fabric.device)
    return SupernetScorer(supernet, batches.validation, batches.validation_labels, fabric, wanted.limit)


def kept_in(config: type[C], kept: Mapping[str, Any]) -> C:
    """The settings of a run that belong to a config."""
    return config.from_dict({name: kept[name] for name in fields_of(config) if name in kept})
