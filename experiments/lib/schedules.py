"""Schedules of short trainings in the space of cells, and the scores that these trainings give."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.lib.trainer import BATCH, Recipe, arch_of, read_trained
from natpp.arch.formats import from_dict
from natpp.arch.graph import Architecture
from natpp.training.recipe import ShortConfig

SHORT = ShortConfig(batch=BATCH, steps=1200, learning_rate=0.1, warm_up=0.2, clip=5.0, together=27)
SCHEDULES = {
    "5 cells, 1200 steps, learning rate 0.1": Recipe(5, SHORT),
    "5 cells, 1200 steps, learning rate 0.05": Recipe(5, replace(SHORT, learning_rate=0.05)),
    "5 cells, 2400 steps, learning rate 0.05": Recipe(5, replace(SHORT, steps=2400, learning_rate=0.05)),
    "5 cells, 2400 steps, learning rate 0.05, augmented": Recipe(
        5, replace(SHORT, steps=2400, learning_rate=0.05, augment=True)
    ),
    "3 cells, 2400 steps, learning rate 0.05": Recipe(3, replace(SHORT, steps=2400, learning_rate=0.05)),
}
LOSSES = {"validation": 0.0, "both": 0.5, "training": 1.0}  # weight of the training loss in a score
Known = dict[Architecture, float]  # scores of architectures in canonical form


@dataclass(frozen=True)
class Pick:
    """The schedule and losses picked on the cells that are not set aside."""

    schedule: str
    losses: str

    @property
    def fitting(self) -> float:
        """The weight of the training loss in a score."""
        return LOSSES[self.losses]

    @property
    def stem(self) -> str:
        """The name of the file with trainings by the schedule."""
        return stem_of(self.schedule)


def stem_of(schedule: str) -> str:
    """The name of the file with trainings by a schedule."""
    return f"short_{list(SCHEDULES).index(schedule)}"


def loss_of(row: Mapping[str, Any], fitting: float) -> float:
    """The loss behind the score of a kept training."""
    last = float(row["curve"][-1])
    return last if row["loss"] is None else (1 - fitting) * float(row["loss"]) + fitting * last


def scored(rows: Collection[Mapping[str, Any]], fitting: float) -> Known:
    """Scores of kept short trainings; failed ones have none."""
    return {arch_of(row).essence(): -loss_of(row, fitting) for row in rows if row["value"] is not None}


def scores_in(said: Mapping[str, Any]) -> Known:
    """Scores that a search made."""
    return {from_dict(arch).essence(): float(value) for arch, value in said["scores"]}


def rows_in(runs: Path, *names: str) -> list[dict[str, Any]]:
    """Rows of several files of trainings."""
    return [row for name in names for row in read_trained(runs / f"{name}.json")[1].values()]
