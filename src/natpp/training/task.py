"""A task: data, loss and metrics to train and evaluate a network with, as one value."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from natpp.data.batches import Batches, usual_augment
from natpp.data.feeds import IMAGES_AT_ONCE, EpochFeed, ImageFeed, LoaderFeed, in_parts
from natpp.data.folders import only_images
from natpp.data.images import SMALL_IMAGE, Images
from natpp.data.loader import Batch, Loaded, batches_of, checked_loader, moved_to
from natpp.data.sets import NAMES, load_images
from natpp.data.unlabelled import Unlabelled
from natpp.errors import SettingError, did_you_mean
from natpp.nets.call import call
from natpp.nets.measure import evaluating
from natpp.registry import TASKS
from natpp.training.losses import ACCURACY, Loss, Metric, check_loss, cross_entropy, softened, squared

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.training.recipe import Recipe

CUTOUT = 16  # pixels, the default for images that are not small
CALIBRATION, CALIBRATION_BATCH = 10, 128  # batches, and images in each
Say = Callable[[str], None]
MakeTask = Callable[..., "Task"]  # options as keyword arguments → a task


@dataclass(frozen=True, eq=False)
class Task:
    """Data, loss and metrics to train and evaluate a network with.

    A loader is any iterable of batches (inputs, targets) that can be passed over again, such as a `DataLoader`.

    Examples:
        >>> from natpp.training.task import Task
        >>> Task.named("digits").images.classes
        10
        >>> batches = [(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 0, 1]))]
        >>> task = Task(batches, batches)
        >>> task.name, list(task.metrics)
        ('list', ['accuracy'])
        >>> Task.inputs([torch.randn(4, 3, 8, 8)]).targets
        False
    """

    train: Images | Batches | Iterable[Any]
    """images, some of which are set aside for validation, or a loader"""
    val: Iterable[Any] | None = None
    """a loader for validation"""
    test: Iterable[Any] | None = None
    """a loader that is read once, after all choices are made; images come with a test set"""
    loss: Loss = cross_entropy
    """function or module that takes output and targets and returns one number"""
    metrics: Mapping[str, Metric] = field(default_factory=lambda: ACCURACY)
    """functions that map output and targets to a share from 0 to 1, per sample or per batch; higher is better"""
    agreement: Loss | None = None
    """distance of an output to a teacher's; None: `softened` if the loss is cross-entropy, else `squared`"""
    targets: bool = True
    """whether batches are (inputs, targets); else they are inputs alone, and training needs a teacher"""
    name: str = ""
    """for reports; by default that of the images, or the type of the loader"""

    def __post_init__(self) -> None:
        images = isinstance(self.train, Images | Batches)
        if images and not (self.val is None and self.test is None):
            raise SettingError(
                "val and test are for loaders. Some training images are set aside for validation: leave val out"
            )
        for name in ("train", "val", "test"):
            loader = getattr(self, name)
            if loader is not None and not isinstance(loader, Images | Batches):
                checked_loader(loader, name)
        if images and not self.targets:
            raise SettingError(
                "images always have labels as targets: leave out targets=False, or give a loader of inputs"
            )
        if "loss" in self.metrics:
            raise SettingError("a metric cannot be named 'loss', which is taken: choose another name")
        for name, function in {"loss": self.loss, **self.metrics, "agreement": self.agreement}.items():
            if function is not None and not callable(function):
                raise SettingError(f"{name} is {function!r}, expected a function of output and targets")
        if not self.name:
            known = self.train.name if isinstance(self.train, Images | Batches) else type(self.train).__name__
            object.__setattr__(self, "name", known)

    @staticmethod
    def inputs(batches: Iterable[Any], val: Iterable[Any] | None = None) -> Task:
        """A task of inputs without targets: enough to calibrate on, or to learn from a teacher."""
        return Task(batches, val, metrics={}, targets=False)

    @staticmethod
    def named(text: str, *, say: Say | None = None) -> Task:
        """A task by name with options, such as `cifar10:root=data`, or the images of a folder, by its path.

        `say` is called with a line about unreadable images.
        """
        name, _, rest = (text, "", "") if os.path.isdir(text) else text.partition(":")
        options: dict[str, Any] = {}
        for part in filter(None, rest.split(",")):
            key, given, value = part.partition("=")
            if not given:
                raise SettingError(f"the task {text!r} has {part!r}, expected key=value, as in {name}:root=data")
            options[key] = int(value) if value.isdecimal() else value
        make = TASKS[name] if name in TASKS else functools.partial(of_images, name)
        takes = inspect.signature(make).parameters
        known = [key for key in takes if key != "say"]
        for key in options:
            if key not in known:
                raise SettingError(f"unknown option {key!r} of the task {name}. {did_you_mean(key, known)}")
        return make(**options, **({"say": say} if "say" in takes else {}))

    @staticmethod
    def of(
        data: Any,
        val: Any = None,
        *,
        root: str | Path | None = None,
        size: int | None = None,
        loss: Loss | None = None,
        say: Say | None = None,
    ) -> Task:
        """A task from what a user gives: a task, its text, a path, images, or loaders."""
        if isinstance(data, Task):
            if not (val is None and loss is None and root is None and size is None):
                raise SettingError("a task already has data and a loss: leave out val, loss, root and size")
            return data
        changes: dict[str, Any] = {} if loss is None else {"loss": loss}
        if isinstance(data, str | Path):
            if val is not None:
                raise SettingError(f"some training images of {data} are set aside for validation: leave val out")
            if isinstance(data, str) and root is None and size is None:
                return replace(Task.named(data, say=say), **changes)
            return replace(of_images(data, root, size, say=say), **changes)
        if root is not None or size is not None:
            raise SettingError(
                "root and size can only be given with the name of a data set, not with images or a loader"
            )
        return Task(data, val, **changes)

    @property
    def images(self) -> Images:
        """The images; an error if the task has loaders."""
        if isinstance(self.train, Unlabelled):
            raise SettingError(
                f"the images of {self.name} have no classes to learn, expected {self.name}/CLASS/*.png; without them, "
                "a module can be calibrated on the images, or learn from a teacher"
            )
        if not isinstance(self.train, Images):
            raise SettingError(f"the task {self.name} has loaders, expected images: a name such as 'digits', or Images")
        return self.train

    @property
    def agrees(self) -> Loss:
        """The distance of an output to a teacher's."""
        return self.agreement or (softened if self.loss is cross_entropy else squared)

    def batches(
        self, device: torch.device | str, recipe: Recipe | None = None, *, validation: int | None = None
    ) -> Batches:
        """The images on a device, augmented as a recipe says.

        The number of training images set aside for validation is that of the recipe, or else `validation` (None: a
        quarter, at most 5,000).
        """
        if isinstance(self.train, Batches):
            return self.train
        if recipe is None:
            return Batches(self.images, device, validation=validation)
        size, cutout = self.images.train.shape[2], recipe.cutout
        if cutout is None:
            cutout = 0 if size < SMALL_IMAGE else CUTOUT
        if cutout >= size:
            raise SettingError(
                f"the recipe cuts out {cutout} x {cutout} pixels, but the images are {size} x {size}: "
                "choose another recipe (quick suits any size) or larger images"
            )
        augment = usual_augment(self.images, cutout=cutout)
        count = validation if recipe.validation is None else recipe.validation
        return Batches(self.images, device, validation=count, augment=augment)

    def feed(self, recipe: Recipe, fabric: Fabric, seed: int, *, validation: int | None = None) -> EpochFeed:
        """The batches of a training by a recipe."""
        if isinstance(self.train, Images | Batches):
            batches = self.batches(fabric.device, recipe, validation=validation)
            return ImageFeed(batches, recipe.batch, recipe.epochs, fabric, seed)
        self._need_targets()
        return LoaderFeed(self.train, self.val, fabric.device, test=self.test)

    def kept(self, device: torch.device, steps: int) -> Batches | Loaded:
        """Data for short trainings of this many steps: images on the device, or batches kept from the loaders."""
        if isinstance(self.train, Images | Batches):
            return self.batches(device)
        self._need_targets()
        if self.val is None:
            raise SettingError("train needs val: the result is chosen on data that no candidate was trained on")
        return Loaded.of(self.train, self.val, steps)

    def part(
        self,
        name: Literal["train", "val", "test"],
        device: torch.device | str = "cpu",
        *,
        validation: int | None = None,
    ) -> Iterator[Batch]:
        """The batches of a part, in order and not augmented; empty if the task has no such part."""
        if isinstance(self.train, Images | Batches):
            batches = self.batches(device, validation=validation)
            if name == "train":
                starts = range(0, len(batches), IMAGES_AT_ONCE)
                return (batches.take(np.arange(len(batches))[start : start + IMAGES_AT_ONCE]) for start in starts)
            if name == "val":
                return in_parts(batches.validation, batches.validation_labels, IMAGES_AT_ONCE)
            return batches.test_batches(IMAGES_AT_ONCE)
        self._need_targets()
        loader = getattr(self, name)
        return iter(()) if loader is None else (moved_to(one, torch.device(device)) for one in batches_of(loader, name))

    def calibration(self, device: torch.device, count: int = CALIBRATION) -> Iterator[Any]:
        """The inputs of a few training batches, on a device."""
        if isinstance(self.train, Images | Batches):
            yield from inputs_of(self.batches(device), device, count)
        elif self.targets:
            yield from (moved_to(inputs, device) for inputs, _ in islice(batches_of(self.train, "train"), count))
        else:
            yield from (moved_to(_arguments(batch), device) for batch in islice(self.train, count))

    def check(self, module: nn.Module, batch: Batch) -> None:
        """Try a module and the loss on a batch; raise an error that explains what does not fit."""
        check_loss(module, *batch, self.loss)

    def taught_by(self, teacher: nn.Module) -> Task:
        """The same inputs, with the outputs of a teacher in place of targets."""
        if isinstance(self.train, Images | Batches):
            raise SettingError("images have labels to learn from: give the teacher to the training instead")

        def taught(loader: Any) -> Any:
            return None if loader is None else _Taught(loader, teacher, self.targets)

        parts = taught(self.train), taught(self.val), taught(self.test)
        return Task(*parts, loss=self.agrees, metrics={}, name=self.name)

    def _need_targets(self) -> None:
        if not self.targets:
            raise SettingError(f"the batches of the task {self.name} have no targets: give a teacher to learn from")


@dataclass(frozen=True, eq=False)
class _Taught:
    """Batches of a loader with a teacher's outputs in place of targets."""

    loader: Iterable[Any]
    teacher: nn.Module
    targets: bool  # whether the batches of the loader have any

    def __iter__(self) -> Iterator[Batch]:
        tensors = (*self.teacher.parameters(), *self.teacher.buffers())
        device = tensors[0].device if tensors else torch.device("cpu")
        for batch in self.loader:
            inputs = moved_to(_arguments(batch[0] if self.targets else batch), device)
            with evaluating(self.teacher), torch.no_grad():
                wanted = call(self.teacher, inputs)
            yield inputs, wanted


def _arguments(inputs: Any) -> Any:
    """Several inputs as a tuple, which a module takes as arguments."""
    return tuple(inputs) if isinstance(inputs, list) else inputs


def inputs_of(data: Batches | Loaded, device: torch.device, count: int = CALIBRATION) -> Iterator[Any]:
    """A few batches of training inputs, on a device, for example to recompute batch norm statistics."""
    if isinstance(data, Batches):  # if many are asked for: every image at most once
        count = min(count, max(CALIBRATION, -(-len(data) // CALIBRATION_BATCH)))
    for place in range(count):
        if isinstance(data, Batches):
            yield data.take(np.arange(place * CALIBRATION_BATCH, (place + 1) * CALIBRATION_BATCH) % len(data))[0]
        elif place < len(data.train):
            yield moved_to(data.train[place][0], device)


def of_images(
    name: str | Path,
    root: str | Path | None = None,
    size: int | None = None,
    normalize: str | None = None,
    *,
    say: Say | None = None,
) -> Task:
    """Classification of a data set by its name, or of the images in a folder by its path.

    A folder without classes gives a task of inputs; only there `normalize` may be given: own, imagenet or none.
    """
    called = name.name if isinstance(name, Path) else name
    if name not in NAMES and root is None and only_images(name):
        return Task(Unlabelled(name, size, normalize or "own", say=say), metrics={}, targets=False, name=called)
    if normalize is not None:
        raise SettingError("normalize can only be given with a folder of images without classes: leave it out")
    return Task(load_images(name, root, size, say=say), name=called)


for _name in NAMES:
    TASKS.add(_name, functools.partial(of_images, _name))
