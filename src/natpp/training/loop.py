"""The training loop of any network: steps, curves, checkpoints, an average of the weights, a teacher.

The seed and the number of a step determine what it does, so on a CPU a resumed training ends with identical weights. On
a GPU a step is one captured CUDA graph.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from natpp.data.feeds import EpochFeed, fast_format
from natpp.data.loader import Batch, samples_in
from natpp.errors import NatppError
from natpp.folder import Folder, Interrupted, Stop
from natpp.nets.call import call
from natpp.nets.captured import Captured, captures, changing_state
from natpp.nets.network import Network
from natpp.nets.workarounds import workarounds
from natpp.seeds import Use, number
from natpp.training.losses import ACCURACY, Loss, Metric, cross_entropy, distance, summed
from natpp.training.recipe import Recipe
from natpp.training.step import Sgd, cosine

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.run import Watch

LOG = logging.getLogger("natpp")
SECONDS_A_LOOK = 0.5  # minimum between checks of the losses, since each waits for the device
Net = TypeVar("Net", bound=nn.Module)


class Loop(Generic[Net]):
    """A network under training, on the device and in the precision of a fabric."""

    advice = "lower the batch"  # what to try if memory runs out
    random = True  # whether a forward pass may draw random numbers

    def __init__(
        self,
        network: Net,
        feed: EpochFeed,
        recipe: Recipe,
        fabric: Fabric,
        seed: int = 0,
        *,
        loss: Loss = cross_entropy,
        metrics: Mapping[str, Metric] = ACCURACY,
        teacher: nn.Module | None = None,
        agreement: Loss = distance,
    ):
        """If the loss is `cross_entropy`, it gets the recipe's label smoothing.

        With a teacher (moved to the device and put in eval mode), half of what is minimized is the `agreement` with
        its outputs; the losses that are reported are those of the targets alone.
        """
        self.feed, self.recipe, self.fabric, self.seed = feed, recipe, fabric, seed
        self.loss = loss
        if loss is cross_entropy:
            self.loss = functools.partial(cross_entropy, label_smoothing=recipe.label_smoothing)
        self.metrics, self.agreement = metrics, agreement
        self.format = fast_format(fabric.device)
        self.network: Net = network.to(fabric.device).to(memory_format=self.format)  # type: ignore[call-overload]
        self.teacher = teacher
        if teacher is not None:
            teacher.to(fabric.device).to(memory_format=self.format).eval()  # type: ignore[call-overload]
        self.average = Average(self.network, recipe.ema) if recipe.ema else None
        self.capturing = captures(fabric)
        self.sgd = Sgd(
            self.network,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            clip=recipe.clip,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            fabric=fabric,
            captured=self.capturing,
        )
        self._captured: Captured | None = None
        ours = isinstance(network, Network) and loss is cross_entropy and teacher is None
        self._blind = id(self) if ours else None  # our own networks can be compiled with meaningless numbers
        self.steps_an_epoch = feed.steps_an_epoch
        self.total = recipe.epochs * self.steps_an_epoch
        self.steps = 0  # taken so far
        self.seconds = 0.0  # taken by these steps
        self.curve: list[dict[str, Any]] = []  # a row for each epoch
        self.test_accuracy: float | None = None  # per cent, once measured
        self._figures = torch.zeros(self.steps_an_epoch, 1 + len(metrics), device=fabric.device)  # of this epoch

    @property
    def judged(self) -> Net:
        """The network that is validated and returned: the average of the weights if there is one."""
        return self.network if self.average is None else self.average.network

    def step(self) -> None:
        """Train for one step on a batch shared between processes; figures stay on the device until `look`."""
        inputs, targets = self.feed.batch(self.steps)
        self._set()
        self.network.train()
        try:
            with self._chance():
                figures = self._taken(inputs, targets)
        except torch.OutOfMemoryError:
            raise NatppError(f"out of memory on {self.fabric.device} in step {self.steps}: {self.advice}") from None
        self._figures[self.steps % self.steps_an_epoch] = figures
        self.steps += 1
        if self.average is not None:
            self.average.follow(self.steps)

    def look(self) -> dict[str, float]:
        """The loss of the last step; an error if a loss or a weight is not a number."""
        start = (self.steps - 1) // self.steps_an_epoch * self.steps_an_epoch
        losses = self._figures[: self.steps - start, 0].cpu()
        wrong = (~losses.isfinite()).nonzero()
        sizes = torch.stack(torch._foreach_norm(list(self.network.parameters())))
        if len(wrong) or not sizes.isfinite().all():
            what = f"a weight after step {self.steps - 1}"
            if len(wrong):
                what = f"the loss in step {start + int(wrong[0])}"
            raise NatppError(f"{what} is not a number: a lower learning rate or precision 32 may help")
        return {"loss": losses[-1].item()}

    def end_epoch(self) -> dict[str, Any]:
        """The row of the curves for the epoch that has just ended, with figures on the validation data."""
        figures = self._named(self._over_processes(self._figures.double().mean(dim=0)))
        row = {
            "phase": "train",
            "epoch": self.steps // self.steps_an_epoch,
            "step": self.steps,
            **{name if name == "loss" else f"train_{name}": value for name, value in figures.items()},
            **self.validated(),
            "learning_rate": self.sgd.rate,
            "seconds": round(self.seconds, 3),
        }
        self.curve.append(row)
        return row

    def validated(self) -> dict[str, float]:
        """Loss and metrics in per cent on the validation data; empty if there is none."""
        return {f"validation_{name}": value for name, value in self.judge(self.feed.validation()).items()}

    @torch.no_grad()
    def judge(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss and metrics in per cent, with the running statistics of batch norms; empty without batches."""
        network = self.judged.eval()
        count, found = 0, torch.zeros(1 + len(self.metrics), device=self.fabric.device)
        for inputs, targets in batches:
            with self.fabric.autocast():
                output = call(network, inputs)
            size = samples_in((inputs, targets))
            found += torch.stack([self.loss(output, targets).float() * size, *self._sums(output, targets, size)])
            count += size
        return self._named(found.double() / count) if count else {}

    def _sums(self, output: Any, targets: Any, size: int) -> list[Tensor]:
        """The sum of each metric over a batch of this size."""
        return [summed(metric, output, targets, size) for metric in self.metrics.values()]

    def _named(self, figures: Tensor) -> dict[str, float]:
        """Loss and metrics by name, metrics in per cent; those that are not a number do not apply and are left out."""
        loss, *shares = figures.tolist()
        pairs = zip(self.metrics, shares, strict=True)
        return {"loss": loss, **{name: share * 100 for name, share in pairs if not math.isnan(share)}}

    @property
    def images_per_second(self) -> float:
        """Median over the epochs after the first."""
        ends = [0.0, *(row["seconds"] for row in self.curve)]
        seconds = np.diff(ends)
        usual = float(np.median(seconds[1:] if len(seconds) > 1 else seconds))
        return self.feed.samples_an_epoch / max(usual, 1e-3)

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs, as tensors and plain values."""
        return {
            "network": self.network.state_dict(),
            "average": None if self.average is None else self.average.network.state_dict(),
            "optimizer": self.sgd.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),  # the scale of the loss, in float16
            "steps": self.steps,
            "seconds": self.seconds,
            "figures": self._figures,
            "curve": self.curve,
            "test_accuracy": self.test_accuracy,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.network.load_state_dict(state["network"])
        if self.average is not None:
            self.average.network.load_state_dict(state["average"])
        self.sgd.optimizer.load_state_dict(state["optimizer"])
        self._captured = None  # it holds the old momentum
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.steps, self.seconds = state["steps"], state["seconds"]
        self._figures.copy_(state["figures"])
        self.curve, self.test_accuracy = list(state["curve"]), state["test_accuracy"]

    def _set(self) -> None:
        """Set the values that change from step to step."""
        self.sgd.set_rate(self.recipe.learning_rate * cosine(self.steps, self.total))

    def _taken(self, inputs: Any, targets: Any) -> Tensor:
        """Take a step; its loss and metrics."""
        leaves, form = tree_flatten((inputs, targets))
        if not self.capturing or not all(isinstance(leaf, Tensor) for leaf in leaves):
            return self._updated(inputs, targets)
        if self._captured is None:

            def step(*tensors: Tensor) -> Tensor:
                return self._updated(*tree_unflatten(tensors, form))

            changing = changing_state(self.network, self.sgd.optimizer)
            try:
                self._captured = Captured(step, leaves, changing, self.fabric.device, blind=self._blind)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # a module may look at values, which cannot be captured
                self.capturing = False
                LOG.warning("a step cannot be captured, so it takes longer: %s", str(error).splitlines()[0])
                return self._updated(inputs, targets)
        if [leaf.shape for leaf in leaves] != [place.shape for place in self._captured.places]:
            return self._updated(inputs, targets)  # the last batch of a loader may be smaller
        figures = self._captured(*leaves)
        assert figures is not None
        return figures

    def _updated(self, inputs: Any, targets: Any) -> Tensor:
        output, loss = self._loss(inputs, targets)
        self.sgd.step(loss if self.teacher is None else self._taught(inputs, output, loss))
        size = samples_in((inputs, targets))
        return torch.stack([loss.detach().float(), *(found / size for found in self._sums(output, targets, size))])

    def _loss(self, inputs: Any, targets: Any) -> tuple[Any, Tensor]:
        """Output and loss of a batch."""
        with workarounds(self.fabric.device):
            output = call(self.sgd.module, inputs)
        return output, self.loss(output, targets)

    def _taught(self, inputs: Any, output: Any, loss: Tensor) -> Tensor:
        """The loss that is minimized with a teacher."""
        assert self.teacher is not None
        with torch.no_grad(), self.fabric.autocast():
            wanted = call(self.teacher, inputs)
        return 0.5 * loss + 0.5 * self.agreement(output, wanted)

    @contextlib.contextmanager
    def _chance(self) -> Iterator[None]:
        """Within it, torch's own random numbers (dropout, dropped paths) are those of this step and process."""
        if not self.random:
            yield
            return
        device = self.fabric.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(number(self.seed, Use.DROP, self.steps, self.fabric.global_rank))
            yield

    def _over_processes(self, figures: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return figures
        found = self.fabric.all_reduce(figures, reduce_op="mean")
        assert isinstance(found, Tensor)
        return found


class Average(Generic[Net]):
    """A moving average of the weights and running statistics of a network, as a separate network."""

    def __init__(self, network: Net, decay: float):
        self.network: Net = copy.deepcopy(network)
        self.decay = decay
        self._kept, self._now = (
            [tensor for tensor in one.state_dict().values() if tensor.is_floating_point()]  # others count batches
            for one in (self.network, network)
        )

    @torch.no_grad()
    def follow(self, steps: int) -> None:
        """Move towards the network; faster in the first steps, so that the average forgets the start."""
        decay = min(self.decay, (1 + steps) / (10 + steps))
        torch._foreach_lerp_(self._kept, self._now, 1 - decay)


def fit(
    training: Loop[Any], *, folder: Folder | None = None, stop: Stop | None = None, watch: Watch | None = None
) -> None:
    """Take all steps, starting from the last checkpoint; the test images are not touched."""
    folder, stop, fabric = folder or Folder(None, {}), stop or Stop(), training.fabric
    first = fabric.global_rank == 0
    state = fabric.broadcast(folder.load())
    if state is not None:
        training.restore(state)
    looked = began = time.perf_counter()
    with fastest_kernels(fabric.device):
        while training.steps < training.total:
            with folder.keeping():
                training.step()
            over = training.steps % training.steps_an_epoch == 0
            asked = _asked(stop, fabric)
            if over or asked or time.perf_counter() - looked >= SECONDS_A_LOOK:
                with folder.keeping():
                    figures = training.look()
                looked = time.perf_counter()
                if watch is not None and first:
                    watch("train", training.steps, training.total, figures)
            if over or asked:
                training.seconds += time.perf_counter() - began
                row = training.end_epoch() if over else None
                if first:
                    if row is not None:
                        folder.log(row)
                    folder.save(training.state())
                began = time.perf_counter()
            if asked:
                raise Interrupted(asked, folder.folder)


def _asked(stop: Stop, fabric: Fabric) -> int:
    """The signal that asks to stop, the same for all processes."""
    if fabric.world_size == 1:
        return stop.signal
    most = fabric.all_reduce(torch.tensor(stop.signal, device=fabric.device), reduce_op="max")
    assert isinstance(most, Tensor)
    return int(most.item())


@contextlib.contextmanager
def fastest_kernels(device: torch.device) -> Iterator[None]:
    """Within it, cuDNN searches for its fastest kernels: worth it, since all batches have one shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
