"""A supernet of a module: one set of weights for all candidates, with a choice at every site.

It starts with the weights of the module, which replacements inherit, and is trained on paths drawn at random. The
score of a candidate is minus its validation loss. Batch norms use the statistics of the batch, so none have to be
recomputed.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import fx

from natpp.core.decision import Plan
from natpp.core.scores import Scores
from natpp.core.subject import Candidate
from natpp.data.loader import Batch, samples_in
from natpp.errors import NatppError, SettingError
from natpp.fx.rewrite import Shared
from natpp.scorers.base import Scorer
from natpp.scorers.short import WORST
from natpp.seeds import from_text
from natpp.subjects.module import Module
from natpp.training.branch import output_and_loss, use_batch_statistics
from natpp.training.losses import cross_entropy
from natpp.training.step import Sgd, cosine
from natpp.training.together import Trial

Draw = Callable[[int], Plan]  # a random candidate, by the number of the step
TRAINED = 32  # short fine-tunings whose steps it is trained for, unless a method trains it


class Expanded(Scorer):
    """A traced module expanded into a supernet; it is trained before the first score, if nobody has trained it."""

    name = "supernet"
    at_once = 1

    def __init__(self, module: Module, trial: Trial, draw: Draw):
        super().__init__()
        self.module, self.trial, self.schedule, self.draw = module, trial, trial.schedule, draw
        self.shared = Shared(module.traced)
        self.loss, self.feed = trial.loss or cross_entropy, trial.feed()
        self.losses: list[float] = []  # of the steps so far
        self.spent: defaultdict[str, float] = defaultdict(float)  # seconds by phase
        self._sgd: Sgd | None = None

    def path(self, plan: Plan) -> fx.GraphModule:
        """The module of a candidate, whose weights are those of the supernet."""
        made = self.module.rewritten(plan, self.shared).float().to(self.trial.device)
        use_batch_statistics(made)  # running statistics would mix candidates
        return made

    def train(self, draw: Draw, steps: int, late: Callable[[], bool] = lambda: False) -> None:
        """Train for `steps` steps, each on one candidate drawn at random; stop early once it is late."""
        schedule = self.trial.schedule
        for step in range(steps):
            if step and late():
                break
            batch = self.feed.batch(step % schedule.steps)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(from_text(step, self.trial.seed))
                self._step(self.path(draw(step)).train(), batch, schedule.learning_rate * cosine(step, steps))

    def _step(self, path: fx.GraphModule, batch: Batch, rate: float) -> None:
        schedule = self.trial.schedule
        if self._sgd is None:
            if not any(parameter.requires_grad for parameter in path.parameters()):
                raise SettingError("the module has no parameters that could be trained")
            decay, clip = schedule.weight_decay, schedule.clip
            self._sgd = Sgd(path, learning_rate=rate, weight_decay=decay, clip=clip, nesterov=True)
        else:
            self._sgd.follow(path)
        self._sgd.set_rate(rate)
        with torch.enable_grad():
            loss = self._loss(path, batch)
            self._sgd.step(loss)
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            raise NatppError(
                f"the loss in step {len(self.losses) - 1} of the supernet is not a number: "
                "a lower learning rate may help"
            )

    def _loss(self, path: fx.GraphModule, batch: Batch) -> torch.Tensor:
        return output_and_loss(path, *batch, self.loss, self.trial.device)[1]

    def _score(self, candidates: list[Candidate]) -> Scores:
        if not self.losses:
            self.train(self.draw, TRAINED * self.schedule.steps)
        return np.array(self.tuned(candidates))

    @torch.no_grad()
    def tuned(self, candidates: Sequence[Candidate]) -> list[float]:
        """A score for each candidate, by the weights as they are."""
        found, start = [], time.perf_counter()
        for one in candidates:
            path, total, count = self.path(one.plan).eval(), 0.0, 0
            for batch in self.feed.validation():
                size = samples_in(batch)
                total += self._loss(path, batch).item() * size
                count += size
            value = -total / count
            found.append(max(value, WORST) if math.isfinite(value) else WORST)
        self.spent["judging"] += time.perf_counter() - start
        return found
