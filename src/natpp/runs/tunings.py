"""The arguments of `learn_module`, from those of `natpp.optimize`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from natpp.data.images import Images
from natpp.methods.tuned import SCHEDULE, TuneConfig
from natpp.run import Say, Watch
from natpp.training.losses import Loss
from natpp.training.task import Task

MOST_EVALUATIONS = 1000  # however much time there is


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
