"""What a policy should learn on: learned on half of the longer trainings, judged by the other half.

Needs: the folder of images_cells; a CPU, half an hour

A policy finds errors of its value model, so what the model expects of the policy's changes says little. Here the longer
trainings before a round are split into two halves, whole families together. A policy and a fixed map learn on a value
model of one half, and value models of the other half judge both on fresh random cells; they also judge a fixed map that
was fitted without caution. This runs for each setting and both halves. What is done is kept in the folder; two
processes can do a half each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from experiments.lib import values
from experiments.lib.answers import answers_of, fitted_constant
from experiments.lib.cells import Pool
from experiments.lib.learned import pick_of_search
from experiments.lib.machine import machine
from experiments.lib.schedules import Known
from experiments.lib.settings import RESULTS, Experiment, Keeps, read_results, write_results
from experiments.ship_policies import SEED, learn_config, learned
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace
from natpp.config import At
from natpp.errors import SettingError, did_you_mean
from natpp.methods.base import Method
from natpp.methods.policy import PolicyMethod
from natpp.registry import OPS
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.seeds import Use, generator
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

KEPT = "crossed_{round}_{half}.json"
HALVES = (0, 1)
POOL, FRESH, MAPPED = 1000, 100, 100  # inputs to learn on, to judge on, and for a fixed map
DEALT, DRAWN = 5, 77  # seeds


@dataclass(frozen=True)
class Learned:
    """How a policy learns."""

    model: str
    caution: float
    price: float
    """worth of all living MAdds"""
    learned_as: int = 3
    """round of ship_policies with the same steps and size"""


SETTINGS = {  # by round
    3: {
        "as in round 1": Learned(f"mixture{values.COST}", 0.5, 0.25),
        "as in round 2": Learned("mixture", 0.5, 0.25),
        "no price": Learned("mixture", 0.5, 0.0),
        "beside cost": Learned(f"mixture{values.BESIDE}", 0.5, 0.25),
        "beside cost, cheaper": Learned(f"mixture{values.BESIDE}", 0.5, 0.1),
        "beside cost, no price": Learned(f"mixture{values.BESIDE}", 0.5, 0.0),
        "beside cost, bolder": Learned(f"mixture{values.BESIDE}", 0.1, 0.1),
        "beside cost, more careful": Learned(f"mixture{values.BESIDE}", 1.0, 0.1),
        "beside cost, learned for longer": Learned(f"mixture{values.BESIDE}", 0.5, 0.25, learned_as=2),
    },
    4: {
        "as in round 3": Learned(f"mixture{values.BESIDE}", 0.5, 0.25),
        "losses": Learned("losses", 0.5, 0.1),
        "together": Learned(values.TOGETHER, 0.5, 0.1),
    },
}
JUDGES = {  # by round
    3: ("mixture", f"mixture{values.BESIDE}", f"longer{values.BESIDE}"),
    4: (*values.PARTS, f"longer{values.BESIDE}"),
}


def maps(number: int) -> dict[str, str]:
    """Value models of a round for fixed maps, by name."""
    return {f"map, {model}": model for model in dict.fromkeys(one.model for one in SETTINGS[number].values())}


@dataclass(frozen=True, kw_only=True)
class Crossed(Keeps):
    out: Path = RESULTS / "crossed.json"
    round: Annotated[int, At(min(SETTINGS), max(SETTINGS))] = max(SETTINGS)
    """round of policies"""
    half: Annotated[int, At(0, 1)] | None = None
    """half that is learned on; default: both, in turn"""
    only: str | None = None
    """name of one setting; default: all"""

    def check(self) -> None:
        if self.only not in (None, *self.names()):
            raise SettingError(f"unknown setting {self.only!r}. {did_you_mean(str(self.only), self.names())}")

    def names(self) -> list[str]:
        """The names of all settings of the round."""
        return [*SETTINGS[self.round], *maps(self.round)]


class Halves:
    """Scores before a round, with the dear ones in two halves of families."""

    def __init__(self, runs: Path, number: int):
        self.round = number
        self.cheap: Known = values.cheap_scores(runs, pick_of_search(runs))
        self.dear: Known = values.dear_scores(runs, number)
        self.losses: Known = values.loss_scores(runs, number) if number >= values.BY_LOSS else {}
        families = list(
            values.families_of(self.dear | self.losses, values.came_from(runs, values.before(number))).values()
        )
        order = np.random.default_rng(DEALT).permutation(len(families)).tolist()
        self.sides = [{arch for place in order[half::2] for arch in families[place]} for half in HALVES]

    def model(self, name: str, half: int, caution: float) -> Prediction:
        """A value model that has not seen the other half or short trainings of its cells."""
        config = PredictConfig(caution=caution)
        return values.value_model(
            self.cheap, self.dear, name, losses=self.losses, config=config, without=self.sides[1 - half]
        )


@dataclass(frozen=True)
class Trial:
    """A value model to learn on, judges of the other half, and inputs to learn and to be judged on."""

    prediction: Prediction
    judges: Mapping[str, Prediction]
    pool: Subjects
    fresh: Subjects

    def judged(self, method: Method) -> dict[str, Any]:
        """Mean improvement of a method, as its own value model and the judges expect it, and change of living MAdds."""
        rows = answers_of(method, self.fresh, self.prediction.reward(), np.random.default_rng(0))
        inputs, after = self.fresh.given, [self.fresh.transformed(index, row) for index, row in enumerate(rows)]

        def improvement(by: Prediction) -> float:
            return float(by.differences(inputs, after)[0].mean())

        old, new = (np.maximum(values.live_madds(archs), 1) for archs in (inputs, after))
        return {
            "own": improvement(self.prediction),
            "judges": {name: improvement(by) for name, by in self.judges.items()},
            "madds_change": float(np.divide(new, old).mean() - 1),
        }


def trial(halves: Halves, half: int, model: str, caution: float, *, smoke: bool) -> Trial:
    """A trial for a half and a value model, with fixed inputs."""
    frame = Frame("nat++", setting("cifar"))
    pool = Pool(aside=True).draw(12 if smoke else POOL, generator(SEED, Use.DRAW, 12))
    fresh = CellSpace().draw(4 if smoke else FRESH, np.random.default_rng(DRAWN))
    return Trial(
        halves.model(model, half, caution),
        {name: halves.model(name, 1 - half, caution) for name in JUDGES[halves.round]},
        Subjects(cells_of(pool, frame, tuple(OPS))),
        Subjects(cells_of(fresh, frame, tuple(OPS))),
    )


def crossed(halves: Halves, half: int, one: Learned, *, smoke: bool) -> dict[str, Any]:
    """A policy learned on a half, and an equally careful fixed map, judged by the other half."""
    began, config = time.perf_counter(), learn_config(one.learned_as, smoke=smoke)
    given = trial(halves, half, one.model, one.caution, smoke=smoke)
    policy = PolicyMethod("nat++", learned=learned(given.pool, given.prediction, one.price, config))
    constant = fitted_constant(given.pool, given.prediction, sample=4 if smoke else MAPPED, careful=True)
    found = {"policy": given.judged(policy), "constant": given.judged(constant)}
    return {**asdict(one), **found, "seconds": time.perf_counter() - began}


def crossed_map(halves: Halves, half: int, model: str, *, smoke: bool) -> dict[str, Any]:
    """A fixed map fitted on a half without caution, judged by the other."""
    given = trial(halves, half, model, values.CAUTION, smoke=smoke)
    constant = fitted_constant(given.pool, given.prediction, sample=4 if smoke else MAPPED)
    return {"model": model, "constant": given.judged(constant)}


def of_both_halves(runs: Path, number: int) -> dict[str, Any]:
    """Means over both halves, for settings that are done on both."""
    both = [read_results(runs / KEPT.format(round=number, half=half)) for half in HALVES]
    return {
        name: dict(averaged([one[name] for one in both]))
        for name in (*SETTINGS[number], *maps(number))
        if all(name in one for one in both)
    }


def averaged(some: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Means of numbers at all depths; words are the same in all."""
    for name, value in some[0].items():
        numbers = [one[name] for one in some]
        if isinstance(value, dict):
            yield name, dict(averaged(numbers))
        else:
            yield name, value if isinstance(value, str) else float(np.mean(numbers))


def measure(settings: Crossed) -> None:
    """Learn on the halves that are missing and write the means over both."""
    number, smoke = settings.round, settings.smoke
    halves = Halves(settings.runs, number)
    for half in HALVES if settings.half is None else [settings.half]:
        file = settings.runs / KEPT.format(round=number, half=half)
        for name in [settings.only] if settings.only else settings.names():
            if name in read_results(file):
                continue
            if name in SETTINGS[number]:
                one = crossed(halves, half, SETTINGS[number][name], smoke=smoke)
            else:
                one = crossed_map(halves, half, maps(number)[name], smoke=smoke)
            write_results(file, read_results(file) | {name: one})
            print(f"half {half}, {name}", flush=True)
    found = {
        "cheap_scores": len(halves.cheap),
        "dear_scores": [len(side & halves.dear.keys()) for side in halves.sides],
        **({"loss_scores": [len(side & halves.losses.keys()) for side in halves.sides]} if halves.losses else {}),
        "learn": asdict(learn_config(Learned.learned_as, smoke=smoke)),
        "pool": POOL,
        "fresh": FRESH,
        "machine": machine(),
        "settings": of_both_halves(settings.runs, number),
    }
    rounds = read_results(settings.out).get("rounds", {}) | {str(number): found}
    write_results(settings.out, {"rounds": dict(sorted(rounds.items()))})


EXPERIMENT = Experiment(Crossed, (measure,), after="images_cells")
