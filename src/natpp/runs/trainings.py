"""A training from scratch: images, recipe, device and folder put together."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from natpp.arch.cost import cost_of
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.data.named import Data
from natpp.files import write_whole
from natpp.folder import Folder, catching_signals
from natpp.nets.network import Network
from natpp.registry import RECIPES
from natpp.run import Run
from natpp.runs.fabric import leave, make_fabric
from natpp.runs.jobs import make_task, named
from natpp.training.recipe import Recipe
from natpp.training.scratch import Training, train
from natpp.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a training."""

    network: Network
    """the trained network, in evaluation mode"""
    test_accuracy: float
    """test accuracy in per cent"""
    curve: list[dict[str, Any]]
    """a row for each epoch: loss, accuracy in per cent on the images as they were trained on, learning rate, seconds"""
    settings: dict[str, Any]
    """all settings, and where it ran: the rest of result.json"""


def run_training(arch: Architecture, data: Data | Task, recipe: Recipe, *, run: Run = Run()) -> Trained:
    """Train by a recipe, and save everything to the run's folder."""
    from natpp import __version__

    fabric = make_fabric(run.device, run.precision)
    task = make_task(data, fabric, run.say)
    with catching_signals() as stop:
        training = Training(arch, task.batches(fabric.device, recipe, validation=0), recipe, fabric, run.seed)
        settings = {
            "architecture": to_dict(arch),
            **named(data).to_dict(),
            "name": RECIPES.text_of(recipe),
            "recipe": recipe.to_dict(),
            "network": asdict(training.where),
            "seed": run.seed,
            "precision": run.precision,
            "device": _in_words(fabric),
            "versions": {
                "natpp": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        first = fabric.global_rank == 0
        folder = Folder(
            run.out if first else None, settings, resume=run.resume and first, tensorboard=run.tensorboard and first
        )
        accuracy = train(training, folder=folder, stop=stop, watch=run.watch)
    network = training.judged.eval()
    result = Trained(network, accuracy, training.curve, settings)
    if run.out is not None and first:
        _keep(result, training, Path(run.out))
    leave(fabric)
    return result


def _keep(result: Trained, training: Training, folder: Path) -> None:
    """Write the weights, and the result with all settings."""
    from safetensors.torch import save

    arch, where = training.arch, training.where
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in result.network.state_dict().items()
        if not name.startswith("auxiliary.")  # for training only
    }
    notes = json.dumps({"natpp": "network", "architecture": to_dict(arch), "setting": asdict(where)})
    write_whole(
        folder / "network.safetensors", save(weights, metadata={"natpp": notes})
    )  # one entry: they have no order
    found = {
        "test_accuracy": result.test_accuracy,
        "cost": cost_of(arch, where).to_dict(),
        "images_per_second": round(training.images_per_second, 1),
        **result.settings,
        "curve": result.curve,
    }
    write_whole(folder / "result.json", json.dumps(found, indent=2) + "\n")


def _in_words(fabric: Fabric) -> str:
    name = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else platform.machine()
    return f"{fabric.device}, {name}" + (f", {fabric.world_size} processes" if fabric.world_size > 1 else "")
