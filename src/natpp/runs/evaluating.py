"""An evaluation: a module or a result, a task's held-out data and a device put together."""

from __future__ import annotations

import itertools
import os
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from torch import nn

from natpp.core.result import Result
from natpp.data.named import Data
from natpp.errors import NatppError, SettingError, did_you_mean, shortened
from natpp.fx.traced import copied
from natpp.run import Run
from natpp.runs.fabric import make_fabric
from natpp.runs.tasks import make_task
from natpp.runs.trainings import Trained
from natpp.runs.workers import check_here
from natpp.saved.restore import restore_module
from natpp.saved.trained import read_result
from natpp.training.evaluation import Evaluation, compared, evaluated
from natpp.training.task import Task

Part = Literal["val", "test"]
PARTS: tuple[Part, ...] = ("val", "test")


def run_evaluation(
    of: nn.Module | Result | Trained | str | Path,
    data: Data | Task,
    part: Part | None = None,
    *,
    against: nn.Module | None = None,
    run: Run = Run(),
) -> Evaluation:
    """Loss and metrics on a task's validation or test data; of a result, compared with the original's."""
    if part is not None and part not in PARTS:
        raise SettingError(f"unknown part {part!r}. {did_you_mean(str(part), PARTS)}")
    check_here(run, "this is a single evaluation")
    module, original = module_of(of)
    validation = _set_aside(of)
    part = part or ("test" if validation == 0 else "val")
    fabric = make_fabric(run.device, run.precision)
    task = make_task(data, fabric, run.say)
    if not task.targets:
        raise SettingError(f"the task {task.name} has no targets to compare with: give batches (inputs, targets)")
    given = (original if against is None else against, module)
    modules = [copied({"": one})[""].to(fabric.device) for one in given if one is not None]
    batches = task.part(part, fabric.device, validation=validation)
    first = list(islice(batches, 1))
    for batch, one in itertools.product(first, modules):
        task.check(one, batch)
    found, sizes = evaluated(modules, itertools.chain(first, batches), task.loss, task.metrics, fabric.autocast)
    return compared(found, sizes, part, task.name)


def module_of(of: nn.Module | Result | Trained | str | Path) -> tuple[nn.Module, nn.Module | None]:
    """The module of a result, a training or a folder; then the original that it was made from, if it is at hand."""
    if isinstance(of, Trained):
        return of.module, of.result.before if isinstance(of.result, Result) else None
    if isinstance(of, Result):
        return of.module, of.before
    if isinstance(of, nn.Module):
        return of, None
    if isinstance(of, Path) or (isinstance(of, str) and os.path.isdir(of)):
        return restore_module(of), None
    raise NatppError(
        f"expected a torch.nn.Module, a result, a training or the folder of one, not {shortened(repr(of))}. An "
        "architecture has no weights yet: natpp.train makes a trained network of it"
    )


def _set_aside(of: nn.Module | Result | Trained | str | Path) -> int | None:
    """For a network trained from scratch, how many training images were set aside for validation."""
    told: Any = of.settings if isinstance(of, Trained) else read_result(Path(of)) if isinstance(of, str | Path) else {}
    return (told["recipe"]["validation"] or 0) if "architecture" in told else None
