"""Kernels compiled before they are needed, many at once.

Triton compiles a kernel when it is launched for the first time, one after the other: for networks of many operations
that takes a minute. So a step may be gone through once with nothing launched; what it would launch is noted, and then
compiled by all cores.
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

Kernel = Any  # of triton.jit


class _Launch(NamedTuple):
    """What tells kernels of different code apart, and is enough to compile one."""

    kernel: Kernel
    given: tuple[Any, ...]
    """constants, types of tensors, and any number for other numbers"""
    options: tuple[tuple[str, Any], ...]
    device: int


class _Notes(threading.local):
    """What a step would launch, noted in the thread that goes through it."""

    def __init__(self) -> None:
        self.taken = False  # while a step is gone through
        self.launches: dict[_Launch, tuple[int, ...]] = {}  # and their grids
        self.settled: set[Hashable] = set()  # kinds of steps of which one had nothing new


_NOTES = _Notes()


def launch(kernel: Kernel, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """Run a kernel; or only note it, while a step is gone through to see what it needs."""
    if not _NOTES.taken:
        kernel[grid](*given, **options)
        return
    like = tuple(_like(parameter, value) for parameter, value in zip(kernel.params, given, strict=True))
    _NOTES.launches.setdefault(_Launch(kernel, like, tuple(options.items()), torch.cuda.current_device()), grid)


def compile_for(step: Callable[[], object], kind: Hashable) -> int:
    """Compile the kernels of a step that are new, and say how many; what the step itself computes is undefined.

    Once a step of a kind had no new ones, later ones are expected to have few, and are not gone through any more:
    those are compiled where they are launched.
    """
    if kind in _NOTES.settled or not can_compile_ahead():
        return 0
    known = set(_NOTES.launches)
    _NOTES.taken = True
    try:
        with torch.autograd.set_multithreading_enabled(False):  # gradients in this thread too
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
        triton.AsyncCompileMode(threads, ignore_errors=True),  # a launch will tell of them
    ):
        for one, grid in new:
            with torch.cuda.device(one.device):
                one.kernel.warmup(*one.given, grid=grid, **dict(one.options))
    return len(new)


def can_compile_ahead() -> bool:
    """Whether this Triton compiles in threads, as 3.6 and later ones do."""
    mode = getattr(triton, "AsyncCompileMode", None)
    return mode is not None and "ignore_errors" in inspect.signature(mode).parameters


def _like(parameter: Any, value: Any) -> Any:
    """What of an argument changes the code: of a number that is no constant, only its type."""
    if isinstance(value, Tensor):
        return value.dtype
    if parameter.is_constexpr or not parameter.do_not_specialize:
        return value
    return type(value)(0)
