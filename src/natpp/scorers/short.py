"""Short trainings as scores: of architectures from fresh weights, of candidates for a module from inherited ones."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from natpp.arch.cost import counts
from natpp.arch.formats import to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.core.scores import Scores
from natpp.core.subject import Candidate
from natpp.data.batches import Batches
from natpp.data.images import SMALL_IMAGE
from natpp.errors import SettingError
from natpp.nets.network import build_network
from natpp.scorers.base import Scorer
from natpp.scorers.store import Store
from natpp.seeds import from_text
from natpp.training.branch import Build
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig
from natpp.training.together import NO_ROOM, Room, Seconds, Trial, train_together

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.scorers.fidelity import Fidelity
    from natpp.subjects.module import Module

WORST = -1e6  # the lowest score, also of a candidate whose loss is not a number


def usual_schedule(images: Batches) -> ShortConfig:
    """The default schedule: chosen for images of CIFAR's size (see docs/search.md), shorter for small images."""
    if images.size < SMALL_IMAGE:
        return ShortConfig(batch=64, steps=40, learning_rate=0.1, clip=5.0, augment=True, together=8)
    return ShortConfig(steps=1200, learning_rate=0.1, warm_up=0.2, fitting=0.5)


class ShortScorer(Scorer):
    """Minus the loss after a short training: the validation loss, mixed with the training loss if `fitting` says so.

    An architecture whose training fails gets the score of a guess. Architectures are trained in the form of what they
    compute, so those that compute the same have the same score.
    """

    def __init__(
        self,
        images: Batches,
        where: Setting,
        config: ShortConfig,
        fabric: Fabric,
        *,
        seed: int = 0,
        store: str | Path | None = None,
        limit: int | None = None,
        say: Callable[[str], None] | None = None,
        tested: bool = False,
    ):
        """With `tested`, outcomes also have test accuracies, for tables; they do not affect scores.

        Scores in full precision and in bf16 are kept apart in the store. Only full precision is named in the key, so
        that scores written in bf16 before there was a choice stay valid.
        """
        super().__init__(limit)
        half = in_half(fabric)
        self.images, self.where, self.config, self.fabric, self.seed = images, where, config, fabric, seed
        self.trial = Trial(images, config, fabric.device, seed, half=half, tested=tested, say=say)
        self.together = config.together * fabric.world_size
        self.store = None
        if store is not None:
            schedule = asdict(config)
            del schedule["together"]  # has no effect on outcomes
            settings = {"schedule": schedule, "network": asdict(where), "seed": seed}
            settings |= {"tested": True} if tested else {}
            settings |= {} if half else {"precision": "32"}
            self.store = Store(store, settings, images.fingerprint, say or (lambda _: None))
        self._outcomes: dict[Architecture, Outcome] = {}
        self._room = Room()
        self.spent: Seconds = defaultdict(float)
        """seconds of this process, by phase"""

    def arranged(self, archs: list[Architecture]) -> list[Architecture]:
        """Sorted by cost, so that networks trained side by side take equally long."""
        return sorted(archs, key=lambda arch: counts(arch, self.where).live_madds)

    @property
    def seconds_each(self) -> float:
        """Seconds per training, shared between the processes; trainings found in the store count too."""
        each = sum(one.seconds for one in self._outcomes.values()) / max(len(self._outcomes), 1)
        return each / self.fabric.world_size

    def outcomes(self, archs: Sequence[Architecture]) -> list[Outcome]:
        """The outcome of each architecture's training."""
        self(archs)
        return [self._outcomes[self.key(arch)] for arch in archs]

    def recorded(self, arch: Architecture) -> Outcome | None:
        """The outcome of an architecture that was trained here or is in the store; else None."""
        key = self.key(arch)
        return self._outcomes.get(key) or (None if self.store is None else self.store.get(key))

    def _score(self, archs: list[Architecture]) -> Scores:
        keys = [self.key(arch) for arch in archs]
        self._outcomes |= self.stored(keys)
        for key, outcome in self._trained([key for key in keys if key not in self._outcomes]).items():
            self._keep(key, outcome)
        guess = -math.log(self.images.classes)
        values = (self._outcomes[key].value for key in keys)
        return np.array([guess if value is None else max(value, WORST) for value in values])

    def _keep(self, key: Architecture, outcome: Outcome) -> None:
        """Add an outcome; the first process writes it to the store."""
        if key in self._outcomes:
            return
        self._outcomes[key] = outcome
        no_room = outcome.reason is not None and outcome.reason.startswith(NO_ROOM)  # it may fit elsewhere
        if self.store is not None and self.fabric.global_rank == 0 and not no_room:
            self.store.add(key, outcome)

    def stored(self, keys: Sequence[Architecture]) -> dict[Architecture, Outcome]:
        """The outcomes in the store; the first process reads them for all."""
        found: dict[Architecture, Outcome] = {}
        if self.store is not None:
            self.store.refresh()
            found = {key: outcome for key in keys if (outcome := self.store.get(key)) is not None}
        return found if self.fabric.world_size == 1 else self.fabric.broadcast(found)

    def _trained(self, keys: list[Architecture]) -> dict[Architecture, Outcome]:
        """Train architectures, shared between the processes; own outcomes are kept at once, others at the end."""
        ranks, rank = self.fabric.world_size, self.fabric.global_rank
        mine = keys[rank::ranks]
        found: list[Outcome] = []
        if mine:
            found = train_together(
                [functools.partial(build_network, key, self.where) for key in mine],
                [from_text(to_json(key), self.seed) for key in mine],
                self.trial,
                spent=self.spent,
                room=self._room,
                done=lambda place, outcome: self._keep(mine[place], outcome),
            )
        if ranks == 1:
            return dict(zip(keys, found, strict=True))
        every: list[list[Outcome]] = [[] for _ in range(ranks)]
        torch.distributed.all_gather_object(every, found)
        return {key: every[number % ranks][number // ranks] for number, key in enumerate(keys)}


class ShortTunings(Scorer):
    """Minus the validation loss of a candidate for a module, after a few steps of fine-tuning."""

    name = "short"

    def __init__(self, trial: Trial, *, rate: float | None = None, fidelity: Callable[[], Fidelity] | None = None):
        """`rate` is the learning rate that the user gave; `fidelity` makes a scorer on the same inputs."""
        super().__init__()
        self.trial, self.schedule, self.rate = trial, trial.schedule, rate
        self.make_fidelity = fidelity
        self.at_once = trial.schedule.together if trial.device.type == "cuda" else 1
        self.room = Room()
        self.spent: Seconds = defaultdict(float)

    def _score(self, candidates: list[Candidate]) -> Scores:
        return np.array(self.tuned(candidates))

    def tuned(self, candidates: Sequence[Candidate], longer: int = 1) -> list[float]:
        """A score for each candidate, after `longer` times the steps of the schedule; failures get the lowest score."""
        return [WORST if one.value is None else max(one.value, WORST) for one in self.outcomes(candidates, longer)]

    def outcomes(self, candidates: Sequence[Candidate], longer: int = 1) -> list[Outcome]:
        """The outcome of each candidate's fine-tuning."""
        builds = [functools.partial(_module(one).rewritten, one.plan) for one in candidates]
        seeds = [from_text(_module(one).block_ops(one.plan), self.trial.seed) for one in candidates]
        return self._outcomes(builds, seeds, replace(self.schedule, steps=longer * self.schedule.steps))

    def trained(self, builds: Sequence[Build], rate: float | None, longer: int = 1) -> list[float]:
        """A score for each of some modules, at a learning rate; all have the same dropout."""
        schedule = replace(self.schedule, steps=longer * self.schedule.steps)
        schedule = schedule if rate is None else replace(schedule, learning_rate=rate)
        found = self._outcomes(builds, [self.trial.seed] * len(builds), schedule)
        return [WORST if one.value is None else max(one.value, WORST) for one in found]

    def _outcomes(self, builds: Sequence[Build], seeds: Sequence[int], schedule: ShortConfig) -> list[Outcome]:
        trial, found = replace(self.trial, schedule=schedule), list[Outcome]()
        for start in range(0, len(builds), self.at_once):
            some = slice(start, start + self.at_once)
            found += train_together(builds[some], seeds[some], trial, spent=self.spent, room=self.room)
        return found


def _module(candidate: Candidate) -> Module:
    return cast("Module", candidate.subject)


def in_half(fabric: Fabric) -> bool:
    """Whether the precision of a fabric makes short trainings compute in bf16 rather than in full precision."""
    kind = fabric.device.type
    with fabric.autocast():
        found = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    if found == torch.float16:
        raise SettingError("short trainings do not scale losses, as precision 16 needs: use --precision bf16, or 32")
    return found == torch.bfloat16
