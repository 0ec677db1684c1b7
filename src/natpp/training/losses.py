"""Losses, metrics and distances to a teacher: functions of a module's output and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from natpp.errors import SettingError
from natpp.nets.call import call
from natpp.nets.measure import evaluating

Loss = Callable[[Any, Any], Tensor]  # output of a module, targets → a tensor of one number
Metric = Callable[[Any, Any], Tensor]  # as above → a share from 0 to 1 per sample (samples,), or the mean of the batch
SOFTNESS = 2.0  # temperature of the logits in `softened`


def cross_entropy(output: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of logits (batch, classes) and class indices (batch,)."""
    return functional.cross_entropy(output.float(), targets.long(), label_smoothing=label_smoothing)


def accuracy(output: Any, targets: Any) -> Tensor:
    """1 for each correct answer, else 0, (batch,); NaN if these are not logits and class indices."""
    if classifies(output, targets):
        found: Tensor = (output.argmax(dim=1) == targets).float()
        return found
    return torch.full((), float("nan"), device=targets.device if isinstance(targets, Tensor) else None)


ACCURACY: Mapping[str, Metric] = {"accuracy": accuracy}


def summed(metric: Metric, output: Any, targets: Any, samples: int) -> Tensor:
    """The sum of a metric over the samples of a batch, a tensor of one number."""
    found = metric(output, targets)
    return found.float().sum() if found.dim() else found.float() * samples


def softened(output: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of softened logits with a teacher's, scaled to undo the smaller gradients of the temperature."""
    soft = functional.softmax(wanted.float() / SOFTNESS, dim=1)
    return functional.cross_entropy(output.float() / SOFTNESS, soft) * SOFTNESS**2


def squared(output: Any, wanted: Any) -> Tensor:
    """Mean squared error to a teacher's output, averaged over the tensors of the output."""
    pairs = zip(tree_leaves(output), tree_leaves(wanted), strict=True)
    parts = [functional.mse_loss(one.float(), other.float()) for one, other in pairs if isinstance(one, Tensor)]
    return torch.stack(parts).mean()


def distance(output: Any, wanted: Any) -> Tensor:
    """`softened` for outputs that look like logits (batch, classes), else `squared`."""
    logits = isinstance(output, Tensor) and output.dim() == 2 and output.shape[1] > 1
    return softened(output, wanted) if logits else squared(output, wanted)


def classifies(output: Any, targets: Any) -> bool:
    """Whether the output is logits (batch, classes) and the targets are class indices (batch,)."""
    return (
        isinstance(output, Tensor)
        and isinstance(targets, Tensor)
        and output.dim() == 2
        and targets.dim() == 1
        and len(output) == len(targets)
        and targets.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    )


def check_loss(module: nn.Module, inputs: Any, targets: Any, loss: Loss) -> None:
    """Try a batch before any training, so that errors say what does not fit."""
    output = _tried(type(module).__name__, module, inputs)
    if loss is cross_entropy:
        if not classifies(output, targets):
            raise SettingError(
                f"the output is {_described(output)} and the targets are {_described(targets)}, expected logits "
                "(batch, classes) and class indices (batch,): give loss=function of output and targets"
            )
        least, most = int(targets.min()), int(targets.max())
        if least < 0 or most >= output.shape[1]:
            raise SettingError(
                f"the targets go from {least} to {most}, but there are {output.shape[1]} outputs: "
                f"expected class indices from 0 to {output.shape[1] - 1}"
            )
        return
    try:
        with torch.no_grad():
            found = loss(output, targets)
    except Exception as error:
        raise SettingError(f"the loss does not take this output and these targets: {_line(error)}") from error
    if not isinstance(found, Tensor) or found.numel() != 1 or not found.is_floating_point():
        raise SettingError(f"the loss gives {_described(found)}, expected a tensor of one number")


def check_teacher(module: nn.Module, teacher: nn.Module, inputs: Any) -> None:
    """Try a teacher on a batch: its outputs must have the same form as the module's."""
    output, wanted = (
        _described(_tried(*one, inputs)) for one in ((type(module).__name__, module), ("the teacher", teacher))
    )
    if output != wanted:
        raise SettingError(f"the teacher's output is {wanted}, but the module's is {output}: expected the same form")


def _tried(name: str, module: nn.Module, inputs: Any) -> Any:
    """The output of a module; an error that names it if it does not run."""
    try:
        with evaluating(module), torch.no_grad():
            return call(module, inputs)
    except Exception as error:  # whatever the user's module raises
        raise SettingError(
            f"{name} does not run on the inputs of a training batch ({_described(inputs)}): {_line(error)}"
        ) from error


def _described(tree: Any) -> str:
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {tuple(tree.shape)}"
    if isinstance(tree, tuple | list):
        return f"({', '.join(_described(one) for one in tree)})"
    if isinstance(tree, dict):
        return f"{{{', '.join(f'{name}: {_described(one)}' for name, one in tree.items())}}}"
    return type(tree).__name__


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
