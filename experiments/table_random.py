"""Random architectures: twenty cells and what each method makes of them, trained from scratch.

Needs: CIFAR-10 and a GPU, 26 minutes, 70 for the second round; the folder of images_cells with its policies

Each cell is changed by one shot of `nat` and of `nat++`, the best of ten samples of `nat++`, a fixed map, one random
transformation and the best of ten random ones, with one score for all and a strict budget. All are trained for 12
epochs with a full cosine on the whole training set (8 cells, 16 channels), and the test images are read once, at the
end.

Another `--round` takes twenty fresh cells, after the policy or its score has changed; results have all rounds. In the
second one a short training of each of ten candidates is part of the score that picks from them, for random ones, too,
and the two best meet in a final (`lib/shortlist.py`). Methods of similar accuracy have three seeds, since one cannot
show differences of a quarter of a point. Its last trainings are one shot of the default policy, an earlier one.

`judge` also compares scores with test accuracy on the NAS cells of table_cells, so run it after these are trained.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from experiments.lib import answers, shortlist, tables
from experiments.lib.answers import CLOSE, INPUT, split_name, title_over
from experiments.lib.learned import hash_of, known_in, mark_in, pick_of_search, unlearned
from experiments.lib.schedules import SCHEDULES, Pick
from experiments.lib.settings import RESULTS, Experiment, Keeps, Trains, write_results
from experiments.lib.statistics import paired
from experiments.lib.tables import Rows
from experiments.lib.trainer import AGAIN, Trainer, arch_of, full, read_trained
from experiments.lib.values import WHERE
from natpp.arch.graph import SKIP, Architecture
from natpp.arch.networks import Setting
from natpp.arch.space import CellSpace
from natpp.config import At
from natpp.policies import DEFAULT, FOLDER, load_named
from natpp.zoo.published import published_rows

CELLS, SEED = 20, 1401
EPOCHS, IMAGES = 12, 50_000
METHODS = ("nat", "nat++", "nat++ best of 10", "constant", "random", "random best of 10")
POLICIES = {1: 3, 2: 4}  # round of ship_policies whose policies answer in a round of this table
TRIED = (2,)  # rounds in which candidates have short trainings
SEEDS = {1: (0,), 2: (0, 1, 2)}  # by round; those after the first are for methods of similar accuracy
OURS = ("nat++", "nat++ best of 10")
BY_DEFAULT = f"nat++ by {DEFAULT}"  # one shot of the default policy
BESIDE = ("nat++", "constant")  # what it is compared with
RECIPE = full(EPOCHS, IMAGES, tested=True)
CONVERGED = 4  # originals whose curves are shown
EARLY = 0.25  # share of a training after which losses are compared


@dataclass(frozen=True, kw_only=True)
class TableRandom(Trains):
    out: Path = RESULTS / "table_random.json"
    round: Annotated[int, At(1, max(POLICIES))] = 1
    """number of the fresh cells"""


def name_of(number: int) -> str:
    """The name of a round's files."""
    return f"table_random_{number}"


def inputs_of(number: int, *, smoke: bool) -> dict[str, Architecture]:
    """The cells of a round."""
    drawn = CellSpace().draw(CELLS, np.random.default_rng([SEED, number]))[: 2 if smoke else CELLS]
    return {f"random {index}": arch for index, arch in enumerate(drawn)}


def asked_answers(settings: TableRandom) -> dict[str, Architecture]:
    """The cells of a round and the answers of each method."""
    name = name_of(settings.round)

    def make() -> dict[str, Architecture]:
        if settings.round in TRIED:
            return shortlist.settled(settings.runs, name, finalists(settings))
        known = known_in(settings, POLICIES[settings.round])
        return answers.answered(*asked(settings), known, WHERE, seed=SEED + settings.round)

    return answers.kept_answers(settings.runs / f"{name}_answers.json", answered_by(settings), make)


def finalists(settings: TableRandom) -> dict[str, Architecture]:
    """The same, with the finalists in place of the one that will be picked."""
    cells, methods = asked(settings)

    def make() -> dict[str, Architecture]:
        known = replace(known_in(settings, POLICIES[settings.round]), tried=tried_in(settings))
        best_first = answers.ranked(cells, methods, known, WHERE, seed=SEED + settings.round)
        return answers.named_inputs(cells) | shortlist.finalists(best_first)

    name = shortlist.FINALS.format(name_of(settings.round))
    return answers.kept_answers(settings.runs / f"{name}_answers.json", answered_by(settings), make)


def answered_by(settings: TableRandom) -> str:
    """A mark of the policies that answer in a round."""
    policies = mark_in(settings, POLICIES[settings.round])
    return f"{policies}, {shortlist.FINALISTS} finalists" if settings.round in TRIED else policies


def asked(settings: TableRandom) -> tuple[dict[str, Architecture], Sequence[str]]:
    """The cells of a round and the methods."""
    return inputs_of(settings.round, smoke=settings.smoke), METHODS


def train(settings: TableRandom) -> None:
    """Train all answers of a round."""
    trainer, name = Trainer(settings), name_of(settings.round)
    if settings.round in TRIED:
        known = known_in(settings, POLICIES[settings.round])
        proposals = answers.proposed(*asked(settings), known, WHERE, seed=SEED + settings.round)
        schedule = SCHEDULES[pick_in(settings).schedule]
        if not trainer(shortlist.NAME.format(name), schedule, shortlist.listed(proposals)):
            return
        finals = shortlist.of_finals(finalists(settings))
        if finals and not trainer(shortlist.FINALS.format(name), RECIPE, finals, store=name):
            return
    chosen = asked_answers(settings)
    first, *more = SEEDS[settings.round]
    if trainer(name, RECIPE, chosen, [first]) and more:
        close = {one: arch for one, arch in chosen.items() if split_name(one)[1] in CLOSE}
        if trainer(AGAIN.format(name), RECIPE, close, more, store=name):
            trainer(f"{name}_default", RECIPE, by_default(settings), SEEDS[settings.round], store=name)


def by_default(settings: TableRandom) -> dict[str, Architecture]:
    """Answers of the default policy to the cells of a round."""
    cells = inputs_of(settings.round, smoke=settings.smoke)

    def make() -> dict[str, Architecture]:
        known = replace(known_in(settings, POLICIES[settings.round]), policies={"nat++": load_named(DEFAULT)})
        found = answers.answered(cells, ["nat++"], known, WHERE, seed=SEED + settings.round)
        return {f"{cell}, {BY_DEFAULT}": found[f"{cell}, nat++"] for cell in cells}

    file = settings.runs / f"{name_of(settings.round)}_default_answers.json"
    return answers.kept_answers(file, hash_of(FOLDER / f"{DEFAULT}.safetensors"), make)


def pick_in(settings: Keeps) -> Pick:
    """The schedule and losses of short trainings."""
    return Pick(next(iter(SCHEDULES)), "training") if unlearned(settings) else pick_of_search(settings.runs)


def fit_in(runs: Path, number: int, *, smoke: bool = False) -> dict[str, Any]:
    """The weights of short trainings in a round, and what they were fitted on."""
    file = runs / f"{shortlist.NAME.format(name_of(number))}_fit.json"
    return shortlist.kept_fit(file, runs, None if smoke else POLICIES[number])


def tried_in(settings: TableRandom) -> answers.Tried:
    """Scores of the short trainings of a round."""
    weights = weights_in(settings, settings.round)["weights"]
    return shortlist.tried(settings.runs, name_of(settings.round), pick_in(settings), weights)


def weights_in(settings: TableRandom, number: int) -> dict[str, Any]:
    """The weights of a round, equal ones where there is nothing to fit them on."""
    return shortlist.UNFITTED if unlearned(settings) else fit_in(settings.runs, number, smoke=settings.smoke)


def judge(settings: TableRandom) -> None:
    """Write the results of all rounds."""
    found: dict[str, Any] = {"rounds": {}, "paper": papers()}
    for file in sorted(settings.runs.glob(f"{name_of(0)[:-1]}[0-9].json")):
        number = file.stem.rpartition("_")[2]
        said, kept = tables.read_tables(file)
        more, others = read_trained(file.with_stem(f"{file.stem}_default"))
        rows, on = tables.with_costs(
            kept | others, Setting(**said["network"]), file.with_name(f"{file.stem}_latency.json"), smoke=settings.smoke
        )
        one = tables.compared(rows, METHODS, OURS, "test_accuracy", asked=tables.asked_inputs(said, METHODS))
        if not one["inputs"]:
            continue
        one |= {
            "rows": {
                subject: {name: tables.of_network(rows, f"{subject}, {name}") for name in (INPUT, *METHODS)}
                for subject in one["rows"]
            },
            "drawn_by": [SEED, int(number)],
            "policies": POLICIES[int(number)],
            "trainings": len(kept),
            "latency_on": on,
            "convergence": convergence(rows, list(one["rows"])),
            "bias": bias(rows, list(one["rows"])),
            "distinct": len({(arch_of(row).essence(), seed) for (_, seed), row in kept.items()}),
            **tables.gathered(said),
        }
        if int(number) in TRIED:
            said, short = read_trained(settings.runs / f"{shortlist.NAME.format(file.stem)}.json")
            one["shortlist"] = {key: said[key] for key in ("recipe", "machine", "groups")} | {
                "candidates": len(short),
                "trainings": sum(group["trainings"] for group in said["groups"]),
                "losses": pick_in(settings).losses,
                "fit": weights_in(settings, int(number)),
                "finals": finals_in(settings.runs / f"{shortlist.FINALS.format(file.stem)}.json"),
            }
            one["later_seeds"] = of_later_seeds(rows, list(one["rows"]))
        if others:
            one["default"] = of_default(rows, more)
        found["rounds"][number] = one
    if not found["rounds"]:
        raise SystemExit("nothing is trained yet: run train first, with the same folder")
    known = {int(number): known_in(settings, POLICIES[int(number)]) for number in found["rounds"]}
    found["agreement"] = tables.agreement(settings.runs, known, pick_in(settings))
    write_results(settings.out, found)
    tables.tell_differences(found["rounds"])


def of_later_seeds(rows: Rows, subjects: Sequence[str]) -> dict[str, Any]:
    """Differences of the best of ten by later seeds; the first seed helped to pick it."""
    later = {key: row for key, row in rows.items() if key[1] > 0}
    picked, found = OURS[-1], {}
    by_seed = {
        name: [tables.figures_by_seed(later, f"{subject}, {name}", "test_accuracy") for subject in subjects]
        for name in CLOSE
    }
    for name in CLOSE:
        pairs = [pair for pair in zip(by_seed[picked], by_seed[name], strict=True) if pair[0].keys() & pair[1].keys()]
        if name != picked and pairs:
            found[title_over(picked, name)] = paired(*tables.of_both(*zip(*pairs, strict=True)))
    return found


def of_default(rows: Rows, said: Mapping[str, Any]) -> dict[str, Any]:
    """The default policy beside others, over the cells and seeds that it is trained with."""
    seeds = {seed for name, seed in rows if split_name(name)[1] == BY_DEFAULT}
    same = {key: row for key, row in rows.items() if key[1] in seeds}
    found = tables.compared(same, (*BESIDE, BY_DEFAULT), (BY_DEFAULT,), "test_accuracy", asked=said["asked"])
    found["rows"] = {subject: tables.of_network(same, f"{subject}, {BY_DEFAULT}") for subject in found.get("rows", {})}
    return found | {key: said[key] for key in ("machine", "groups")} | {"seeds": sorted(seeds)}


def finals_in(file: Path) -> dict[str, Any] | None:
    """The cost of a final, if there was one."""
    said, rows = read_trained(file)
    if not rows:
        return None
    return {"finalists": shortlist.FINALISTS, "candidates": len(rows), "groups": said["groups"]}


def papers() -> dict[str, dict[str, Any]]:
    """The paper's table of twenty random architectures of its own: mean and standard deviation after 600 epochs."""
    return {
        row.method or INPUT: {"accuracy": row.accuracy, "sd": row.sd, "params_m": row.params_m, "madds_m": row.madds_m}
        for row in published_rows()
        if row.table == "random" and row.data == "CIFAR"
    }


def convergence(rows: Rows, subjects: Sequence[str]) -> dict[str, Any]:
    """Training curves and skips of the first originals that `nat++` changed, and of its results."""

    def unchanged(subject: str) -> bool:
        before, after = (arch_of(rows[f"{subject}, {name}", 0]).essence() for name in (INPUT, "nat++"))
        return before == after

    return {
        subject: {
            name: {
                "curve": rows[f"{subject}, {name}", 0]["curve"],
                "skips": skips(arch_of(rows[f"{subject}, {name}", 0])),
                "test_accuracy": rows[f"{subject}, {name}", 0]["test_accuracy"],
            }
            for name in (INPUT, "nat++")
        }
        for subject in sorted(subjects, key=unchanged)[:CONVERGED]
    }


def bias(rows: Rows, subjects: Sequence[str]) -> dict[str, Any]:
    """Mean skips of each method's answers, and how many train faster than their inputs, by the first seed.

    `ahead` counts changed inputs whose answer has the lower training loss after a quarter of the training.
    """
    found = {}
    for name in (INPUT, *METHODS):
        pairs = [(rows[f"{subject}, {INPUT}", 0], rows[f"{subject}, {name}", 0]) for subject in subjects]
        changed = [
            [row["curve"][max(round(len(row["curve"]) * EARLY) - 1, 0)] for row in pair]
            for pair in pairs
            if arch_of(pair[0]).essence() != arch_of(pair[1]).essence()
        ]
        found[name] = {
            "skips": statistics.fmean(skips(arch_of(after)) for _, after in pairs),
            "changed": len(changed),
            "ahead": sum(after < before for before, after in changed),
        }
    return found


def skips(arch: Architecture) -> int:
    """Number of living skip connections in both cells."""
    return sum(op == SKIP for _, graph in arch.cells() for node in graph.living()[0] for op, _ in node)


EXPERIMENT = Experiment(TableRandom, (train, judge))
