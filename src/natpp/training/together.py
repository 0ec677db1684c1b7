"""Short trainings side by side: small real networks, each with its own random weights, evaluated on validation data.

On a GPU the networks of a group are branches of one captured CUDA graph: one launch takes a step of all of them, on the
same batch, which is picked and augmented inside the graph. On a CPU the same code runs without a graph.

The outcome of a network depends on its build, the seeds and the settings, not on its neighbours. On a CPU this holds to
the bit. On a GPU bf16 and the order of atomic additions leave small differences, which a test bounds: after 40 steps
losses differ by less than 0.02 and accuracies by less than 2 points. Longer trainings amplify them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from natpp.data.batches import Batches
from natpp.data.feeds import DrawnFeed, Feed, LoaderFeed, in_fast_format
from natpp.data.loader import Batch, Loaded
from natpp.errors import SettingError
from natpp.nets.captured import Captured
from natpp.training.branch import Branch, Build, Tested, norms
from natpp.training.loop import fastest_kernels
from natpp.training.losses import Loss
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig
from natpp.training.step import learning_rates

STATISTICS = 20  # training batches to compute batch norm statistics from before a test
NO_ROOM = "does not fit into the memory of"
Data = Batches | Loaded
Seconds = defaultdict[str, float]  # by phase: capture, training, judging
One = TypeVar("One")  # one of several that run side by side


@dataclass
class Room:
    """How many networks fit side by side, as learned from the groups trained so far."""

    most: int | None = None
    """None: no group was too large so far"""
    told: set[int] = field(default_factory=set)
    """sizes of groups that did not fit, each reported once"""

    def halve(self, number: int, device: torch.device, say: Callable[[str], None] | None) -> None:
        """A group of this size did not fit."""
        self.most = -(-number // 2)
        if say is not None and number not in self.told:
            say(f"{number} networks side by side do not fit into the memory of {device}: trying half as many")
        self.told.add(number)


@dataclass(frozen=True, eq=False)
class Trial:
    """How networks are compared by short trainings: what they have in common."""

    data: Data
    schedule: ShortConfig
    device: torch.device
    seed: int = 0
    """of the batches"""
    loss: Loss | None = None
    """None: cross-entropy of logits. With a loss, modules of any kind are trained, and only parameters that need a
    gradient"""
    half: bool | None = None
    """whether to compute in bf16; None: on a GPU"""
    tested: bool = False
    """whether to measure the accuracy on the test images, once, at the end"""
    say: Callable[[str], None] | None = None
    """called with lines that the user should see"""

    def __post_init__(self) -> None:
        if self.tested and (self.loss is not None or isinstance(self.data, Loaded)):
            raise SettingError("tested needs a named data set of images and cross-entropy: leave out tested")

    @property
    def in_half(self) -> bool:
        """Whether networks compute in bf16."""
        return self.device.type == "cuda" if self.half is None else self.half

    def feed(self) -> Feed:
        """The batches of the schedule, and those for validation."""
        if isinstance(self.data, Loaded):
            return LoaderFeed(self.data.train, self.data.validation, self.device, single=True)
        schedule = self.schedule
        return DrawnFeed(
            self.data,
            self.device,
            steps=schedule.steps,
            batch=schedule.batch,
            augment=schedule.augment,
            validation_batch=schedule.validation_batch,
            seed=self.seed,
            half=self.in_half,
        )


def train_together(
    builds: Sequence[Build],
    seeds: Sequence[int],
    trial: Trial,
    *,
    spent: Seconds | None = None,
    room: Room | None = None,
    done: Callable[[int, Outcome], None] | None = None,
) -> list[Outcome]:
    """Outcomes of networks trained side by side; a group too large for the memory is halved until it fits.

    `seeds` are of first weights and dropout, one for each network. Seconds are added to `spent`. `room` remembers how
    many networks fit. `done` is called with the place and the outcome of a network as soon as its group has ended.
    """
    spent = defaultdict(float) if spent is None else spent
    room = Room() if room is None else room
    device, found = trial.device, list[Outcome]()
    while len(found) < len(builds):
        some = slice(len(found), None if room.most is None else len(found) + room.most)
        number, start = len(builds[some]), time.perf_counter()
        try:
            with fastest_kernels(device) if trial.loss is not None else contextlib.nullcontext():
                outcomes = _trained(builds[some], seeds[some], trial, spent)
        except torch.OutOfMemoryError:
            outcomes = None
        if outcomes is None:  # outside of `except`, where the error would keep the failed group in memory
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if number > 1:
                room.halve(number, device, trial.say)
                continue
            outcomes = [Outcome(None, reason=f"{NO_ROOM} {device}")]
            room.most = None  # this network is too large even alone: the limit for the others is unchanged
        share = (time.perf_counter() - start) / number
        for outcome in outcomes:
            found.append(replace(outcome, seconds=share))
            if done is not None:
                done(len(found) - 1, found[-1])
    return found


@torch.enable_grad()  # also if the caller has turned gradients off
def _trained(builds: Sequence[Build], seeds: Sequence[int], trial: Trial, spent: Seconds) -> list[Outcome]:
    """The outcome of each network, without seconds."""
    schedule, device, loss = trial.schedule, trial.device, trial.loss
    with _timed(spent, "capture"):
        branches = [
            Branch(build, first, schedule, device, loss, half=trial.in_half)
            for build, first in zip(builds, seeds, strict=True)
        ]
        feed = trial.feed()
        rates = learning_rates(schedule.learning_rate, schedule.steps, schedule.warm_up).to(device)
    captured = device.type == "cuda"
    if captured:
        try:
            _train_captured(branches, feed, rates, spent)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a module may look at values, which cannot be captured
            if loss is None:
                raise
            captured = False
            if trial.say is not None:
                trial.say(f"short trainings cannot be captured, so they take longer: {str(error).splitlines()[0]}")
    if not captured:
        for branch, first in zip(branches, seeds, strict=True):
            with _timed(spent, "training"), torch.random.fork_rng(devices=[]):
                torch.manual_seed(first)
                for step in range(schedule.steps):
                    number = torch.tensor([step], device=device)
                    branch.step(*feed.batch(step), number, rates[number])
    samples = trial.data.samples if isinstance(trial.data, Loaded) else len(trial.data.validation)
    with _timed(spent, "judging"):
        if samples:
            state = [one.judged for one in branches]
            _over(branches, feed.validation(), Branch.judge, state, device, captured=captured)
        figures = (torch.stack([branch.judged for branch in branches]).double().cpu() / max(samples, 1)).tolist()
        judged = [(loss, right) if samples else (None, math.nan) for loss, right in figures]
        found = [branch.outcome(*one) for branch, one in zip(branches, judged, strict=True)]
        if trial.tested:
            accuracies = final_accuracies(branches, trial, captured=captured)
            found = [replace(one, test_accuracy=accuracy) for one, accuracy in zip(found, accuracies, strict=True)]
    return found


def final_accuracies(branches: Sequence[Branch], trial: Trial, *, captured: bool) -> list[float]:
    """Test accuracy of each network in per cent, with mean batch norm statistics of some training batches."""
    images = trial.data
    assert isinstance(images, Batches)
    size = min(trial.schedule.validation_batch, len(images))
    count = min(STATISTICS, len(images) // size)
    tests = [Tested(branch) for branch in branches]
    state = [tensor for one in tests for tensor in one.changing]

    def over(batches: Iterable[Batch], look: Callable[[Tested, Tensor, Tensor], None]) -> None:
        fast = ((in_fast_format(some, half=branches[0].half), labels) for some, labels in batches)
        _over(tests, fast, look, state, trial.device, captured=captured, blind=look)

    over((images.take(np.arange(number * size, (number + 1) * size)) for number in range(count)), Tested.measure)
    for one in tests:
        one.settle(count)
    over(images.test_batches(trial.schedule.validation_batch), Tested.test)
    return [100 * right / seen for right, seen in (one.right.tolist() for one in tests)]


def _train_captured(branches: Sequence[Branch], feed: Feed, rates: Tensor, spent: Seconds) -> None:
    """All steps of all branches as replays of one CUDA graph."""
    device = rates.device
    number = torch.zeros(1, dtype=torch.int64, device=device)
    streams = _streams(len(branches), device)
    with _timed(spent, "capture"):
        first = feed.fetch(0)

        def step(*fetched: Tensor) -> None:
            inputs, targets = feed.make(number, _rebuilt(first, fetched))
            rate = rates.index_select(0, number)
            _side_by_side(branches, streams, lambda branch: branch.step(inputs, targets, number, rate), device)
            number.add_(1)

        state = [number, *(tensor for branch in branches for tensor in branch.changing)]
        ours = all(branch.own_loss is None for branch in branches)
        widths = frozenset(norm.num_features for branch in branches for norm in norms(branch.module))
        captured = Captured(step, _tensors(first), state, device, blind=(widths, branches[0].half) if ours else None)
    with _timed(spent, "training"):
        for index in range(len(rates)):
            captured(*_tensors(feed.fetch(index)))
        torch.cuda.synchronize(device)
    captured.graph.reset()


@torch.no_grad()
def _over(
    ones: Sequence[One],
    batches: Iterable[Batch],
    look: Callable[[One, Any, Any], None],
    state: Sequence[Tensor],
    device: torch.device,
    *,
    captured: bool,
    blind: Hashable | None = None,
) -> None:
    """Let each of several look at every batch, which changes `state`; captured, side by side as replays of a graph."""
    graphs: dict[object, Captured] = {}
    streams = _streams(len(ones), device) if captured else []
    for batch in batches:
        tensors = _tensors(batch)
        if not captured or len(tensors) < len(tree_leaves(batch)):
            for each in ones:
                look(each, *batch)
            continue

        def step(*given: Tensor, batch: Batch = batch) -> None:
            inputs, targets = _rebuilt(batch, given)
            _side_by_side(ones, streams, lambda one: look(one, inputs, targets), device)

        key = tuple(tensor.shape for tensor in tensors)
        if key not in graphs:
            graphs[key] = Captured(step, tensors, state, device, blind=blind)
        graphs[key](*tensors)
    if graphs:
        torch.cuda.synchronize(device)
        for graph in graphs.values():
            graph.graph.reset()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _rebuilt(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """The tree with other tensors."""
    others = iter(tensors)
    return tree_map(lambda leaf: next(others) if isinstance(leaf, Tensor) else leaf, tree)


def _streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]


def _side_by_side(
    ones: Sequence[One], streams: Sequence[torch.cuda.Stream], run: Callable[[One], None], device: torch.device
) -> None:
    """Run each function on a separate stream: while capturing, these become branches of the graph."""
    main = torch.cuda.current_stream(device)
    for one, stream in zip(ones, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            run(one)
    for stream in streams:
        main.wait_stream(stream)


@contextlib.contextmanager
def _timed(spent: Seconds, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    spent[phase] += time.perf_counter() - start
