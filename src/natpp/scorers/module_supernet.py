"""Scores of what a module may become, on the user's data: minus the validation loss.

`ShortTunings`: every candidate is rewritten with inherited weights and fine-tuned for a few steps, side by side on a
GPU. `Expanded`: a supernet of the module, with a choice at every site; all candidates share its weights, which start
as those the module has and what replacements inherit, and are trained on paths drawn at random. Batch norms use the
statistics of the batch in both, so none have to be recomputed.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from natpp.core.decision import Plan
from natpp.data.batches import Batches
from natpp.data.loader import Loaded, samples_in
from natpp.errors import NatppError, SettingError
from natpp.fx.rewrite import Shared
from natpp.scorers.short import Feed, LoadedFeed, Room, ShortConfig, output_and_loss, train_together, validation_batches
from natpp.subjects.module import Module
from natpp.training.losses import Loss

Draw = Callable[[int], Plan]  # a random candidate by the number of the step
Say = Callable[[str], None]
WORST = -1e6  # of what is not a number


@dataclass(frozen=True, eq=False)
class Judge:
    """What candidates are judged by: data, loss, schedule, device."""

    data: Batches | Loaded
    loss: Loss
    schedule: ShortConfig
    device: torch.device
    seed: int = 0
    say: Say | None = None


class ShortTunings:
    """Minus the validation loss after a few steps of fine-tuning."""

    def __init__(self, module: Module, judge: Judge):
        self.module, self.judge = module, judge
        self.together = judge.schedule.together if judge.device.type == "cuda" else 1
        self.room = Room()
        self.spent: defaultdict[str, float] = defaultdict(float)  # seconds of capture, training and judging

    def __call__(self, candidates: Sequence[Plan], longer: int = 1) -> list[float]:
        """A score for each, after so many times the steps of the schedule; what fails gets the worst."""
        module, judge = self.module, self.judge
        schedule = replace(judge.schedule, steps=longer * judge.schedule.steps)
        found: list[float] = []
        for start in range(0, len(candidates), self.together):
            some = candidates[start : start + self.together]
            outcomes = train_together(
                [functools.partial(module.rewritten, plan) for plan in some],
                [_seed(module.block_ops(plan), judge.seed) for plan in some],
                judge.data,
                schedule,
                judge.device,
                seed=judge.seed,
                say=judge.say,
                loss=judge.loss,
                spent=self.spent,
                room=self.room,
            )
            found += [WORST if outcome.value is None else max(outcome.value, WORST) for outcome in outcomes]
        return found


def _seed(ops: object, seed: int) -> int:
    """Of what drops things in a candidate, whoever is trained beside it."""
    return int.from_bytes(hashlib.sha256(f"{seed} {ops}".encode()).digest()[:4], "big")


class Expanded:
    """A supernet made of a traced module: one set of weights for all that it may become."""

    together = 1

    def __init__(self, module: Module, judge: Judge):
        self.module, self.judge = module, judge
        self.shared = Shared(module.traced)
        self.losses: list[float] = []  # of the steps so far
        self.spent: defaultdict[str, float] = defaultdict(float)  # seconds of judging
        self._seen: set[nn.Parameter] = set()
        self._optimizer: torch.optim.SGD | None = None

    def path(self, plan: Plan) -> fx.GraphModule:
        """The module of a candidate: its weights are those of the supernet."""
        made = self.module.rewritten(plan, self.shared).float().to(self.judge.device)
        for part in made.modules():
            if isinstance(part, _BatchNorm):  # running statistics would mix candidates
                part.track_running_stats, part.running_mean, part.running_var = False, None, None
                part.num_batches_tracked = None
        return made

    def train(self, draw: Draw, steps: int, late: Callable[[], bool] = lambda: False) -> None:
        """So many steps of SGD, each on one candidate drawn at random, or until it is late."""
        judge, schedule = self.judge, self.judge.schedule
        feed = (
            LoadedFeed(judge.data, schedule, judge.device)
            if isinstance(judge.data, Loaded)
            else Feed(judge.data, schedule, judge.device, judge.seed)
        )
        for step in range(steps):
            if step and late():
                break
            number = step % schedule.steps
            feed.fetch(number)
            feed.load(torch.tensor([number], device=judge.device))
            rate = 0.5 * schedule.learning_rate * (1 + math.cos(math.pi * step / steps))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(_seed(step, judge.seed))
                self._step(self.path(draw(step)).train(), feed, rate)

    def _step(self, path: fx.GraphModule, feed: Feed | LoadedFeed, rate: float) -> None:
        new = [one for one in path.parameters() if one.requires_grad and one not in self._seen]
        self._seen.update(new)
        if self._optimizer is None:
            if not new:
                raise SettingError("there are no parameters that could be trained")
            decay = self.judge.schedule.weight_decay
            self._optimizer = torch.optim.SGD(new, lr=rate, momentum=0.9, nesterov=True, weight_decay=decay)
        elif new:
            self._optimizer.add_param_group({"params": new})
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        with torch.enable_grad():
            loss = self._loss(path, feed.images, feed.labels)
            loss.backward()  # type: ignore[no-untyped-call]
        if self.judge.schedule.clip is not None:
            torch.nn.utils.clip_grad_norm_(path.parameters(), self.judge.schedule.clip)
        self._optimizer.step()
        self.losses.append(loss.item())
        if not math.isfinite(self.losses[-1]):
            raise NatppError(
                f"the loss in step {len(self.losses) - 1} of the supernet is not a number: "
                "a lower learning rate may help"
            )

    def _loss(self, path: fx.GraphModule, inputs: object, targets: object) -> torch.Tensor:
        return output_and_loss(path, inputs, targets, self.judge.loss, self.judge.device)[1]

    @torch.no_grad()
    def __call__(self, candidates: Sequence[Plan]) -> list[float]:
        """A score for each."""
        found, start = [], time.perf_counter()
        for plan in candidates:
            path, total, count = self.path(plan).eval(), 0.0, 0
            for inputs, targets in validation_batches(self.judge.data, self.judge.schedule, self.judge.device):
                size = samples_in((inputs, targets))
                total += self._loss(path, inputs, targets).item() * size
                count += size
            value = -total / count
            found.append(max(value, WORST) if math.isfinite(value) else WORST)
        self.spent["judging"] += time.perf_counter() - start
        return found
