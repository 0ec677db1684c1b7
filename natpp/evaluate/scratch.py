"""Training from scratch: a network of an architecture, from first weights to its accuracy on the test images.

One loop of SGD with momentum along a cosine. What a step does follows from the seed and its number, so a training
that is resumed ends, on a CPU, at the same bits. A part of the training images may be set aside for choices; the test
images are read once, after the last step. The settings of the paper are recipes with names.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from natpp.arch.graph import Architecture
from natpp.arch.layout import Setting, setting
from natpp.data.batches import Batches, usual_augment
from natpp.data.images import Images
from natpp.errors import NatppError, SettingError, did_you_mean
from natpp.improve.checkpoint import Interrupted, Run, Stop
from natpp.improve.scorer import Scorer, Scores
from natpp.improve.seeds import Use, generator, number, torch_generator
from natpp.improve.shared import SMALL_IMAGE
from natpp.nets.captured import Captured, captures, changing_state
from natpp.nets.network import Network, build_network

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from natpp.improve.run import Watch

IMAGES_AT_ONCE = 256  # when judging
SECONDS_A_LOOK = 0.5  # at least, between two looks at losses: each waits for the device
CUTOUT = 16  # pixels, where nobody says and images are not small


@dataclass(frozen=True)
class Recipe:
    """How a network is trained. None stands for what suits the images and the architecture."""

    epochs: int
    """times that all training images are gone through"""
    batch: int
    """images a step, over all processes"""
    learning_rate: float
    """of SGD, falling to zero along a cosine, step by step"""
    network: str | None = None
    """the network to train; None: cifar, and nasbench201 for an architecture of one cell"""
    channels: int | None = None
    """channels of the first cells"""
    cells: int | None = None
    """number of cells (nasbench201: a stage)"""
    momentum: float = 0.9
    """of SGD"""
    nesterov: bool = False
    """whether the momentum is Nesterov's"""
    weight_decay: float = 3e-4
    """of SGD"""
    clip: float = 5.0
    """largest norm of a gradient; 0 is no limit"""
    drop_path: float = 0.0
    """probability of dropping an edge for an image that is reached at the end, growing linearly from 0"""
    cutout: int | None = None
    """side in pixels of the square that is blotted out of each image; None: 16, and 0 for images under 24 pixels"""
    auxiliary: float = 0.0
    """weight of the auxiliary head's loss; 0 leaves the head out"""
    label_smoothing: float = 0.0
    """share of the target that all classes have in common"""
    ema: float = 0.0
    """decay of a moving average of the weights, which is what is judged and kept then; 0 is none"""
    validation: int = 0
    """training images that are set aside for choices"""

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
            raise SettingError("Nesterov's momentum needs a momentum above 0")


def cifar_600() -> Recipe:
    """Published cells on CIFAR: 20 cells of 36 channels for 600 epochs."""
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
    """Randomly sampled architectures on CIFAR: the same with batches of 128."""
    return replace(cifar_600(), batch=128)


def imagenet_250() -> Recipe:
    """ImageNet: 14 cells of 48 channels for 250 epochs, without cutout."""
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


class Training:
    """A network under training, on the device and in the precision of a fabric."""

    def __init__(self, arch: Architecture, images: Batches, recipe: Recipe, fabric: Fabric, seed: int = 0):
        if recipe.batch % fabric.world_size:
            raise SettingError(f"a batch of {recipe.batch} cannot be shared evenly by {fabric.world_size} processes")
        self.arch, self.images, self.recipe, self.fabric, self.seed = arch, images, recipe, fabric, seed
        self.where = make_setting(arch, recipe, images)
        self.format = torch.channels_last if fabric.device.type == "cuda" else torch.contiguous_format
        self.network = self._first_network().to(fabric.device).to(memory_format=self.format)  # type: ignore[call-overload]
        self.average = Average(self.network, recipe.ema) if recipe.ema else None
        self.capturing = captures(fabric)
        self._rate = torch.tensor(recipe.learning_rate, device=fabric.device) if self.capturing else None
        self._dropped = torch.zeros((), device=fabric.device) if self.capturing and recipe.drop_path else None
        optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=recipe.learning_rate if self._rate is None else self._rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
            fused=self.capturing,
        )
        self.module, self.optimizer = fabric.setup(self.network, optimizer)
        self._captured: Captured | None = None
        self.batch = min(recipe.batch, len(images) // fabric.world_size * fabric.world_size)
        if self.batch < 2 * fabric.world_size:
            raise SettingError(f"{len(images)} images are too few to learn from: batch norms need 2 for each process")
        self.steps_an_epoch = len(images) // self.batch
        self.total = recipe.epochs * self.steps_an_epoch
        self.steps = 0  # taken so far
        self.seconds = 0.0  # that they took
        self.curve: list[dict[str, Any]] = []  # a row for each epoch
        self.test_accuracy: float | None = None  # per cent, once it was measured
        self._figures = torch.zeros(self.steps_an_epoch, 2, device=fabric.device)  # of this epoch: losses, images right
        self._order: tuple[int, NDArray[np.int64]] = -1, np.empty(0, dtype=np.int64)

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.steps // self.steps_an_epoch

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return self.recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * self.steps / self.total))

    @property
    def drop_path(self) -> float:
        """Of the next step."""
        return self.recipe.drop_path * self.steps / self.total

    @property
    def judged(self) -> Network:
        """The network whose accuracy counts: with the average of the weights where there is one."""
        return self.network if self.average is None else self.average.network

    def step(self) -> None:
        """Train for one step. Processes share the batch; its figures stay on the device until `look`."""
        images, labels = self._batch()
        self._set()
        self.network.train()
        try:
            with self._dropping():
                figures = self._taken(images, labels)
        except torch.OutOfMemoryError:
            raise NatppError(
                f"out of memory on {self.fabric.device} in step {self.steps}: lower --batch, --channels or --cells. "
                "The last checkpoint is kept"
            ) from None
        self._figures[self.steps % self.steps_an_epoch] = figures
        self.steps += 1
        if self.average is not None:
            self.average.follow(self.steps)

    def look(self) -> dict[str, float]:
        """The loss of the last step; an error where a loss or a weight is not a number."""
        start = (self.steps - 1) // self.steps_an_epoch * self.steps_an_epoch
        losses = self._figures[: self.steps - start, 0].cpu()
        wrong = (~losses.isfinite()).nonzero()
        sizes = torch.stack(torch._foreach_norm(list(self.network.parameters())))
        if len(wrong) or not sizes.isfinite().all():
            what = (
                f"the loss in step {start + int(wrong[0])}" if len(wrong) else f"a weight after step {self.steps - 1}"
            )
            raise NatppError(
                f"{what} is not a number: a lower learning rate or precision 32 may help. The last checkpoint is kept"
            )
        return {"loss": losses[-1].item()}

    def end_epoch(self) -> dict[str, Any]:
        """The row of the curves for the epoch that has just ended; on the validation images, if any, it is judged."""
        loss, right = self._over_processes(self._figures.double().mean(dim=0)).tolist()
        row = {
            "phase": "train",
            "epoch": self.epoch,
            "step": self.steps,
            "loss": loss,
            "train_accuracy": right * self.fabric.world_size / self.batch * 100,
            **({"validation_accuracy": self.validation_accuracy()} if len(self.images.validation) else {}),
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "seconds": round(self.seconds, 3),
        }
        self.curve.append(row)
        return row

    def validation_accuracy(self) -> float:
        """Per cent right of the images set aside for choices."""
        parts = -(-len(self.images.validation) // IMAGES_AT_ONCE)
        both = (part.tensor_split(parts) for part in (self.images.validation, self.images.validation_labels))
        return self._accuracy(zip(*both, strict=True))

    def test(self) -> float:
        """Per cent right of the test images."""
        return self._accuracy(self.images.test_batches(IMAGES_AT_ONCE))

    @property
    def images_per_second(self) -> float:
        """Median over the epochs after the first."""
        ends = [0.0, *(row["seconds"] for row in self.curve)]
        seconds = np.diff(ends)
        usual = float(np.median(seconds[1:] if len(seconds) > 1 else seconds))
        return self.steps_an_epoch * self.batch / max(usual, 1e-3)

    def state(self) -> dict[str, Any]:
        """All there is to know of it, as tensors and plain values."""
        return {
            "network": self.network.state_dict(),
            "average": None if self.average is None else self.average.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),  # the scale of the loss, with 16 bits
            "steps": self.steps,
            "seconds": self.seconds,
            "figures": self._figures,
            "curve": self.curve,
            "test_accuracy": self.test_accuracy,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.network.load_state_dict(state["network"])
        if self.average is not None:
            self.average.network.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._captured = None  # it knows the momentum of before
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.steps, self.seconds = state["steps"], state["seconds"]
        self._figures.copy_(state["figures"])
        self.curve, self.test_accuracy = list(state["curve"]), state["test_accuracy"]

    def _first_network(self) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(self.seed, Use.START, 2))
            try:
                return build_network(self.arch, self.where, auxiliary=self.recipe.auxiliary > 0)
            except SettingError as error:
                if not self.recipe.auxiliary:
                    raise
                raise SettingError(f"{error} (--auxiliary 0 leaves it out)") from None

    def _batch(self) -> tuple[Tensor, Tensor]:
        """This process's share of the images of the next step; those of the step after it are begun with."""
        mine = slice(self.fabric.global_rank, None, self.fabric.world_size)
        images, labels = self.images.take(self._chosen(self.steps), self._draws(self.steps), mine)
        if not self.images.held and self.steps + 1 < self.total:
            self.images.take_ahead(self._chosen(self.steps + 1), self._draws(self.steps + 1), mine)
        return images.contiguous(memory_format=self.format), labels

    def _chosen(self, step: int) -> NDArray[np.int64]:
        """The images of a step, over all processes."""
        epoch, place = divmod(step, self.steps_an_epoch)
        if self._order[0] != epoch:
            self._order = epoch, self.images.order(generator(self.seed, Use.ORDER, 0, epoch))
        return self._order[1][place * self.batch :][: self.batch]

    def _draws(self, step: int) -> torch.Generator:
        """How they are moved."""
        return torch_generator(self.seed, Use.AUGMENT, step)

    def _set(self) -> None:
        """Learning rate and drop-path of the next step, in tensors where a captured step reads them."""
        if self._rate is not None:
            self._rate.fill_(self.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate if self._rate is None else self._rate
        if self._dropped is not None:
            self._dropped.fill_(self.drop_path)
        self.network.drop_path = self.drop_path if self._dropped is None else self._dropped

    def _taken(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step: its loss, and images right."""
        if not self.capturing:
            return self._updated(images, labels)
        if self._captured is None:
            changing = changing_state(self.network, self.optimizer)
            self._captured = Captured(self._updated, (images, labels), changing, self.fabric.device)
        figures = self._captured(images, labels)
        assert figures is not None
        return figures

    def _updated(self, images: Tensor, labels: Tensor) -> Tensor:
        logits, loss = self._loss(images, labels)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if self.recipe.clip:  # what is not finite shows at the next look; asking here would wait for the device
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=self.recipe.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return torch.stack([loss.detach(), (logits.detach().argmax(dim=1) == labels).sum()])

    def _loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the loss with that of the auxiliary head."""
        smoothing = self.recipe.label_smoothing
        found = self.module(images)
        if not self.recipe.auxiliary:
            return found, functional.cross_entropy(found, labels, label_smoothing=smoothing)
        logits, extra = found
        loss = functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        return logits, loss + self.recipe.auxiliary * functional.cross_entropy(extra, labels, label_smoothing=smoothing)

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        """While it lasts, torch's own random numbers, which drop paths, are those of this step and process."""
        if not self.drop_path:
            yield
            return
        device = self.fabric.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(number(self.seed, Use.DROP, self.steps, self.fabric.global_rank))
            yield

    @torch.no_grad()
    def _accuracy(self, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
        """Per cent right, by the running statistics of batch norms."""
        network = self.judged.eval()
        count, right = 0, torch.zeros((), dtype=torch.int64, device=self.fabric.device)
        for images, labels in batches:
            with self.fabric.autocast():
                logits = network(images.contiguous(memory_format=self.format))
            right += (logits.argmax(dim=1) == labels).sum()
            count += len(labels)
        return right.item() * 100 / count

    def _over_processes(self, figures: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return figures
        found = self.fabric.all_reduce(figures, reduce_op="mean")
        assert isinstance(found, Tensor)
        return found


class Average:
    """A moving average of the weights and running statistics of a network, as a network of its own."""

    def __init__(self, network: Network, decay: float):
        self.network = copy.deepcopy(network)
        self.decay = decay
        self._kept, self._now = (
            [tensor for tensor in one.state_dict().values() if tensor.is_floating_point()]  # else a count of batches
            for one in (self.network, network)
        )

    @torch.no_grad()
    def follow(self, steps: int) -> None:
        """Move towards the network after so many steps: faster at first, else the average would remember the start."""
        decay = min(self.decay, (1 + steps) / (10 + steps))
        torch._foreach_lerp_(self._kept, self._now, 1 - decay)


def fit(training: Training, *, run: Run | None = None, stop: Stop | None = None, watch: Watch | None = None) -> None:
    """Take all steps, from the last checkpoint on; the test images are not touched."""
    run, stop, fabric = run or Run(None, {}), stop or Stop(), training.fabric
    first = fabric.global_rank == 0
    state = fabric.broadcast(run.load())
    if state is not None:
        training.restore(state)
    looked = began = time.perf_counter()
    with _fastest_kernels(fabric.device):
        while training.steps < training.total:
            training.step()
            over = training.steps % training.steps_an_epoch == 0
            asked = _asked(stop, fabric)
            if over or asked or time.perf_counter() - looked >= SECONDS_A_LOOK:
                figures = training.look()
                looked = time.perf_counter()
                if watch is not None and first:
                    watch("train", training.steps, training.total, figures)
            if over or asked:
                training.seconds += time.perf_counter() - began
                row = training.end_epoch() if over else None
                if first:
                    if row is not None:
                        run.log(row)
                    run.save(training.state())
                began = time.perf_counter()
            if asked:
                raise Interrupted(asked, run.folder)


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


def _asked(stop: Stop, fabric: Fabric) -> int:
    """The signal that asks to end, the same for all processes."""
    if fabric.world_size == 1:
        return stop.signal
    most = fabric.all_reduce(torch.tensor(stop.signal, device=fabric.device), reduce_op="max")
    assert isinstance(most, Tensor)
    return int(most.item())


@contextlib.contextmanager
def _fastest_kernels(device: torch.device) -> Iterator[None]:
    """While it lasts, cuDNN looks for its fastest kernels: worth it, since all batches have one shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
