"""Shared weights: a supernet trained on images, and scores from it, as in the paper (Algorithm 1, lines 3 to 8).

A step draws m architectures uniformly, null included, each with its own training images, and follows the gradient of
their mean loss.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from natpp.arch.formats import to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import Space, dealt_again
from natpp.config import At, Config
from natpp.core.scores import Scores
from natpp.data.batches import Batches
from natpp.data.feeds import in_parts
from natpp.data.images import SMALL_IMAGE
from natpp.errors import NatppError, SettingError
from natpp.nets.captured import Captured, captures, changing_state
from natpp.nets.routes import Dealt
from natpp.nets.supernet import Drawn, Supernet
from natpp.scorers.base import Scorer
from natpp.seeds import Use, generator, number, torch_generator
from natpp.training.step import Sgd, cosine

if TYPE_CHECKING:
    from lightning_fabric import Fabric

IMAGES_AT_ONCE = 256  # when scoring
ARCHITECTURES_A_LOOK, IMAGES_A_LOOK = 8, 256  # behind the accuracy in the curves
SECONDS_A_LOOK = 0.5  # minimum between checks of the losses of captured steps, since each waits for the device
FEWEST_REPLAYS = 4  # batches of one shape: with fewer, capturing takes longer than it saves
GRAPHS, MOST_STEPS_A_GRAPH = 30, 100  # graphs that a captured training draws at least, and steps with one at most
SMALL = {"cifar": (8, 3), "nasbench201": (8, 1)}  # default channels and cells for small images
USUAL = {  # and for others, by network and what is trained
    ("cifar", "short"): (16, 5),
    ("cifar", "supernet"): (16, 8),
    ("cifar", "paper"): (20, 8),
    ("nasbench201", "short"): (16, 2),
    ("nasbench201", "supernet"): (16, 2),
    ("nasbench201", "paper"): (16, 5),
}


def usual_setting(
    network: str, images: Batches, trained: str, channels: int | None = None, cells: int | None = None
) -> Setting:
    """The network that a search trains by default; `trained` is short, supernet or paper.

    It is shallower than the paper's, since depth misleads short trainings, and small if the images are.
    """
    usual = SMALL[network] if images.size < SMALL_IMAGE else USUAL[network, trained]
    return setting(
        network,
        channels=usual[0] if channels is None else channels,
        cells=usual[1] if cells is None else cells,
        classes=images.classes,
        size=images.size,
    )


@dataclass(frozen=True)
class WeightsConfig(Config):
    """How shared weights are trained."""

    architectures: Annotated[int, At(least=1)] = 13
    """m: architectures per step, each with its own images"""
    batch: Annotated[int, At(least=2)] = 16
    """images for each architecture"""
    epochs: Annotated[int, At(least=1)] = 40
    """passes over all training images"""
    learning_rate: Annotated[float, At(above=0)] = 0.1
    """learning rate of SGD with momentum 0.9, falling to zero along a cosine"""
    weight_decay: Annotated[float, At(least=0)] = 3e-4
    """of SGD"""
    clip: Annotated[float, At(above=0)] = 5.0
    """maximum norm of a gradient"""
    fair: bool = True
    """deal operations out evenly: each operation of an edge is trained equally often"""


class Weights:
    """A supernet under training, on the device and in the precision of a fabric.

    On a GPU a step is one captured CUDA graph as long as its shapes stay the same.
    """

    def __init__(self, supernet: Supernet, config: WeightsConfig, fabric: Fabric):
        self.config = config
        self.fabric = fabric
        self.supernet = supernet
        graph = supernet.space.one_graph(np.random.default_rng(0))
        self.capturing = captures(fabric) and config.fair and Dealt.suits(graph, config.architectures)
        self.sgd = Sgd(
            supernet,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            clip=config.clip,
            fabric=fabric,
            captured=self.capturing,
        )
        self.steps = 0  # taken so far
        self._dealt: Dealt | None = None
        self._captured: Captured | None = None

    def step(self, archs: Sequence[Architecture], images: Tensor, labels: Tensor, done: float) -> Tensor:
        """Take a gradient step when a share `done` of the training is over; the unchecked loss of each architecture.

        Images are (batch, architectures, 3, height, width), labels (batch, architectures).
        """
        self.sgd.set_rate(self.config.learning_rate * cosine(done))
        if self.capturing:
            losses = self._replayed(archs, images, labels)
        else:
            losses = self._updated(Drawn(archs), images, labels)
        self.steps += 1
        return losses

    def check(self, archs: Sequence[Architecture], losses: Tensor) -> float:
        """The mean loss of a step; an error if one is not a number."""
        for arch, loss in zip(archs, losses.tolist(), strict=True):
            if not np.isfinite(loss):
                raise NatppError(
                    f"the loss in step {self.steps - 1} is not a number, with the architecture {to_json(arch)}. "
                    "A lower learning rate may help"
                )
        return losses.mean().item()

    def _updated(self, archs: Drawn | Dealt, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.sgd.module(images, archs)
        losses = functional.cross_entropy(logits.movedim(2, 1), labels, reduction="none").mean(dim=0)
        self.sgd.step(losses.mean())
        return losses.detach()

    def _replayed(self, archs: Sequence[Architecture], images: Tensor, labels: Tensor) -> Tensor:
        if self._dealt is None or not self._dealt.set(archs):
            self._captured = None  # freed before the next one is made: both would need memory
            self._dealt = Dealt(archs, self.supernet.where, self.fabric.device)
        if self._captured is None:
            step = functools.partial(self._updated, self._dealt)
            changing = changing_state(self.supernet, self.sgd.optimizer)
            self._captured = Captured(step, (images, labels), changing, self.fabric.device, blind=id(self))
        losses = self._captured(images, labels)
        assert losses is not None
        return losses.clone()

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs, as tensors and plain values."""
        return {
            "supernet": self.supernet.state_dict(),
            "optimizer": self.sgd.optimizer.state_dict(),
            "steps": self.steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.supernet.load_state_dict(state["supernet"])
        self.sgd.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        self._captured = None  # it holds the old momentum


class SharedWeights:
    """A supernet and the images it is trained on: m architectures per step, each on its own images."""

    def __init__(self, space: Space, where: Setting, images: Batches, config: WeightsConfig, fabric: Fabric, seed: int):
        if config.architectures % fabric.world_size:
            raise SettingError(
                f"{config.architectures} architectures per step cannot be shared evenly "
                f"by {fabric.world_size} processes"
            )
        self.space, self.images, self.config, self.fabric, self.seed = space, images, config, fabric, seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(seed, Use.START, 0))
            supernet = Supernet(space, where)
        self.weights = Weights(supernet, config, fabric)
        self.batch = min(config.batch, len(images))
        self.steps_an_epoch = max(len(images) // (config.architectures * self.batch), 1)
        self.total = config.epochs * self.steps_an_epoch
        self.steps_a_graph = min(max(self.total // GRAPHS, 1), MOST_STEPS_A_GRAPH)  # if they are captured
        self._order: tuple[int, NDArray[np.int64]] = -1, np.empty(0, dtype=np.int64)
        self._hand: tuple[int, list[Architecture]] = -1, []
        self._looked = 0.0

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self.weights.steps

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.steps // self.steps_an_epoch

    def step(self) -> float | None:
        """Train for one step, its architectures shared between processes; its mean loss, or None if not checked."""
        step, m = self.steps, self.config.architectures
        archs = self._drawn(step)
        wanted = np.arange(m * self.batch) + step % self.steps_an_epoch * m * self.batch
        chosen = self._epoch_order().take(wanted, mode="wrap")
        images, labels = self.images.take(chosen, torch_generator(self.seed, Use.AUGMENT, step))
        images, labels = images.view(self.batch, m, *images.shape[1:]), labels.view(self.batch, m)
        mine = slice(self.fabric.global_rank, None, self.fabric.world_size)
        try:
            losses = self.weights.step(archs[mine], images[:, mine], labels[:, mine], step / self.total)
        except torch.OutOfMemoryError:
            raise NatppError(
                f"out of memory on {self.fabric.device} in step {step}: lower --batch, --architectures, --channels "
                "or --cells"
            ) from None
        over = self.steps % self.steps_an_epoch == 0
        if self.weights.capturing and not over and time.perf_counter() - self._looked < SECONDS_A_LOOK:
            return None
        self._looked = time.perf_counter()
        return self.weights.check(archs[mine], losses)

    def scorer(self) -> SupernetScorer:
        """A scorer on all validation images."""
        images, labels = self.images.validation, self.images.validation_labels
        return SupernetScorer(self.weights.supernet, images, labels, self.fabric)

    def accuracy(self) -> float:
        """Mean accuracy in per cent of a few fixed architectures on some validation images."""
        archs = self.space.draw(ARCHITECTURES_A_LOOK, generator(self.seed, Use.DRAW, 2))
        images, labels = self.images.validation[:IMAGES_A_LOOK], self.images.validation_labels[:IMAGES_A_LOOK]
        return float(SupernetScorer(self.weights.supernet, images, labels, self.fabric)(archs).mean())

    def batch_scorer(self, step: int) -> SupernetScorer:
        """A scorer on the validation batch of this step; each epoch has a new order."""
        epoch, place = divmod(step, self.policy_steps_an_epoch)
        order = generator(self.seed, Use.ORDER, 1, epoch).permutation(len(self.images.validation))
        some = torch.from_numpy(order[place * self.config.batch :][: self.config.batch])
        chosen = some.to(self.images.validation.device)
        images, labels = self.images.validation[chosen], self.images.validation_labels[chosen]
        return SupernetScorer(self.weights.supernet, images, labels, self.fabric)

    @property
    def policy_steps_an_epoch(self) -> int:
        """One for each validation batch."""
        return max(len(self.images.validation) // self.config.batch, 1)

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs, as tensors and plain values."""
        return self.weights.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.weights.restore(state)

    def _drawn(self, step: int) -> list[Architecture]:
        """The architectures of a step; if steps are captured, many steps in a row use one graph."""
        m, chance = self.config.architectures, generator(self.seed, Use.DRAW, 1, step)
        if not self.weights.capturing:
            return self.space.draw(m, chance, fair=self.config.fair)
        graph = step // self.steps_a_graph
        if graph != self._hand[0]:
            once = generator(self.seed, Use.DRAW, 3, graph)
            self._hand = graph, self.space.one_graph(once).draw(m, once, fair=True)
        return dealt_again(self._hand[1], chance)

    def _epoch_order(self) -> NDArray[np.int64]:
        """The training images in the order of this epoch."""
        if self._order[0] != self.epoch:
            self._order = self.epoch, self.images.order(generator(self.seed, Use.ORDER, 0, self.epoch))
        return self._order[1]


class SupernetScorer(Scorer):
    """Accuracy in per cent on fixed validation images, without gradients.

    Batch norms use the statistics of the batch, and the cells concatenate what the architecture says. The batches have
    a fixed order and nearly the same size, so an architecture always gets the same score.
    """

    together = 16

    def __init__(self, supernet: Supernet, images: Tensor, labels: Tensor, fabric: Fabric, limit: int | None = None):
        super().__init__(limit)
        self.supernet = supernet
        self.fabric = fabric
        self.batches = list(in_parts(images, labels, IMAGES_AT_ONCE))

    @torch.no_grad()
    def _score(self, archs: list[Architecture]) -> Scores:
        """The architectures are shared between processes."""
        ranks, rank = self.fabric.world_size, self.fabric.global_rank
        right = torch.zeros(len(archs), device=self.fabric.device)
        mine = list(range(rank, len(archs), ranks))
        if mine:
            logits_of = self._forward([archs[number] for number in mine])
            for images, labels in self.batches:
                right[mine] += (logits_of(images).argmax(dim=2) == labels[:, None]).sum(dim=0)
        if ranks > 1:
            gathered = self.fabric.all_reduce(right, reduce_op="sum")
            assert isinstance(gathered, Tensor)
            right = gathered
        return np.asarray(right.double().cpu().numpy() * 100 / sum(len(labels) for _, labels in self.batches))

    def _forward(self, archs: list[Architecture]) -> Callable[[Tensor], Tensor]:
        """A function from a batch to logits, captured if the device allows it and enough batches have one shape."""
        routed = self.supernet.routed(archs, self.fabric.device)

        def logits(images: Tensor) -> Tensor:
            with self.fabric.autocast():
                found: Tensor = self.supernet(images, routed)
            return found

        first, *others = (images for images, _ in self.batches)
        alike = sum(images.shape == first.shape for images in others)
        if alike < FEWEST_REPLAYS or not captures(self.fabric):
            return logits
        captured = Captured(logits, (first,), (), self.fabric.device)

        def replayed(images: Tensor) -> Tensor:
            found = captured(images) if images.shape == first.shape else logits(images)
            assert found is not None
            return found

        return replayed
