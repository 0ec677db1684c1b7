"""One gradient step: SGD with momentum, clipped gradients and a cosine schedule, for everything that trains.

`Sgd` uses torch's optimizer and, with a fabric, its precision and processes. `flat_step` is the same rule for weights
stored in one vector, so that a step of a small network takes a few launches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lightning_fabric import Fabric

MOMENTUM = 0.9


def cosine(done: float, total: float = 1) -> float:
    """Share of the learning rate left after `done` of `total`: 1 at the start, 0 at the end, along a cosine."""
    return 0.5 * (1 + math.cos(math.pi * done / total))


def learning_rates(rate: float, steps: int, warm_up: float = 0.0) -> Tensor:
    """The learning rate of each step: rising linearly for a share `warm_up` of them, then falling along a cosine."""
    rising = int(warm_up * steps)
    up = [(step + 1) / rising for step in range(rising)]
    return rate * torch.tensor(up + [cosine(step, steps - rising) for step in range(steps - rising)])


class Sgd:
    """SGD with momentum on the parameters of a module."""

    def __init__(
        self,
        module: nn.Module,
        *,
        learning_rate: float,
        weight_decay: float,
        clip: float | None,
        momentum: float = MOMENTUM,
        nesterov: bool = False,
        fabric: Fabric | None = None,
        captured: bool = False,
    ):
        """If steps are `captured` in a CUDA graph, the learning rate is a tensor that the graph reads.

        `clip` is the maximum norm of a gradient; None or 0 means no limit.
        """
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.clip, self.fabric = clip, fabric
        self._rate = torch.tensor(learning_rate, device=None if fabric is None else fabric.device) if captured else None
        self.optimizer = torch.optim.SGD(
            parameters,
            lr=learning_rate if self._rate is None else self._rate,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            fused=captured or None,
        )
        self.module = module
        if fabric is not None:
            self.module, self.optimizer = fabric.setup(module, self.optimizer)
        self._known = set(parameters)

    @property
    def rate(self) -> float:
        """The learning rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        if self._rate is not None:
            self._rate.fill_(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate if self._rate is None else self._rate

    def follow(self, module: nn.Module) -> None:
        """Train this module next: parameters it shares with earlier ones keep their momentum, others join."""
        new = [one for one in module.parameters() if one.requires_grad and one not in self._known]
        self._known.update(new)
        if new:
            self.optimizer.add_param_group({"params": new})
        self.module = module

    def step(self, loss: Tensor) -> None:
        """Follow the gradient of a loss."""
        self.optimizer.zero_grad()
        if self.fabric is None:
            loss.backward()  # type: ignore[no-untyped-call]
            if self.clip:
                torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        else:
            self.fabric.backward(loss)
            if self.clip:  # checking for infinity here would wait for the device; Loop.look does it later
                self.fabric.clip_gradients(self.module, self.optimizer, max_norm=self.clip, error_if_nonfinite=False)
        self.optimizer.step()


@torch.no_grad()
def flat_step(
    weights: Tensor, momentum: Tensor, gradients: Tensor, rate: Tensor, *, weight_decay: float, clip: float | None
) -> None:
    """SGD with Nesterov momentum on flat vectors; changes weights and momentum, and overwrites the gradients."""
    if clip is not None:
        gradients.mul_((clip / (gradients.norm() + 1e-6)).clamp(max=1))
    gradients.add_(weights, alpha=weight_decay)
    torch.add(gradients, momentum, alpha=MOMENTUM, out=momentum)
    weights.addcmul_(gradients.add_(momentum, alpha=MOMENTUM), rate, value=-1)
