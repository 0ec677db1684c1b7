"""What each method makes of input architectures under a strict budget, with one score for all methods."""

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
from natpp.core.scores import Gain, Score, Scores
from natpp.core.subject import Row
from natpp.files import write_whole
from natpp.methods.base import Method
from natpp.methods.constant import Constant
from natpp.methods.policy import PolicyMethod
from natpp.methods.random import random_rows
from natpp.nets.policy import Policy
from natpp.registry import OPS
from natpp.scorers.predicted import Prediction
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

CANDIDATES = 10
MAPPED = 200  # inputs that the fixed map is fitted on
INPUT = "input"
CLOSE = (INPUT, "nat++", "nat++ best of 10", "constant")  # methods of similar accuracy


@dataclass(frozen=True)
class Tried:
    """Scores of short trainings, and their weight beside the value model."""

    scores: Mapping[Architecture, float]
    """by canonical form; failed trainings have none"""
    weights: tuple[float, float]
    """of the value model and of the short training"""


@dataclass(frozen=True)
class Knowledge:
    """What methods use: a policy for each rule, a fixed map, and one score for all."""

    policies: Mapping[str, Policy]
    constant: Constant
    prediction: Prediction
    seen: frozenset[Architecture]
    """architectures that the score was fitted on, in canonical form"""
    tried: Tried | None = None
    """short trainings of proposals, if they are part of the score"""

    def gains(self, before: Sequence[Architecture], after: Sequence[Architecture]) -> Scores:
        """Gain of each change over its origin by the shared score.

        With short trainings, it is the weighted sum of the expected gain and the score of the training. A change whose
        training failed is never the best.
        """
        if self.tried is None:
            return self.prediction.gains(before, after)
        scores, (expects, showed) = self.tried.scores, self.tried.weights
        found = expects * self.prediction.gains(before, after, caution=0.0)
        keys = [arch.essence() for arch in after]
        return np.array(
            [one + showed * scores[key] if key in scores else -np.inf for one, key in zip(found, keys, strict=True)]
        )


Propose = Callable[[Subjects, Knowledge, np.random.Generator], list[list[Row]]]  # one or several rows for each input


def answers_of(method: Method, subjects: Subjects, score: Score | Gain, generator: np.random.Generator) -> list[Row]:
    """A method's answer for each subject."""
    return [row for row, *_ in method.propose(subjects, 1, score, generator)]


def fitted_constant(
    subjects: Subjects, prediction: Prediction, *, sample: int = MAPPED, careful: bool = False
) -> Constant:
    """A map from operation to operation for each kind of cell, fitted on expected improvements.

    A `careful` map is fitted with the same growing caution as a policy.
    """
    constant = Constant(by_edge=False, sample=sample)
    expected = Gain(functools.partial(prediction.gains, caution=0.0))
    for reward in (prediction.reward(0.0), prediction.reward()) if careful else (expected,):
        constant = constant.fit(subjects, reward, np.random.default_rng(0))
    return constant


def map_to_json(constant: Constant) -> dict[str, dict[str, str]]:
    """A fixed map as names: kind of cell, operation, its replacement."""
    names, found = tuple(OPS), {}
    for ((kind, _), op), after in sorted(constant.map.items()):
        found.setdefault(kind, {})[names[op]] = names[after]
    return found


def map_from_json(data: Mapping[str, Mapping[str, str]]) -> Constant:
    """The fixed map that `map_to_json` wrote."""
    number = {name: index for index, name in enumerate(OPS)}
    entries = {((kind, -1), number[op]): number[after] for kind, ops in data.items() for op, after in ops.items()}
    return Constant(by_edge=False, map=entries)


def _likely(rule: str) -> Propose:
    """Propose the most likely plan of a policy."""

    def propose(subjects: Subjects, known: Knowledge, generator: np.random.Generator) -> list[list[Row]]:
        method = PolicyMethod(rule, learned=known.policies[rule])
        return method.propose(subjects, 1, known.prediction.reward(), generator)

    return propose


def _sampled(subjects: Subjects, known: Knowledge, generator: np.random.Generator) -> list[list[Row]]:
    """The most likely plan of a policy and nine samples."""
    method, reward = PolicyMethod("nat++", learned=known.policies["nat++"]), known.prediction.reward()
    drawn = method.propose(subjects, CANDIDATES - 1, reward, generator)
    likely = answers_of(method, subjects, reward, generator)
    return [[one, *some] for one, some in zip(likely, drawn, strict=True)]


def _mapped(subjects: Subjects, known: Knowledge, generator: np.random.Generator) -> list[list[Row]]:
    """The answer of the fixed map."""
    return known.constant.propose(subjects, 1, known.prediction.reward(), generator)


def _drawn(tries: int) -> Propose:
    """Propose random plans."""
    return lambda subjects, _, generator: random_rows(subjects, tries, generator)


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
    """One or several proposals for each input and method, by names such as `random 3, nat++ best of 10`.

    The budget is strict: in the network they are trained in, neither living parameters nor multiply-adds may rise.
    """
    found = {}
    for number, method in enumerate(methods):
        rule, propose = METHODS[method]
        subjects = Subjects(cells_of(archs.values(), Frame(rule, where), tuple(OPS)))
        rows = propose(subjects, known, np.random.default_rng([seed, number]))
        for index, (name, some) in enumerate(zip(archs, rows, strict=True)):
            found[f"{name}, {method}"] = [subjects.transformed(index, row) for row in some]
    return found


def ranked(
    archs: Mapping[str, Architecture], methods: Sequence[str], known: Knowledge, where: Setting, *, seed: int
) -> dict[str, list[Architecture]]:
    """Distinct proposals, the best by the shared score first."""
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
    """Inputs, and for each method the best proposal by the shared score."""
    best_first = ranked(archs, methods, known, where, seed=seed)
    return named_inputs(archs) | {name: some[0] for name, some in best_first.items()}


def named_inputs(archs: Mapping[str, Architecture]) -> dict[str, Architecture]:
    """Inputs by names such as `random 3, input`."""
    return {f"{name}, {INPUT}": arch for name, arch in archs.items()}


def kept_answers(file: Path, mark: str, make: Callable[[], dict[str, Architecture]]) -> dict[str, Architecture]:
    """Answers of a file, or new ones that are kept in it, so that they stay the same while they are trained.

    `mark` identifies the policies that answer; a file with another mark is refused.
    """
    if not file.exists():
        answers = {name: to_dict(arch) for name, arch in make().items()}
        write_whole(file, json.dumps({"mark": mark, "answers": answers}) + "\n")
    if json.loads(file.read_text())["mark"] != mark:
        raise SystemExit(f"{file.name} has answers of other policies: remove it, or name another folder")
    return read_answers(file)


def read_answers(file: Path) -> dict[str, Architecture]:
    """Answers by name."""
    return {name: from_dict(arch) for name, arch in json.loads(file.read_text())["answers"].items()}


def title_over(one: str, other: str) -> str:
    """The title of a difference, such as "`nat++` over the inputs"."""
    return f"`{one}` over {'the inputs' if other == INPUT else f'`{other}`'}"


def split_name(name: str) -> tuple[str, str]:
    """The input and the method in a name."""
    subject, _, method = name.rpartition(", ")
    return subject, method
