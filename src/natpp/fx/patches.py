"""Patches of torch and Python that are active while a forward is traced, each with its reason."""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from natpp.errors import is_the_users
from natpp.fx.proxies import Attribute, Proxy
from natpp.fx.traced import VALUE, TraceError

if TYPE_CHECKING:
    from natpp.fx.tracer import Tracer

NOISY = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")  # they log what is raised anyway
FACTORIES = ("zeros", "ones", "empty", "full", "arange", "linspace", "eye", "rand", "randn", "randint", "randperm")
OWN_ISINSTANCE = builtins.isinstance
LIMITS = ("finfo", "iinfo")  # of a dtype
DRAWS = "it draws random numbers, which would become constants"


@contextlib.contextmanager
def _set(holder: Any, **attributes: Any) -> Iterator[None]:
    """Attributes of a module or object with other values inside the block."""
    before = {name: getattr(holder, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(holder, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


class OwnGradient(TraceError):
    """A function with a custom gradient, which a graph would lose."""


class NoDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops a forward that draws random numbers, since they would become constants."""

    def __init__(self, tracer: Tracer):
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.tracer.quiet and torch.Tag.nondeterministic_seeded in func.tags:
            raise TraceError(DRAWS)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def recorded_factories(tracer: Tracer) -> Iterator[None]:
    """Records factory calls whose size depends on the input, so that they run at every call and are not constants."""

    def recording(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if tracer.quiet or not any(isinstance(leaf, fx.Proxy) for leaf in _leaves_of((args, kwargs))):
                return function(*args, **kwargs)
            return tracer.create_proxy("call_function", function, args, kwargs)

        return call

    with _set(torch, **{name: recording(getattr(torch, name)) for name in (*FACTORIES, *LIMITS)}):
        yield


def answered_types() -> AbstractContextManager[None]:
    """`isinstance` and `torch.is_tensor` on a proxy answer for its value when the user's code calls them.

    Overriding `__class__` would do the same, but torch's compiled code would then mistake a proxy for a tensor.
    """
    return _set(builtins, isinstance=_answered)


def plain_types() -> AbstractContextManager[None]:
    """Python's own `isinstance`, for torch's work between two steps of a forward, which calls it about 100 times."""
    return _set(builtins, isinstance=OWN_ISINSTANCE)


def _answered(given: Any, kind: Any, own: Callable[[Any, Any], bool] = OWN_ISINSTANCE) -> bool:
    if type(given) not in (Proxy, Attribute) or kind is fx.Proxy:
        return own(given, kind)
    frame = sys._getframe(1)  # the user's code means the value of a proxy, torch's own handles proxies
    means_value = frame.f_code is torch.is_tensor.__code__ or is_the_users(frame)
    return own(given.node.meta.get(VALUE) if means_value else given, kind)


class NotedMode:
    """While active, records whether a forward reads `training`; one that does not is the same in both modes."""

    def __init__(self, tracer: Tracer):
        self.tracer = tracer
        self.asked = False

    def __enter__(self) -> None:
        # A property of the class takes precedence over the instance attribute of the same name.
        nn.Module.training = property(self._get, self._set)  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        del nn.Module.training

    def _get(self, part: nn.Module) -> Any:
        self.asked |= not self.tracer.quiet
        try:
            return vars(part)["training"]
        except KeyError:  # torch.jit modules store it elsewhere
            raise AttributeError("training") from None

    def _set(self, part: nn.Module, training: bool) -> None:
        self.asked |= not self.tracer.quiet
        vars(part)["training"] = training


@contextlib.contextmanager
def own_gradients_stop(while_true: Callable[[], bool]) -> Iterator[None]:
    """A `torch.autograd.Function` stops tracing: the graph would have its forward, but not its gradient."""
    # Every call of `apply` calls this, however it was bound; it is internal to torch, since 2.0.
    own = torch.autograd.function._is_setup_context_defined

    def asked(setup_context: Any) -> Any:
        kind = sys._getframe(1).f_locals.get("cls", torch.autograd.Function)
        if while_true() and not kind.__module__.startswith("torch."):
            raise OwnGradient(f"{kind.__name__} has a gradient of its own, which a graph does not keep")
        return own(setup_context)  # type: ignore[no-untyped-call]

    with _set(torch.autograd.function, _is_setup_context_defined=asked):
        yield


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
    """Silences torch's logging of errors that natpp catches or raises again."""
    with contextlib.ExitStack() as stack:
        for name in NOISY:
            stack.enter_context(_set(logging.getLogger(name), disabled=True))
        yield
