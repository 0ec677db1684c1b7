"""A training step as one CUDA graph: what it launches is launched at once.

Small kernels take less time to run than to launch one by one. What a step reads is copied into fixed places before
every replay; what it changes (weights, statistics, momentum) stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from natpp.kernels import compile_ahead

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Step = Callable[..., Tensor | None]  # reads its arguments and changes a state


class Captured:
    """A step, captured once and replayed with other arguments of the same shapes."""

    def __init__(
        self,
        step: Step,
        arguments: Sequence[Tensor],
        state: Sequence[Tensor],
        device: torch.device,
        *,
        blind: Hashable | None = None,
    ):
        """The step is tried once before, so that every kernel is chosen and loaded; then the state is put back.

        So is that of chance: the first replay draws what the step would have drawn. A `blind` step bears numbers that
        mean nothing: before all that it is gone through to compile its kernels at once. The value is its kind: of those
        that are alike, only the first ones are.
        """
        before = [tensor.clone() for tensor in state]

        def put_back() -> None:
            with torch.no_grad():
                for tensor, value in zip(state, before, strict=True):
                    tensor.copy_(value)
            torch.cuda.set_rng_state(chance, device)

        chance = torch.cuda.get_rng_state(device)
        self.places = [tensor.clone() for tensor in arguments]
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside), _streams_may_differ():
            if blind is not None:
                try:
                    compile_ahead(lambda: step(*self.places), device, blind)
                finally:
                    put_back()
            step(*self.places)
        torch.cuda.current_stream(device).wait_stream(aside)
        put_back()
        before.clear()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # a graph has memory of its own
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=aside), _streams_may_differ():
            self.result = step(*self.places)

    def __call__(self, *arguments: Tensor) -> Tensor | None:
        """Take the step; its result is overwritten by the next."""
        for place, value in zip(self.places, arguments, strict=True):
            place.copy_(value, non_blocking=True)
        self.graph.replay()
        return self.result


def captures(fabric: Fabric) -> bool:
    """Whether steps can be captured: one process on a GPU, and no scaler of losses, which looks at the gradients."""
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return fabric.device.type == "cuda" and fabric.world_size == 1 and scaler is None


def changing_state(module: nn.Module, optimizer: Any) -> list[Tensor]:
    """What a step of SGD changes; momentum that is not there yet starts at zero."""
    momenta: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momenta.append(state["momentum_buffer"])
    return [*module.parameters(), *module.buffers(), *momenta]


@contextlib.contextmanager
def _streams_may_differ() -> Iterator[None]:
    """While it lasts, torch does not warn that gradients arrive from another stream than weights were made on."""
    warn = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", lambda _: None)
    warn(False)
    try:
        yield
    finally:
        warn(True)
