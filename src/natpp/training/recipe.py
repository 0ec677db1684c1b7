"""How a network is trained, as values: recipes, the paper's by name, and the schedule of short trainings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from natpp.config import Among, At, Config
from natpp.errors import SettingError
from natpp.registry import NETWORKS, RECIPES


@dataclass(frozen=True)
class Recipe(Config):
    """How a network is trained. None picks what suits the images and the architecture.

    Examples:
        >>> from natpp.registry import RECIPES
        >>> RECIPES.given("cifar-600:batch=64").to_text(since=RECIPES["cifar-600"])
        'batch=64'
    """

    epochs: Annotated[int, At(least=1)]
    """passes over the training data"""
    batch: Annotated[int, At(least=2)]
    """images per step, over all processes"""
    learning_rate: Annotated[float, At(above=0)]
    """learning rate of SGD, falling to zero along a cosine"""
    network: Annotated[str, Among(NETWORKS)] | None = None
    """the network to train; None: cifar, and nasbench201 for an architecture of one cell"""
    channels: Annotated[int | None, At(least=1)] = None
    """channels of the first cells"""
    cells: Annotated[int | None, At(least=1)] = None
    """number of cells (nasbench201: per stage)"""
    momentum: Annotated[float, At(least=0, below=1)] = 0.9
    """of SGD"""
    nesterov: bool = False
    """whether to use Nesterov momentum"""
    weight_decay: Annotated[float, At(least=0)] = 3e-4
    """of SGD"""
    clip: Annotated[float, At(least=0)] = 5.0
    """maximum norm of a gradient; 0: no limit"""
    drop_path: Annotated[float, At(least=0, below=1)] = 0.0
    """probability of dropping an edge for an image, growing linearly from 0 to this"""
    cutout: Annotated[int | None, At(least=0)] = None
    """side in pixels of the square cut out of each image; None: 16, or 0 for images under 24 pixels"""
    auxiliary: Annotated[float, At(least=0)] = 0.0
    """weight of the auxiliary head's loss; 0: no head"""
    label_smoothing: Annotated[float, At(least=0, below=1)] = 0.0
    """share of the target spread evenly over all classes"""
    ema: Annotated[float, At(least=0, below=1)] = 0.0
    """decay of a moving average of the weights, which is then validated and kept; 0: no average"""
    validation: Annotated[int | None, At(least=0)] = None
    """training images set aside for validation; None: for fine-tuning a quarter, at most 5,000; from scratch none"""

    def check(self) -> None:
        if self.nesterov and not self.momentum:
            raise SettingError("nesterov needs a momentum above 0")


@dataclass(frozen=True)
class ShortConfig(Config):
    """The schedule of short trainings, the same for all networks that are compared."""

    batch: Annotated[int, At(least=2)] = 128
    """images per step, the same for all networks of a group"""
    steps: Annotated[int, At(least=1)] = 800
    """gradient steps"""
    learning_rate: Annotated[float, At(above=0)] = 0.03
    """learning rate of SGD with Nesterov momentum 0.9, falling to zero along a cosine"""
    warm_up: Annotated[float, At(least=0, below=1)] = 0.0
    """share of the steps in which the learning rate rises linearly to its maximum"""
    weight_decay: Annotated[float, At(least=0)] = 5e-4
    """of SGD"""
    clip: Annotated[float | None, At(above=0)] = None
    """maximum norm of a gradient; None: no limit"""
    augment: bool = False
    """shift and mirror the images: in so short a training this only hides what larger networks can do"""
    together: Annotated[int, At(least=1)] = 32
    """networks trained side by side on a GPU"""
    validation_batch: Annotated[int, At(least=2)] = 500
    """validation images at a time; batch norms use the statistics of this batch"""
    fitting: Annotated[float, At(least=0, most=1)] = 0.0
    """share of the training loss in the score, the rest being validation loss: what a network can fit predicts long
    trainings, which seldom overfit, while a short one without augmentation may"""


CELLS = Recipe(network="cifar", channels=36, cells=20, epochs=600, batch=96, learning_rate=0.025, auxiliary=0.4)

# Published cells on CIFAR: 20 cells of 36 channels for 600 epochs.
RECIPES.add("cifar-600", replace(CELLS, drop_path=0.2, cutout=16))

# Randomly sampled architectures on CIFAR: the same with batches of 128.
RECIPES.add("random-600", replace(RECIPES["cifar-600"], batch=128))

# ImageNet: 14 cells of 48 channels for 250 epochs, without cutout.
IMAGENET = replace(CELLS, network="imagenet", channels=48, cells=14, epochs=250, batch=128, learning_rate=0.1)
RECIPES.add("imagenet-250", replace(IMAGENET, weight_decay=3e-5, cutout=0, label_smoothing=0.1))

# Minutes on a GPU: 8 cells of 16 channels for 12 epochs; 3 cells of 8 for images under 24 pixels.
RECIPES.add("quick", Recipe(epochs=12, batch=128, learning_rate=0.1, nesterov=True))

# Fine-tuning, for a module that was made smaller.
RECIPES.add("tune", Recipe(epochs=10, batch=128, learning_rate=0.02, nesterov=True, weight_decay=5e-4, cutout=0))
