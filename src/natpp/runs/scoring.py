"""Scorers by name, as settings that make them: for architectures in a network, or for candidates for a module."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from natpp.config import At, Config, Form
from natpp.errors import SettingError, shortened
from natpp.registry import SCORERS
from natpp.run import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.data.batches import Batches
    from natpp.data.named import Data
    from natpp.scorers.base import Scorer
    from natpp.scorers.fidelity import Fidelity as Made
    from natpp.subjects.many import Subjects
    from natpp.subjects.module import Module
    from natpp.training.recipe import ShortConfig
    from natpp.training.task import Task
    from natpp.training.together import Trial

STEPS, RATE = 32, 0.02  # of fine-tuning a candidate for a module
NEEDS_DATA = "needs data to train on: give a task, such as task='cifar10:root=data'"


@dataclass(frozen=True)
class Wanted:
    """What a scorer is made for."""

    network: str
    """the network around architectures"""
    task: Task | Data
    """the data that it may train on"""
    run: Run = Run()
    subjects: Subjects | None = None
    """the subjects that are scored, if they are known"""
    longest: int = 1
    """for how many times the usual steps a method may train candidates"""
    limit: int | None = None
    """maximum number of candidates to score"""
    given: Fabric | None = None
    """device, precision and processes, if they are known"""

    @functools.cached_property
    def fabric(self) -> Fabric:
        """Device, precision and processes."""
        from natpp.runs.fabric import make_fabric

        return self.given or make_fabric(self.run.device)

    @property
    def module(self) -> Module | None:
        """The module whose candidates are scored; None for architectures."""
        one = None if self.subjects is None else self.subjects.subjects[0]
        return one if one is not None and one.name == "module" else None  # type: ignore[return-value]

    def batches(self) -> Batches:
        """The images of the task on the device."""
        from natpp.runs.tasks import make_task

        return make_task(self.task, self.fabric, self.run.say).batches(self.fabric.device)


class Scoring(Config):
    """The settings of a scorer, from which it is made."""

    def make(self, wanted: Wanted) -> Scorer:
        """The scorer."""
        raise NotImplementedError


@dataclass(frozen=True)
class Short(Scoring):
    """Short real trainings: architectures start from fresh weights, models from inherited ones.

    None (auto) picks what suits the data.

    Examples:
        >>> natpp.Short.parse("steps=200,store=scores.jsonl").steps
        200
    """

    steps: Annotated[int | None, At(least=1)] = None
    """gradient steps of a training"""
    batch: Annotated[int | None, At(least=2)] = None
    """images per step"""
    learning_rate: Annotated[float | None, At(above=0)] = None
    """maximum learning rate of SGD"""
    together: Annotated[int | None, At(least=1)] = None
    """trainings side by side on a GPU"""
    channels: Annotated[int | None, At(least=1)] = None
    """channels of the first cells of the trained networks"""
    cells: Annotated[int | None, At(least=1)] = None
    """cells of the trained networks (nasbench201: per stage)"""
    store: Annotated[str | Path | None, Form("FILE")] = None
    """file to save and reuse scores in"""

    def make(self, wanted: Wanted) -> Scorer:
        """Short trainings of architectures in the default network, or of candidates for a module."""
        if wanted.module is not None:
            from natpp.scorers.short import ShortTunings

            trial = module_trial(wanted, self.steps, self.learning_rate)
            return ShortTunings(trial, rate=self.learning_rate, fidelity=functools.partial(Fidelity().make, wanted))
        from natpp.runs.workers import on_ray
        from natpp.scorers.short import ShortScorer
        from natpp.scorers.supernet import usual_setting

        images, run = wanted.batches(), wanted.run
        where = usual_setting(wanted.network, images, "short", self.channels, self.cells)
        schedule = self.schedule(images)
        train: Callable[..., ShortScorer] = ShortScorer if run.workers == "here" else on_ray(wanted.fabric)
        return train(images, where, schedule, wanted.fabric, seed=run.seed, store=self.store, say=run.say)

    def schedule(self, images: Batches) -> ShortConfig:
        """The default schedule for such images, with these settings."""
        from natpp.scorers.short import usual_schedule

        names = "steps", "batch", "learning_rate", "together"
        own = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(usual_schedule(images), **own)


@dataclass(frozen=True)
class Supernet(Scoring):
    """Shared weights: for architectures those in a run's folder; for candidates for a module, weights trained here."""

    run: Annotated[str | Path | None, Form("RUN")] = None
    """folder of the run that trained it"""
    steps: Annotated[int | None, At(least=1)] = None
    """for a module: gradient steps for each candidate that will be scored"""
    learning_rate: Annotated[float | None, At(above=0)] = None
    """for a module: learning rate at the start"""

    def make(self, wanted: Wanted) -> Scorer:
        """The supernet."""
        if wanted.module is not None:
            from natpp.scorers.module_supernet import Expanded
            from natpp.seeds import Use, generator

            module, subjects, seed = wanted.module, wanted.subjects, wanted.run.seed
            assert subjects is not None
            draw = functools.partial(generator, seed, Use.DRAW, 3)
            trial = module_trial(wanted, self.steps, self.learning_rate)
            return Expanded(module, trial, lambda step: module.plan(subjects.random_row(0, draw(step))))
        if self.run is None:
            raise SettingError("the scorer supernet needs the folder of a run that trained one: supernet:run=RUN")
        from natpp.runs.goal import run_supernet

        return run_supernet(str(self.run), wanted)


@dataclass(frozen=True)
class Table(Scoring):
    """A table of trained networks."""

    file: Annotated[str | Path | None, Form("FILE")] = None
    """the table, with a column `arch`"""
    reward: str = "val_200"
    """column of the table to use as the score"""

    def make(self, wanted: Wanted) -> Scorer:
        """The table's column."""
        if wanted.module is not None:
            raise SettingError("a table scores architectures, not candidates for a module: use short or supernet")
        if self.file is None:
            raise SettingError("the scorer table needs a file: table:file=FILE")
        from natpp.scorers.table import TableScorer, read_table

        return TableScorer(read_table(self.file, [self.reward]), self.reward, wanted.limit)


@dataclass(frozen=True)
class Fidelity(Scoring):
    """How close a changed model's outputs stay to the original's, on inputs of the task; no targets are needed."""

    inputs: Annotated[int, At(least=8)] = 1024
    """number of inputs: replaced layers are fitted on most of them, and the score is measured on the rest"""

    def make(self, wanted: Wanted) -> Made:
        """The scorer for candidates of a module."""
        if wanted.module is None:
            raise SettingError("fidelity compares a changed model with the original, so it cannot score architectures")
        from natpp.decisions.refit import Refit
        from natpp.decisions.running import joined
        from natpp.runs.tasks import make_task
        from natpp.scorers.fidelity import Fidelity as Made
        from natpp.training.recalibrate import check_inputs

        task, module = make_task(wanted.task, wanted.fabric, wanted.run.say), wanted.module
        batches = in_batches(task.calibration(module.device, self.inputs), self.inputs)
        check_inputs(module.given, batches)
        joined(batches)  # stops at values that are not finite
        return Made(module, batches, task.agrees, Refit(rounds=1, replaced_only=True))


SCORERS.add("short", Short())
SCORERS.add("fidelity", Fidelity())
SCORERS.add("supernet", Supernet())
SCORERS.add("table", Table())


def as_scoring(given: Scoring | str | Path, *, reward: str = Table.reward) -> Scoring:
    """A scorer by its name with settings, a run's folder (its supernet), or a table's file (its column `reward`)."""
    if isinstance(given, Scoring):
        return given
    if not isinstance(given, str | Path):
        raise SettingError(f"expected a scorer, its name, a run's folder or a table, not {shortened(repr(given))}")
    if os.path.isdir(given):
        return Supernet(run=given)
    name = str(given).partition(":")[0]
    if name not in SCORERS and (os.path.exists(given) or Path(given).suffix):
        return Table(given, reward)
    return SCORERS.given(str(given))


def scorer_for(given: Scoring | Scorer | Callable[..., Any] | str | Path, wanted: Wanted) -> Any:
    """A scorer or scoring function, made from its name or settings; an existing one is returned as it is."""
    return given if callable(given) and not isinstance(given, Scoring) else as_scoring(given).make(wanted)


def in_batches(batches: Iterable[Any], most: int) -> list[Any]:
    """At most this many inputs, in batches small enough to hold some out."""
    found, count = list[Any](), 0
    for batch in batches:
        if not hasattr(batch, "split"):
            raise SettingError(f"fidelity needs inputs that are single tensors, not {type(batch).__name__}")
        found += batch[: most - count].split(max(1, min(64, most // 8)))
        if (count := count + len(batch)) >= most:
            break
    return found


def module_trial(wanted: Wanted, steps: int | None, learning_rate: float | None) -> Trial:
    """How candidates for a module are trained on the batches of a task."""
    import numpy as np

    from natpp.data.batches import Batches
    from natpp.data.images import Images
    from natpp.data.loader import moved_to
    from natpp.runs.tasks import make_task
    from natpp.runs.workers import check_here
    from natpp.training.recipe import ShortConfig
    from natpp.training.together import Trial

    assert wanted.module is not None
    check_here(wanted.run, "candidates for a module are trained")
    task = make_task(wanted.task, wanted.fabric, wanted.run.say)
    module, device = wanted.module.given, wanted.module.device
    rate = RATE if learning_rate is None else learning_rate
    augment = isinstance(task.train, Images)  # batches of a loader come as they are
    schedule = ShortConfig(steps=steps or STEPS, learning_rate=rate, clip=5.0, together=16, augment=augment)
    data = task.kept(device, schedule.steps * wanted.longest)
    task.check(module, data.take(np.arange(2)) if isinstance(data, Batches) else moved_to(data.train[0], device))
    return Trial(data, schedule, device, wanted.run.seed, task.loss, say=wanted.run.say)
