"""Loss and metrics of a module on held-out data; of two modules, compared sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from natpp.data.loader import Batch, samples_in
from natpp.errors import SettingError
from natpp.nets.call import call
from natpp.nets.measure import evaluating
from natpp.training.losses import Loss, Metric

Figures = dict[str, float]  # the loss, and metrics in per cent


@dataclass(frozen=True)
class Paired:
    """The difference that a change makes to one figure, on the same samples.

    Examples:
        >>> from natpp.training.evaluation import Paired
        >>> print(Paired(difference=-1.5, error=0.5, better=2, worse=5))
        -1.50 ± 0.50 (better on 2 samples, worse on 5)
    """

    difference: float
    """after minus before; of a metric in percentage points"""
    error: float | None = None
    """standard error of the difference; None if the figure is not known per sample"""
    better: int | None = None
    """samples on which the figure is higher after the change"""
    worse: int | None = None
    """samples on which it is lower"""

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.difference:+.4g}"
        counts = f"(better on {self.better} samples, worse on {self.worse})"
        return f"{self.difference:+.2f} ± {self.error:.2f} {counts}"


@dataclass(frozen=True)
class Evaluation:
    """Loss and metrics of a module on one part of a task's data.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
        >>> found = natpp.evaluate(model, "digits")
        >>> sorted(found.figures), found.samples, found.part, found.before
        (['accuracy', 'loss'], 359, 'val', None)
    """

    figures: Figures
    """the loss, and the metrics in per cent"""
    samples: int
    part: str
    """`val` or `test`"""
    task: str
    before: Figures | None = None
    """the figures of the module that it is compared with"""
    paired: Mapping[str, Paired] = field(default_factory=dict)
    """per figure, the difference on the same samples"""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples, {self.part} of {self.task}"]
        for name, figure in sorted(self.figures.items()):
            form = ".4f" if name == "loss" else ".2f"
            change = "" if self.before is None else f"{self.before[name]:{form}} → "
            more = f"  {self.paired[name]}" if name in self.paired else ""
            lines.append(f"{name:<10} {change}{figure:{form}}{'' if name == 'loss' else ' %'}{more}")
        return "\n".join(lines)


@torch.no_grad()
def evaluated(
    modules: Sequence[nn.Module],
    batches: Iterable[Batch],
    loss: Loss,
    metrics: Mapping[str, Metric],
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[list[dict[str, Tensor]], list[int]]:
    """Per module, the loss of every batch, and each metric per sample, or per batch; then the sizes of the batches.

    All modules run on a batch before the next one is read, since a loader may draw others in the next pass.
    """
    found: list[dict[str, list[Tensor]]] = [{} for _ in modules]
    sizes = list[int]()
    for inputs, targets in batches:
        sizes.append(samples_in((inputs, targets)))
        for module, figures in zip(modules, found, strict=True):
            with evaluating(module), autocast():
                output = call(module, inputs)
            for name, function in {"loss": loss, **metrics}.items():
                value = function(output, targets).detach().double().cpu().reshape(-1)
                figures.setdefault(name, []).append(value)
    return [{name: torch.cat(values) for name, values in figures.items()} for figures in found], sizes


def compared(found: Sequence[dict[str, Tensor]], sizes: Sequence[int], part: str, task: str) -> Evaluation:
    """The evaluation of one module, or of the second of two, compared with the first."""
    if not sizes:
        raise SettingError(f"the task {task} has no {part} data: give it as {part}, as in natpp.Task(train, val, test)")
    told = [{name: _mean(name, values, sizes) for name, values in one.items()} for one in found]
    figures = [{name: value for name, value in one.items() if not math.isnan(value)} for one in told]
    if len(figures) == 1:
        return Evaluation(figures[0], sum(sizes), part, task)
    before, after = figures
    shared = [name for name in after if name in before]
    paired = {name: _paired(name, found[0][name], found[1][name], sizes) for name in shared}
    return Evaluation({name: after[name] for name in shared}, sum(sizes), part, task, before, paired)


def _mean(name: str, values: Tensor, sizes: Sequence[int]) -> float:
    """The mean over all samples; of a metric in per cent."""
    scale = 1.0 if name == "loss" else 100.0
    if len(values) == sum(sizes):
        return scale * float(values.mean())
    weights = torch.tensor(sizes, dtype=torch.float64)
    return scale * float((values * weights).sum() / weights.sum())


def _paired(name: str, before: Tensor, after: Tensor, sizes: Sequence[int]) -> Paired:
    difference = _mean(name, after - before, sizes)
    if name == "loss" or len(before) < sum(sizes):
        return Paired(difference)
    change = 100 * (after - before)
    error = float(change.std() / len(change) ** 0.5) if len(change) > 1 else math.nan
    return Paired(difference, error, int((change > 0).sum()), int((change < 0).sum()))
