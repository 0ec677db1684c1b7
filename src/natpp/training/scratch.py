"""Train an architecture from scratch, from random weights to its accuracy on the test images.

Some training images may be set aside for validation; the test images are read once, after the last step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.data.batches import Batches
from natpp.data.feeds import ImageFeed
from natpp.data.images import SMALL_IMAGE
from natpp.errors import SettingError
from natpp.folder import Folder, Stop
from natpp.nets.network import Network, build_network
from natpp.seeds import Use, number
from natpp.training.loop import Loop, fit
from natpp.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.run import Watch


def make_setting(arch: Architecture, recipe: Recipe, images: Batches) -> Setting:
    """The network around an architecture that a recipe trains."""
    network = recipe.network or ("cifar" if arch.reduce is not None else "nasbench201")
    cells, small_cells = (2, 1) if network == "nasbench201" else (8, 3)  # nasbench201 has three stages of this many
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
        feed = ImageFeed(images, recipe.batch, recipe.epochs, fabric, seed)
        super().__init__(_first_network(arch, self.where, recipe, seed), feed, recipe, fabric, seed)
        self.feed: ImageFeed = feed
        if self.capturing and recipe.drop_path:
            self._dropped = torch.zeros((), device=fabric.device)

    @property
    def drop_path(self) -> float:
        """The drop-path probability of the next step."""
        return self.recipe.drop_path * self.steps / self.total

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether paths are dropped: nothing else is random."""
        return self.drop_path > 0

    def validated(self) -> dict[str, float]:
        """The accuracy on the validation images, without the loss."""
        found = self.judge(self.feed.validation())
        return {"validation_accuracy": found["accuracy"]} if found else {}

    def _set(self) -> None:
        """The drop-path probability too, in a tensor if a captured step reads it."""
        super()._set()
        if self._dropped is not None:
            self._dropped.fill_(self.drop_path)
        self.network.drop_path = self.drop_path if self._dropped is None else self._dropped

    def _loss(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the loss including that of the auxiliary head."""
        found = self.sgd.module(inputs)
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


def train(
    training: Training, *, folder: Folder | None = None, stop: Stop | None = None, watch: Watch | None = None
) -> float:
    """Take all steps, then measure the accuracy on the test images, once: in per cent."""
    folder, fabric = folder or Folder(None, {}), training.fabric
    fit(training, folder=folder, stop=stop, watch=watch)
    if training.test_accuracy is None:
        first = fabric.global_rank == 0
        training.test_accuracy = fabric.broadcast(training.judge(training.feed.test())["accuracy"] if first else 0.0)
        if first:
            folder.log({"phase": "test", "step": training.steps, "accuracy": training.test_accuracy})
            folder.save(training.state())
    return training.test_accuracy
