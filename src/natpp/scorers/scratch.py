"""Full trainings as scores: real accuracies, but expensive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from natpp.arch.graph import Architecture
from natpp.core.scores import Scores
from natpp.data.images import Images
from natpp.errors import SettingError
from natpp.scorers.base import Scorer
from natpp.training.loop import fit
from natpp.training.recipe import Recipe
from natpp.training.scratch import Training
from natpp.training.task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class ScratchScorer(Scorer):
    """Accuracy in per cent on validation images after a training by a recipe.

    Unless the recipe says how many images are set aside, a quarter of the training images are, at most 5,000.
    """

    together = 1

    def __init__(self, images: Images, recipe: Recipe, fabric: Fabric, *, seed: int = 0, limit: int | None = None):
        super().__init__(limit)
        if recipe.validation == 0:
            raise SettingError("the recipe has validation=0, but the score is the accuracy on images set aside")
        self.images = Task(images).batches(fabric.device, recipe)
        self.recipe, self.fabric, self.seed = recipe, fabric, seed

    def _score(self, archs: list[Architecture]) -> Scores:
        accuracies = [self._trained(arch) for arch in archs]
        return np.array(self.fabric.broadcast(accuracies))

    def _trained(self, arch: Architecture) -> float:
        training = Training(arch, self.images, self.recipe, self.fabric, self.seed)
        fit(training)
        return float(training.curve[-1]["validation_accuracy"])
