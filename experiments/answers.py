"""What every method makes of input architectures, under one rule or its own, within a strict budget, by one score."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from natpp.arch.formats import from_dict, to_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.files import write_whole
from natpp.methods.constant import Constant
from natpp.methods.learning import best
from natpp.methods.policy import PolicyMethod
from natpp.methods.random import random_rows
from natpp.nets.policy import Policy
from natpp.registry import OPS
from natpp.scorers.base import Gain, Scores, Task
from natpp.scorers.predicted import Prediction
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs

CANDIDATES = 10
MAPPED = 200  # inputs that the fixed map is fitted on
INPUT = "input"
CLOSE = (INPUT, "nat++", "nat++ best of 10", "constant")  # whose accuracies are close to each other


@dataclass(frozen=True)
class Tried:
    """Short trainings of architectures, and how much they count beside what a value model says of them."""

    scores: Mapping[Architecture, float]
    """by what they compute; those that failed have none"""
    weights: tuple[float, float]
    """of the value model, and of a short training"""


@dataclass(frozen=True)
class Knowledge:
    """What methods answer by: a policy for each rule, a fixed map, and the score that all share."""

    policies: Mapping[str, Policy]
    constant: Constant
    prediction: Prediction
    seen: frozenset[Architecture]
    """what the score was fitted on, by what it computes"""
    tried: Tried | None = None
    """short trainings of what methods propose, where they are a part of the score"""

    def gains(self, before: Sequence[Architecture], after: Sequence[Architecture]) -> Scores:
        """How much better each is than what it came from, by the score that all share.

        What was tried is compared with others that were: what the value model expects and what the training showed.
        What failed is never the best.
        """
        if self.tried is None:
            return self.prediction.gains(before, after)
        scores, (expects, showed) = self.tried.scores, self.tried.weights
        found = expects * self.prediction.gains(before, after, caution=0.0)
        keys = [arch.essence() for arch in after]
        return np.array(
            [one + showed * scores[key] if key in scores else -np.inf for one, key in zip(found, keys, strict=True)]
        )


Propose = Callable[[Inputs, Knowledge, np.random.Generator], list[list[Row]]]  # for every input one row, or some


def fitted_constant(inputs: Inputs, prediction: Prediction, *, sample: int = MAPPED, careful: bool = False) -> Constant:
    """One map from operation to operation for every kind of cell, fitted on the improvements that are expected.

    A `careful` one is fitted on them as a policy is, less their doubt, caution growing as it does.
    """
    constant = Constant(by_edge=False, sample=sample)
    expected = Gain(functools.partial(prediction.gains, caution=0.0))
    for reward in (prediction.reward(0.0), prediction.reward()) if careful else (expected,):
        constant = constant.fit(inputs, reward, np.random.default_rng(0))
    return constant


def map_to_json(constant: Constant) -> dict[str, dict[str, str]]:
    """A fixed map as words: kind of cell, operation, what it becomes."""
    names, found = tuple(OPS), {}
    for ((kind, _), op), after in sorted(constant.map.items()):
        found.setdefault(kind, {})[names[op]] = names[after]
    return found


def map_from_json(data: Mapping[str, Mapping[str, str]]) -> Constant:
    """The way back."""
    number = {name: index for index, name in enumerate(OPS)}
    entries = {((kind, -1), number[op]): number[after] for kind, ops in data.items() for op, after in ops.items()}
    return Constant(by_edge=False, map=entries)


def _likely(rule: str) -> Propose:
    """The most likely transformation of a policy."""

    def propose(inputs: Inputs, known: Knowledge, generator: np.random.Generator) -> list[list[Row]]:
        method = PolicyMethod(rule, best(), known.policies[rule])
        return [[row] for row in method.one_shot(inputs, known.prediction.reward(), generator)]

    return propose


def _sampled(inputs: Inputs, known: Knowledge, generator: np.random.Generator) -> list[list[Row]]:
    """Ten samples of a policy, its one shot among them in place of the last."""
    method = PolicyMethod("nat++", best(), known.policies["nat++"])
    rows = method.candidates(inputs, CANDIDATES - 1, generator)
    likely = method.one_shot(inputs, known.prediction.reward(), generator)
    return [[one, *some] for one, some in zip(likely, rows, strict=True)]


def _mapped(inputs: Inputs, known: Knowledge, generator: np.random.Generator) -> list[list[Row]]:
    return [[row] for row in known.constant.one_shot(inputs, known.prediction.reward(), generator)]


def _drawn(tries: int) -> Propose:
    return lambda inputs, _, generator: random_rows(inputs, tries, generator)


METHODS = {
    "nat": ("nat", _likely("nat")),
    "nat++": ("nat++", _likely("nat++")),
    "nat++ best of 10": ("nat++", _sampled),
    "constant": ("nat++", _mapped),
    "random": ("nat++", _drawn(1)),
    "random best of 10": ("nat++", _drawn(CANDIDATES)),
}


def proposed(
    archs: Mapping[str, Architecture], methods: Sequence[str], known: Knowledge, where: Setting, *, seed: int
) -> dict[str, list[Architecture]]:
    """What methods propose for inputs, by names such as `random 3, nat++ best of 10`: one, or some to pick from.

    The budget is strict in the network that they are trained in: neither living parameters nor multiply-adds rise.
    """
    found = {}
    for number, method in enumerate(methods):
        rule, propose = METHODS[method]
        inputs = Inputs(list(archs.values()), Task(rule, where, strict=True), tuple(OPS))
        rows = propose(inputs, known, np.random.default_rng([seed, number]))
        for index, (name, some) in enumerate(zip(archs, rows, strict=True)):
            found[f"{name}, {method}"] = [inputs.transformed(index, row) for row in some]
    return found


def ranked(
    archs: Mapping[str, Architecture], methods: Sequence[str], known: Knowledge, where: Setting, *, seed: int
) -> dict[str, list[Architecture]]:
    """What methods propose, of some the best first by the score that all share; what computes the same is one."""
    found = {}
    for name, some in proposed(archs, methods, known, where, seed=seed).items():
        if len(some) > 1:
            gains = known.gains([archs[split_name(name)[0]]] * len(some), some)
            distinct: dict[Architecture, Architecture] = {}
            for place in np.argsort(-gains, kind="stable").tolist():
                distinct.setdefault(some[place].essence(), some[place])
            some = list(distinct.values())
        found[name] = some
    return found


def answered(
    archs: Mapping[str, Architecture], methods: Sequence[str], known: Knowledge, where: Setting, *, seed: int
) -> dict[str, Architecture]:
    """Inputs and what methods make of them: of what they propose, the best by the score that all share."""
    best_first = ranked(archs, methods, known, where, seed=seed)
    return named_inputs(archs) | {name: some[0] for name, some in best_first.items()}


def named_inputs(archs: Mapping[str, Architecture]) -> dict[str, Architecture]:
    """Inputs by names such as `random 3, input`."""
    return {f"{name}, {INPUT}": arch for name, arch in archs.items()}


def kept_answers(file: Path, mark: str, make: Callable[[], dict[str, Architecture]]) -> dict[str, Architecture]:
    """Answers of a file, or those that are made now and kept in it: what is trained does not change on the way.

    `mark` stands for who answers: those of somebody else are not taken for his.
    """
    if not file.exists():
        answers = {name: to_dict(arch) for name, arch in make().items()}
        write_whole(file, json.dumps({"mark": mark, "answers": answers}) + "\n")
    if json.loads(file.read_text())["mark"] != mark:
        raise SystemExit(f"{file.name} has answers of other policies: remove it, or name another folder")
    return read_answers(file)


def read_answers(file: Path) -> dict[str, Architecture]:
    """Architectures by name."""
    return {name: from_dict(arch) for name, arch in json.loads(file.read_text())["answers"].items()}


def split_name(name: str) -> tuple[str, str]:
    """The input and the method of a name."""
    subject, _, method = name.rpartition(", ")
    return subject, method
