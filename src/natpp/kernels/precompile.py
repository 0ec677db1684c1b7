"""Compile kernels ahead of time, many in parallel.

Triton compiles a kernel at its first launch, one at a time. So a step can run once without launching anything: its
launches are recorded, then compiled on all cores.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

Kernel = Any  # a function decorated with triton.jit


class _Launch(NamedTuple):
    """What distinguishes compiled kernels, and suffices to compile one."""

    kernel: Kernel
    given: tuple[Any, ...]
    """constants, dtypes of tensors, and a placeholder for any other number"""
    options: tuple[tuple[str, Any], ...]
    device: int


class _Notes(threading.local):
    """Recorded launches of a step, per thread."""

    def __init__(self) -> None:
        self.taken = False  # while a step is recorded
        self.launches: dict[_Launch, tuple[int, ...]] = {}  # with their grids
        self.settled: set[Hashable] = set()  # kinds of steps that needed no new kernels once


_NOTES = _Notes()


def launch(kernel: Kernel, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """Launch a kernel; while recording, only record it."""
    if not _NOTES.taken:
        kernel[grid](*given, **options)
        return
    like = tuple(_like(parameter, value) for parameter, value in zip(kernel.params, given, strict=True))
    _NOTES.launches.setdefault(_Launch(kernel, like, tuple(options.items()), torch.cuda.current_device()), grid)


def compile_for(step: Callable[[], object], kind: Hashable) -> int:
    """Compile the new kernels of a step (see `compile_ahead`); returns their number."""
    if kind in _NOTES.settled or not can_compile_ahead():
        return 0
    known = set(_NOTES.launches)
    _NOTES.taken = True
    try:
        with torch.autograd.set_multithreading_enabled(False):  # so that gradients are also recorded in this thread
            step()
    finally:
        _NOTES.taken = False
    new = [(launch, grid) for launch, grid in _NOTES.launches.items() if launch not in known]
    if not new:
        _NOTES.settled.add(kind)
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with (
        ThreadPoolExecutor(cores) as threads,
        triton.AsyncCompileMode(threads, ignore_errors=True),  # an error will be raised at launch
    ):
        for one, grid in new:
            with torch.cuda.device(one.device):
                one.kernel.warmup(*one.given, grid=grid, **dict(one.options))
    return len(new)


def can_compile_ahead() -> bool:
    """Whether this Triton compiles in threads; from version 3.6 on, it does."""
    mode = getattr(triton, "AsyncCompileMode", None)
    return mode is not None and "ignore_errors" in inspect.signature(mode).parameters


def _like(parameter: Any, value: Any) -> Any:
    """What of an argument affects the compiled code: for numbers that are not constants, only their type."""
    if isinstance(value, Tensor):
        return value.dtype
    if parameter.is_constexpr or not parameter.do_not_specialize:
        return value
    return type(value)(0)
