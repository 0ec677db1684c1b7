"""A search from images, or from any scorer, to a policy: its phases, with checkpoints to resume from."""

from __future__ import annotations

import copy
import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from natpp.arch.formats import from_json, to_dict, to_json
from natpp.arch.graph import Architecture
from natpp.arch.space import Space
from natpp.core.budget import Budget
from natpp.core.scores import Gain, Score, Scores
from natpp.folder import Folder, Interrupted, Stop
from natpp.methods.learning import Learner
from natpp.methods.rounds import Round, predicted
from natpp.nets.policy import Policy
from natpp.run import Run
from natpp.runs.phases import Phases
from natpp.runs.search import Search
from natpp.scorers.base import Priced, Scorer
from natpp.scorers.predicted import Prediction
from natpp.scorers.supernet import SharedWeights
from natpp.seeds import Use, generator, number, torch_generator
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STEPS_A_ROW = 50  # policy steps between two rows of the curves
MOST_EVALUATIONS = 100_000  # maximum, regardless of the time
SECONDS_TO_CHOOSE = 0.1  # to choose what to score next, per score
SECONDS_TO_LEARN = 40  # minimum reserved for prediction and policy
STEPS_TO_PLAN = 20  # of weights or of the policy, to measure the speed with
SHARE_OF_WEIGHTS = 2 / 3  # of the time that is not for learning; the rest is for scores
OVERTIME = 1.1  # a search that takes more than this times the given minutes is reported
SECONDS_A_CHECKPOINT = 10  # minimum between two checkpoints of scores or policy steps
T = TypeVar("T")


class Searching:
    """A running search: from `scores`, a scorer or shared weights still to be trained, to a policy."""

    def __init__(
        self,
        space: Space,
        frame: Frame,
        scores: Scorer | SharedWeights,
        config: Phases,
        fabric: Fabric,
        *,
        asked: Search = Search(),
        run: Run = Run(),
        arch: Architecture | None = None,
        folder: Folder | None = None,
        stop: Stop | None = None,
    ):
        """`arch` is the one input to learn for, Eq. (1); without it inputs are drawn from the space, Eq. (2).

        The time limit counts from `started`, by `time.perf_counter`; by default from now.
        """
        self.shared = scores if isinstance(scores, SharedWeights) else None
        self.scorer = scores if isinstance(scores, Scorer) else None
        if self.shared is not None and config.alternate:
            steps = config.weights.epochs * self.shared.policy_steps_an_epoch
            config = replace(config, learn=replace(config.learn, steps=steps))
        self.frame, self.config, self.fabric, self.seed = frame, config, fabric, run.seed
        self.evaluations, self.minutes, self.price = asked.evaluations, asked.minutes, dict(asked.price or {})
        self.folder, self.stop, self.watch, self.say = folder or Folder(None, {}), stop or Stop(), run.watch, run.say
        pool = [arch] if arch is not None else space.draw(config.pool, generator(run.seed, Use.DRAW, 0))
        self.inputs = Subjects(cells_of(pool, frame, space.ops), Budget(strict=frame.strict))
        self.learner = Learner(space.ops, config.learn, number(run.seed, Use.START, 1))
        self.known: dict[Architecture, float] = {}  # scores, kept for a resumed run
        self.planned: int | None = None  # scores there is time for, if minutes are given
        self.planned_weights: int | None = None  # and steps of shared weights
        self.planned_steps: int | None = None  # and steps of the policy
        self.prediction: Prediction | None = None  # if scores are expensive
        self.chosen: Architecture | None = None  # for one given input: the best by real scores
        self.example: tuple[Architecture, Architecture] | None = None  # for many inputs: the choice that gained most
        self.example_scores = 0.0, 0.0
        self.finished = False
        self.best = float("-inf")  # of all scores
        self.rounds = 0  # rows of the curves about rounds of the prediction: one when chosen, another when scored
        self.started = time.perf_counter()
        self._saved = 0.0
        self._paces: list[float] = []  # seconds of the first steps of shared weights

    def __call__(self) -> Policy:
        """Search, starting from the last checkpoint."""
        state = self._agreed(self.folder.load())
        if state is not None:
            self._restore(state)
        if not self.finished:
            if self.shared is not None and self.config.alternate:
                self._in_turn(self.shared)
            else:
                if self.shared is not None:
                    self._weights(self.shared, self.shared.total)
                self._policy_by_scores()
            self.finished = True
            self._save()
            self._tell_overtime()
        return self.learner.policy.eval()

    def _in_turn(self, shared: SharedWeights) -> None:
        """An epoch of weights and one of the policy in turn, until all steps of both are taken."""
        epoch = 0
        while shared.steps < shared.total or self.learner.steps < self.learner.config.steps:
            epoch += 1
            self._weights(shared, epoch * shared.steps_an_epoch)
            self._policy_by_batches(shared, epoch * shared.policy_steps_an_epoch)

    def _weights(self, shared: SharedWeights, steps: int) -> None:
        """Train shared weights for this many steps, or as many as there is time for."""
        while shared.steps < min(steps, shared.total):
            begin = time.perf_counter()
            with self.folder.keeping():
                loss = shared.step()
            if loss is not None:
                self._tell("weights", shared.steps, shared.total, {"loss": loss})
            if shared.steps % shared.steps_an_epoch == 0 or shared.steps == shared.total:
                row = {"phase": "weights", "epoch": shared.epoch, "step": shared.steps, "loss": loss}
                self._log(row | {"accuracy": shared.accuracy()})
                self._save()
            if self.minutes is not None and self.planned_weights is None:
                self._pace_weights(shared, begin)
            self._end_if_asked()

    def _pace_weights(self, shared: SharedWeights, begin: float) -> None:
        """Record the time of a step; plan the rest after some steps, or once they took a tenth of the time."""
        assert self.minutes is not None
        self._wait()
        self._paces.append(time.perf_counter() - begin)
        paces = self._paces[1:]  # the first step also compiles and captures
        late = sum(self._paces) > 6 * self.minutes and len(paces) > 0
        if shared.steps < shared.total and self._agreed(late or len(paces) == STEPS_TO_PLAN):
            self._plan_weights(shared, sum(paces) / len(paces))

    def _plan_weights(self, shared: SharedWeights, each: float) -> None:
        """As many steps of shared weights as there is time for, and of the policy where it learns in turn with them."""
        weights, policy = shared.total, self.learner.config.steps
        if self.config.alternate:
            policy_each = self._policy_pace(shared)
            seconds = shared.steps * each + self.learner.steps * policy_each + self._seconds_left()
            epochs = seconds / (shared.steps_an_epoch * each + shared.policy_steps_an_epoch * policy_each)
            epochs = self._agreed(float(int(epochs)) if epochs > 1 else epochs)
            self.planned_weights = max(int(epochs * shared.steps_an_epoch), shared.steps + 1)
            self.planned_steps = max(int(epochs * shared.policy_steps_an_epoch), self.learner.steps + 1)
            self.planned_steps = min(self.planned_steps, policy)
            self.learner.config = replace(self.learner.config, steps=self.planned_steps)
        else:
            seconds = SHARE_OF_WEIGHTS * (self._seconds_left() - self._seconds_to_learn())
            self.planned_weights = self._agreed(shared.steps + max(int(seconds / each), 1))
        self.planned_weights = shared.total = min(self.planned_weights, weights)
        self._save()
        if shared.total < weights and self.say is not None and self.fabric.global_rank == 0:
            also = f" and {self.planned_steps} of {policy} of the policy" if self.config.alternate else ""
            self.say(
                f"there is time for {shared.total} of {weights} steps of the shared weights{also}: "
                "more minutes may help"
            )

    def _policy_pace(self, shared: SharedWeights) -> float:
        """Seconds of a step of the policy by a batch of images: a copy takes two, the first of which loads kernels."""
        learner, seconds = copy.deepcopy(self.learner), 0.0
        for _ in range(2):
            begin = time.perf_counter()
            score = Priced(shared.batch_scorer(0), self.frame.where, self.price)
            chance = generator(self.seed, Use.LEARN, 0), torch_generator(self.seed, Use.LEARN, 0)
            learner.step(self.inputs, score, *chance)
            self._wait()
            seconds = time.perf_counter() - begin
        return seconds

    def _policy_by_batches(self, shared: SharedWeights, steps: int) -> None:
        """Learn for this many steps, each from one batch of validation images."""
        while self.learner.steps < min(steps, self.learner.config.steps):
            score = Priced(shared.batch_scorer(self.learner.steps), self.frame.where, self.price)
            self._policy_step(score, shared.policy_steps_an_epoch)

    def _policy_by_scores(self) -> None:
        """Score, predict if scores are expensive, learn; then score some of the final choices."""
        scorer = self._limited()
        scorer.recall(self.known)
        scorer.scored = lambda: self._scored(scorer)
        if scorer.limit is not None:
            plan = None if self.minutes is None else functools.partial(self._planned, scorer)
            final = self._kept_back(scorer.limit)
            scorer.limit -= final if plan is None else 0  # a plan already reserves them
            chance = generator(self.seed, Use.SCORE)
            self.prediction = predicted(self.inputs, scorer, self.config.predict, chance, plan, self._told)
            scorer.limit += final if plan is None else 0
        first, begin = self.learner.steps, time.perf_counter()
        while self.learner.steps < self.learner.config.steps:
            self._policy_step(self._reward(scorer), STEPS_A_ROW)
            taken = self.learner.steps - first
            if self.minutes is not None and self.planned_steps is None and taken == STEPS_TO_PLAN:
                self._plan_learning(scorer, (time.perf_counter() - begin) / taken)
        if scorer.limit is not None or len(self.inputs) == 1:
            self._score_choices(scorer)

    def _reward(self, scorer: Scorer) -> Score | Gain:
        """What the next step of the policy learns on: the prediction, or the scores if they are free."""
        if self.prediction is None:
            return scorer
        return self.prediction.reward(self.learner.steps / self.learner.config.steps)

    def _policy_step(self, score: Score | Gain, steps_a_row: int) -> None:
        step = self.learner.steps
        gain, entropy = self.learner.step(
            self.inputs,
            score,
            generator(self.seed, Use.LEARN, step),
            torch_generator(self.seed, Use.LEARN, step),
        )
        step, total = self.learner.steps, self.learner.config.steps
        figures = {"improvement": gain, "entropy": entropy}
        self._tell("policy", step, total, figures)
        if step % steps_a_row == 0 or step == total:
            self._log({"phase": "policy", "step": step, **figures})
            self._save(seldom=True)
        self._end_if_asked()

    def _score_choices(self, scorer: Scorer) -> None:
        """Score final choices of the policy, within the limit.

        For one given input several choices are scored, and the best of all scores is kept. Else one choice is scored
        for each of some inputs.
        """
        alone = len(self.inputs) == 1
        left = self.config.final if scorer.left is None else min(scorer.left, self.config.final)
        indices = generator(self.seed, Use.FINAL).permutation(len(self.inputs)).tolist()[: left // 2]
        chosen: list[Architecture] = []
        if indices:
            with torch.no_grad():
                transitions = self.learner.policy.eval()(self.inputs.batch(indices))
                choices = transitions.greedy()[None]
                if alone and left > 2:
                    samples = transitions.sample(left - 2, torch_generator(self.seed, Use.FINAL))
                    choices = torch.cat([choices, samples])
            rows = self.inputs.rows(indices, choices.numpy(), transitions.probabilities(choices))
            chosen = [self.inputs.transformed(index, row) for index, _, row in rows]
        fresh = len(chosen)
        if alone and self.prediction is not None:  # all that was scored is something the input may become
            indices = [0]
            chosen += self.prediction.archs
        if not chosen:
            return
        before = scorer([self.inputs.given[index] for index in indices])
        after = scorer(chosen)
        if alone:
            self.chosen = chosen[int(after.argmax())]
        if self.prediction is not None and fresh:
            expected = self.prediction.expected(chosen[:fresh])
            self._log({"phase": "predictions", "round": "final", **_lists(expected, after[:fresh])})
        if not alone:
            self._log({"phase": "examples", "before": before.tolist(), "after": after.tolist()})
            most = int((after - before).argmax())
            self.example = self.inputs.given[indices[most]], chosen[most]
            self.example_scores = float(before[most]), float(after[most])
        self._log(
            {
                "phase": "choices",
                "inputs": len(indices),
                "before": float(before.mean()),
                "after": float(after.max() if alone else after.mean()),
                "evaluations": scorer.queries,
            }
        )

    def _told(self, chosen: Round) -> None:
        """Add a round of choices to the curves, unless it was there before the run was resumed."""
        place = 2 * chosen.number - (chosen.scores is None)
        if place <= self.rounds:
            return
        self.rounds = place
        if chosen.scores is None:
            self._log({"phase": "chosen", "round": chosen.number, "architectures": len(chosen.expected)})
        else:
            row = {"phase": "predictions", "round": chosen.number}
            self._log(row | _lists(chosen.expected, chosen.scores))

    def _planned(self, scorer: Scorer) -> int:
        """Number of scores that fit into the time, by the speed of the first ones; the last quarter is for learning."""
        assert self.minutes is not None
        if self.planned is None:
            left = self._seconds_left() - self._seconds_to_learn()
            each = scorer.seconds_each + SECONDS_TO_CHOOSE
            planned = scorer.queries + max(int(left / each), 0)
            self.planned = self._agreed(planned if scorer.limit is None else min(planned, scorer.limit))
            self._save()
        scorer.limit = self.planned
        return self.planned - self._kept_back(self.planned)

    def _kept_back(self, evaluations: int) -> int:
        """How many of these scores are for final choices: two per input, before and after, so an even number."""
        return min(self.config.final, evaluations // 10) // 2 * 2

    def _plan_learning(self, scorer: Scorer, seconds_each: float) -> None:
        """As many steps of the policy as there is time for, with some left to score final choices."""
        total = self.learner.config.steps
        left = self._seconds_left() - min(scorer.left or 0, self.config.final) * scorer.seconds_each
        self.planned_steps = self._agreed(min(self.learner.steps + max(int(left / seconds_each), 0), total))
        self.learner.config = replace(self.learner.config, steps=self.planned_steps)
        self._save()
        if self.planned_steps < total and self.say is not None and self.fabric.global_rank == 0:
            self.say(f"there is time for {self.planned_steps} of {total} steps of the policy: more minutes may help it")

    def _tell_overtime(self) -> None:
        """Report a search that took longer than its time limit: the first steps and scores are always taken."""
        if self.minutes is None or self.say is None or self.fabric.global_rank != 0:
            return
        asked, taken = 60 * self.minutes, 60 * self.minutes - self._seconds_left()
        if taken > OVERTIME * asked:
            self.say(f"the search took {taken:.1f} seconds, more than its limit of {asked:g}")

    def _seconds_left(self) -> float:
        assert self.minutes is not None
        return 60 * self.minutes - (time.perf_counter() - self.started)

    def _seconds_to_learn(self) -> float:
        """A quarter of the time, but at least what learning needs."""
        assert self.minutes is not None
        return max(15 * self.minutes, SECONDS_TO_LEARN)

    def _wait(self) -> None:
        """Wait for the device, so that a clock measures what the work took."""
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)

    def _limited(self) -> Scorer:
        """The scorer, with the limit and the price of this search."""
        scorer = self.scorer if self.shared is None else self.shared.scorer()
        assert scorer is not None
        limit = self.evaluations if self.evaluations is not None else scorer.left
        if limit is None and not scorer.free:
            limit = MOST_EVALUATIONS if self.minutes is not None else self.config.evaluations
        return Priced(scorer, self.frame.where, self.price, limit)

    def _scored(self, scorer: Scorer) -> None:
        if scorer.limit is None:
            return
        self.known |= scorer.known
        scores = list(scorer.known.values())
        figures = {"mean": sum(scores) / len(scores), "best": max(scores)}
        self._tell("scores", scorer.queries, scorer.limit, figures)
        row: dict[str, Any] = {"phase": "scores", "step": scorer.queries, **figures}
        if figures["best"] > self.best:
            self.best = figures["best"]
            row["candidate"] = to_dict(max(scorer.known, key=scorer.known.__getitem__))
        self._log(row)
        self._save(seldom=True)
        self._end_if_asked()

    def _save(self, *, seldom: bool = False) -> None:
        if self.fabric.global_rank == 0 and not (seldom and time.monotonic() - self._saved < SECONDS_A_CHECKPOINT):
            self._saved = time.monotonic()
            state = {
                "weights": None if self.shared is None else self.shared.state(),
                "learner": self.learner.state(),
                "known": [(to_json(arch), score) for arch, score in self.known.items()],
                "evaluations": self.planned,
                "steps": self.planned_steps,
                "weight_steps": self.planned_weights,
                "rounds": self.rounds,
                "chosen": None if self.chosen is None else to_json(self.chosen),
                "example": None if self.example is None else [to_json(arch) for arch in self.example],
                "example_scores": list(self.example_scores),
                "finished": self.finished,
            }
            self.folder.save(state)

    def _restore(self, state: dict[str, Any]) -> None:
        if self.shared is not None:
            self.shared.restore(state["weights"])
        self.learner.restore(state["learner"])
        self.known = {from_json(text): score for text, score in state["known"]}
        self.best = max(self.known.values(), default=self.best)
        self.planned, self.planned_steps = state["evaluations"], state.get("steps")
        self.planned_weights = state.get("weight_steps")
        if self.shared is not None and self.planned_weights is not None:
            self.shared.total = self.planned_weights
        if self.planned_steps is not None:
            self.learner.config = replace(self.learner.config, steps=self.planned_steps)
        self.rounds = state.get("rounds", 0)  # a run of an earlier version has none
        self.chosen = None if state["chosen"] is None else from_json(state["chosen"])
        example = state.get("example")
        if example is not None:
            self.example = from_json(example[0]), from_json(example[1])
            self.example_scores = state["example_scores"][0], state["example_scores"][1]
        self.finished = state["finished"]

    def _agreed(self, value: T) -> T:
        """The value of the first process, for all processes."""
        return self.fabric.broadcast(value) if self.fabric.world_size > 1 else value

    def _log(self, row: dict[str, Any]) -> None:
        if self.fabric.global_rank == 0:
            self.folder.log(row | {"seconds": round(time.perf_counter() - self.started, 3)})

    def _tell(self, phase: str, done: int, total: int, figures: dict[str, float]) -> None:
        if self.watch is not None and self.fabric.global_rank == 0:
            self.watch(phase, done, total, figures)

    def _end_if_asked(self) -> None:
        """Stop after this step, with everything saved; all processes stop at the same step."""
        asked = self.stop.signal
        if self.fabric.world_size > 1:
            most = self.fabric.all_reduce(torch.tensor(asked, device=self.fabric.device), reduce_op="max")
            assert isinstance(most, Tensor)
            asked = int(most.item())
        if asked:
            self._save()
            raise Interrupted(asked, self.folder.folder)


def _lists(expected: Scores, scored: Scores) -> dict[str, list[float]]:
    return {"predicted": expected.round(4).tolist(), "scored": scored.tolist()}
