"""A training from scratch, joined from its parts: images, recipe, device, and the folder it is kept in."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from natpp.arch.cost import cost_of
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.data.images import Images
from natpp.errors import SettingError
from natpp.files import write_whole
from natpp.folder import Run, catching_signals
from natpp.nets.network import Network
from natpp.runs.jobs import Say, leave, make_fabric, make_task
from natpp.training.recipe import Recipe, named_recipe
from natpp.training.scratch import Training, train

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.runs.search import Watch


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training came to."""

    network: Network
    """the trained network, in evaluation mode"""
    test_accuracy: float
    """per cent right of the test images"""
    curve: list[dict[str, Any]]
    """a row for each epoch: loss, accuracy in per cent on the images as they were trained on, learning rate, seconds"""
    settings: dict[str, Any]
    """all that was asked for, and where it ran: what result.json has besides"""


def run_training(
    arch: Architecture,
    data: str | Images,
    recipe: str | Recipe,
    *,
    changes: Mapping[str, Any] | None = None,
    root: str | None = None,
    size: int | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    watch: Watch | None = None,
    say: Say | None = None,
) -> Trained:
    """Train by a recipe with some changes, and keep all of it in the folder `out`."""
    from natpp import __version__

    found = named_recipe(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(found, Recipe):
        raise SettingError(f"the recipe is of type {type(found).__name__}, expected a name or a Recipe")
    found = replace(found, **{name: value for name, value in (changes or {}).items() if value is not None})
    if not 0 <= seed < 2**63:
        raise SettingError(f"seed is {seed}, expected a whole number from 0 to 2^63 - 1")
    fabric = make_fabric(device, precision)
    named = {} if isinstance(data, Images) else {"root": root, "size": size}
    task = make_task(data, fabric, say, **named)
    with catching_signals() as stop:
        training = Training(arch, task.batches(fabric.device, found, validation=0), found, fabric, seed)
        settings = {
            "architecture": to_dict(arch),
            "data": task.name,
            "root": root,
            "size": size,
            "name": recipe if isinstance(recipe, str) else None,
            "recipe": asdict(found),
            "network": asdict(training.where),
            "seed": seed,
            "precision": precision,
            "device": _in_words(fabric),
            "versions": {
                "natpp": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        first = fabric.global_rank == 0
        run = Run(out if first else None, settings, resume=resume and first, tensorboard=tensorboard and first)
        accuracy = train(training, run=run, stop=stop, watch=watch)
    network = training.judged.eval()
    result = Trained(network, accuracy, training.curve, settings)
    if out is not None and first:
        _keep(result, training, Path(out))
    leave(fabric)
    return result


def _keep(result: Trained, training: Training, folder: Path) -> None:
    """Write the weights, and what came out with all that led to it."""
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
