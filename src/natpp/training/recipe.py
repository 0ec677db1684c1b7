"""How a network is trained, as values: recipes, the paper's by name, and the schedule of short trainings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from natpp.errors import SettingError, did_you_mean


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. None picks what suits the images and the architecture."""

    epochs: int
    """passes over the training data"""
    batch: int
    """images per step, over all processes"""
    learning_rate: float
    """of SGD, falling to zero along a cosine"""
    network: str | None = None
    """the network to train; None: cifar, and nasbench201 for an architecture of one cell"""
    channels: int | None = None
    """channels of the first cells"""
    cells: int | None = None
    """number of cells (nasbench201: per stage)"""
    momentum: float = 0.9
    """of SGD"""
    nesterov: bool = False
    """whether to use Nesterov momentum"""
    weight_decay: float = 3e-4
    """of SGD"""
    clip: float = 5.0
    """maximum norm of a gradient; 0: no limit"""
    drop_path: float = 0.0
    """probability of dropping an edge for an image, growing linearly from 0 to this"""
    cutout: int | None = None
    """side in pixels of the square cut out of each image; None: 16, or 0 for images under 24 pixels"""
    auxiliary: float = 0.0
    """weight of the auxiliary head's loss; 0: no head"""
    label_smoothing: float = 0.0
    """share of the target spread evenly over all classes"""
    ema: float = 0.0
    """decay of a moving average of the weights, which is then validated and kept; 0: no average"""
    validation: int = 0
    """training images set aside for validation"""

    def __post_init__(self) -> None:
        for name, least in (
            ("epochs", 1),
            ("batch", 2),
            ("channels", 1),
            ("cells", 1),
            ("cutout", 0),
            ("validation", 0),
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise SettingError(f"{name} is {value!r}, expected a whole number from {least} up")
        if not 0 < self.learning_rate < math.inf:
            raise SettingError(f"learning_rate is {self.learning_rate!r}, expected a number above 0")
        for name in ("weight_decay", "clip", "auxiliary"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingError(f"{name} is {getattr(self, name)!r}, expected a number from 0 up")
        for name in ("momentum", "drop_path", "label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)!r}, expected a number from 0 to below 1")
        if self.nesterov and not self.momentum:
            raise SettingError("nesterov needs a momentum above 0")


@dataclass(frozen=True)
class ShortConfig:
    """The schedule of short trainings, the same for all networks that are compared."""

    batch: int = 128
    """images per step, the same for all networks of a group"""
    steps: int = 800
    """gradient steps"""
    learning_rate: float = 0.03
    """of SGD with Nesterov momentum 0.9, falling to zero along a cosine"""
    warm_up: float = 0.0
    """share of the steps in which the learning rate rises linearly to its maximum"""
    weight_decay: float = 5e-4
    """of SGD"""
    clip: float | None = None
    """maximum norm of a gradient; None: no limit"""
    augment: bool = False
    """shift and mirror the images: in so short a training this only hides what larger networks can do"""
    together: int = 32
    """networks trained side by side on a GPU"""
    validation_batch: int = 500
    """validation images at a time; batch norms use the statistics of this batch"""
    fitting: float = 0.0
    """share of the training loss in the score, the rest being validation loss: what a network can fit predicts long
    trainings, which seldom overfit, while a short one without augmentation may"""

    def __post_init__(self) -> None:
        if min(self.steps, self.together) < 1:
            raise SettingError(
                f"steps is {self.steps} and together is {self.together}, expected whole numbers from 1 up"
            )
        if min(self.batch, self.validation_batch) < 2:
            raise SettingError(
                f"batch is {self.batch} and validation_batch is {self.validation_batch}, expected at least 2: "
                "batch norms need statistics"
            )
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise SettingError(
                f"the learning rate is {self.learning_rate} and the weight decay is {self.weight_decay}, expected a "
                "number above 0 and one from 0"
            )
        if not 0 <= self.warm_up < 1 or not 0 <= self.fitting <= 1:
            raise SettingError(
                f"warm_up is {self.warm_up} and fitting is {self.fitting}, expected shares: warm_up from 0 to below 1, "
                "fitting from 0 to 1"
            )


def cifar_600() -> Recipe:
    """The paper's for published cells on CIFAR: 20 cells of 36 channels for 600 epochs."""
    return Recipe(
        network="cifar",
        channels=36,
        cells=20,
        epochs=600,
        batch=96,
        learning_rate=0.025,
        drop_path=0.2,
        cutout=16,
        auxiliary=0.4,
    )


def random_600() -> Recipe:
    """The paper's for randomly sampled architectures on CIFAR: the same with batches of 128."""
    return replace(cifar_600(), batch=128)


def imagenet_250() -> Recipe:
    """The paper's for ImageNet: 14 cells of 48 channels for 250 epochs, without cutout."""
    return Recipe(
        network="imagenet",
        channels=48,
        cells=14,
        epochs=250,
        batch=128,
        learning_rate=0.1,
        weight_decay=3e-5,
        cutout=0,
        auxiliary=0.4,
        label_smoothing=0.1,
    )


def quick() -> Recipe:
    """Minutes on a GPU: 8 cells of 16 channels for 12 epochs; 3 cells of 8 for images under 24 pixels."""
    return Recipe(epochs=12, batch=128, learning_rate=0.1, nesterov=True)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "cifar-600": cifar_600,
    "random-600": random_600,
    "imagenet-250": imagenet_250,
    "quick": quick,
}


def named_recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise SettingError(f"unknown recipe {name!r}. {did_you_mean(name, RECIPES)}")
    return RECIPES[name]()
