"""One network under a short training: its weights are one flat vector, so a step of the optimizer is a few launches.

On a GPU many of them are branches of one captured CUDA graph (`training.together`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from natpp.data.feeds import fast_format
from natpp.data.loader import samples_in
from natpp.nets.call import call
from natpp.nets.workarounds import workarounds
from natpp.training.losses import Loss, accuracy, summed
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig
from natpp.training.step import flat_step

CURVE = 20  # points of a curve
ALIGNED = 8  # elements (16 bytes of bf16): kernels read this many at once, from addresses that are multiples of it
Build = Callable[[], nn.Module]  # builds a network with its first weights: images (batch, 3, height, width) to logits


class Branch:
    """A network in training. Its weights, padded with zeros so that each starts aligned, are one vector.

    With `half` (by default on a GPU) convolutions and linear layers compute in bf16, from a copy of the weights; batch
    norms keep full precision. With `own_loss` the module may be of any kind and computes in mixed precision.
    """

    def __init__(
        self,
        build: Build,
        seed: int,
        config: ShortConfig,
        device: torch.device,
        own_loss: Loss | None = None,
        *,
        half: bool | None = None,
    ):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = build()
        use_batch_statistics(module)
        self.config, self.own_loss = config, own_loss
        self.last = fast_format(device) == torch.channels_last  # the memory format of kernels
        self.half = device.type == "cuda" if half is None else half
        copied = self.half and own_loss is None
        if own_loss is not None:
            module = module.float().to(device)
        in_norms = {id(parameter) for norm in norms(module) for parameter in norm.parameters()}
        wanted = (parameter for parameter in module.parameters() if parameter.requires_grad)
        self.parameters = sorted(wanted, key=lambda p: id(p) in in_norms)  # stable: those of norms come last
        self.low = sum(_room(p) for p in self.parameters if id(p) not in in_norms) if copied else 0  # computed in bf16
        self.weights = torch.cat(self._vectors(p.detach() for p in self.parameters) or [torch.empty(0)]).to(device)
        self.momentum = torch.zeros_like(self.weights)
        self.low_weights = self.weights[: self.low].to(torch.bfloat16)
        place = 0
        for parameter in self.parameters:
            values = self.low_weights if place < self.low else self.weights
            parameter.data = _shaped(values[place : place + parameter.numel()], parameter.shape, self.last)
            place += _room(parameter)
        for name, buffer in module.named_buffers():
            module.get_submodule(name.rpartition(".")[0])._buffers[name.rpartition(".")[2]] = buffer.to(device)
        self.module = module.train()
        self.losses = torch.zeros(config.steps, device=device)
        self.judged = torch.zeros(2, device=device)  # sum of the validation losses, number of correct answers

    def step(self, inputs: Any, targets: Any, number: Tensor, rate: Tensor) -> None:
        """One gradient step on a batch; the number of the step and the learning rate are tensors (1,)."""
        loss, _ = self._loss(inputs, targets)
        with torch.no_grad():
            self.losses.index_copy_(0, number, loss.detach().view(1))
        if not self.parameters or not loss.requires_grad:
            return
        found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)  # unused ones get zeros
        with torch.no_grad():
            flat = self._vectors(found)
            split = sum(gradient.dtype == torch.bfloat16 for gradient in flat)  # those in bf16 come first
            gradients = torch.cat([torch.cat(part).float() for part in (flat[:split], flat[split:]) if part])
            decay, clip = self.config.weight_decay, self.config.clip
            flat_step(self.weights, self.momentum, gradients, rate, weight_decay=decay, clip=clip)
            if self.low:
                self.low_weights.copy_(self.weights[: self.low])

    def _vectors(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Weights or their gradients as vectors, with zeros between them up to the next aligned start."""
        found: list[Tensor] = []
        for tensor in tensors:
            found.append(_flat(tensor, self.last))
            if missing := _room(tensor) - tensor.numel():
                found.append(found[-1].new_zeros(missing))
        return found

    def logits(self, images: Tensor) -> Tensor:
        """Logits (batch, classes) of images in the format of a feed."""
        with workarounds(self.weights.device):
            found: Tensor = self.module(images if self.last else images.contiguous())
        return found.float()

    def _loss(self, inputs: Any, targets: Any, reduction: str = "mean") -> tuple[Tensor, Any]:
        """Loss and output."""
        if self.own_loss is None:
            logits = self.logits(inputs)
            return functional.cross_entropy(logits, targets, reduction=reduction), logits
        device = self.weights.device
        output, loss = output_and_loss(self.module, inputs, targets, self.own_loss, device, half=self.half)
        return loss * samples_in((inputs, targets)) if reduction == "sum" else loss, output

    def judge(self, inputs: Any, targets: Any) -> None:
        """Add the losses and the correct answers of a validation batch to `judged`."""
        if self.own_loss is not None:
            self.module.eval()  # no dropout; batch norms still use the statistics of the batch
        loss, output = self._loss(inputs, targets, "sum")
        self.judged += torch.stack([loss, summed(accuracy, output, targets, samples_in((inputs, targets)))])

    def outcome(self, loss: float | None, right: float) -> Outcome:
        """The outcome, given the mean validation loss and the share of correct answers.

        Without validation data (`loss` is None) the score is the training loss alone. A point of the curve is the mean
        loss over a part of the schedule; the last one counts as the training loss.
        """
        curve = [part.mean().item() for part in self.losses.tensor_split(min(CURVE, len(self.losses)))]
        points = tuple(round(point, 4) for point in curve)
        if loss is None:
            found = curve[-1]
        else:
            share = self.config.fitting
            found = loss if share == 0 else (1 - share) * loss + share * curve[-1]
        if not math.isfinite(found):
            return Outcome(None, reason="diverged: its loss is not a number", curve=points)
        return Outcome(-found, None if math.isnan(right) else 100 * right, loss, curve=points)

    @property
    def changing(self) -> tuple[Tensor, ...]:
        """The tensors that a step changes and the next one reads."""
        return self.weights, self.momentum, self.low_weights, *self.module.buffers()


class Tested:
    """A trained network to test: its batch norms first get mean statistics of some training batches."""

    def __init__(self, branch: Branch):
        self.branch, device = branch, branch.weights.device
        self.statistics: list[Tensor] = []  # of the last batch
        for norm in norms(branch.module.train()):
            norm.track_running_stats, norm.momentum = True, 1.0
            norm.running_mean = torch.zeros(norm.num_features, device=device)
            norm.running_var = torch.ones(norm.num_features, device=device)
            self.statistics += [norm.running_mean, norm.running_var]
        self.totals = [torch.zeros_like(one) for one in self.statistics]
        self.right = torch.zeros(2, device=device, dtype=torch.int64)  # correct answers, images seen

    @property
    def changing(self) -> list[Tensor]:
        """The tensors that `measure` and `test` change."""
        return [*self.statistics, *self.totals, self.right]

    def measure(self, images: Tensor, _: Tensor) -> None:
        """Add the statistics of a batch to the totals."""
        self.branch.logits(images)
        for total, one in zip(self.totals, self.statistics, strict=True):
            total += one

    def settle(self, batches: int) -> None:
        """Use the means over this many batches from now on."""
        for total, one in zip(self.totals, self.statistics, strict=True):
            one.copy_(total / batches)
        self.branch.module.eval()

    def test(self, images: Tensor, labels: Tensor) -> None:
        """Count the correct answers of a batch."""
        right = (self.branch.logits(images).argmax(dim=1) == labels).sum()
        self.right += torch.stack([right, torch.full_like(right, len(labels))])


def output_and_loss(
    module: nn.Module, inputs: Any, targets: Any, loss: Loss, device: torch.device, *, half: bool | None = None
) -> tuple[Any, Tensor]:
    """Output and loss of a module of any kind; with `half` (by default on a GPU) in mixed precision.

    The module gets a copy of the inputs, since it may work in place.
    """
    half = device.type == "cuda" if half is None else half
    own = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
    with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False), workarounds(device):
        output = call(module, own)
    return output, loss(output, targets).float()


def norms(module: nn.Module) -> list[_BatchNorm]:
    """The batch norms of a module."""
    return [one for one in module.modules() if isinstance(one, _BatchNorm)]


def use_batch_statistics(module: nn.Module) -> None:
    """Make batch norms use the statistics of the batch, in eval mode too."""
    for norm in norms(module):
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
        norm.num_batches_tracked = None


def _flat(tensor: Tensor, last: bool) -> Tensor:
    """A weight or its gradient as a vector; with `last` in the order of channels-last kernels."""
    return (tensor.permute(0, 2, 3, 1) if last and tensor.dim() == 4 else tensor).reshape(-1)


def _room(tensor: Tensor) -> int:
    """Elements from the start of a weight to the next aligned start."""
    return -(-tensor.numel() // ALIGNED) * ALIGNED


def _shaped(vector: Tensor, shape: torch.Size, last: bool) -> Tensor:
    """The inverse of `_flat`."""
    if last and len(shape) == 4:
        return vector.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
    return vector.view(shape)
