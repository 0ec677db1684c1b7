"""The data of a run: a task from its name, and the name that a run keeps."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from torch import Tensor

from natpp.data.folders import only_images
from natpp.data.images import Images
from natpp.data.named import Data
from natpp.errors import SettingError
from natpp.run import Say
from natpp.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LOG = logging.getLogger("natpp")


def named(task: Data | Task) -> Data:
    """The data as a run's settings record it; for data given as a value only the name."""
    return task if isinstance(task, Data) else Data(task.name)


def without_classes(given: Data | Task, example: Any, say: Say | None = None) -> Data | Task:
    """A folder of images without classes as a task of inputs, of the example's size by default; else what was given."""
    if isinstance(given, Task) or given.data is None:
        return given
    text = str(given.data)
    folder, _, options = (text, "", "") if os.path.isdir(text) else text.partition(":")
    if given.root is not None or not only_images(folder):
        return given
    if given.size is not None:
        return Task.of(given.data, size=given.size, say=say)
    if "size=" not in options and isinstance(example, Tensor):
        if example.dim() != 4 or example.shape[1] != 3 or example.shape[2] != example.shape[3]:
            raise SettingError(
                f"the images of {folder} become squares (batch, 3, size, size), but the example input is "
                f"{tuple(example.shape)}: give natpp.Task.inputs(batches) instead"
            )
        options = ",".join(filter(None, [options, f"size={example.shape[2]}"]))
    return Task.named(f"{folder.rstrip(os.sep)}:{options}", say=say)


def make_task(given: Data | Task, fabric: Fabric, say: Say | None = None) -> Task:
    """The task of a name; unreadable images are reported, by default to the log."""
    if isinstance(given, Task):
        return given
    if given.data is None:
        raise SettingError(
            "networks are trained on images: give a task, such as digits or cifar10:root=DIR, or an existing scorer (a "
            "run's folder or a table's file)"
        )
    task = Task.of(given.data, root=given.root, size=given.size, say=say)
    left_out = task.train.left_out if isinstance(task.train, Images) else None
    if left_out is not None and fabric.global_rank == 0:
        (say or LOG.warning)(left_out)
    return task
