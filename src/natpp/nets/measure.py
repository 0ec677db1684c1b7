"""Measure the cost of any module by running it: parameters, multiply-adds, peak memory, latency."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from natpp.core.measures import Cost
from natpp.errors import SettingError, line_of
from natpp.nets.call import call
from natpp.nets.seen import Seen, tensors_in

WARM_UP, ROUNDS = 5, 30
FUSED = ("attention", "transformer", "rnn", "lstm")  # in the names of kernels that hide matrix products


def module_cost(module: nn.Module, example_input: Any, *, latency: bool = False, seen: Seen | None = None) -> Cost:
    """The cost of one forward pass in eval mode, on the device of the module and its input.

    The input is a tensor, a tuple of arguments or a dict of named arguments. Multiply-adds are half the operations that
    `torch.utils.flop_counter` counts for this batch. A second pass is needed only if a fused kernel hides its matrix
    products, or if the first one left something behind, such as a cache. With `seen`, operations that it has from
    earlier passes are not computed.
    """
    example_input = _cloned(example_input)  # an in-place module must not change the caller's tensors
    run = functools.partial(call, module, example_input)
    watched = contextlib.nullcontext if seen is None else functools.partial(seen.watched, module)
    with untouched(module):
        with watched(), MultiplyAdds() as counter, PeakMemory(example_input) as memory:
            at_start = memory.current
            _first(run, module)
        if memory.current > at_start:
            with watched(), PeakMemory(example_input) as memory:
                run()
        if counter.fused:
            with unfused(module), watched(), MultiplyAdds() as counter:
                run()
    params = sum(parameter.numel() for parameter in module.parameters())
    cost = Cost(params, counter.total, params, counter.total, memory.peak)
    return with_latency(cost, module, example_input) if latency else cost


def with_latency(cost: Cost, module: nn.Module, example_input: Any) -> Cost:
    """The cost with the measured latency: median and interquartile range after a warm-up."""
    run = functools.partial(call, module, _cloned(example_input))
    synchronize = _synchronizer(example_input)
    with untouched(module):
        for _ in range(WARM_UP):
            run()
        synchronize()
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            run()
            synchronize()
            times.append(1000 * (time.perf_counter() - start))
    low, median, high = statistics.quantiles(times, n=4)
    return replace(cost, latency_ms=median, latency_spread_ms=high - low)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run with the module in eval mode; every submodule gets its own mode back afterwards."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Run with the module in eval mode; modes and buffers (call counters, say) are restored afterwards."""
    buffers = [
        (part, name, buffer, buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    with evaluating(module), torch.no_grad():
        try:
            yield
        finally:
            for part, name, buffer, content in buffers:
                part._buffers[name] = buffer
                buffer.copy_(content)


class MultiplyAdds(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts multiply-adds while active, with the formulas of `torch.utils.flop_counter`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fused = False  # whether a kernel ran that hides its matrix products
        self._operations = 0

    @property
    def total(self) -> int:
        """Multiply-adds so far; torch counts each as two operations."""
        return self._operations // 2

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.fused |= _is_fused(func)
        if _is_composite(func):  # in inference mode torch has not decomposed it yet
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self._operations += int(formula(*args, **kwargs, out_val=out))
        return out


@functools.cache
def _is_fused(func: Any) -> bool:
    return any(word in func.name() for word in FUSED)


@functools.cache
def _is_composite(func: Any) -> bool:
    known = func.namespace != "prim"  # what fake tensors ask of themselves
    return known and bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors while active, inputs included, weights and other existing tensors not."""

    def __init__(self, inputs: Any = ()):
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        for leaf in tree_leaves(inputs):
            self._count(leaf)
        self._inputs = inputs  # the caller holds them, so they remain counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {id(leaf.untyped_storage()) for leaf in tensors_in((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for leaf in tensors_in(out):
            if id(leaf.untyped_storage()) not in known:
                self._count(leaf)
        return out

    def _count(self, leaf: Any) -> None:
        if not isinstance(leaf, Tensor):
            return
        storage = leaf.untyped_storage()
        key = id(storage)
        if key in self._seen:
            return
        size = storage.nbytes()
        self.current += size
        self.peak = max(self.peak, self.current)

        def freed(_: Any) -> None:
            self.current -= size
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, freed)


@contextlib.contextmanager
def unfused(module: nn.Module) -> Iterator[None]:
    """Runs attention and recurrent layers as plain matrix products, which the counter can see, unlike fused kernels."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    try:
        with sdpa_kernel(SDPBackend.MATH), contextlib.ExitStack() as stack:
            if recurrent:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")  # torch warns that weights are not contiguous
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _cloned(inputs: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)


def _first(run: Callable[[], Any], module: nn.Module) -> None:
    """Run the module for the first time; errors of the module are reported as a wrong example input."""
    try:
        run()
    except Exception as error:  # a user's module may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        place = _place(error, module)
        raise SettingError(
            f"{type(module).__name__} does not run on the example input: {reason.rstrip('.')}{place}. "
            "Give an example with the shape, dtype and device that it expects"
        ) from error


def _place(error: BaseException, module: nn.Module) -> str:
    """The submodule that raised an error, and the line of the user's own code."""
    paths = {id(part): path for path, part in module.named_modules() if path}
    part, step = "", error.__traceback__
    while step is not None:
        path = paths.get(id(step.tb_frame.f_locals.get("self")))
        part = f"its submodule {path}" if path else part
        step = step.tb_next
    places = [place for place in (part, line_of(error)) if place]
    return f" (in {'; '.join(places)})" if places else ""


def _synchronizer(example_input: Any) -> Callable[[], None]:
    for device in {leaf.device for leaf in tree_leaves(example_input) if isinstance(leaf, Tensor)}:
        if device.type == "cuda":
            return lambda: torch.cuda.synchronize(device)
        if device.type == "mps":
            return torch.mps.synchronize
    return lambda: None
