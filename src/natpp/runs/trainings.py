"""Trainings of networks from scratch and fine-tuning of any module: task, recipe, device and folder put together."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from natpp.arch.cost import cost_of
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.core.result import Result
from natpp.data.named import Data
from natpp.errors import NatppError, SettingError, counted
from natpp.files import whole_folder
from natpp.folder import catching_signals
from natpp.fx.traced import copied
from natpp.registry import RECIPES
from natpp.report.page import write_report
from natpp.run import Run
from natpp.runs.fabric import leave, make_fabric, open_folder
from natpp.runs.tasks import make_task, named
from natpp.runs.workers import check_here
from natpp.saved.restore import example_of, read_saved, restore_module
from natpp.saved.save import save_module
from natpp.saved.trained import MODULE, NETWORK, RESULT, SAVED, write_trained
from natpp.subjects.module import Module
from natpp.training.loop import Loop, fit
from natpp.training.losses import check_teacher, cross_entropy, distance
from natpp.training.recipe import Recipe
from natpp.training.scratch import Training, train
from natpp.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LOG = logging.getLogger("natpp")
SHOWN = ("loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_accuracy")


@dataclass(frozen=True, eq=False)
class Trained:
    """A network trained from scratch, or a fine-tuned module.

    Examples:
        >>> trained = natpp.train("darts", "digits", "quick:epochs=1,channels=4,cells=3")
        >>> sum(weight.numel() for weight in trained.module.parameters()) > 0, len(trained.curve)
        (True, 1)
        >>> sorted(path.name for path in trained.save("trained").iterdir())
        ['network.safetensors', 'result.json']
    """

    module: nn.Module
    """the network in evaluation mode; or the module, on the device and in the mode of the given one"""
    curve: list[dict[str, Any]]
    """a row for each epoch: loss, accuracies in per cent, learning rate, seconds"""
    settings: dict[str, Any]
    """all settings, and where it ran"""
    measured: dict[str, Any] = field(default_factory=dict)
    """of a network: test_accuracy in per cent, cost, images_per_second"""
    result: Result | dict[str, Any] | None = None
    """the result of natpp.optimize that was fine-tuned, if it was one, or the data in its folder"""

    def save(self, folder: str | Path) -> Path:
        """Write it into a folder: a result in the format of `result.save`, else the weights and result.json."""
        if self.result is not None:
            return save_module(self.module, example_in(self.result), self._told(), folder)
        with whole_folder(folder, RESULT, (RESULT, MODULE, NETWORK)) as fresh:
            write_trained(fresh, self.module, self.to_dict())
        return Path(folder)

    def report(self, path: str | Path) -> Path:
        """Write the report of the fine-tuned result, with the accuracies after it, as one HTML file."""
        return write_report(self._told(), path)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what was measured, all settings, and the curve."""
        return {**self.measured, **self.settings, "curve": self.curve}

    def _told(self) -> dict[str, Any]:
        """The data of the fine-tuned result, with the figures after it."""
        if self.result is None:
            raise SettingError(
                "only a fine-tuned result of natpp.optimize has a report; natpp report RESULT --trained RUN shows "
                "trainings from scratch"
            )
        figures = {"validation accuracy, %": self.validation_accuracy, "validation loss": self.validation_loss}
        how = f"fine-tuned on {self.settings['data']} for {counted(self.curve[-1]['epoch'], 'epoch')}; validation data"
        found = self.result.to_dict() if isinstance(self.result, Result) else self.result
        rows = [{"what": what, "after": after, "how": how} for what, after in figures.items() if after is not None]
        return found | {"measured": [*found["measured"], *rows]}

    @property
    def test_accuracy(self) -> float | None:
        """Test accuracy of a network in per cent; None after fine-tuning, which leaves test data alone."""
        return self.measured.get("test_accuracy")

    @property
    def validation_accuracy(self) -> float | None:
        """Validation accuracy in per cent after the last epoch; None without validation data or classes."""
        return self.curve[-1].get("validation_accuracy")

    @property
    def validation_loss(self) -> float | None:
        """The validation loss after the last epoch, if it was measured."""
        return self.curve[-1].get("validation_loss")

    def __str__(self) -> str:
        last = self.curve[-1] | self.measured
        said = [f"{name.replace('_', ' ')} {last[name]:.4g}" for name in SHOWN if name in last]
        return f"{counted(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {', '.join(said)}"


def run_training(arch: Architecture, data: Data | Task, recipe: Recipe, *, run: Run = Run()) -> Trained:
    """Train a network of an architecture from scratch."""
    fabric, task = _open(data, run)
    training = Training(arch, task.batches(fabric.device, recipe, validation=0), recipe, fabric, run.seed)
    settings = {
        "architecture": to_dict(arch),
        **named(data).to_dict(),
        "name": RECIPES.text_of(recipe),
        "recipe": recipe.to_dict(),
        "network": asdict(training.where),
        **_how(run, _in_words(fabric)),
    }

    def trained() -> Trained:
        measured = {
            "test_accuracy": training.test_accuracy,
            "cost": cost_of(arch, training.where).to_dict(),
            "images_per_second": round(training.images_per_second, 1),
        }
        return Trained(training.judged.eval(), training.curve, settings, measured)

    return _run(training, train, trained, settings, run)


def run_finetuning(
    of: nn.Module | Result | str | Path,
    data: Data | Task,
    recipe: Recipe,
    *,
    teacher: nn.Module | None = None,
    run: Run = Run(),
) -> Trained:
    """Train a copy of a module: of a result's, or of the one in a folder."""
    result: Result | dict[str, Any] | None = None
    if isinstance(of, Result):
        module, result = of.module, of
    elif isinstance(of, str | Path):
        module, result = restore_module(of), read_saved(of)
    else:
        module = of
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise SettingError(f"{type(module).__name__} has no trainable parameters")
    fabric, task = _open(data, run)
    network: nn.Module = copied({"": module})[""].to(fabric.device)
    taught_by = None if teacher is None else type(teacher).__name__
    if teacher is not None:
        if not isinstance(teacher, nn.Module):
            raise SettingError(f"the teacher is {taught_by}, expected a torch.nn.Module")
        teacher = copied({"": teacher})[""].to(fabric.device)
        if not task.targets:
            task, teacher = task.taught_by(teacher), None
    feed = task.feed(recipe, fabric, run.seed)
    task.check(network, feed.example())
    if teacher is not None:
        check_teacher(network, teacher, feed.example()[0])
    settings = {
        "module": type(module).__name__,
        "data": task.name,
        "recipe": recipe.to_dict(),
        "loss": None if task.loss is cross_entropy else getattr(task.loss, "__name__", type(task.loss).__name__),
        "teacher": taught_by,
        **_how(run, str(fabric.device)),
    }
    tuning = Loop(
        network,
        feed,
        recipe,
        fabric,
        run.seed,
        loss=task.loss,
        metrics=task.metrics,
        teacher=teacher,
        agreement=task.agreement or distance,
    )

    def trained() -> Trained:
        return Trained(_given_back(tuning.judged, module), tuning.curve, settings, result=result)

    return _run(tuning, fit, trained, settings, run)


def _open(data: Data | Task, run: Run) -> tuple[Fabric, Task]:
    """The device and the data of a training."""
    check_here(run, "this is a single training")
    fabric = make_fabric(run.device, run.precision)
    return fabric, make_task(data, fabric, run.say)


def _run(
    loop: Any, train: Callable[..., object], trained: Callable[[], Trained], settings: dict[str, Any], run: Run
) -> Trained:
    """Open the run's folder, train, and keep what came out."""
    with catching_signals() as stop:
        folder = open_folder(run, settings, loop.fabric)
        train(loop, folder=folder, stop=stop, watch=run.watch)
    found = trained()
    if folder.folder is not None:
        write_trained(folder.folder, found.module, found.to_dict())
        if found.result is not None:
            try:
                found.save(folder.folder / SAVED)
            except NatppError as error:  # the weights are kept
                (run.say or LOG.warning)(f"{folder.folder / SAVED} was not written: {error}")
    leave(loop.fabric)
    return found


def _how(run: Run, device: str) -> dict[str, Any]:
    """The settings and versions that a run keeps."""
    from natpp import __version__

    versions = {"natpp": __version__, "torch": torch.__version__, "numpy": np.__version__}
    versions |= {"python": platform.python_version()}
    return {"seed": run.seed, "precision": run.precision, "device": device, "versions": versions}


def _in_words(fabric: Fabric) -> str:
    name = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else platform.machine()
    return f"{fabric.device}, {name}" + (f", {fabric.world_size} processes" if fabric.world_size > 1 else "")


def example_in(result: Result | dict[str, Any]) -> Any:
    """An example input of a result's module."""
    if isinstance(result, Result):
        assert isinstance(result.subject, Module)
        return result.subject.traced.example
    return example_of(result["module"]["example"])


def _given_back(trained: nn.Module, given: nn.Module) -> nn.Module:
    """The trained module with the device, memory format and modes of the given one."""
    tensors = [*given.parameters(), *given.buffers()]
    trained.to(tensors[0].device)
    last = any(one.dim() == 4 and not one.is_contiguous() for one in tensors)
    trained.to(memory_format=torch.channels_last if last else torch.contiguous_format)  # type: ignore[call-overload]
    modes = {path: part.training for path, part in given.named_modules()}
    for path, part in trained.named_modules():
        part.training = modes[path]
    trained.zero_grad(set_to_none=True)
    return trained
