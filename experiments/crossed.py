"""What a policy should learn on: learned on half of the longer trainings, judged by the other half.

    python experiments/crossed.py --runs FOLDER [--round 4] [--half 0] [--only NAME]

A policy finds what its value model is wrong about: what it expects of its own changes says little. So the longer
trainings that there are before a round are dealt out in two halves, whole families together, a policy and a fixed map
learn on a value model of the one, and value models that were fitted on the other say what both are worth on fresh
random cells; so they do of a fixed map that was fitted without caution. That is done with every setting and both
halves, without a GPU. What is done is kept in FOLDER, and two processes may do a half each; `results/crossed.json` has
what all of them found. `--smoke` learns for a few steps.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from answers import fitted_constant
from cells import Pool
from policies import SEED, learn_config, learned
from small import results_apart
from truth_cells import SCHEDULES, WHERE, pick_of_search
from truth_nasbench201 import machine
from values import (
    BESIDE,
    BY_LOSS,
    CAUTION,
    COST,
    PARTS,
    TOGETHER,
    Known,
    before,
    came_from,
    cheap_scores,
    dear_scores,
    families_of,
    loss_scores,
    value_model,
)

from natpp.arch.cost import counts
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace
from natpp.files import write_whole
from natpp.methods.base import Method
from natpp.methods.policy import PolicyMethod
from natpp.registry import OPS
from natpp.scorers.base import Task
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.seeds import Use, generator
from natpp.subjects.many import Inputs

RESULTS = Path(__file__).parent / "results" / "crossed.json"
KEPT = "crossed_{round}_{half}.json"
HALVES = (0, 1)
POOL, FRESH, MAPPED = 1000, 100, 100  # inputs that are learned on, judged on, and that a fixed map is fitted on
DEALT, DRAWN = 5, 77  # seeds


@dataclass(frozen=True)
class Settings:
    """What a policy learns by."""

    model: str
    caution: float
    price: float
    """of all living MAdds"""
    learned_as: int = 3
    """the round whose policies learn so long and are so large"""


SETTINGS = {  # of rounds
    3: {
        "as in round 1": Settings(f"mixture{COST}", 0.5, 0.25),
        "as in round 2": Settings("mixture", 0.5, 0.25),
        "no price": Settings("mixture", 0.5, 0.0),
        "beside cost": Settings(f"mixture{BESIDE}", 0.5, 0.25),
        "beside cost, cheaper": Settings(f"mixture{BESIDE}", 0.5, 0.1),
        "beside cost, no price": Settings(f"mixture{BESIDE}", 0.5, 0.0),
        "beside cost, bolder": Settings(f"mixture{BESIDE}", 0.1, 0.1),
        "beside cost, more careful": Settings(f"mixture{BESIDE}", 1.0, 0.1),
        "beside cost, learned for longer": Settings(f"mixture{BESIDE}", 0.5, 0.25, learned_as=2),
    },
    4: {
        "as in round 3": Settings(f"mixture{BESIDE}", 0.5, 0.25),
        "losses": Settings("losses", 0.5, 0.1),
        "together": Settings(TOGETHER, 0.5, 0.1),
    },
}
JUDGES = {3: ("mixture", f"mixture{BESIDE}", f"longer{BESIDE}"), 4: (*PARTS, f"longer{BESIDE}")}  # by round


def maps(number: int) -> dict[str, str]:
    """Value models of a round that fixed maps are fitted on, by name."""
    return {f"map, {model}": model for model in dict.fromkeys(one.model for one in SETTINGS[number].values())}


class Halves:
    """Scores before a round, the dear ones in two halves of families."""

    def __init__(self, runs: Path, number: int):
        self.round = number
        pick = pick_of_search(runs)
        self.cheap: Known = cheap_scores(runs, list(SCHEDULES).index(pick.schedule), pick.fitting)
        self.dear: Known = dear_scores(runs, number)
        self.losses: Known = loss_scores(runs, number) if number >= BY_LOSS else {}
        families = list(families_of(self.dear | self.losses, came_from(runs, before(number))).values())
        order = np.random.default_rng(DEALT).permutation(len(families)).tolist()
        self.sides = [{arch for place in order[half::2] for arch in families[place]} for half in HALVES]

    def model(self, name: str, half: int, caution: float) -> Prediction:
        """A value model that has not seen the other half, nor short trainings of its cells."""
        config = PredictConfig(caution=caution)
        return value_model(self.cheap, self.dear, name, losses=self.losses, config=config, without=self.sides[1 - half])


@dataclass(frozen=True)
class Trial:
    """A value model to learn on, judges that know the other half, and inputs to learn on and to be judged on."""

    prediction: Prediction
    judges: Mapping[str, Prediction]
    pool: Inputs
    fresh: Inputs

    def judged(self, method: Method) -> dict[str, Any]:
        """Mean improvement by one shot of a method, as expected by what it learned on and by judges; living MAdds."""
        rows = method.one_shot(self.fresh, self.prediction.reward(), np.random.default_rng(0))
        inputs, after = self.fresh.archs, [self.fresh.transformed(index, row) for index, row in enumerate(rows)]

        def improvement(by: Prediction) -> float:
            return float(by.differences(inputs, after)[0].mean())

        old, new = ([max(counts(arch, WHERE).live_madds, 1) for arch in archs] for archs in (inputs, after))
        return {
            "own": improvement(self.prediction),
            "judges": {name: improvement(by) for name, by in self.judges.items()},
            "madds_change": float(np.divide(new, old).mean() - 1),
        }


def trial(halves: Halves, half: int, model: str, caution: float, *, smoke: bool) -> Trial:
    """What learns on a half by a value model, on inputs that are always the same."""
    task = Task("nat++", setting("cifar"), strict=True)
    pool = Pool(aside=True).draw(12 if smoke else POOL, generator(SEED, Use.DRAW, 12))
    fresh = CellSpace().draw(4 if smoke else FRESH, np.random.default_rng(DRAWN))
    return Trial(
        halves.model(model, half, caution),
        {name: halves.model(name, 1 - half, caution) for name in JUDGES[halves.round]},
        Inputs(pool, task, tuple(OPS)),
        Inputs(fresh, task, tuple(OPS)),
    )


def crossed(halves: Halves, half: int, one: Settings, *, smoke: bool) -> dict[str, Any]:
    """What learns on a half, judged by the other: a policy, and a fixed map that is as careful."""
    began, config = time.perf_counter(), learn_config(one.learned_as, smoke=smoke)
    given = trial(halves, half, one.model, one.caution, smoke=smoke)
    policy = PolicyMethod("nat++", config, learned(given.pool, given.prediction, one.price, config))
    constant = fitted_constant(given.pool, given.prediction, sample=4 if smoke else MAPPED, careful=True)
    found = {"policy": given.judged(policy), "constant": given.judged(constant)}
    return {**asdict(one), **found, "seconds": time.perf_counter() - began}


def crossed_map(halves: Halves, half: int, model: str, *, smoke: bool) -> dict[str, Any]:
    """A fixed map that was fitted on a half without caution, judged by the other."""
    given = trial(halves, half, model, CAUTION, smoke=smoke)
    constant = fitted_constant(given.pool, given.prediction, sample=4 if smoke else MAPPED)
    return {"model": model, "constant": given.judged(constant)}


def kept(file: Path) -> dict[str, Any]:
    """What was found so far."""
    return json.loads(file.read_text()) if file.exists() else {}


def of_both_halves(runs: Path, number: int) -> dict[str, Any]:
    """Means over both halves, of settings that both have."""
    both = [kept(runs / KEPT.format(round=number, half=half)) for half in HALVES]
    return {
        name: dict(averaged([one[name] for one in both]))
        for name in (*SETTINGS[number], *maps(number))
        if all(name in one for one in both)
    }


def averaged(some: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Mean numbers, at all depths, and what else is the same in all."""
    for name, value in some[0].items():
        values = [one[name] for one in some]
        if isinstance(value, dict):
            yield name, dict(averaged(values))
        else:
            yield name, value if isinstance(value, str) else float(np.mean(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the folder of truth_cells.py")
    parser.add_argument("--round", type=int, choices=SETTINGS, default=max(SETTINGS), help="of policies")
    parser.add_argument("--half", type=int, choices=HALVES, help="that is learned on; by default both, in turn")
    parser.add_argument("--only", help="one of its settings")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    results_apart(arguments, RESULTS)
    number = arguments.round
    settings, names = SETTINGS[number], [*SETTINGS[number], *maps(number)]
    if arguments.only not in (None, *names):
        parser.error(f"--only is one of {', '.join(names)}")
    halves = Halves(arguments.runs, number)
    for half in HALVES if arguments.half is None else [arguments.half]:
        file = arguments.runs / KEPT.format(round=number, half=half)
        for name in [arguments.only] if arguments.only else names:
            if name in kept(file):
                continue
            if name in settings:
                one = crossed(halves, half, settings[name], smoke=arguments.smoke)
            else:
                one = crossed_map(halves, half, maps(number)[name], smoke=arguments.smoke)
            write_whole(file, json.dumps(kept(file) | {name: one}, indent=1) + "\n")
            print(f"half {half}, {name}", flush=True)
    found = {
        "cheap_scores": len(halves.cheap),
        "dear_scores": [len(side & halves.dear.keys()) for side in halves.sides],
        **({"loss_scores": [len(side & halves.losses.keys()) for side in halves.sides]} if halves.losses else {}),
        "learn": asdict(learn_config(Settings.learned_as, smoke=arguments.smoke)),
        "pool": POOL,
        "fresh": FRESH,
        "machine": machine(),
        "settings": of_both_halves(arguments.runs, number),
    }
    rounds = kept(arguments.out).get("rounds", {}) | {str(number): found}
    write_whole(arguments.out, json.dumps({"rounds": dict(sorted(rounds.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
