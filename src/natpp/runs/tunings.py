"""Fine-tuning of any module, and learning a policy on one: batches, recipe, device and folder put together."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from natpp.core.result import Result
from natpp.data.images import Images
from natpp.data.named import Data
from natpp.errors import SettingError, counted
from natpp.files import write_whole
from natpp.folder import Folder, catching_signals
from natpp.fx.traced import copied
from natpp.methods.tuned import SCHEDULE, TuneConfig
from natpp.run import Run, Say, Watch
from natpp.runs.fabric import leave, make_fabric
from natpp.runs.jobs import make_task
from natpp.training.loop import Loop, fit
from natpp.training.losses import Loss, check_teacher, cross_entropy
from natpp.training.recipe import Recipe
from natpp.training.task import Task

MOST_EVALUATIONS = 1000  # however much time there is


@dataclass(frozen=True, eq=False)
class Finetuned:
    """The result of a fine-tuning."""

    module: nn.Module
    """the trained module, on the device and in the mode of the given one"""
    curve: list[dict[str, Any]]
    """a row for each epoch: loss, accuracies in per cent, learning rate, seconds"""
    settings: dict[str, Any]
    """all settings, and where it ran"""
    result: Result | None = None
    """the result of natpp.optimize that was fine-tuned, if it was one"""

    def save(self, folder: str | Path) -> Path:
        """Write the trained module into a folder, in the format of the result it was made from."""
        return self._tuned().save(folder)

    def report(self, path: str | Path) -> Path:
        """Write the report of the fine-tuned result, with the curves of the fine-tuning, as one HTML file."""
        return self._tuned().report(path)

    def _tuned(self) -> Result:
        if self.result is None:
            raise SettingError("only a result of natpp.optimize can be written: save the state_dict of your own module")
        figures = {"validation accuracy, %": self.validation_accuracy, "validation loss": self.validation_loss}
        how = f"fine-tuned on {self.settings['data']} for {counted(self.curve[-1]['epoch'], 'epoch')}; validation data"
        measured = tuple(
            {"what": what, "after": after, "how": how} for what, after in figures.items() if after is not None
        )
        return replace(self.result, after=self.module, measured=measured)

    @property
    def validation_accuracy(self) -> float | None:
        """Validation accuracy in per cent after the last epoch; None without validation data or classes."""
        return self.curve[-1].get("validation_accuracy")

    @property
    def validation_loss(self) -> float | None:
        """The validation loss after the last epoch."""
        return self.curve[-1].get("validation_loss")

    def __str__(self) -> str:
        last = self.curve[-1]
        names = ("loss", "train_accuracy", "validation_loss", "validation_accuracy")
        said = [f"{name.replace('_', ' ')} {last[name]:.4g}" for name in names if name in last]
        return f"{counted(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {', '.join(said)}"


def run_finetuning(
    module: nn.Module, data: Data | Task, recipe: Recipe, *, teacher: nn.Module | None = None, run: Run = Run()
) -> Finetuned:
    """Train a copy of a module by a recipe, and save everything to the run's folder."""
    from natpp import __version__

    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise SettingError(f"{type(module).__name__} has no trainable parameters")
    fabric = make_fabric(run.device, run.precision)
    task = make_task(data, fabric, run.say)
    feed = task.feed(recipe, fabric, run.seed)
    network: nn.Module = copied({"": module})[""].to(fabric.device)
    task.check(network, feed.example())
    if teacher is not None:
        if not isinstance(teacher, nn.Module):
            raise SettingError(f"the teacher is {type(teacher).__name__}, expected a torch.nn.Module")
        teacher = copied({"": teacher})[""].to(fabric.device)
        check_teacher(network, teacher, feed.example()[0])
    settings = {
        "module": type(module).__name__,
        "data": task.name,
        "recipe": recipe.to_dict(),
        "loss": None if task.loss is cross_entropy else getattr(task.loss, "__name__", type(task.loss).__name__),
        "teacher": None if teacher is None else type(teacher).__name__,
        "seed": run.seed,
        "precision": run.precision,
        "device": str(fabric.device),
        "versions": {
            "natpp": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    with catching_signals() as stop:
        first = fabric.global_rank == 0
        folder = Folder(
            run.out if first else None, settings, resume=run.resume and first, tensorboard=run.tensorboard and first
        )
        training = Loop(network, feed, recipe, fabric, run.seed, loss=task.loss, metrics=task.metrics, teacher=teacher)
        fit(training, folder=folder, stop=stop, watch=run.watch)
    result = Finetuned(_given_back(training.judged, module), training.curve, settings)
    if run.out is not None and first:
        _keep(result, Path(run.out))
    leave(fabric)
    return result


def learning_settings(
    module: nn.Module,
    train: Any,
    val: Any = None,
    *,
    scorer: Any = None,
    evaluations: int | None = None,
    minutes: float | None = None,
    train_steps: int | None = None,
    learning_rate: float | None = None,
    root: str | Path | None = None,
    loss: Loss | None = None,
    watch: Watch | None = None,
    say: Say | None = None,
) -> dict[str, Any]:
    """The arguments of `learn_module`, from the user's arguments."""
    changes = {"scorer": scorer, "evaluations": evaluations, "minutes": minutes}
    if minutes is not None and evaluations is None:
        changes["evaluations"] = MOST_EVALUATIONS
    config = TuneConfig(**{name: value for name, value in changes.items() if value is not None})
    schedule = replace(
        SCHEDULE,
        steps=SCHEDULE.steps if train_steps is None else train_steps,
        learning_rate=SCHEDULE.learning_rate if learning_rate is None else learning_rate,
    )
    task = Task.of(train, val, root=root, loss=loss)
    schedule = replace(schedule, augment=isinstance(task.train, Images))
    return {"task": task, "config": config, "schedule": schedule, "watch": watch, "say": say}


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


def _keep(result: Finetuned, folder: Path) -> None:
    """Write the weights, and the result with all settings."""
    from safetensors.torch import save

    weights = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in result.module.state_dict().items()}
    write_whole(folder / "module.safetensors", save(weights, metadata={"natpp": "module"}))
    write_whole(folder / "result.json", json.dumps({**result.settings, "curve": result.curve}, indent=2) + "\n")
