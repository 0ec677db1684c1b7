"""Trained networks at a share of their multiply-adds: natpp beside channel pruning, low rank and random choices.

Needs: CIFAR-10, trained weights, Torch-Pruning 1.6.1; a GPU for the rows with epochs, some 20 minutes

Steps: `measure` runs the rows that are missing, in this process; `together` starts several such processes and prints
the table every minute; `report` prints the table and writes it. Every finished row is a line of `rows.jsonl` in the
folder of runs. 2,048 training images without labels serve to calibrate; `tuned`, and `auto` in rows with epochs, also
train on labels. Rows with epochs are fine-tuned by `natpp.finetune`, with the original as teacher, at the learning rate
that is best on the last 5,000 training images, which are set aside. The test images are read once for each row.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

import natpp
import natpp.decisions  # registers the kinds of decisions
from experiments.lib import rivals
from experiments.lib.beside import NOTE, markdown, publish, read_rows
from experiments.lib.compressed import (
    AS_GIVEN,
    RATES,
    Bench,
    Found,
    Method,
    Part,
    Start,
    by_natpp,
    channels,
    measured,
    missing,
    natpps,
    natpps_kind,
)
from experiments.lib.held import Held, Shuffled, accuracy, read_once
from experiments.lib.modules import fresh
from experiments.lib.settings import RESULTS, Experiment, Images, Keeps, flags_of
from natpp.config import At
from natpp.data.sets import load_images
from natpp.errors import SettingError
from natpp.registry import KINDS, RECIPES
from natpp.runs.fabric import make_fabric
from natpp.training.recalibrate import recalibrate
from natpp.zoo.networks.resnet import CifarResNet

SECONDS_BETWEEN_TABLES = 60
FEW = ("auto", "L1 channels", "group norm channels", "low rank")  # methods of the smaller comparisons


@dataclass(frozen=True)
class Plan:
    """What all rows share."""

    calibration: int = 2048
    """training images without labels for search, fit and batch norm statistics"""
    aside: int = 5000
    """training images, the last ones, that rates are chosen on"""
    batch: int = 128
    pairs: int = 300
    """timed pairs of runs in onnxruntime, on one thread"""
    shares: tuple[tuple[str, float, tuple[int, ...]], ...] = (
        ("resnet20", 0.5, (0, 1, 2)),
        ("resnet20", 0.3, (0,)),
        ("resnet56", 0.5, (0,)),
        ("resnet56", 0.3, (0,)),
    )
    """networks, shares of their multiply-adds, and seeds; every method in the first, a few in the others"""
    few: tuple[str, ...] = FEW
    epochs: tuple[int, ...] = (0, 3)
    long: int = 20
    """epochs of the rows asked for with --long"""


SMOKE = Plan(64, 300, 64, 3, (("resnet20", 0.5, (0,)),), ("auto", "low rank"), (0, 1), 2)


@dataclass(frozen=True, kw_only=True)
class BesidePruning(Keeps, Images):
    out: Path = RESULTS / "beside_pruning.json"
    root: str | None = None
    """folder or archive with CIFAR-10 in any published form; read once, then kept in the folder of runs"""
    weights: Path = Path()
    """folder with resnet20_cifar10.safetensors and resnet56_cifar10.safetensors"""
    rows: str = ""
    """a regular expression: only rows whose names hold a match, such as 'resnet20 0.5, auto, seed 0, 3 epochs'"""
    long: tuple[str, ...] = ("auto",)
    """methods that ResNet-20 at 0.5 is also fine-tuned with for 20 epochs"""
    device: str = "auto"
    """auto, cpu or cuda"""
    processes: Annotated[int, At(least=1)] = 8
    """for together: processes at a time"""
    seconds: float | None = None
    """for together: end what still runs after this time; its rows are missing then"""

    @property
    def plan(self) -> Plan:
        """What all rows share."""
        return SMOKE if self.smoke else Plan()


class Trained(Bench):
    """A network trained on CIFAR-10, or a small one on digits, and its images."""

    def __init__(self, settings: BesidePruning, name: str):
        self.settings, self.plan = settings, settings.plan
        device = make_fabric(settings.device).device
        images = load_images("digits") if settings.smoke else read_once(settings.root, settings.runs)
        self.images = Held(images, device, aside=self.plan.aside)
        file = settings.weights / f"{name}_cifar10.safetensors"
        small = settings.smoke
        network = fresh(CifarResNet(10, depth=8), 0) if small else natpp.zoo.network(name, weights=file)
        example = torch.zeros(1, 3, self.images.size, self.images.size, device=device)
        super().__init__(network.to(device).eval(), example, methods(), self.plan.pairs)

    def labelled(self, seed: int) -> natpp.Task:
        """The training images with labels, and those set aside."""
        return natpp.Task(Shuffled(self.images, self.plan.batch, seed), self.images.aside())

    def unlabelled(self, seed: int) -> list[torch.Tensor]:
        """The images to calibrate on."""
        return self.images.unlabelled(self.plan.calibration, seed)

    def accuracy(self, module: nn.Module, part: Part) -> float:
        """The accuracy in per cent on the images set aside, or on the test images."""
        return accuracy(module, self.images.aside() if part == "aside" else self.images.test())

    def tuned(self, found: Found, how: Method, epochs: int, seed: int) -> tuple[nn.Module, dict[str, Any]]:
        """The network fine-tuned at the rate that is best on the images set aside."""
        tried: dict[float, tuple[float, nn.Module]] = {}
        for rate in how.rates:
            recipe = replace(RECIPES["tune"], epochs=epochs, batch=self.plan.batch, learning_rate=rate)
            teacher = self.original if how.taught else None
            trained = natpp.finetune(found.module, self.labelled(seed), recipe, teacher=teacher, run=self.run(seed))
            tried[rate] = float(trained.validation_accuracy or 0), trained.module
        best = max(tried, key=lambda rate: tried[rate][0])
        return tried[best][1], {"rate": best, "rates": {rate: judged for rate, (judged, _) in tried.items()}}


# Methods.


def by_low_rank(bench: Bench, start: Start) -> Found:
    """Every convolution split by the SVD of its weights, with recomputed batch norm statistics."""
    began = time.perf_counter()
    made = rivals.low_rank(bench.original, bench.example, start.share)
    recalibrate(made, bench.unlabelled(start.seed))
    return Found(made, {"search_seconds": time.perf_counter() - began})


def inherited(bench: Bench, start: Start) -> Found:
    """The plan of the knapsack with inherited weights, not fitted; batch norm statistics are recomputed."""
    task = natpp.Task.inputs(bench.unlabelled(start.seed))
    given = {"example_input": bench.example, "task": task, "run": bench.run(start.seed)}
    result = natpp.optimize(bench.original, "knapsack", {"madds": start.share}, **given)
    made = result.subject.rewritten(result.plan)
    recalibrate(made, bench.unlabelled(start.seed))
    return Found(made, {})


def redrawn(bench: Bench, start: Start, make: Callable[[Bench, Start], Found]) -> Found:
    """The shape that a method finds, with fresh weights."""
    return Found(fresh(copy.deepcopy(make(bench, start).module), start.seed), {})


@functools.cache
def methods() -> dict[str, Method]:
    """All methods by name; kinds of decisions as they are registered."""
    knapsack = functools.partial(by_natpp, method="knapsack")
    found = {name: natpps(name) for name in ("auto", "knapsack", "tuned")}
    found |= {f"{kind} alone": natpps_kind(kind) for kind in KINDS}
    found["random choices"] = natpps("random")
    found |= {f"{name} channels": channels(name) for name in rivals.IMPORTANCES}
    found["low rank"] = Method(by_low_rank, "SVD of weights")
    widths = found["L1 channels"].make
    for name, make, taught in (
        ("natpp's shape, fitted, teacher", knapsack, True),
        ("natpp's shape, fitted, no teacher", knapsack, False),
        ("natpp's shape, inherited, teacher", inherited, True),
        ("natpp's shape, fresh, teacher", functools.partial(redrawn, make=knapsack), True),
        ("L1's shape, its weights, teacher", widths, True),
        ("L1's shape, fresh, teacher", functools.partial(redrawn, make=widths), True),
    ):
        found[name] = Method(make, "what decides", taught, (*RATES, 0.06), decides=True)
    found["original"] = AS_GIVEN
    return found


# Rows.


def asked(settings: BesidePruning) -> dict[Start, list[int]]:
    """What is to be searched, each with the epochs of its rows, the longest searches first."""
    plan, found = settings.plan, dict[Start, list[int]]()

    def add(network: str, share: float, method: str, seed: int, epochs: int) -> None:
        labels = method == "tuned" or (method == "auto" and epochs > 0)
        start, row = Start(network, share, method, seed, labels), Start(network, share, method, seed).row(epochs)
        if re.search(settings.rows, row):
            found.setdefault(start, []).append(epochs)

    ways = methods()
    unknown = [name for name in settings.long if name not in ways]
    if unknown:
        raise SettingError(f"long has {unknown[0]!r}, expected methods among {', '.join(ways)}")
    for place, (network, share, seeds) in reversed(list(enumerate(plan.shares))):
        add(network, 1.0, "original", 0, 0)
        full = place == 0 and not settings.smoke
        names = [name for name in ways if not ways[name].decides and name != "original"] if full else plan.few
        for name, seed, epochs in itertools.product(names, seeds, plan.epochs):
            add(network, share, name, seed, epochs)
        if place == 0:
            for name in () if settings.smoke else settings.long:
                add(network, share, name, seeds[0], plan.long)
            decides = [name for name, one in ways.items() if one.decides]
            for name in decides[1:2] if settings.smoke else decides:
                add(network, share, name, seeds[0], plan.epochs[-1])
    return found


def measure(settings: BesidePruning) -> None:
    """Run the rows that are missing, each search once."""
    measured(asked(settings), settings.runs, functools.partial(Trained, settings), settings.plan)


def together(settings: BesidePruning) -> None:
    """Run the rows that are missing in several processes at a time, and print the table every minute."""
    waiting = list(missing(asked(settings), settings.runs).items())
    if not waiting:
        return
    if not settings.smoke:
        read_once(settings.root, settings.runs)  # before several processes would
    began = shown = time.monotonic()
    running: list[subprocess.Popen[bytes]] = []
    try:
        while waiting or running:
            while waiting and len(running) < settings.processes:
                running.append(process_for(settings, *waiting.pop(0)))
            time.sleep(0.2)
            running = [one for one in running if one.poll() is None]
            if settings.seconds is not None and time.monotonic() - began > settings.seconds:
                print(f"out of time: {len(running)} searches were ended, {len(waiting)} not begun", flush=True)
                break
            if time.monotonic() - shown > SECONDS_BETWEEN_TABLES:
                shown = time.monotonic()
                print(f"{shown - began:.0f} s, {len(running)} running, {len(waiting)} waiting", flush=True)
                print(markdown(read_rows(settings.runs), NOTE), flush=True)
    finally:
        for one in running:
            one.kill()  # every finished row is in the file
            one.wait()
    print(markdown(read_rows(settings.runs), NOTE), flush=True)


def process_for(settings: BesidePruning, start: Start, epochs: Sequence[int]) -> subprocess.Popen[bytes]:
    """A process that measures the rows of one search, on one thread."""
    names = "|".join(re.escape(start.row(one)) for one in epochs)
    flags = flags_of(replace(settings, rows=f"^({names})$", seconds=None))
    command = [sys.executable, "-m", "experiments", "beside_pruning", "measure", *flags]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})  # noqa: S603 (our own words)


def report(settings: BesidePruning) -> None:
    """Print the table, and write it as JSON and Markdown."""
    publish(settings.out, settings.plan, read_rows(settings.runs), NOTE)


EXPERIMENT = Experiment(BesidePruning, (measure, together, report))
