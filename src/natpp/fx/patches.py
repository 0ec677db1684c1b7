"""What of torch and Python is replaced while a forward is followed, each with its reason."""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from natpp.errors import is_the_users
from natpp.fx.proxies import Attribute, Proxy
from natpp.fx.traced import VALUE, TraceError

if TYPE_CHECKING:
    from natpp.fx.tracer import Tracer

NOISY = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")  # they log what is raised anyway
FACTORIES = ("zeros", "ones", "empty", "full", "arange", "linspace", "eye", "rand", "randn", "randint", "randperm")
LIMITS = ("finfo", "iinfo")  # of the type of a value
DRAWS = "it draws random numbers, which would become constants"


class OwnGradient(TraceError):
    """A function with a gradient of its own, which a graph would lose."""


class NoDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops a forward that draws random numbers itself: they would become constants."""

    def __init__(self, tracer: Tracer):
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.tracer.quiet and torch.Tag.nondeterministic_seeded in func.tags:
            raise TraceError(DRAWS)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def recorded_factories(tracer: Tracer) -> Iterator[None]:
    """New tensors whose size depends on the input are made anew at every call, and are no constants."""

    def recording(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if tracer.quiet or not any(isinstance(leaf, fx.Proxy) for leaf in _leaves_of((args, kwargs))):
                return function(*args, **kwargs)
            return tracer.create_proxy("call_function", function, args, kwargs)

        return call

    own = {name: getattr(torch, name) for name in (*FACTORIES, *LIMITS)}
    try:
        for name, function in own.items():
            setattr(torch, name, recording(function))
        yield
    finally:
        for name, function in own.items():
            setattr(torch, name, function)


@contextlib.contextmanager
def answered_types() -> Iterator[None]:
    """A forward that asks `isinstance` or `torch.is_tensor` of a stand-in is told of the value it stands for.

    A `__class__` of its own would do that too, but torch's compiled code would then take a stand-in for a tensor.
    """
    own = builtins.isinstance

    def asked(given: Any, kind: Any) -> bool:
        if type(given) not in (Proxy, Attribute) or kind is fx.Proxy or not _asks_for_value(sys._getframe(1)):
            return own(given, kind)
        return own(given.node.meta.get(VALUE), kind)

    try:
        builtins.isinstance = asked
        yield
    finally:
        builtins.isinstance = own


def _asks_for_value(frame: FrameType) -> bool:
    """Whether code means the value where it asks a stand-in: the user's does, torch's own sees to stand-ins."""
    return frame.f_code is torch.is_tensor.__code__ or is_the_users(frame)


@contextlib.contextmanager
def own_gradients_stop(while_true: Callable[[], bool]) -> Iterator[None]:
    """A `torch.autograd.Function` stops tracing: only what it computes would get into the graph, not its gradient."""
    # Every call of `apply` asks it, however it was bound; it is torch's own, from 2.0 up.
    own = torch.autograd.function._is_setup_context_defined

    def asked(setup_context: Any) -> Any:
        kind = sys._getframe(1).f_locals.get("cls", torch.autograd.Function)
        if while_true() and not kind.__module__.startswith("torch."):
            raise OwnGradient(f"{kind.__name__} has a gradient of its own, which a graph does not keep")
        return own(setup_context)  # type: ignore[no-untyped-call]

    try:
        torch.autograd.function._is_setup_context_defined = asked
        yield
    finally:
        torch.autograd.function._is_setup_context_defined = own


def _leaves_of(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from _leaves_of(branch)
    elif isinstance(tree, dict):
        yield from _leaves_of(list(tree.values()))
    else:
        yield tree


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Without the log that torch keeps of errors which natpp catches or raises again."""
    loggers = [logging.getLogger(name) for name in NOISY]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
