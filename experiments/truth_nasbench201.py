"""From CIFAR-10 images to a policy on NAS-Bench-201, without a look at its table; then the table says how good it is.

    python experiments/truth_nasbench201.py search --root DIR --runs FOLDER [--seeds 0,1,2]
    python experiments/truth_nasbench201.py direct --root DIR --runs FOLDER [--seeds 0,1,2]
    python experiments/truth_nasbench201.py rival --name supernet --root DIR --runs FOLDER [--seeds 0]
    python experiments/truth_nasbench201.py rival --name paper --root DIR --runs FOLDER [--seeds 0]
    python experiments/truth_nasbench201.py judge --table FILE --runs FOLDER

The first wants a GPU (DIR as `natpp data cifar10` made it) and keeps scores, policy and seconds of every seed in
FOLDER; every seed has a process and an empty cache of kernels of its own, and what is there is not done again. `direct`
scores some more architectures of each seed in the same way, off the clock: so many that 128 random ones are left when
those are taken out that the schedule was picked on. Rivals get the mean seconds of the seeds that are there, or
`--seconds`: a supernet (architectures dealt out fairly, one CUDA graph a step) and then the same prediction and policy
on its scores, or the preset `paper`, stopped at that time. The last runs anywhere and writes
`results/truth_nasbench201.json`; what that says of a rival without a run in FOLDER stays. With `--smoke` all do the
same on digits with a handful of trainings, in seconds on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from small import kept_apart

import natpp
from natpp.arch.cost import counts
from natpp.arch.formats import NASBENCH201_OPS, from_dict, to_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import GraphSpace, nasbench201_space
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.files import write_whole
from natpp.methods.base import Method
from natpp.methods.constant import Constant
from natpp.methods.learning import best
from natpp.methods.policy import PolicyMethod
from natpp.methods.random import Random
from natpp.nets.policy import Policy
from natpp.run import Run
from natpp.runs.comparison import held_out_split, mean_score
from natpp.runs.fabric import make_fabric
from natpp.runs.phases import Phases, phases
from natpp.runs.search import Search
from natpp.runs.searching import Searching
from natpp.scorers.base import Scores, Task
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.scorers.short import ShortScorer, usual_schedule
from natpp.scorers.supernet import SharedWeights, WeightsConfig, usual_setting
from natpp.scorers.table import Table, read_table
from natpp.subjects.many import Inputs
from natpp.training.recipe import ShortConfig

RESULTS = Path(__file__).parent / "results" / "truth_nasbench201.json"
NAMED, NAMED_SEED = 64, 1000  # architectures that the schedule of short trainings was picked on
TOGETHER = 64  # a step of so many takes a sixth less each than one of 32
WHERE = setting("nasbench201")
TASK = Task("nat++", WHERE, strict=False)
ORDER = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")  # of the split's product
FIGURES = (
    "seconds",
    "evaluations",
    "direct_spearman",
    "direct_spearman_val_12",
    "spearman",
    "within_equal_madds",
    "within_equal_ops",
    "share_of_oracle",
)


def config(*, smoke: bool) -> Phases:
    """What a search does by itself, but for scores of final choices: the table tells about those."""
    usual = replace(phases(Search(), free=False, network="nasbench201"), final=0)
    if smoke:
        usual = replace(usual, pool=200, evaluations=12, learn=replace(usual.learn, steps=20))
    return usual


def at_random(settings: Phases) -> int:
    """How many of a search's scores are of architectures drawn at random."""
    return round(settings.evaluations * settings.predict.random_share)


def search(seed: int, arguments: argparse.Namespace) -> None:
    """One seed: from images on the device to a policy file; the table is not looked at."""
    fabric, images, clock = started(arguments)
    where = usual_setting("nasbench201", images, "short")
    schedule = replace(usual_schedule(images), together=TOGETHER, **({"steps": 4} if arguments.smoke else {}))
    store = arguments.runs / f"seed_{seed}.jsonl"
    scorer = ShortScorer(images, where, schedule, fabric, seed=seed, store=store, say=print)
    settings = config(smoke=arguments.smoke)
    found = Searching(Training(), TASK, scorer, settings, fabric, run=Run(seed=seed, watch=clock))
    found().save(arguments.runs / f"seed_{seed}.safetensors")
    scored = clock.spent.pop("scores")
    clock.spent |= scorer.spent | {"prediction": scored - sum(scorer.spent.values())}
    keep(
        arguments.runs / f"seed_{seed}.json",
        clock,
        seed=seed,
        evaluations=len(found.known),
        at_random=at_random(settings),
        images_per_second=len(found.known) * schedule.steps * schedule.batch / scored,
        scores=[[to_dict(arch), value] for arch, value in found.known.items()],
        settings={"search": asdict(settings), "schedule": asdict(schedule), "network": asdict(where)},
    )


@functools.cache
def named_set() -> tuple[Architecture, ...]:
    """What the schedule of short trainings was picked on: the first ones that compute different things, of a draw."""
    drawn = dict.fromkeys(arch.essence() for arch in Training().draw(200, np.random.default_rng(NAMED_SEED)))
    return tuple(sorted(list(drawn)[:NAMED], key=lambda arch: counts(arch, WHERE).live_madds))


def others(scored: Sequence[tuple[Architecture, float]]) -> list[tuple[Architecture, float]]:
    """Scores without those of architectures that the schedule was picked on."""
    return [(arch, value) for arch, value in scored if arch.essence() not in named_set()]


def direct(seed: int, arguments: argparse.Namespace) -> None:
    """More random architectures scored as a seed's were, until there are enough that nothing was picked on."""
    said = json.loads((arguments.runs / f"seed_{seed}.json").read_text())
    known = {from_dict(arch): value for arch, value in said["scores"]}
    missing = said["at_random"] - len(others(list(known.items())[: said["at_random"]]))
    fabric, images, clock = started(arguments)
    settings = said["settings"]
    schedule, where = ShortConfig(**settings["schedule"]), Setting(**settings["network"])
    scorer = ShortScorer(images, where, schedule, fabric, seed=seed, store=arguments.runs / f"seed_{seed}.jsonl")
    drawn = dict.fromkeys(arch.essence() for arch in Training().draw(1000, np.random.default_rng([seed, 1])))
    fresh = [arch for arch in drawn if arch not in known and others([(arch, 0.0)])][:missing]
    scores = [[to_dict(arch), value] for arch, value in zip(fresh, scorer(fresh).tolist(), strict=True)]
    keep(arguments.runs / f"direct_{seed}.json", clock, seed=seed, scores=scores)


def supernet(seed: int, arguments: argparse.Namespace) -> None:
    """A supernet in the same seconds: most for its weights, about 30 s on an H200 for scores, prediction, policy."""
    whole = allowed(arguments)
    fabric, images, clock = started(arguments)
    where = usual_setting("nasbench201", images, "supernet")
    weights = WeightsConfig(architectures=20, batch=8 if arguments.smoke else 32, epochs=1)
    steps = 3 if arguments.smoke else 50  # that tell how fast it is, capture left out
    trial = SharedWeights(Training(), where, images, weights, fabric, seed)
    for _ in range(3):
        trial.step()
    settled(fabric)
    start = time.perf_counter()
    for _ in range(steps):
        trial.step()
    settled(fabric)
    an_epoch = (time.perf_counter() - start) / steps * trial.steps_an_epoch
    left = 0.88 * whole - clock.stop()
    weights = replace(weights, epochs=max(int(left / an_epoch), 1))
    clock("weights")
    settings = replace(config(smoke=arguments.smoke), weights=weights)
    shared = SharedWeights(Training(), where, images, weights, fabric, seed)
    some = settings.evaluations
    found = Searching(
        Training(), TASK, shared, settings, fabric, asked=Search(evaluations=some), run=Run(seed=seed, watch=clock)
    )
    found().save(arguments.runs / f"supernet_{seed}.safetensors")
    keep(
        arguments.runs / f"supernet_{seed}.json",
        clock,
        seed=seed,
        evaluations=len(found.known),
        at_random=at_random(settings),
        steps=shared.steps,
        images_per_second=shared.steps * weights.architectures * shared.batch / clock.spent["weights"],
        scores=[[to_dict(arch), value] for arch, value in found.known.items()],
        settings={"search": asdict(settings), "network": asdict(where)},
    )


def paper(seed: int, arguments: argparse.Namespace) -> None:
    """The preset `paper`, stopped after the same seconds; its supernet then scores architectures, off the clock."""
    whole = allowed(arguments)
    fabric, images, clock = started(arguments)
    where = usual_setting("nasbench201", images, "paper")
    settings = replace(phases(Search(preset="paper"), free=False), pool=config(smoke=arguments.smoke).pool)
    shared = SharedWeights(Training(), where, images, settings.weights, fabric, seed)

    def watch(*told: Any) -> None:
        clock(*told)
        if clock.stop() >= whole:
            raise Over

    found = Searching(Training(), TASK, shared, settings, fabric, run=Run(seed=seed, watch=watch))
    with contextlib.suppress(Over):
        found()
    found.learner.policy.eval().save(arguments.runs / f"paper_{seed}.safetensors")
    clock.end()
    some = Training().draw(12 if arguments.smoke else 200, np.random.default_rng(seed))
    distinct = {arch.essence(): arch for arch in some}
    scores = shared.scorer()(list(distinct.values())).tolist()
    keep(
        arguments.runs / f"paper_{seed}.json",
        clock,
        seed=seed,
        evaluations=None,
        at_random=len(distinct),
        steps=shared.steps,
        policy_steps=found.learner.steps,
        scores=[[to_dict(arch), value] for arch, value in zip(distinct, scores, strict=True)],
        settings={"search": asdict(settings), "network": asdict(where)},
    )


RIVALS = {"supernet": supernet, "paper": paper}


class Over(Exception):
    """The time is up."""


def started(arguments: argparse.Namespace) -> tuple[Fabric, Batches, Clock]:
    """A device with the images on it, and a clock that starts now."""
    fabric = make_fabric()
    images = Batches(load_images("digits" if arguments.smoke else "cifar10", arguments.root), fabric.device)
    if fabric.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    settled(fabric)
    return fabric, images, Clock()


def settled(fabric: Fabric) -> None:
    """Wait for the device."""
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()


def allowed(arguments: argparse.Namespace) -> float:
    """The seconds of a rival: those of our seeds."""
    if arguments.seconds is not None:
        return float(arguments.seconds)
    return float(np.mean([json.loads(run.read_text())["seconds"] for run in arguments.runs.glob("seed_*.json")]))


def keep(file: Path, clock: Clock, **said: Any) -> None:
    """Write what is known of a run, and say how long it took."""
    clock.end()
    peak = torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else None  # graphs keep what they use
    whole = {"seconds": clock.seconds, "phases": dict(clock.spent), "reserved_gib": peak, **said}
    write_whole(file, json.dumps(whole | {"machine": machine()}) + "\n")
    print(f"{file.stem}: {clock.seconds:.1f} s, {dict(clock.spent)}", flush=True)


def judge(run: Path, table: Table, living: Living) -> dict[str, Any]:
    """What the table says of a run's policy and of the scores it was learned from."""
    said = json.loads(run.read_text())
    known = [(from_dict(arch), value) for arch, value in said.pop("scores")]
    policy = Policy.load(run.with_suffix(".safetensors"))
    held_out, training = held_out_split(table, 2000, 0)
    test = Inputs(held_out, TASK, policy.ops)
    method = PolicyMethod("nat++", best(), policy)
    answers = method.one_shot(test, constant_score, np.random.default_rng(said["seed"]))
    found = said | agreeing(table, drawn_of(run, said, known)) | {"share_of_oracle": share(table, test, answers)}
    if said["evaluations"] is None:  # no prediction
        return found
    settings = PredictConfig(**said["settings"]["search"]["predict"])
    prediction = Prediction([arch for arch, _ in known], np.array([value for _, value in known]), settings)
    found |= living.agreement(prediction.expected(living.archs))
    if run.stem.startswith("seed"):
        train = Inputs(training[:2000], TASK, policy.ops)
        found["rivals"] = rivals(table, living, train, test, prediction.careful, said["seed"])
    return found


def constant_score(archs: Sequence[Architecture]) -> Scores:
    """One shot of a policy asks nobody."""
    return np.zeros(len(archs))


class Training(GraphSpace):
    """The space without the 2,000 architectures that are held out: those are never inputs of learning."""

    def __init__(self) -> None:
        whole = nasbench201_space()
        super().__init__(whole.arch, whole.options)

    def draw(self, count: int, generator: np.random.Generator, *, fair: bool = False) -> list[Architecture]:
        if fair:  # for the weights of a supernet: all operations as often as each other, no input of the policy
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


class Clock:
    """Seconds of every phase, told by the search as it goes."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.spent: dict[str, float] = defaultdict(float)
        self.seconds: float | None = None

    def __call__(self, phase: str, *_: object) -> None:
        now = time.perf_counter()
        self.spent[phase] += now - self.last
        self.last = now

    def stop(self) -> float:
        """Seconds until now."""
        return time.perf_counter() - self.start

    def end(self) -> None:
        """What comes now is off the clock."""
        if self.seconds is None:
            self.seconds = self.stop()


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)


def drawn_of(
    run: Path, said: dict[str, Any], known: Sequence[tuple[Architecture, float]]
) -> list[tuple[Architecture, float]]:
    """What a run scored of architectures drawn at random, without those that the schedule was picked on."""
    more = run.with_name(run.name.replace("seed", "direct"))
    scored = [*known[: said["at_random"]]]
    if more != run and more.exists():
        scored += [(from_dict(arch), value) for arch, value in json.loads(more.read_text())["scores"]]
    return others(scored)


def agreeing(table: Table, scored: Sequence[tuple[Architecture, float]]) -> dict[str, float]:
    """Scores of architectures drawn at random against the table's test accuracy."""
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
    """All architectures of the table with a living path."""

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
        """Scores of all against their test accuracy, over all and within groups."""
        return {
            "spearman": spearman(values, self.truth),
            "within_equal_madds": within(self.madds, values, self.truth),
            "within_equal_ops": within(self.kinds, values, self.truth),
        }


def within(groups: Sequence[Any], values: Scores, truth: Scores) -> float:
    """Mean rank correlation within groups of at least 30, weighted by size; one without order counts 0."""
    members: dict[Any, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    large = [some for some in members.values() if len(some) >= 30]
    found = [spearman(values[some], truth[some]) if np.ptp(values[some]) > 0 else 0.0 for some in large]
    return float(np.average(found, weights=[len(some) for some in large]))


def share(table: Table, inputs: Inputs, rows: Sequence[Any]) -> float:
    """How much of what the oracle by `val_200` gains (87.29 to 91.79) the answers gain."""
    after = [inputs.transformed(index, row) for index, row in enumerate(rows)]
    return (mean_score(table, "test_200", after) - 87.29) / (91.79 - 87.29)


def rivals(
    table: Table,
    living: Living,
    train: Inputs,
    test: Inputs,
    score: Callable[[Sequence[Architecture]], Scores],
    seed: int,
) -> dict[str, Any]:
    """Other methods on the same predictions, and living multiply-adds as the score."""
    empty = dict.fromkeys(FIGURES)
    found: dict[str, Any] = {}
    methods: dict[str, Method] = {"constant": Constant(), "random-best-of-10": Random(10)}
    for name, method in methods.items():
        generator = np.random.default_rng(seed)
        fitted = method.fit(train, score, generator)
        found[name] = empty | {"share_of_oracle": share(table, test, fitted.one_shot(test, score, generator))}
    shares = [share(table, test, rows) for rows in dearest(test, ties=20)]
    found["live MAdds"] = empty | living.agreement(living.madds) | {"share_of_oracle": float(np.mean(shares))}
    return found


def live_madds(archs: Sequence[Architecture]) -> Scores:
    return np.array([_live_madds(arch) for arch in archs], dtype=float)


@functools.lru_cache(maxsize=1 << 16)
def _live_madds(arch: Architecture) -> int:
    return counts(arch, WHERE).live_madds


def dearest(inputs: Inputs, ties: int) -> Iterator[list[Any]]:
    """For every input the reachable architecture with the most living multiply-adds, equal ones in random order."""
    known: dict[bytes, int] = {}
    madds: list[float] = []
    reachable: list[tuple[list[Any], list[int]]] = []
    for index, mask in enumerate(inputs.masks):
        options = (np.flatnonzero(allowed).tolist() for allowed in mask)
        rows = [np.array(ops, dtype=np.int64) for ops in itertools.product(*options)]
        for row in rows:
            if row.tobytes() not in known:
                known[row.tobytes()] = len(known)
                madds += live_madds([inputs.transformed(index, row)]).tolist()
        reachable.append((rows, [known[row.tobytes()] for row in rows]))
    for tie in range(ties):
        values = np.array(madds) + np.random.default_rng(tie).random(len(madds))
        yield [rows[int(values[numbers].argmax())] for rows, numbers in reachable]


def machine() -> dict[str, Any]:
    """What it ran on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "natpp": natpp.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "gpu": gpu,
    }


def gathered(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sd of every figure over runs; None where it does not apply."""
    found: dict[str, Any] = {}
    for name in FIGURES:
        values = [run.get(name) for run in runs]
        if None in values:
            found[name] = None
        else:
            found[name] = {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=min(len(values) - 1, 1)))}
    return found


def alone(seed: str) -> None:
    """The same command for one seed, in a process of its own that knows no compiled kernels yet."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TRITON_CACHE_DIR": cache}
        subprocess.run([sys.executable, *sys.argv, "--seeds", seed], check=True, env=environment)  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "direct", "rival", "judge"))
    parser.add_argument("--name", choices=RIVALS, help="which rival")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the seeds' files")
    parser.add_argument("--root", help="folder that natpp data cifar10 made")
    parser.add_argument("--table", help="the table of NAS-Bench-201")
    parser.add_argument("--seeds", help="by default 0,1,2, and 0 for a rival")
    parser.add_argument("--seconds", type=float, help="of a rival; by default the mean of the seeds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    kept_apart(arguments, RESULTS)
    if arguments.what != "judge":
        if arguments.what == "rival" and arguments.name is None:
            parser.error(f"--name is one of {', '.join(RIVALS)}")
        of_seeds = {"search": (search, "seed"), "direct": (direct, "direct")}
        run, stem = of_seeds.get(arguments.what) or (RIVALS[arguments.name], arguments.name)
        seeds = (arguments.seeds or ("0,1,2" if arguments.what in of_seeds else "0")).split(",")
        missing = [seed for seed in seeds if not (arguments.runs / f"{stem}_{seed}.json").exists()]
        for seed in missing:
            if len(seeds) == 1:
                run(int(seed), arguments)
            else:
                alone(seed)
        return
    table = read_table(arguments.table, ["val_12", "val_200", "test_200"])
    living = Living(table)
    runs = {
        stem: [judge(run, table, living) for run in sorted(arguments.runs.glob(f"{stem}_*.json"))]
        for stem in ("seed", *RIVALS)
    }
    beside: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs["seed"]:
        for name, figures in run.pop("rivals").items():
            beside[name].append(figures)
    beside |= {name: runs[name] for name in RIVALS if runs[name]}
    found = gathered(runs["seed"])
    before = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"rivals": {}, "runs": {}}
    found["rivals"] = before["rivals"] | {name: gathered(some) for name, some in beside.items()}
    found["runs"] = before["runs"] | {name: some for name, some in runs.items() if some}
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    for name in FIGURES:
        print(f"{name:<24} {found[name]['mean']:.3f} ± {found[name]['sd']:.3f}")


if __name__ == "__main__":
    main()
