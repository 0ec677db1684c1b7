"""What the policies are worth on fresh random cells, and whether they harm published ones.

Needs: CIFAR-10 and a GPU, 25 minutes; the folder of images_cells, with the policies of ship_policies

`train` changes twelve fresh random inputs by one shot of `nat++`, a fixed map, one random transformation and the best
of ten random ones by the same score, all under a strict budget, and trains everything with the longer recipe of
images_cells. It does the same, with three seeds, for four published cells, what the policy makes of them, and the
published results of NAT++; and for what the policies of the rivals of images_cells make of `darts`. Accuracies are
those of the 5,000 validation images. Another `--round` takes fresh inputs, after policies were learned anew on what the
rounds before it trained. `judge` writes all rounds, with the agreement of the value model with trainings after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

import natpp
from experiments.lib.answers import INPUT, answered, kept_answers, split_name
from experiments.lib.learned import knowledge, learned_from, mark_of
from experiments.lib.settings import RESULTS, Experiment, Trains, write_results
from experiments.lib.statistics import spearman, with_interval
from experiments.lib.tables import PUBLISHED, Rows, asked_inputs, beside_originals, compared, tell_differences
from experiments.lib.timed import RIVALS
from experiments.lib.trainer import LONGER, Trainer, arch_of, read_trained
from experiments.lib.values import WHERE, came_from, differences, figures_of, pairs_among, value_model
from natpp.arch.graph import Architecture
from natpp.arch.space import CellSpace
from natpp.config import At
from natpp.nets.policy import Policy
from natpp.registry import ZOO

INPUTS, SEED = 12, 1201
METHODS = ("nat++", "constant", "random", "random best of 10")
SEEDS = (0, 1, 2)
OURS, THEIRS = "ours", "published NAT++"
DECISIONS = natpp.Decisions("nat++", setting=WHERE)


@dataclass(frozen=True, kw_only=True)
class JudgePolicies(Trains):
    out: Path = RESULTS / "judge_policies.json"
    only: Literal["worth", "harm", "rivals"] | None = None
    """train fresh cells, published cells or the answers of rivals only"""
    round: Annotated[int, At(least=1)] = 1
    """number of the fresh inputs"""


def worth_answers(runs: Path, number: int, *, smoke: bool) -> dict[str, Architecture]:
    """Fresh inputs of a round and the answers of each method."""
    seed = [SEED] if number == 1 else [SEED, number]

    def make() -> dict[str, Architecture]:
        drawn = CellSpace().draw(INPUTS, np.random.default_rng(seed))[: 4 if smoke else INPUTS]
        archs = {f"random {index}": arch for index, arch in enumerate(drawn)}
        return answered(archs, METHODS, knowledge(runs, number), WHERE, seed=sum(seed))

    return kept_answers(runs / f"worth_{number}_answers.json", mark_of(runs, number), make)


def harm_answers(runs: Path, number: int, *, smoke: bool) -> dict[str, Architecture]:
    """Published cells, what the policy makes of them, and what the authors of NAT++ published."""

    def make() -> dict[str, Architecture]:
        known = knowledge(runs, number)
        found: dict[str, Architecture] = {}
        for name in PUBLISHED[: 2 if smoke else None]:
            ours = natpp.optimize(name, known.policies["nat++"], decisions=DECISIONS)
            found |= {f"{name}, {INPUT}": natpp.load(name), f"{name}, {OURS}": ours.after}
            theirs = f"natpp_{name}"
            if theirs in ZOO:
                found[f"{name}, {THEIRS}"] = natpp.load(theirs)
        return found

    return kept_answers(runs / f"harm_{number}_answers.json", mark_of(runs, number), make)


def rival_answers(runs: Path) -> dict[str, Architecture]:
    """Answers of the rivals' policies to `darts`."""
    found = {}
    for name in RIVALS:
        for file in sorted(runs.glob(f"{name}_[0-9].safetensors"))[:1]:
            found[f"darts, {name}"] = natpp.optimize("darts", Policy.load(file), decisions=DECISIONS).after
    return found


def train(settings: JudgePolicies) -> None:
    """Train all answers of a round."""
    trainer, number, seeds = Trainer(settings), settings.round, SEEDS[:2] if settings.smoke else SEEDS
    if settings.only in (None, "worth"):
        answers = worth_answers(settings.runs, number, smoke=settings.smoke)
        trainer(f"worth_{number}", LONGER, answers, store="longer")
    if settings.only in (None, "harm"):
        answers = harm_answers(settings.runs, number, smoke=settings.smoke)
        trainer(f"harm_{number}", LONGER, answers, seeds, store="longer")
    if settings.only in (None, "rivals") and (answers := rival_answers(settings.runs)):
        trainer("harm_rivals", LONGER, answers, seeds, store="longer")


def judge(settings: JudgePolicies) -> None:
    """Write the results of all rounds."""
    files = [*settings.runs.glob("worth_[0-9].json"), *settings.runs.glob("harm_[0-9].json")]
    rounds = {str(number): judged(settings.runs, number) for number in sorted({int(file.stem[-1]) for file in files})}
    if not rounds:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    write_results(settings.out, {"rounds": rounds})
    tell_differences(rounds)


def judged(runs: Path, number: int) -> dict[str, Any]:
    """Results of a round."""
    found: dict[str, Any] = {}
    said, worth = read_trained(runs / f"worth_{number}.json")
    if worth:
        found |= compared(worth, METHODS, ["nat++"], "accuracy", asked=asked_inputs(said, METHODS))
        found["recipe"], found["machine"], found["network"] = said["recipe"], said["machine"], said["network"]
        found["groups"], found["trainings"], found["images"] = said["groups"], len(worth), said["images"]
        found["agreement"] = agreement_with(runs, number, worth)
    said, harm = read_trained(runs / f"harm_{number}.json")
    if harm:
        found["harm"] = beside_originals(harm, (INPUT, OURS, THEIRS), "accuracy")
        found["harm_groups"], found["harm_machine"] = said["groups"], said["machine"]
    return found


def agreement_with(runs: Path, number: int, rows: Rows) -> dict[str, Any]:
    """Agreement of a round's value model with its trainings, which it has not seen."""
    cheap, dear, losses, model = learned_from(runs, number)
    truth = {arch_of(row).essence(): row["accuracy"] for row in rows.values() if row["accuracy"] is not None}
    archs = [arch for arch in truth if arch not in dear and arch not in losses]
    said = dict(zip(archs, value_model(cheap, dear, model, losses=losses).expected(archs), strict=True))
    truth = {arch: truth[arch] for arch in archs}
    pairs = pairs_among(archs, came_from(runs, [f"worth_{number}"]))
    good = {arch_of(row).essence() for (name, _), row in rows.items() if split_name(name)[1] in ("nat++", "constant")}
    among = [pair for pair in pairs if archs[pair[0]] in good]
    columns = [differences(np.array([of[arch] for arch in archs]), among) for of in (said, truth)]
    return {
        "model": model,
        "dear_scores": len(dear),
        **figures_of(truth, truth, pairs, said, {}),
        "paired_of_learned": with_interval(spearman, *columns),
    }


EXPERIMENT = Experiment(JudgePolicies, (train, judge), after="ship_policies")
