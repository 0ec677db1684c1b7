"""The loop of a training: SGD with momentum along a cosine, step by step, with curves, checkpoints and an average.

It knows a network, where its batches come from and what it is trained for, and nothing of architectures. What a step
does follows from the seed and its number. On a GPU a step is one captured CUDA graph.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from natpp.data.feeds import Source
from natpp.data.loader import Batch, samples_in
from natpp.errors import NatppError
from natpp.folder import Interrupted, Run, Stop
from natpp.nets.call import call
from natpp.nets.captured import Captured, captures, changing_state
from natpp.nets.network import Network
from natpp.nets.workarounds import workarounds
from natpp.seeds import Use, number
from natpp.training.losses import Loss, classification, distance, right
from natpp.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.run import Watch

LOG = logging.getLogger("natpp")
SECONDS_A_LOOK = 0.5  # at least, between two looks at losses: each waits for the device
Net = TypeVar("Net", bound=nn.Module)


class Loop(Generic[Net]):
    """A network under training, on the device and in the precision of a fabric."""

    advice = "lower the batch"  # where memory runs out
    random = True  # whether a forward may draw random numbers

    def __init__(
        self,
        network: Net,
        source: Source,
        recipe: Recipe,
        fabric: Fabric,
        seed: int = 0,
        *,
        loss: Loss | None = None,
        teacher: nn.Module | None = None,
        lesson: float = 0.5,
    ):
        """Without a loss it is cross-entropy, smoothed as the recipe says.

        Where there is a teacher (it is moved to the device, and asked in eval mode), the distance to its outputs has
        the share `lesson` of what is minimized; losses that are told are those of the targets alone.
        """
        self.source, self.recipe, self.fabric, self.seed = source, recipe, fabric, seed
        self.loss = loss or classification(recipe.label_smoothing)
        self.format = fast_format(fabric.device)
        self.network: Net = network.to(fabric.device).to(memory_format=self.format)  # type: ignore[call-overload]
        self.teacher, self.lesson = teacher, lesson
        if teacher is not None:
            teacher.to(fabric.device).to(memory_format=self.format).eval()  # type: ignore[call-overload]
        self.average = Average(self.network, recipe.ema) if recipe.ema else None
        self.capturing = captures(fabric)
        self._rate = torch.tensor(recipe.learning_rate, device=fabric.device) if self.capturing else None
        optimizer = torch.optim.SGD(
            [parameter for parameter in self.network.parameters() if parameter.requires_grad],
            lr=recipe.learning_rate if self._rate is None else self._rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
            fused=self.capturing,
        )
        self.module, self.optimizer = fabric.setup(self.network, optimizer)
        self._captured: Captured | None = None
        ours = isinstance(network, Network) and loss is None and teacher is None
        self._blind = id(self) if ours else None  # whether all that a step does bears numbers that mean nothing
        self.steps_an_epoch = source.steps_an_epoch
        self.total = recipe.epochs * self.steps_an_epoch
        self.steps = 0  # taken so far
        self.seconds = 0.0  # that they took
        self.curve: list[dict[str, Any]] = []  # a row for each epoch
        self.test_accuracy: float | None = None  # per cent, once it was measured
        self._figures = torch.zeros(self.steps_an_epoch, 2, device=fabric.device)  # of this epoch: losses, share right

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.steps // self.steps_an_epoch

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self.recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * self.steps / self.total))

    @property
    def judged(self) -> Net:
        """The network whose accuracy counts: with the average of the weights where there is one."""
        return self.network if self.average is None else self.average.network

    def step(self) -> None:
        """Train for one step. Processes share the batch; its figures stay on the device until `look`."""
        inputs, targets = self.source.batch(self.steps, self.total)
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
        """The loss of the last step; an error where a loss or a weight is not a number."""
        start = (self.steps - 1) // self.steps_an_epoch * self.steps_an_epoch
        losses = self._figures[: self.steps - start, 0].cpu()
        wrong = (~losses.isfinite()).nonzero()
        sizes = torch.stack(torch._foreach_norm(list(self.network.parameters())))
        if len(wrong) or not sizes.isfinite().all():
            what = (
                f"the loss in step {start + int(wrong[0])}" if len(wrong) else f"a weight after step {self.steps - 1}"
            )
            raise NatppError(f"{what} is not a number: a lower learning rate or precision 32 may help")
        return {"loss": losses[-1].item()}

    def end_epoch(self) -> dict[str, Any]:
        """The row of the curves for the epoch that has just ended; what was set aside for choices is judged."""
        loss, share = self._over_processes(self._figures.double().mean(dim=0)).tolist()
        row = {
            "phase": "train",
            "epoch": self.epoch,
            "step": self.steps,
            "loss": loss,
            **({} if math.isnan(share) else {"train_accuracy": share * 100}),
            **self.validated(),
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "seconds": round(self.seconds, 3),
        }
        self.curve.append(row)
        return row

    def validated(self) -> dict[str, float]:
        """Loss and accuracy in per cent on what was set aside for choices; nothing where nothing was."""
        return {f"validation_{name}": value for name, value in self.judge(self.source.validation()).items()}

    @torch.no_grad()
    def judge(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Loss and, of what classifies, per cent right, by the running statistics of batch norms."""
        network = self.judged.eval()
        count, found = 0, torch.zeros(2, device=self.fabric.device)
        for inputs, targets in batches:
            with self.fabric.autocast():
                output = call(network, inputs)
            size = samples_in((inputs, targets))
            found += torch.stack([self.loss(output, targets).float() * size, right(output, targets)])
            count += size
        if not count:
            return {}
        loss, share = (found.double() / count).tolist()
        return {"loss": loss, **({} if math.isnan(share) else {"accuracy": share * 100})}

    @property
    def images_per_second(self) -> float:
        """Median over the epochs after the first."""
        ends = [0.0, *(row["seconds"] for row in self.curve)]
        seconds = np.diff(ends)
        usual = float(np.median(seconds[1:] if len(seconds) > 1 else seconds))
        return self.source.samples_an_epoch / max(usual, 1e-3)

    def state(self) -> dict[str, Any]:
        """All there is to know of it, as tensors and plain values."""
        return {
            "network": self.network.state_dict(),
            "average": None if self.average is None else self.average.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),  # the scale of the loss, with 16 bits
            "steps": self.steps,
            "seconds": self.seconds,
            "figures": self._figures,
            "curve": self.curve,
            "test_accuracy": self.test_accuracy,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.network.load_state_dict(state["network"])
        if self.average is not None:
            self.average.network.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._captured = None  # it knows the momentum of before
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.steps, self.seconds = state["steps"], state["seconds"]
        self._figures.copy_(state["figures"])
        self.curve, self.test_accuracy = list(state["curve"]), state["test_accuracy"]

    def _set(self) -> None:
        """Learning rate of the next step, in a tensor where a captured step reads it."""
        if self._rate is not None:
            self._rate.fill_(self.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate if self._rate is None else self._rate

    def _taken(self, inputs: Any, targets: Any) -> Tensor:
        """Take a step: its loss, and the share that is right."""
        leaves, form = tree_flatten((inputs, targets))
        if not self.capturing or not all(isinstance(leaf, Tensor) for leaf in leaves):
            return self._updated(inputs, targets)
        if self._captured is None:

            def step(*tensors: Tensor) -> Tensor:
                return self._updated(*tree_unflatten(tensors, form))

            changing = changing_state(self.network, self.optimizer)
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
        self.optimizer.zero_grad()
        self.fabric.backward(loss if self.teacher is None else self._taught(inputs, output, loss))
        if self.recipe.clip:  # what is not finite shows at the next look; asking here would wait for the device
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=self.recipe.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return torch.stack([loss.detach().float(), right(output, targets) / samples_in((inputs, targets))])

    def _loss(self, inputs: Any, targets: Any) -> tuple[Any, Tensor]:
        """Output and loss of a batch."""
        with workarounds(self.fabric.device):
            output = call(self.module, inputs)
        return output, self.loss(output, targets)

    def _taught(self, inputs: Any, output: Any, loss: Tensor) -> Tensor:
        """What is minimized beside a teacher."""
        assert self.teacher is not None
        with torch.no_grad(), self.fabric.autocast():
            wanted = call(self.teacher, inputs)
        return (1 - self.lesson) * loss + self.lesson * distance(output, wanted)

    @contextlib.contextmanager
    def _chance(self) -> Iterator[None]:
        """While it lasts, torch's own random numbers, which drop things, are those of this step and process."""
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


def fast_format(device: torch.device) -> torch.memory_format:
    """Channels-last on a GPU."""
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


class Average(Generic[Net]):
    """A moving average of the weights and running statistics of a network, as a network of its own."""

    def __init__(self, network: Net, decay: float):
        self.network: Net = copy.deepcopy(network)
        self.decay = decay
        self._kept, self._now = (
            [tensor for tensor in one.state_dict().values() if tensor.is_floating_point()]  # else a count of batches
            for one in (self.network, network)
        )

    @torch.no_grad()
    def follow(self, steps: int) -> None:
        """Move towards the network after so many steps: faster at first, else the average would remember the start."""
        decay = min(self.decay, (1 + steps) / (10 + steps))
        torch._foreach_lerp_(self._kept, self._now, 1 - decay)


def fit(training: Loop[Any], *, run: Run | None = None, stop: Stop | None = None, watch: Watch | None = None) -> None:
    """Take all steps, from the last checkpoint on; the test images are not touched."""
    run, stop, fabric = run or Run(None, {}), stop or Stop(), training.fabric
    first = fabric.global_rank == 0
    state = fabric.broadcast(run.load())
    if state is not None:
        training.restore(state)
    looked = began = time.perf_counter()
    with fastest_kernels(fabric.device):
        while training.steps < training.total:
            with run.keeping():
                training.step()
            over = training.steps % training.steps_an_epoch == 0
            asked = _asked(stop, fabric)
            if over or asked or time.perf_counter() - looked >= SECONDS_A_LOOK:
                with run.keeping():
                    figures = training.look()
                looked = time.perf_counter()
                if watch is not None and first:
                    watch("train", training.steps, training.total, figures)
            if over or asked:
                training.seconds += time.perf_counter() - began
                row = training.end_epoch() if over else None
                if first:
                    if row is not None:
                        run.log(row)
                    run.save(training.state())
                began = time.perf_counter()
            if asked:
                raise Interrupted(asked, run.folder)


def _asked(stop: Stop, fabric: Fabric) -> int:
    """The signal that asks to end, the same for all processes."""
    if fabric.world_size == 1:
        return stop.signal
    most = fabric.all_reduce(torch.tensor(stop.signal, device=fabric.device), reduce_op="max")
    assert isinstance(most, Tensor)
    return int(most.item())


@contextlib.contextmanager
def fastest_kernels(device: torch.device) -> Iterator[None]:
    """While it lasts, cuDNN looks for its fastest kernels: worth it, since all batches have one shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
