"""Searches from images to a policy in a given time: what our search and its rivals share."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from experiments.lib.machine import machine
from experiments.lib.settings import Keeps
from experiments.lib.trainer import data_name
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.data.batches import Batches
from natpp.data.sets import load_images
from natpp.files import write_whole
from natpp.runs.fabric import make_fabric
from natpp.runs.searching import Searching
from natpp.scorers.short import ShortScorer
from natpp.scorers.supernet import SharedWeights

RIVALS = ("supernet", "paper")


class Over(Exception):
    """The time is up."""


class Clock:
    """Seconds of each phase, as a search reports them."""

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
        """Fix the total; what follows is off the clock."""
        if self.seconds is None:
            self.seconds = self.stop()

    def split_scores(self, scorer: ShortScorer) -> float:
        """Split the seconds of scores into the phases of a scorer and prediction; returns them."""
        spent = self.spent.pop("scores")
        self.spent |= scorer.spent | {"prediction": spent - sum(scorer.spent.values())}
        return spent


def started(settings: Keeps, root: str | None) -> tuple[Fabric, Batches, Clock]:
    """A device with the images on it, and a clock that starts now."""
    fabric = make_fabric()
    images = Batches(load_images(data_name(smoke=settings.smoke), root), fabric.device)
    if fabric.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    settled(fabric)
    return fabric, images, Clock()


def settled(fabric: Fabric) -> None:
    """Wait for the device."""
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()


def allowed(given: float | None, ours: Iterable[Path], usual: float | None = None) -> float:
    """Seconds of a rival: the given ones, or the mean of our searches, or the usual ones."""
    if given is not None:
        return given
    spent = [json.loads(run.read_text())["seconds"] for run in ours]
    if not spent and usual is None:
        raise SystemExit("a rival gets the seconds of our search: run search first, or give --seconds")
    return float(np.mean(spent)) if spent else usual or 0.0


def timed(shared: SharedWeights, steps: int) -> float:
    """Seconds of some steps of a supernet's weights."""
    start = time.perf_counter()
    for _ in range(steps):
        shared.step()
    settled(shared.fabric)
    return time.perf_counter() - start


def stopped(make: Callable[[Callable[..., None]], Searching], clock: Clock, seconds: float) -> Searching:
    """A search that `make` makes with a watch, run until it ends or the seconds are over."""

    def watch(*told: Any) -> None:
        clock(*told)
        if clock.stop() >= seconds:
            raise Over

    found = make(watch)
    with contextlib.suppress(Over):
        found()
    return found


def scores_of(known: Mapping[Architecture, float]) -> list[list[Any]]:
    """Architectures and their scores, for JSON."""
    return [[to_dict(arch), value] for arch, value in known.items()]


def keep(file: Path, clock: Clock, parts: Mapping[str, Any] | None = None, **said: Any) -> None:
    """Write what is known of a run, with the settings of its parts, and print its time."""
    clock.end()
    peak = torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else None  # with CUDA graphs
    if parts is not None:
        said["settings"] = {name: asdict(part) for name, part in parts.items()}
    whole = {"seconds": clock.seconds, "phases": dict(clock.spent), "reserved_gib": peak, **said}
    write_whole(file, json.dumps(whole | {"machine": machine()}) + "\n")
    print(f"{file.stem}: {clock.seconds:.1f} s, {dict(clock.spent)}", flush=True)
