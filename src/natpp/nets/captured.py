"""A training step captured as one CUDA graph, so that all its kernels are launched at once.

What a step reads is copied into static buffers before each replay; what it changes is updated in place.
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

Step = Callable[..., Tensor | None]  # reads its arguments and changes the state


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
        """Runs the step once to choose and load all kernels, restores state and random state, then captures the step.

        With `blind`, which names the kind of step, the kernels are first compiled in parallel, in a pass whose results
        are undefined; once a step of that kind needed no new kernels, this pass is skipped.
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
        torch.cuda.empty_cache()  # a graph has its own memory pool
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=aside), _streams_may_differ():
            self.result = step(*self.places)

    def __call__(self, *arguments: Tensor) -> Tensor | None:
        """Run the step; the next one overwrites its result."""
        for place, value in zip(self.places, arguments, strict=True):
            place.copy_(value, non_blocking=True)
        self.graph.replay()
        return self.result


def captures(fabric: Fabric) -> bool:
    """Whether steps can be captured: one process on a GPU, without a gradient scaler, which looks at the gradients."""
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return fabric.device.type == "cuda" and fabric.world_size == 1 and scaler is None


def changing_state(module: nn.Module, optimizer: Any) -> list[Tensor]:
    """The tensors that a step of SGD changes; missing momentum buffers are created with zeros."""
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
    """Silence torch's warning that gradients arrive on another stream than the one the weights were created on."""
    warn = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", lambda _: None)
    warn(False)
    try:
        yield
    finally:
        warn(True)
