"""Shared weights: a supernet trained on images, and scores from it. This is the paper's way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import Space, dealt_again
from natpp.errors import NatppError, SettingError
from natpp.methods.learning import Weights, WeightsConfig
from natpp.nets.captured import Captured, captures
from natpp.nets.supernet import Supernet
from natpp.scorers.base import Scorer, Scores
from natpp.seeds import Use, generator, number, torch_generator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

IMAGES_AT_ONCE = 256  # when scoring
ARCHITECTURES_A_LOOK, IMAGES_A_LOOK = 8, 256  # of the accuracy in the curves
SECONDS_A_LOOK = 0.5  # at least, between two looks at the losses of captured steps: each waits for the device
FEWEST_REPLAYS = 4  # of a batch's scores, below which capturing takes longer than it saves
GRAPHS, MOST_STEPS_A_GRAPH = 30, 100  # captured steps have one graph after another: so many at least, each so long
SMALL_IMAGE = 24  # pixels a side
SMALL = {"cifar": (8, 3), "nasbench201": (8, 1)}  # channels and cells, for small images
USUAL = {
    ("cifar", "short"): (16, 5),
    ("cifar", "supernet"): (16, 8),
    ("cifar", "paper"): (20, 8),
    ("nasbench201", "short"): (16, 2),
    ("nasbench201", "supernet"): (16, 2),
    ("nasbench201", "paper"): (16, 5),
}


class ImageSource(Protocol):
    """Images in two parts, to learn weights from and to choose by, as `natpp.data.batches` has them."""

    classes: int
    size: int
    validation: Tensor
    validation_labels: Tensor

    def __len__(self) -> int: ...
    def order(self, generator: np.random.Generator) -> NDArray[np.int64]: ...
    def take(self, indices: NDArray[np.int64], generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]: ...


def usual_setting(
    network: str, images: ImageSource, trained: str, channels: int | None = None, cells: int | None = None
) -> Setting:
    """The network that is trained in a search, where nobody says: `trained` is short, supernet or paper.

    It is shallower than the paper's, since depth is what misleads a short training; small images get a small one.
    """
    usual = SMALL[network] if images.size < SMALL_IMAGE else USUAL[network, trained]
    return setting(
        network,
        channels=usual[0] if channels is None else channels,
        cells=usual[1] if cells is None else cells,
        classes=images.classes,
        size=images.size,
    )


class SharedWeights:
    """A supernet and the images it is trained on: m architectures a step, each on images of its own."""

    def __init__(
        self, space: Space, where: Setting, images: ImageSource, config: WeightsConfig, fabric: Fabric, seed: int
    ):
        if config.architectures % fabric.world_size:
            raise SettingError(
                f"{config.architectures} architectures a step cannot be shared evenly by {fabric.world_size} processes"
            )
        self.space, self.images, self.config, self.fabric, self.seed = space, images, config, fabric, seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(seed, Use.START, 0))
            supernet = Supernet(space, where)
        self.weights = Weights(supernet, config, fabric)
        self.batch = min(config.batch, len(images))
        self.steps_an_epoch = max(len(images) // (config.architectures * self.batch), 1)
        self.total = config.epochs * self.steps_an_epoch
        self.steps_a_graph = min(max(self.total // GRAPHS, 1), MOST_STEPS_A_GRAPH)  # of those that are captured
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
        """Train for one step; its mean loss, where it was looked at. Processes share the architectures."""
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
        """Scores by all validation images."""
        images, labels = self.images.validation, self.images.validation_labels
        return SupernetScorer(self.weights.supernet, images, labels, self.fabric)

    def accuracy(self) -> float:
        """Mean accuracy in per cent of a few architectures, always the same, on some validation images."""
        archs = self.space.draw(ARCHITECTURES_A_LOOK, generator(self.seed, Use.DRAW, 2))
        images, labels = self.images.validation[:IMAGES_A_LOOK], self.images.validation_labels[:IMAGES_A_LOOK]
        return float(SupernetScorer(self.weights.supernet, images, labels, self.fabric)(archs).mean())

    def batch_scorer(self, step: int) -> SupernetScorer:
        """Scores by one batch of validation images: the one of this step, in an order that is new every epoch."""
        epoch, place = divmod(step, self.policy_steps_an_epoch)
        order = generator(self.seed, Use.ORDER, 1, epoch).permutation(len(self.images.validation))
        some = torch.from_numpy(order[place * self.config.batch :][: self.config.batch])
        chosen = some.to(self.images.validation.device)
        images, labels = self.images.validation[chosen], self.images.validation_labels[chosen]
        return SupernetScorer(self.weights.supernet, images, labels, self.fabric)

    @property
    def policy_steps_an_epoch(self) -> int:
        """One for every batch of validation images."""
        return max(len(self.images.validation) // self.config.batch, 1)

    def state(self) -> dict[str, Any]:
        """All there is to know of it, as tensors and plain values."""
        return self.weights.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights.restore(state)

    def _drawn(self, step: int) -> list[Architecture]:
        """The architectures of a step; where steps are captured, those of many steps have one graph."""
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

    Batch norms use the statistics of the batch, and the cells concatenate what the architecture says. The
    images come in batches of one order and (nearly) one size, so an architecture always gets the same score.
    """

    together = 16

    def __init__(self, supernet: Supernet, images: Tensor, labels: Tensor, fabric: Fabric, limit: int | None = None):
        super().__init__(limit)
        self.supernet = supernet
        self.fabric = fabric
        parts = -(-len(images) // IMAGES_AT_ONCE)
        self.batches = list(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True))

    @torch.no_grad()
    def _score(self, archs: list[Architecture]) -> Scores:
        """Processes share the architectures."""
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
        """What gives logits for a batch; where many have one shape and the device allows, a captured graph."""
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
