"""What a search is asked for, as one value, and the parts it needs, joined from it.

A run's folder keeps this value, so that another command can have its scorer (`--scorer RUN`) or its policy.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from natpp.arch.formats import from_dict, to_dict, to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import Space, named_space, space_around
from natpp.core.budget import NAMED
from natpp.core.result import Result
from natpp.data.batches import Batches
from natpp.data.images import SMALL_IMAGE, Images
from natpp.errors import FormatError, SettingError, did_you_mean
from natpp.files import write_whole
from natpp.folder import Run, catching_signals, read_config
from natpp.methods.policy import explained, transform
from natpp.nets.policy import Policy
from natpp.nets.supernet import Supernet
from natpp.registry import RULES
from natpp.runs.search import Search, SearchConfig, Watch, preset
from natpp.scorers.base import Scorer, Task, check_price
from natpp.scorers.short import ShortScorer, in_half, usual_schedule
from natpp.scorers.supernet import SharedWeights, SupernetScorer, usual_setting
from natpp.scorers.table import TableScorer, read_table
from natpp.training import task as training
from natpp.training.recipe import ShortConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SMALL_EVALUATIONS = 100  # that a search on small images, on a CPU most likely, takes by default
TRAINED = ("short", "supernet")  # scorers that are trained on images
SAID = ("data", "space", "nodes", "extras", "rule", "budget", "preset", "scorer", "evaluations", "price", "seed")
WHOLE = (
    *("size", "evaluations", "epochs", "architectures", "batch", "steps", "train_steps", "together"),
    *("channels", "cells", "seed"),
)
NUMBERS = ("minutes", "random_share", "caution", "learning_rate")
LOG = logging.getLogger("natpp")
PRECISIONS = {"auto": "", "32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


Say = Callable[[str], None]  # what a person should know on the way


@dataclass(frozen=True)
class Ask:
    """What a search is asked for. None stands for what is usual."""

    data: str | None = None
    root: str | None = None
    size: int | None = None
    space: str = "cells"
    nodes: tuple[int, ...] = (4, 5)
    extras: bool = False
    arch: Architecture | None = None
    rule: str = "nat++"
    budget: str = "strict"
    preset: str = "best"
    scorer: str | None = None
    reward: str = "val_200"
    evaluations: int | None = None
    minutes: float | None = None
    random_share: float | None = None
    price: Mapping[str, float] | None = None
    caution: float | None = None
    epochs: int | None = None
    architectures: int | None = None
    batch: int | None = None
    learning_rate: float | None = None
    steps: int | None = None
    train_steps: int | None = None
    together: int | None = None
    channels: int | None = None
    cells: int | None = None
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"

    def __post_init__(self) -> None:
        RULES[self.rule]  # answers an unknown name
        if self.budget not in NAMED:
            raise SettingError(f"unknown budget {self.budget!r}. {did_you_mean(self.budget, NAMED)}")
        check_price(self.price or {})
        for name in WHOLE:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise SettingError(f"{name} is {value!r}, expected a whole number")
        for name in NUMBERS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise SettingError(f"{name} is {value!r}, expected a number")
        if not 0 <= self.seed < 2**63:
            raise SettingError(f"seed is {self.seed}, expected a whole number from 0 to 2^63 - 1")
        if self.evaluations is not None and self.evaluations < 2:
            raise SettingError(f"evaluations is {self.evaluations}, expected a whole number from 2 up")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise SettingError(f"minutes is {self.minutes}, expected a number above 0")

    @property
    def scores(self) -> str:
        """Where scores come from: by default short trainings, and the supernet with the paper's preset."""
        return self.scorer or ("supernet" if self.preset == "paper" else "short")

    @property
    def trained(self) -> str:
        """The kind of network that is trained for scores."""
        return "paper" if self.preset == "paper" and self.scores == "supernet" else self.scores

    @property
    def network(self) -> str:
        """The network that the architectures stand in."""
        if self.arch is not None:
            return "cifar" if self.arch.reduce is not None else "nasbench201"
        return "nasbench201" if self.space == "nasbench201" else "cifar"

    @property
    def task(self) -> Task:
        return Task(self.rule, setting(self.network), strict=self.budget == "strict")

    def make_space(self) -> Space:
        """The space, or what the given architecture may become."""
        if self.arch is not None:
            return space_around(self.arch, self.rule, self.task.where, strict=self.budget == "strict")
        return named_space(self.space, self.nodes, extras=self.extras)

    def config(self, *, free: bool) -> SearchConfig:
        """The preset with what was asked for otherwise."""
        found = preset(self.preset, free=free, network=self.network)
        weights = _given(self, ("epochs", "architectures", "batch", "learning_rate"))
        return replace(
            found,
            weights=replace(found.weights, **weights),
            learn=replace(found.learn, **_given(self, ("steps",))),
            predict=replace(found.predict, **_given(self, ("random_share", "caution"))),
        )

    def short(self, images: Batches) -> ShortConfig:
        """The schedule of short trainings: what is usual for such images, with what was asked for otherwise."""
        given = _given(self, ("batch", "learning_rate", "together"))
        if self.train_steps is not None:
            given["steps"] = self.train_steps
        return replace(usual_schedule(images), **given)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(replace(self, arch=None))
        return found | {"arch": None if self.arch is None else to_dict(self.arch)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Ask:
        """The way back."""
        try:
            arch = None if data["arch"] is None else from_dict(data["arch"])
            return Ask(**data | {"arch": arch, "nodes": tuple(data["nodes"])})
        except (KeyError, TypeError) as error:
            raise FormatError(f"the settings of the run are damaged or of another version: {error}") from None


def run_search(
    ask: Ask,
    *,
    images: Images | None = None,
    scorer: Scorer | None = None,
    out: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    watch: Watch | None = None,
    say: Say | None = None,
) -> tuple[Policy, Architecture | None]:
    """A policy by a search, and for one given architecture the best that was found.

    `images` and `scorer` stand in for those that the words of `ask` name. Scores of short trainings go into the file
    `store`, by default one in the run's folder.
    """
    from natpp import __version__

    started = time.perf_counter()
    fabric = make_fabric(ask.device, ask.precision)
    first = fabric.global_rank == 0
    space = ask.make_space()
    batches, trained = None, None
    if scorer is None and ask.scores not in TRAINED:
        scorer = make_scorer(ask.scores, reward=ask.reward, limit=ask.evaluations, root=ask.root, fabric=fabric)
    elif scorer is None:
        batches = _batches(ask, images, fabric, say)
        trained = usual_setting(ask.network, batches, ask.trained, ask.channels, ask.cells)
    config = ask.config(free=scorer is not None and scorer.free and ask.evaluations is None)
    short = ask.short(batches) if batches is not None and ask.scores == "short" else None
    if short is not None and batches is not None and batches.size < SMALL_IMAGE:
        config = replace(config, evaluations=SMALL_EVALUATIONS)
    kept = {
        **ask.to_dict(),
        "scorer": ask.scores,
        "trained": None if trained is None else asdict(trained),
        "short": None if short is None else {k: v for k, v in asdict(short).items() if k != "together"},
        "images": None if batches is None else batches.fingerprint,
        "settings": asdict(config),
        "versions": {"natpp": __version__, "torch": torch.__version__},
    }
    if short is not None:
        in_half(fabric)  # before the run has a folder: a wrong precision leaves none behind
    if short is not None and batches is not None and trained is not None and store is not None:
        # nor does a wrong file
        scorer = ShortScorer(batches, trained, short, fabric, seed=ask.seed, store=store, say=say)
    with catching_signals() as stop:
        run = Run(out if first else None, kept, resume=resume and first, tensorboard=tensorboard and first)
        scores: Scorer | SharedWeights
        if scorer is not None:
            scores = scorer
        else:
            assert batches is not None
            assert trained is not None
            if short is None:
                scores = SharedWeights(space, trained, batches, config.weights, fabric, ask.seed)
            else:
                file = run.file("scores.jsonl")
                scores = ShortScorer(batches, trained, short, fabric, seed=ask.seed, store=file, say=say)
        search = Search(
            space,
            ask.task,
            scores,
            config,
            fabric,
            seed=ask.seed,
            arch=ask.arch,
            evaluations=ask.evaluations,
            minutes=ask.minutes,
            price=ask.price,
            run=run,
            stop=stop,
            watch=watch,
            say=say,
            started=started,
        )
        policy = search()
    if out is not None and first:
        folder = Path(out)
        if isinstance(scores, SharedWeights):
            scores.weights.supernet.save(folder / "supernet.safetensors")
        if search.chosen is not None:
            write_whole(folder / "architecture.json", to_json(search.chosen) + "\n")
        found = _result(ask, search, policy)
        if found is not None:
            if isinstance(scores, ShortScorer) and short is not None:
                found = replace(found, measured=_measured(scores, found, short))
            write_whole(folder / "result.json", json.dumps(found.to_dict()) + "\n")
        policy.save(folder / "policy.safetensors", {name: kept[name] for name in SAID} | kept["versions"])
    leave(fabric)
    return policy, search.chosen


def _result(ask: Ask, search: Search, policy: Policy) -> Result | None:
    """What became of the given architecture; of many inputs, what became of the one whose score rose most."""
    if ask.arch is not None:
        if search.chosen is None:
            return transform(ask.arch, policy, ask.task)
        return explained(ask.arch, search.chosen, policy, ask.task)
    if search.example is None:
        return None
    found = explained(*search.example, policy, ask.task)
    return replace(found, settings=found.settings | {"example": list(search.example_scores)})


def _measured(scores: ShortScorer, found: Result, short: ShortConfig) -> tuple[dict[str, Any], ...]:
    """Accuracies before and after by short trainings, where both were trained."""
    outcomes = [scores.recorded(arch) for arch in (found.before, found.after)]
    before, after = (None if one is None else one.accuracy for one in outcomes)
    if before is None or after is None:
        return ()
    images = len(scores.images.validation)
    spreads = [math.sqrt(share * (100 - share) / images) for share in (before, after)]
    return (
        {
            "what": "accuracy, %",
            "before": before,
            "after": after,
            "before_spread": spreads[0],
            "after_spread": spreads[1],
            "spread": f"standard error over {images} validation images",
            "how": f"one short training each, {short.steps} steps in a small network, on images set aside to choose by",
        },
    )


def make_scorer(
    word: str,
    *,
    reward: str = "val_200",
    limit: int | None = None,
    root: str | None = None,
    fabric: Fabric | None = None,
) -> Scorer:
    """The scorer at hand that a word names: a run's folder (its supernet), or a table's file."""
    if word in TRAINED:
        raise SettingError(
            f"the scorer {word} needs images to train on: give data, or a run's folder or a table's file"
        )
    if os.path.isdir(word):
        return _run_scorer(word, root, limit, fabric or make_fabric())
    if os.path.exists(word) or Path(word).suffix:
        return TableScorer(read_table(word, [reward]), reward, limit)
    raise SettingError(
        f"unknown scorer {word!r}. {did_you_mean(word, TRAINED)} Or give a run's folder or a table's file."
    )


def short_scorer(
    network: str,
    data: str | Images,
    *,
    root: str | None = None,
    size: int | None = None,
    store: str | Path | None = None,
    seed: int = 0,
    train_steps: int | None = None,
    channels: int | None = None,
    cells: int | None = None,
    device: str = "auto",
    say: Say | None = None,
) -> ShortScorer:
    """Short trainings as a scorer, for architectures of a network."""
    ask = Ask(
        data=data if isinstance(data, str) else data.name, root=root, size=size, train_steps=train_steps, seed=seed
    )
    fabric = make_fabric(device)
    batches = _batches(ask, None if isinstance(data, str) else data, fabric, say)
    where = usual_setting(network, batches, "short", channels, cells)
    return ShortScorer(batches, where, ask.short(batches), fabric, seed=seed, store=store, say=say)


def make_fabric(device: str = "auto", precision: str = "auto") -> Fabric:
    """Device, precision and processes: those of `torchrun` where it started us, else one."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    if device not in ("auto", "cpu") and not device.startswith("cuda"):
        raise SettingError(f"unknown device {device!r}. {did_you_mean(device, ['auto', 'cpu', 'cuda'])}")
    cuda = torch.cuda.is_available() and device != "cpu"
    if device.startswith("cuda") and not cuda:
        raise SettingError("there is no CUDA device here. Use --device cpu, or auto")
    if device.removeprefix("cuda").removeprefix(":") not in ("auto", "cpu", "") and not device[5:].isdigit():
        raise SettingError(f"unknown device {device!r}, expected cuda or cuda:N")
    if precision not in PRECISIONS:
        raise SettingError(f"unknown precision {precision!r}. {did_you_mean(precision, PRECISIONS)}")
    if precision == "16" and not cuda:
        raise SettingError("precision 16 is for a GPU: use 32, or bf16")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it tells what was asked for
    wanted = PRECISIONS[precision] or ("bf16-mixed" if cuda else "32-true")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    several = processes > 1
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=[int(device[5:])] if device.startswith("cuda:") and not several else _local(processes),
        num_nodes=processes // _local(processes),
        strategy=DDPStrategy(find_unused_parameters=True) if several else "auto",
        precision=wanted,  # type: ignore[arg-type]
    )
    if several:
        fabric.launch()
    return fabric


def leave(fabric: Fabric) -> None:
    """End together: a process that goes before another still talks to it may take it down."""
    if fabric.world_size > 1:
        fabric.barrier()
        torch.distributed.destroy_process_group()


def _local(processes: int) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", processes))


def run_policy(folder: str | Path) -> Path:
    """The policy file of a run."""
    file = Path(folder) / "policy.safetensors"
    if not file.is_file():
        _search_config(folder)  # answers a folder that is no run
        raise FormatError(f"the run {str(folder)!r} has no policy yet: it has not ended. --resume goes on with it")
    return file


def _search_config(folder: str | Path) -> dict[str, Any]:
    """The settings of a search; a training from scratch has a folder too, and others."""
    found = read_config(folder)
    if "recipe" in found:
        raise FormatError(f"{str(folder)!r} is a training, not a search: it has neither a policy nor shared weights")
    return found


def last_row(folder: str | Path, phase: str) -> dict[str, Any] | None:
    """The last row of a run's curves for a phase; None where there is none."""
    file = Path(folder) / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return next((row for row in reversed(rows) if row["phase"] == phase), None)


def make_task(data: Any, fabric: Fabric, say: Say | None = None, **options: Any) -> training.Task:
    """The task of `Task.of`; that some of its images cannot be read is reported, by default to the log."""
    task = training.Task.of(data, say=say, **options)
    left_out = task.train.left_out if isinstance(task.train, Images) and isinstance(data, str | Path) else None
    if left_out is not None and fabric.global_rank == 0:
        (say or LOG.warning)(left_out)
    return task


def _batches(ask: Ask, images: Images | None, fabric: Fabric, say: Say | None = None) -> Batches:
    if images is not None:
        return make_task(images, fabric).batches(fabric.device)
    if ask.data is None:
        raise SettingError("networks are trained on images: give data, or a scorer at hand")
    return make_task(ask.data, fabric, say, root=ask.root, size=ask.size).batches(fabric.device)


def _run_scorer(folder: str, root: str | None, limit: int | None, fabric: Fabric) -> Scorer:
    """The supernet of a run, on the validation images of that run."""
    kept = _search_config(folder)
    ask = Ask.from_dict({name: kept.get(name) for name in Ask.__dataclass_fields__})
    if ask.scores != "supernet" or kept.get("trained") is None:
        raise SettingError(f"the run {folder!r} has no supernet: its scores came from {ask.scores}")
    batches = _batches(replace(ask, root=root or ask.root), None, fabric)
    supernet = Supernet(ask.make_space(), Setting(**kept["trained"]))
    file = Path(folder) / "supernet.safetensors"
    if not file.is_file():
        raise FormatError(f"the run {folder!r} has no supernet yet: it has not ended. --resume goes on with it")
    supernet.load(file)
    supernet.to(fabric.device)
    return SupernetScorer(supernet, batches.validation, batches.validation_labels, fabric, limit)


def _given(ask: Ask, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(ask, name) for name in names if getattr(ask, name) is not None}
