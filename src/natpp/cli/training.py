"""Commands that train networks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import tyro

from natpp import verbs
from natpp.cli.flags import Arch, Common, NumberOrDefault, Switch, Whole, WholeOrDefault, Word
from natpp.cli.output import is_first_process, print_json, say, shown_progress


@dataclass(frozen=True)
class Train(Common):
    """Train a network of an architecture from scratch; kept in a folder, and resumed from it."""

    arch: Arch
    data: Annotated[str, tyro.conf.arg(metavar="DATA")]
    """digits, cifar10, cifar100, fashion-mnist, imagenet or a folder of images"""
    out: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """folder to keep the run in: settings, curves, checkpoints, the result, the weights"""
    root: Annotated[Word, tyro.conf.arg(metavar="DIR")] = None
    """folder that natpp data put the data into; of imagenet the one with train and val"""
    size: WholeOrDefault = None
    """pixels a side that a folder's images are cropped and scaled to (imagenet: 224)"""
    recipe: str = "quick"
    """cifar-600, random-600, imagenet-250 or quick; auto is the recipe's own, here and below"""
    epochs: WholeOrDefault = None
    """times that all training images are gone through"""
    batch: WholeOrDefault = None
    """images a step, over all processes"""
    learning_rate: NumberOrDefault = None
    """of SGD, at the start of its cosine"""
    channels: WholeOrDefault = None
    """channels of the first cells"""
    cells: WholeOrDefault = None
    """number of cells (nasbench201: a stage)"""
    auxiliary: NumberOrDefault = None
    """weight of the auxiliary head's loss; 0 leaves the head out"""
    ema: NumberOrDefault = None
    """decay of a moving average of the weights; 0 is none"""
    validation: WholeOrDefault = None
    """training images to set aside for choices: their accuracy is told after every epoch"""
    seed: Whole = 0
    """seed of everything random"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: str = "auto"
    """auto (bf16 on a GPU), 32, bf16 or 16"""
    resume: Switch = False
    """go on with the run in the folder; starts it where there is none"""
    tensorboard: Switch = False
    """write curves for TensorBoard too"""


def train(flags: Train) -> None:
    with shown_progress() as watch:
        found = verbs.train(
            flags.arch,
            flags.data,
            flags.recipe,
            flags.out,
            flags.seed,
            root=flags.root,
            size=flags.size,
            epochs=flags.epochs,
            batch=flags.batch,
            learning_rate=flags.learning_rate,
            channels=flags.channels,
            cells=flags.cells,
            auxiliary=flags.auxiliary,
            ema=flags.ema,
            validation=flags.validation,
            device=flags.device,
            precision=flags.precision,
            resume=flags.resume,
            tensorboard=flags.tensorboard,
            watch=watch,
            say=say,
        )
    if not is_first_process():
        return
    if flags.json:
        print_json({"test_accuracy": found.test_accuracy, "out": flags.out, **found.settings, "curve": found.curve})
        return
    last = found.curve[-1]
    print(f"accuracy on the training images as augmented: {last['train_accuracy']:.2f} %")
    if "validation_accuracy" in last:
        print(
            f"accuracy on the {found.settings['recipe']['validation']} validation images: "
            f"{last['validation_accuracy']:.2f} %"
        )
    print(f"accuracy on the test images: {found.test_accuracy:.2f} %")
    print(f"result: {os.path.join(flags.out, 'result.json')}")
