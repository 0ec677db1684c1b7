"""The data of a run: a task from its name, and the name that a run keeps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

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
