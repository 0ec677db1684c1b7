"""Training from scratch: a network of an architecture, from first weights to its accuracy on the test images.

What a step does follows from the seed and its number, so a training that is resumed ends, on a CPU, at the same bits.
A part of the training images may be set aside for choices; the test images are read once, after the last step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.data.batches import Batches, usual_augment
from natpp.data.feeds import ImageSource
from natpp.data.images import Images
from natpp.errors import SettingError
from natpp.folder import Run, Stop
from natpp.nets.network import Network, build_network
from natpp.scorers.base import Scorer, Scores
from natpp.scorers.supernet import SMALL_IMAGE
from natpp.seeds import Use, number
from natpp.training.loop import Loop, fit
from natpp.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.run import Watch

CUTOUT = 16  # pixels, where nobody says and images are not small


def make_batches(images: Images, recipe: Recipe, device: torch.device, *, validation: int | None = 0) -> Batches:
    """Images as a recipe wants them; where it sets none aside for choices, `validation` are (None: a quarter)."""
    size = images.train.shape[2]
    cutout = recipe.cutout
    if cutout is None:
        cutout = 0 if size < SMALL_IMAGE else CUTOUT
    if cutout >= size:
        raise SettingError(
            f"the recipe blots out {cutout} x {cutout} pixels, but the images are {size} x {size}: "
            "choose another recipe (quick suits any size), or larger images"
        )
    augment = usual_augment(images, cutout=cutout)
    return Batches(images, device, validation=recipe.validation or validation, augment=augment)


def make_setting(arch: Architecture, recipe: Recipe, images: Batches) -> Setting:
    """The network that a recipe trains an architecture in."""
    network = recipe.network or ("cifar" if arch.reduce is not None else "nasbench201")
    cells, small_cells = (2, 1) if network == "nasbench201" else (8, 3)  # nasbench201 has three stages of so many
    channels, cells = (8, small_cells) if images.size < SMALL_IMAGE else (16, cells)
    return setting(
        network,
        channels=recipe.channels or channels,
        cells=recipe.cells or cells,
        classes=images.classes,
        size=images.size,
    )


class Training(Loop[Network]):
    """A network of an architecture under training."""

    advice = "lower --batch, --channels or --cells"

    def __init__(self, arch: Architecture, images: Batches, recipe: Recipe, fabric: Fabric, seed: int = 0):
        self.arch, self.images = arch, images
        self.where = make_setting(arch, recipe, images)
        self._dropped: Tensor | None = None
        source = ImageSource(images, recipe.batch, fabric, seed)
        super().__init__(_first_network(arch, self.where, recipe, seed), source, recipe, fabric, seed)
        self.source: ImageSource = source
        self.batch = source.size
        if self.capturing and recipe.drop_path:
            self._dropped = torch.zeros((), device=fabric.device)

    @property
    def drop_path(self) -> float:
        """Of the next step."""
        return self.recipe.drop_path * self.steps / self.total

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Only dropped paths are."""
        return self.drop_path > 0

    def validated(self) -> dict[str, float]:
        """The accuracy alone."""
        return {"validation_accuracy": self.validation_accuracy()} if len(self.images.validation) else {}

    def validation_accuracy(self) -> float:
        """Per cent right of the images set aside for choices."""
        return self.judge(self.source.validation())["accuracy"]

    def test(self) -> float:
        """Per cent right of the test images."""
        return self.judge(self.source.test())["accuracy"]

    def _set(self) -> None:
        """Drop-path too, in a tensor where a captured step reads it."""
        super()._set()
        if self._dropped is not None:
            self._dropped.fill_(self.drop_path)
        self.network.drop_path = self.drop_path if self._dropped is None else self._dropped

    def _loss(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the loss with that of the auxiliary head."""
        found = self.module(inputs)
        if not self.recipe.auxiliary:
            return found, self.loss(found, targets)
        logits, extra = found
        return logits, self.loss(logits, targets) + self.recipe.auxiliary * self.loss(extra, targets)


def _first_network(arch: Architecture, where: Setting, recipe: Recipe, seed: int) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(seed, Use.START, 2))
        try:
            return build_network(arch, where, auxiliary=recipe.auxiliary > 0)
        except SettingError as error:
            if not recipe.auxiliary:
                raise
            raise SettingError(f"{error} (--auxiliary 0 leaves it out)") from None


def train(training: Training, *, run: Run | None = None, stop: Stop | None = None, watch: Watch | None = None) -> float:
    """Take all steps, then measure the accuracy on the test images, once: in per cent."""
    run, fabric = run or Run(None, {}), training.fabric
    fit(training, run=run, stop=stop, watch=watch)
    if training.test_accuracy is None:
        first = fabric.global_rank == 0
        training.test_accuracy = fabric.broadcast(training.test() if first else 0.0)
        if first:
            run.log({"phase": "test", "step": training.steps, "accuracy": training.test_accuracy})
            run.save(training.state())
    return training.test_accuracy


class ScratchScorer(Scorer):
    """Accuracy in per cent on validation images after a training by a recipe: real, and dear.

    Where the recipe sets no images aside, a quarter of the training images, at most 5,000, are.
    """

    together = 1

    def __init__(self, images: Images, recipe: Recipe, fabric: Fabric, *, seed: int = 0, limit: int | None = None):
        super().__init__(limit)
        self.images = make_batches(images, recipe, fabric.device, validation=None)
        self.recipe, self.fabric, self.seed = recipe, fabric, seed

    def _score(self, archs: list[Architecture]) -> Scores:
        accuracies = [self._trained(arch) for arch in archs]
        return np.array(self.fabric.broadcast(accuracies))

    def _trained(self, arch: Architecture) -> float:
        training = Training(arch, self.images, self.recipe, self.fabric, self.seed)
        fit(training)
        return float(training.curve[-1]["validation_accuracy"])
