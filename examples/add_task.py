"""A new task: data, loss and metrics in one value, registered under a name."""

import torch
from torch import Tensor
from torch.nn import functional

from natpp.registry import TASKS
from natpp.testing import check_task
from natpp.training.task import Task


def agree(output: Tensor, targets: Tensor) -> Tensor:
    """Share of correct labels per image, for multi-label targets."""
    return ((output > 0) == (targets > 0.5)).float().mean(dim=1)


def labels(count: int = 96) -> Task:
    """Images with a bright horizontal stripe, a vertical one, both or neither. Put your own data here."""
    images, targets = torch.randn(count, 3, 8, 8), torch.rand(count, 2).round()
    images[targets[:, 0] == 1, :, 4] += 2
    images[targets[:, 1] == 1, :, :, 4] += 2
    batches = list(zip(images.split(16), targets.split(16), strict=True))
    loss = functional.binary_cross_entropy_with_logits
    return Task(batches[:4], batches[4:5], batches[5:], loss=loss, metrics={"labels": agree}, name="labels")


TASKS.add("labels", labels)
check_task(Task.named("labels"), answer=lambda targets: 10 * targets - 5)  # the output of a perfect network
print(f"{len(list(Task.named('labels:count=80').part('train')))} batches to train on")
