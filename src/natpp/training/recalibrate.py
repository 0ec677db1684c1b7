"""Statistics of batch norms, recomputed from a few batches after a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from natpp.errors import SettingError
from natpp.nets.call import call
from natpp.nets.measure import evaluating


def recalibrate(module: nn.Module, batches: Iterable[Any]) -> None:
    """Recompute the running statistics of every batch norm as the mean over some batches.

    A batch is an input of the module: a tensor, a tuple of arguments or a dict of named ones. All other layers run in
    eval mode, and every mode is restored afterwards.
    """
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    seen = 0
    try:
        with evaluating(module), torch.no_grad():
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the plain mean
                norm.train()
            for batch in batches:
                call(module, batch)
                seen += 1
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    if not seen:
        raise SettingError("there are no inputs: give at least one batch")


def check_inputs(module: nn.Module, batches: Sequence[Any]) -> None:
    """Raise an error if there are no inputs, or a module does not run on the first batch."""
    if not batches:
        raise SettingError("there are no inputs: give at least one batch")
    try:
        with evaluating(module), torch.no_grad():
            call(module, batches[0])
    except Exception as error:  # the module may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SettingError(
            f"the module does not run on batch 0 of the inputs: {reason}. Give inputs like the example, without targets"
        ) from error
