"""A new task: data, a loss and metrics as one value, and a name for it."""

import torch
from torch import Tensor
from torch.nn import functional

from natpp.registry import TASKS
from natpp.testing import check_task
from natpp.training.task import Task


def agree(output: Tensor, targets: Tensor) -> Tensor:
    """Share of the labels of each image that are predicted: several may be right at once."""
    return ((output > 0) == (targets > 0.5)).float().mean(dim=1)


def labels(count: int = 96) -> Task:
    """Images with a bright stripe across, down, both or neither: put your own data here."""
    images, targets = torch.randn(count, 3, 8, 8), torch.rand(count, 2).round()
    images[targets[:, 0] == 1, :, 4] += 2
    images[targets[:, 1] == 1, :, :, 4] += 2
    batches = list(zip(images.split(16), targets.split(16), strict=True))
    loss = functional.binary_cross_entropy_with_logits
    return Task(batches[:4], batches[4:5], batches[5:], loss=loss, metrics={"labels": agree}, name="labels")


TASKS.add("labels", labels)
check_task(Task.named("labels"), answer=lambda targets: 10 * targets - 5)  # what a perfect network would say
print(f"{len(list(Task.named('labels:count=80').part('train')))} batches to train on")
