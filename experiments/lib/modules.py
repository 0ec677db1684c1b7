"""What experiments with plain modules share: trainings, fresh weights, and a policy without preferences."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from natpp.data.batches import Augment, Batches
from natpp.data.feeds import ImageFeed
from natpp.data.sets import load_images
from natpp.nets.measure import module_cost
from natpp.nets.policy import Policy
from natpp.policies import load_named
from natpp.seeds import Use, number
from natpp.training.loop import Loop, fit
from natpp.training.recipe import Recipe
from natpp.zoo.networks.weights import draw_weights


def images_of(data: str, root: str | None, device: torch.device, validation: int) -> Batches:
    """Images, shifted by up to an eighth of their side and mirrored unless they are digits."""
    images = load_images(data, root)
    augment = Augment(shift=images.train.shape[2] // 8, flip=data != "digits")
    return Batches(images, device, validation=validation, augment=augment)


def trained(
    module: nn.Module, images: Batches, recipe: Recipe, fabric: Fabric, seed: int, *, teacher: nn.Module | None = None
) -> dict[str, Any]:
    """Train a module in place; the result has its test accuracy, read once at the end."""
    feed = ImageFeed(images, recipe.batch, recipe.epochs, fabric, seed)
    example: Tensor = torch.zeros(1, 3, images.size, images.size, device=fabric.device)
    cost = module_cost(module.to(fabric.device).eval(), example)
    loop = Loop(module, feed, recipe, fabric, seed, teacher=teacher)
    start = time.perf_counter()
    fit(loop)
    return {
        "test_accuracy": loop.judge(feed.test())["accuracy"],
        "curve": loop.curve,
        "seconds": time.perf_counter() - start,
        "images_per_second": loop.images_per_second,
        "recipe": asdict(recipe),
        "cost": cost.to_dict(),
    }


def fresh(module: nn.Module, seed: int) -> nn.Module:
    """The module with new weights from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number(seed, Use.START, 2))
        return redrawn(module)


def redrawn(module: nn.Module) -> nn.Module:
    """The module with new weights, drawn as in the zoo."""
    draw_weights(module)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.reset_parameters()
    return module


def no_opinion() -> Policy:
    """A policy that gives all allowed operations the same probability."""
    policy = Policy(ops=load_named().ops)
    for parameter in policy.parameters():
        parameter.data.zero_()
    return policy.eval()
