"""From CIFAR-10 images to a policy on NAS-Bench-201, judged by its table.

Needs: CIFAR-10 and a GPU, 2.5 minutes on an H200 for each seed and rival; the table to judge

`search` keeps scores, policy and seconds of each seed in the folder of runs. Several seeds run one after the other,
each in a process of its own with an empty cache of kernels. `direct` scores more random architectures of each seed, off
the clock, until 128 are left that the schedule was not picked on. `rival` gives rivals the mean seconds of the seeds,
or `--seconds`: `supernet` is a supernet (architectures drawn fairly, one CUDA graph a step) with the same prediction
and policy on its scores; `paper` is the preset `paper`, stopped at that time. `judge` runs anywhere; figures of rivals
without runs stay as they are. No step but `judge` reads the table.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.lib.answers import answers_of
from experiments.lib.made_up import made_up_table
from experiments.lib.settings import (
    HERE,
    RESULTS,
    Experiment,
    Images,
    Keeps,
    Tabled,
    flags_of,
    read_results,
    write_results,
)
from experiments.lib.statistics import mean_sd
from experiments.lib.timed import RIVALS, allowed, keep, scores_of, started, stopped, timed
from experiments.pages.nasbench201 import FIGURES
from natpp.arch.cost import counts
from natpp.arch.formats import NASBENCH201_OPS, from_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import GraphSpace, nasbench201_space
from natpp.core.scores import Scores
from natpp.methods.base import Method
from natpp.methods.constant import Constant
from natpp.methods.policy import PolicyMethod
from natpp.methods.random import Random
from natpp.nets.policy import Policy
from natpp.run import Run
from natpp.runs.comparison import held_out_split, mean_score
from natpp.runs.phases import Phases, phases
from natpp.runs.search import Search
from natpp.runs.searching import Searching
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.scorers.short import ShortScorer, usual_schedule
from natpp.scorers.supernet import SharedWeights, WeightsConfig, usual_setting
from natpp.scorers.table import Table, read_table
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects
from natpp.training.recipe import ShortConfig

NAMED, NAMED_SEED = 64, 1000  # architectures that the schedule of short trainings was picked on
TOGETHER = 64  # a step of 64 takes a sixth less per architecture than one of 32
WHERE = setting("nasbench201")
FRAME = Frame("nat++", WHERE, strict=False)
ORDER = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")  # in the split's product


@dataclass(frozen=True, kw_only=True)
class ImagesNasbench201(Keeps, Images, Tabled):
    out: Path = RESULTS / "images_nasbench201.json"
    name: Literal["supernet", "paper"] | None = None
    """which rival; default: both"""
    seeds: tuple[int, ...] = ()
    """default: 0 1 2, and 0 for a rival or the small form"""
    seconds: float | None = None
    """seconds of a rival; default: the mean of the seeds"""


def search_config(*, smoke: bool) -> Phases:
    """The default search without scoring its final choices, which the table judges."""
    usual = replace(phases(Search(), free=False, network="nasbench201"), final=0)
    if smoke:
        usual = replace(usual, pool=200, evaluations=12, learn=replace(usual.learn, steps=20))
    return usual


def at_random(settings: Phases) -> int:
    """Number of scores of a search that are of random architectures."""
    return round(settings.evaluations * settings.predict.random_share)


def search(settings: ImagesNasbench201) -> None:
    """From images on the device to a policy file, for each seed, without the table."""
    for_seeds(settings, "search", "seed", search_seed)


def search_seed(seed: int, settings: ImagesNasbench201) -> None:
    """One seed of `search`."""
    fabric, images, clock = started(settings, settings.root)
    where = usual_setting("nasbench201", images, "short")
    schedule = replace(usual_schedule(images), together=TOGETHER, **({"steps": 4} if settings.smoke else {}))
    store = settings.runs / f"seed_{seed}.jsonl"
    scorer = ShortScorer(images, where, schedule, fabric, seed=seed, store=store, say=print)
    config = search_config(smoke=settings.smoke)
    found = Searching(Training(), FRAME, scorer, config, fabric, run=Run(seed=seed, watch=clock))
    found().save(settings.runs / f"seed_{seed}.safetensors")
    scored = clock.split_scores(scorer)
    keep(
        settings.runs / f"seed_{seed}.json",
        clock,
        {"search": config, "schedule": schedule, "network": where},
        seed=seed,
        evaluations=len(found.known),
        at_random=at_random(config),
        images_per_second=len(found.known) * schedule.steps * schedule.batch / scored,
        scores=scores_of(found.known),
    )


@functools.cache
def named_set() -> tuple[Architecture, ...]:
    """The architectures that the schedule was picked on: the first distinct ones of a draw."""
    drawn = dict.fromkeys(arch.essence() for arch in Training().draw(200, np.random.default_rng(NAMED_SEED)))
    return tuple(sorted(list(drawn)[:NAMED], key=lambda arch: counts(arch, WHERE).live_madds))


def others(scored: Sequence[tuple[Architecture, float]]) -> list[tuple[Architecture, float]]:
    """Scores of architectures that the schedule was not picked on."""
    return [(arch, value) for arch, value in scored if arch.essence() not in named_set()]


def direct(settings: ImagesNasbench201) -> None:
    """More random architectures, scored as in `search`, in place of those that the schedule was picked on."""
    for_seeds(settings, "direct", "direct", direct_seed)


def direct_seed(seed: int, settings: ImagesNasbench201) -> None:
    """One seed of `direct`."""
    said = json.loads((settings.runs / f"seed_{seed}.json").read_text())
    known = {from_dict(arch): value for arch, value in said["scores"]}
    missing = said["at_random"] - len(others(list(known.items())[: said["at_random"]]))
    fabric, images, clock = started(settings, settings.root)
    parts = said["settings"]
    schedule, where = ShortConfig(**parts["schedule"]), Setting(**parts["network"])
    scorer = ShortScorer(images, where, schedule, fabric, seed=seed, store=settings.runs / f"seed_{seed}.jsonl")
    drawn = dict.fromkeys(arch.essence() for arch in Training().draw(1000, np.random.default_rng([seed, 1])))
    fresh = [arch for arch in drawn if arch not in known and others([(arch, 0.0)])][:missing]
    scores = scores_of(dict(zip(fresh, scorer(fresh).tolist(), strict=True)))
    keep(settings.runs / f"direct_{seed}.json", clock, seed=seed, scores=scores)


def rival(settings: ImagesNasbench201) -> None:
    """A supernet and the preset `paper` in the same seconds."""
    for name in [settings.name] if settings.name else RIVALS:
        for_seeds(replace(settings, name=name), "rival", name, {"supernet": supernet, "paper": paper}[name])


def supernet(seed: int, settings: ImagesNasbench201) -> None:
    """A supernet: most of the time for its weights, about 30 s on an H200 for scores, prediction and policy."""
    whole = allowed(settings.seconds, settings.runs.glob("seed_*.json"))
    fabric, images, clock = started(settings, settings.root)
    where = usual_setting("nasbench201", images, "supernet")
    weights = WeightsConfig(architectures=20, batch=8 if settings.smoke else 32, epochs=1)
    steps = 3 if settings.smoke else 50  # to measure the speed, after the capture of graphs
    trial = SharedWeights(Training(), where, images, weights, fabric, seed)
    timed(trial, 3)
    an_epoch = timed(trial, steps) / steps * trial.steps_an_epoch
    left = 0.88 * whole - clock.stop()
    weights = replace(weights, epochs=max(int(left / an_epoch), 1))
    clock("weights")
    config = replace(search_config(smoke=settings.smoke), weights=weights)
    shared = SharedWeights(Training(), where, images, weights, fabric, seed)
    some = config.evaluations
    found = Searching(
        Training(), FRAME, shared, config, fabric, asked=Search(evaluations=some), run=Run(seed=seed, watch=clock)
    )
    found().save(settings.runs / f"supernet_{seed}.safetensors")
    keep(
        settings.runs / f"supernet_{seed}.json",
        clock,
        {"search": config, "network": where},
        seed=seed,
        evaluations=len(found.known),
        at_random=at_random(config),
        steps=shared.steps,
        images_per_second=shared.steps * weights.architectures * shared.batch / clock.spent["weights"],
        scores=scores_of(found.known),
    )


def paper(seed: int, settings: ImagesNasbench201) -> None:
    """The preset `paper`, stopped at the time limit; its supernet then scores architectures off the clock."""
    whole = allowed(settings.seconds, settings.runs.glob("seed_*.json"))
    fabric, images, clock = started(settings, settings.root)
    where = usual_setting("nasbench201", images, "paper")
    config = replace(phases(Search(preset="paper"), free=False), pool=search_config(smoke=settings.smoke).pool)
    shared = SharedWeights(Training(), where, images, config.weights, fabric, seed)
    found = stopped(
        lambda watch: Searching(Training(), FRAME, shared, config, fabric, run=Run(seed=seed, watch=watch)),
        clock,
        whole,
    )
    found.learner.policy.eval().save(settings.runs / f"paper_{seed}.safetensors")
    clock.end()
    some = Training().draw(12 if settings.smoke else 200, np.random.default_rng(seed))
    distinct = {arch.essence(): arch for arch in some}
    scores = shared.scorer()(list(distinct.values())).tolist()
    keep(
        settings.runs / f"paper_{seed}.json",
        clock,
        {"search": config, "network": where},
        seed=seed,
        evaluations=None,
        at_random=len(distinct),
        steps=shared.steps,
        policy_steps=found.learner.steps,
        scores=scores_of(dict(zip(distinct, scores, strict=True))),
    )


def for_seeds(settings: ImagesNasbench201, step: str, stem: str, run: Callable[[int, ImagesNasbench201], None]) -> None:
    """Run the seeds that have no file yet; several of them in processes of their own."""
    usual = (0,) if step == "rival" or settings.smoke else (0, 1, 2)
    seeds = settings.seeds or usual
    for seed in seeds:
        if (settings.runs / f"{stem}_{seed}.json").exists():
            continue
        if len(seeds) == 1:
            run(seed, settings)
        else:
            alone(step, replace(settings, seeds=(seed,)))


def alone(step: str, settings: ImagesNasbench201) -> None:
    """Run a step in a process of its own, with an empty cache of kernels."""
    command = [sys.executable, "-m", "experiments", "images_nasbench201", step, *flags_of(settings)]
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TRITON_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(paths)}
        subprocess.run(command, check=True, env=environment)  # noqa: S603


def judge(settings: ImagesNasbench201) -> None:
    """Judge the policies and scores of all runs by the table."""
    given = settings.table
    if given is None:
        if not settings.smoke:
            raise SystemExit("judge needs the table of NAS-Bench-201: --table FILE")
        given = made_up_table(settings.runs / "made_up.csv")
    table = read_table(given, ["val_12", "val_200", "test_200"])
    living = Living(table)
    runs = {
        stem: [judged(run, table, living) for run in sorted(settings.runs.glob(f"{stem}_*.json"))]
        for stem in ("seed", *RIVALS)
    }
    beside: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs["seed"]:
        for name, figures in run.pop("rivals").items():
            beside[name].append(figures)
    beside |= {name: runs[name] for name in RIVALS if runs[name]}
    found = gathered(runs["seed"])
    before = read_results(settings.out) or {"rivals": {}, "runs": {}}
    found["rivals"] = before["rivals"] | {name: gathered(some) for name, some in beside.items()}
    found["runs"] = before["runs"] | {name: some for name, some in runs.items() if some}
    write_results(settings.out, found)
    for name in FIGURES:
        print(f"{name:<24} {found[name]['mean']:.3f} ± {found[name]['sd']:.3f}")


def judged(run: Path, table: Table, living: Living) -> dict[str, Any]:
    """Figures of a run's policy, and of the scores that it was learned from."""
    said = json.loads(run.read_text())
    known = [(from_dict(arch), value) for arch, value in said.pop("scores")]
    policy = Policy.load(run.with_suffix(".safetensors"))
    held_out, training = held_out_split(table, 2000, 0)
    test = Subjects(cells_of(held_out, FRAME, policy.ops))
    method = PolicyMethod("nat++", learned=policy)
    answers = answers_of(method, test, constant_score, np.random.default_rng(said["seed"]))
    found = said | agreeing(table, drawn_of(run, said, known)) | {"share_of_oracle": share(table, test, answers)}
    if said["evaluations"] is None:  # no prediction
        return found
    config = PredictConfig(**said["settings"]["search"]["predict"])
    prediction = Prediction([arch for arch, _ in known], np.array([value for _, value in known]), config)
    found |= living.agreement(prediction.expected(living.archs))
    if run.stem.startswith("seed"):
        train = Subjects(cells_of(training[:2000], FRAME, policy.ops))
        found["rivals"] = rivals(table, living, train, test, prediction.careful, said["seed"])
    return found


def constant_score(archs: Sequence[Architecture]) -> Scores:
    """The same score for all; a one-shot policy needs none."""
    return np.zeros(len(archs))


class Training(GraphSpace):
    """The space without the 2,000 held-out architectures, which are never inputs of learning."""

    def __init__(self) -> None:
        whole = nasbench201_space()
        super().__init__(whole.arch, whole.options)

    def draw(self, count: int, generator: np.random.Generator, *, fair: bool = False) -> list[Architecture]:
        if fair:  # for supernet weights, not for inputs of the policy
            return super().draw(count, generator, fair=True)
        products = list(itertools.product([NASBENCH201_OPS[name] for name in ORDER], repeat=6))
        left = np.random.default_rng(0).permutation(len(products))[2000:]
        drawn = generator.permutation(left)[:count].tolist()
        free = [number for number, edge in enumerate(self.arch.normal.edges) if not edge.fixed]
        found = []
        for number in drawn:
            ops = list(self.arch.normal.ops)
            for edge, op in zip(free, products[number], strict=True):
                ops[edge] = op
            found.append(self.arch.with_ops({"normal": ops}))
        return found


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation."""
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)


def drawn_of(
    run: Path, said: dict[str, Any], known: Sequence[tuple[Architecture, float]]
) -> list[tuple[Architecture, float]]:
    """Scores of random architectures in a run, without those that the schedule was picked on."""
    more = run.with_name(run.name.replace("seed", "direct"))
    scored = [*known[: said["at_random"]]]
    if more != run and more.exists():
        scored += [(from_dict(arch), value) for arch, value in json.loads(more.read_text())["scores"]]
    return others(scored)


def agreeing(table: Table, scored: Sequence[tuple[Architecture, float]]) -> dict[str, float]:
    """Agreement of scores of random architectures with the table's test accuracy."""
    first: dict[Architecture, int] = {}
    for row, arch in enumerate(table.archs):
        first.setdefault(arch.essence(), row)
    rows = [first[arch.essence()] for arch, _ in scored]
    truth = table.column("test_200")[rows]
    return {
        "drawn": len(rows),
        "direct_spearman": spearman([value for _, value in scored], truth),
        "direct_spearman_val_12": spearman(table.column("val_12")[rows], truth),
    }


class Living:
    """All architectures of the table whose output depends on their input."""

    def __init__(self, table: Table):
        rows = [row for row, arch in enumerate(table.archs) if arch.normal.liveness().output]
        self.archs = [table.archs[row] for row in rows]
        self.truth = table.column("test_200")[rows]
        self.madds = live_madds(self.archs)
        self.kinds = [
            tuple(sorted(Counter(op for node in arch.normal.living()[0] for op, _ in node).items()))
            for arch in self.archs
        ]

    def agreement(self, values: Scores) -> dict[str, float]:
        """Agreement of scores with test accuracy, over all architectures and within groups."""
        return {
            "spearman": spearman(values, self.truth),
            "within_equal_madds": within(self.madds, values, self.truth),
            "within_equal_ops": within(self.kinds, values, self.truth),
        }


def within(groups: Sequence[Any], values: Scores, truth: Scores) -> float:
    """Mean rank correlation within groups of at least 30, weighted by size; 0 for a group with equal scores."""
    members: dict[Any, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    large = [some for some in members.values() if len(some) >= 30]
    found = [spearman(values[some], truth[some]) if np.ptp(values[some]) > 0 else 0.0 for some in large]
    return float(np.average(found, weights=[len(some) for some in large]))


def share(table: Table, subjects: Subjects, rows: Sequence[Any]) -> float:
    """Gain of the answers as a share of the gain of the oracle by `val_200` (87.29 to 91.79)."""
    after = [subjects.transformed(index, row) for index, row in enumerate(rows)]
    return (mean_score(table, "test_200", after) - 87.29) / (91.79 - 87.29)


def rivals(
    table: Table,
    living: Living,
    train: Subjects,
    test: Subjects,
    score: Callable[[Sequence[Architecture]], Scores],
    seed: int,
) -> dict[str, Any]:
    """Figures of other methods with the same predictions, and of living multiply-adds as the score."""
    empty = dict.fromkeys(FIGURES)
    found: dict[str, Any] = {}
    methods: dict[str, Method] = {"constant": Constant(), "random-best-of-10": Random(10)}
    for name, method in methods.items():
        generator = np.random.default_rng(seed)
        fitted = method.fit(train, score, generator)
        found[name] = empty | {"share_of_oracle": share(table, test, answers_of(fitted, test, score, generator))}
    shares = [share(table, test, rows) for rows in dearest(test, ties=20)]
    found["live MAdds"] = empty | living.agreement(living.madds) | {"share_of_oracle": float(np.mean(shares))}
    return found


def live_madds(archs: Sequence[Architecture]) -> Scores:
    """Living multiply-adds of architectures."""
    return np.array([_live_madds(arch) for arch in archs], dtype=float)


@functools.lru_cache(maxsize=1 << 16)
def _live_madds(arch: Architecture) -> int:
    return counts(arch, WHERE).live_madds


def dearest(subjects: Subjects, ties: int) -> Iterator[list[Any]]:
    """For each input the reachable architecture with the most living multiply-adds, ties broken at random."""
    known: dict[bytes, int] = {}
    madds: list[float] = []
    reachable: list[tuple[list[Any], list[int]]] = []
    for index, mask in enumerate(subjects.masks):
        options = (np.flatnonzero(allowed).tolist() for allowed in mask)
        rows = [np.array(ops, dtype=np.int64) for ops in itertools.product(*options)]
        for row in rows:
            if row.tobytes() not in known:
                known[row.tobytes()] = len(known)
                madds += live_madds([subjects.transformed(index, row)]).tolist()
        reachable.append((rows, [known[row.tobytes()] for row in rows]))
    for tie in range(ties):
        values = np.array(madds) + np.random.default_rng(tie).random(len(madds))
        yield [rows[int(values[numbers].argmax())] for rows, numbers in reachable]


def gathered(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of each figure over runs; None where it does not apply."""
    columns = {name: [run.get(name) for run in runs] for name in FIGURES}
    return {name: None if None in values else mean_sd(values) for name, values in columns.items()}


EXPERIMENT = Experiment(ImagesNasbench201, (search, direct, rival, judge))
