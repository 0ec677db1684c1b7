"""Short trainings side by side: small real networks, each trained from its own start, scored on validation images.

On a GPU the networks of a group are branches of one captured CUDA graph: a step of all of them is one launch. They
are fed by the same batches, which are fetched and augmented inside the graph. On a CPU the same code runs without one.
Modules of any kind, with a loss of their own and batches of a loader, are trained in the same way.
What a network scores follows from it, the seed and the settings, not from its neighbours or their number: to the bit
on a CPU, and on a GPU as far as bf16 and the order of atomic additions allow, which a test bounds: after 40 steps
losses stay within 0.02 and accuracies within 2 per cent. Over a longer training roundings that fell otherwise add up.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from natpp.arch.cost import counts
from natpp.arch.formats import to_json
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting
from natpp.data.batches import Augment, Batches, moved
from natpp.data.loader import Batch, Loaded, moved_to, samples_in
from natpp.errors import SettingError
from natpp.nets.call import call
from natpp.nets.captured import Captured
from natpp.nets.network import build_network
from natpp.nets.workarounds import workarounds
from natpp.scorers.base import Scorer, Scores
from natpp.scorers.outcome import Outcome
from natpp.scorers.store import Store
from natpp.scorers.supernet import SMALL_IMAGE
from natpp.seeds import Use, generator, torch_generator
from natpp.training.loop import fast_format, fastest_kernels
from natpp.training.losses import Loss, right

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CURVE = 20  # points of a curve
LARGEST_LOSS = 1e6
STATISTICS = 20  # batches of training images that batch norms take theirs from, before test images are looked at
ALIGNED = 8  # elements, 16 bytes of bf16: kernels read so many at once, from places that are multiples of it
NO_ROOM = "does not fit into the memory of"
Seconds = defaultdict[str, float]  # by phase
One = TypeVar("One")  # of some that are side by side
Build = Callable[[], nn.Module]  # makes a network with its first weights: images (batch, 3, height, width) to logits


@dataclass(frozen=True)
class ShortConfig:
    """One short schedule for all."""

    batch: int = 128
    """images a step, the same for all networks of a group"""
    steps: int = 800
    """gradient steps"""
    learning_rate: float = 0.03
    """of SGD with Nesterov momentum 0.9, falling to zero along a cosine"""
    warm_up: float = 0.0
    """share of the steps in which the learning rate first rises to that"""
    weight_decay: float = 5e-4
    """of SGD"""
    clip: float | None = None
    """largest norm of a gradient; None: any"""
    augment: bool = False
    """move and mirror the images: in so short a training it only hides what larger networks can do"""
    together: int = 32
    """networks side by side on a GPU"""
    validation_batch: int = 500
    """validation images at a time; their statistics are those of the batch"""
    fitting: float = 0.0
    """share of the training loss in the score, beside the validation loss: what a network can fit tells of long
    trainings, which seldom overfit, where a short one without augmentation may"""

    def __post_init__(self) -> None:
        if min(self.steps, self.together) < 1:
            raise SettingError("steps and together are whole numbers from 1 up")
        if min(self.batch, self.validation_batch) < 2:
            raise SettingError("batch and validation_batch are at least 2, since batch norms need statistics")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise SettingError("the learning rate is above 0, the weight decay from 0 up")
        if not 0 <= self.warm_up < 1 or not 0 <= self.fitting <= 1:
            raise SettingError("warm_up and fitting are shares, and not all steps warm up")


def usual_schedule(images: Batches) -> ShortConfig:
    """The schedule for images of CIFAR's size (docs/search.md says how it was picked), and a shorter one for small."""
    if images.size < SMALL_IMAGE:
        return ShortConfig(batch=64, steps=40, learning_rate=0.1, clip=5.0, augment=True, together=8)
    return ShortConfig(steps=1200, learning_rate=0.1, warm_up=0.2, fitting=0.5)


class ShortScorer(Scorer):
    """Minus the loss after a short training, on validation images and as far as wished on those it fitted.

    What fails counts as a guess.

    Architectures are trained in the form of what they compute, so that all that compute the same score the same.
    """

    def __init__(
        self,
        images: Batches,
        where: Setting,
        config: ShortConfig,
        fabric: Fabric,
        *,
        seed: int = 0,
        store: str | Path | None = None,
        limit: int | None = None,
        say: Callable[[str], None] | None = None,
        tested: bool = False,
    ):
        """With `tested` the outcomes have test accuracies, for tables; no score hangs on them.

        The store tells scores in full precision from those in bf16: its mark has a precision only where it is full, so
        that what GPUs wrote in bf16, their usual one, keeps the mark it had.
        """
        super().__init__(limit)
        self.tested, self.half = tested, in_half(fabric)
        self.images, self.where, self.config, self.fabric, self.seed = images, where, config, fabric, seed
        self.say = say or (lambda _: None)
        self.together = config.together * fabric.world_size
        self.store = None
        if store is not None:
            schedule = asdict(config)
            del schedule["together"]  # what is trained beside it changes nothing
            settings = {"schedule": schedule, "network": asdict(where), "seed": seed}
            settings |= {"tested": True} if tested else {}
            settings |= {} if self.half else {"precision": "32"}
            self.store = Store(store, settings, images.fingerprint, self.say)
        self._outcomes: dict[Architecture, Outcome] = {}
        self._room = Room()
        self.spent: Seconds = defaultdict(float)
        """seconds of this process, by phase"""

    def arranged(self, archs: list[Architecture]) -> list[Architecture]:
        """Those of like cost side by side, so that none waits long."""
        return sorted(archs, key=lambda arch: counts(arch, self.where).live_madds)

    @property
    def seconds_each(self) -> float:
        """What a training takes, with processes sharing them, also of those that the store had."""
        each = sum(one.seconds for one in self._outcomes.values()) / max(len(self._outcomes), 1)
        return each / self.fabric.world_size

    def outcomes(self, archs: Sequence[Architecture]) -> list[Outcome]:
        """What the trainings of architectures came to."""
        self(archs)
        return [self._outcomes[self.key(arch)] for arch in archs]

    def recorded(self, arch: Architecture) -> Outcome | None:
        """What the training of an architecture came to, if it was trained here or is in the store."""
        key = self.key(arch)
        return self._outcomes.get(key) or (None if self.store is None else self.store.get(key))

    def _score(self, archs: list[Architecture]) -> Scores:
        keys = [self.key(arch) for arch in archs]
        self._outcomes |= self.stored(keys)
        for key, outcome in self._trained([key for key in keys if key not in self._outcomes]).items():
            self._keep(key, outcome)
        guess = -math.log(self.images.classes)
        values = (self._outcomes[key].value for key in keys)
        return np.array([guess if value is None else max(value, -LARGEST_LOSS) for value in values])

    def _keep(self, key: Architecture, outcome: Outcome) -> None:
        """Take an outcome in; the first process writes it down."""
        if key in self._outcomes:
            return
        self._outcomes[key] = outcome
        no_room = outcome.reason is not None and outcome.reason.startswith(NO_ROOM)  # here and now
        if self.store is not None and self.fabric.global_rank == 0 and not no_room:
            self.store.add(key, outcome)

    def stored(self, keys: Sequence[Architecture]) -> dict[Architecture, Outcome]:
        """What the store has of these keys; the first process looks for all."""
        found: dict[Architecture, Outcome] = {}
        if self.store is not None:
            self.store.refresh()
            found = {key: outcome for key in keys if (outcome := self.store.get(key)) is not None}
        return found if self.fabric.world_size == 1 else self.fabric.broadcast(found)

    def _trained(self, keys: list[Architecture]) -> dict[Architecture, Outcome]:
        """Processes share the architectures; what is done is kept at once, that of other processes at the end."""
        ranks, rank = self.fabric.world_size, self.fabric.global_rank
        mine = keys[rank::ranks]
        found: list[Outcome] = []
        if mine:
            found = train_together(
                [functools.partial(build_network, key, self.where) for key in mine],
                [_start(key, self.seed) for key in mine],
                self.images,
                self.config,
                self.fabric.device,
                seed=self.seed,
                say=self.say,
                spent=self.spent,
                tested=self.tested,
                half=self.half,
                room=self._room,
                done=lambda place, outcome: self._keep(mine[place], outcome),
            )
        if ranks == 1:
            return dict(zip(keys, found, strict=True))
        every: list[list[Outcome]] = [[] for _ in range(ranks)]
        torch.distributed.all_gather_object(every, found)
        return {key: every[number % ranks][number // ranks] for number, key in enumerate(keys)}


def in_half(fabric: Fabric) -> bool:
    """Whether short trainings compute in bf16, by the precision of a fabric; else they do in full."""
    kind = fabric.device.type
    with fabric.autocast():
        found = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    if found == torch.float16:
        raise SettingError("short trainings scale no losses, so 16 bits are those of bf16: use --precision bf16, or 32")
    return found == torch.bfloat16


def _start(key: Architecture, seed: int) -> int:
    """The seed of the first weights: of the architecture's own, whoever is trained beside it."""
    return int.from_bytes(hashlib.sha256(f"{seed} {to_json(key)}".encode()).digest()[:4], "big")


@dataclass
class Room:
    """How many networks fit side by side, as far as trainings have shown: kept from one group to the next."""

    most: int | None = None
    """None: no group was too large so far"""
    told: set[int] = field(default_factory=set)
    """sizes of groups that were, each said once"""

    def halve(self, number: int, device: torch.device, say: Callable[[str], None] | None) -> None:
        """So many are too many."""
        self.most = -(-number // 2)
        if say is not None and number not in self.told:
            say(f"{number} networks side by side do not fit into the memory of {device}: half of them at a time")
        self.told.add(number)


def train_together(
    builds: Sequence[Build],
    seeds: Sequence[int],
    images: Batches | Loaded,
    config: ShortConfig,
    device: torch.device,
    *,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
    loss: Loss | None = None,
    spent: Seconds | None = None,
    tested: bool = False,
    half: bool | None = None,
    room: Room | None = None,
    done: Callable[[int, Outcome], None] | None = None,
) -> list[Outcome]:
    """Outcomes of networks side by side; too many for the memory are halved until they fit.

    `seeds` are of the first weights and of what drops things, `seed` is of the batches. `half` says whether they
    compute in bf16 (by default on a GPU) or in full precision. With a `loss` they may be modules of any kind: only
    what wants a gradient is trained, on a GPU by the kernels that cuDNN finds fastest. Seconds of building and
    capturing, of training and of judging are added to `spent`. With `tested` the test images are looked at, once and
    last. Images without any set aside are judged by the training loss alone. `room` knows how many fit, and learns it.
    `done` hears of an outcome, with its place, as soon as the networks beside it are done too.
    """
    if tested and (loss is not None or isinstance(images, Loaded)):
        raise SettingError("test accuracies are of images and classes: leave tested out")
    spent = defaultdict(float) if spent is None else spent
    room = Room() if room is None else room
    half = device.type == "cuda" if half is None else half
    found: list[Outcome] = []
    while len(found) < len(builds):
        some = slice(len(found), None if room.most is None else len(found) + room.most)
        number, start = len(builds[some]), time.perf_counter()
        try:
            with fastest_kernels(device) if loss is not None else contextlib.nullcontext():
                given = builds[some], seeds[some], images, config, device, seed
                outcomes = _trained(*given, loss, say, spent, tested, half)
        except torch.OutOfMemoryError:
            outcomes = None
        if outcomes is None:  # outside of `except`, where the error would keep the memory of what failed
            _give_back(device)
            if number > 1:
                room.halve(number, device, say)
                continue
            outcomes = [Outcome(None, reason=f"{NO_ROOM} {device}")]
            room.most = None  # this one is too large by itself: of others as many as before may fit
        share = (time.perf_counter() - start) / number
        for outcome in outcomes:
            found.append(replace(outcome, seconds=share))
            if done is not None:
                done(len(found) - 1, found[-1])
    return found


@torch.enable_grad()  # also where somebody scores without gradients
def _trained(
    builds: Sequence[Build],
    seeds: Sequence[int],
    images: Batches | Loaded,
    config: ShortConfig,
    device: torch.device,
    seed: int,
    loss: Loss | None,
    say: Callable[[str], None] | None,
    spent: Seconds,
    tested: bool,
    half: bool,
) -> list[Outcome]:
    """What came of each network, without seconds."""
    with _timed(spent, "capture"):
        branches = [
            Branch(build, first, config, device, loss, half=half) for build, first in zip(builds, seeds, strict=True)
        ]
        if isinstance(images, Loaded):
            feed: Feed | LoadedFeed = LoadedFeed(images, config, device)
        else:
            feed = Feed(images, config, device, seed, half=half)
    captured = device.type == "cuda"
    if captured:
        try:
            _train_captured(branches, feed, config, spent)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a module may look at values, which cannot be captured
            if loss is None:
                raise
            captured = False
            if say is not None:
                say(f"short trainings cannot be captured, so they take longer: {str(error).splitlines()[0]}")
    if not captured:
        for branch, first in zip(branches, seeds, strict=True):
            with _timed(spent, "training"), torch.random.fork_rng(devices=[]):
                torch.manual_seed(first)
                for step in range(config.steps):
                    feed.fetch(step)
                    feed.load(torch.tensor([step], device=device))
                    branch.step(feed)
    samples = images.samples if isinstance(images, Loaded) else len(images.validation)
    with _timed(spent, "judging"):
        if samples:
            batches, state = validation_batches(images, config, device, half=half), [one.judged for one in branches]
            _over(branches, batches, Branch.judge, state, device, captured=captured)
        figures = (torch.stack([branch.judged for branch in branches]).double().cpu() / max(samples, 1)).tolist()
        judged = [(loss, right) if samples else (None, math.nan) for loss, right in figures]
        found = [branch.outcome(*one) for branch, one in zip(branches, judged, strict=True)]
        if tested and isinstance(images, Batches):
            accuracies = _tested(branches, images, config, captured=captured)
            found = [replace(one, test_accuracy=accuracy) for one, accuracy in zip(found, accuracies, strict=True)]
    return found


def _tested(branches: Sequence[Branch], images: Batches, config: ShortConfig, *, captured: bool) -> list[float]:
    """Per cent of the test images that each has right, with the mean statistics of some batches of training images."""
    size = min(config.validation_batch, len(images))
    count = min(STATISTICS, len(images) // size)
    looks = [_Look(branch) for branch in branches]
    state = [tensor for one in looks for tensor in one.changing]

    def over(batches: Iterable[Batch], look: Callable[[_Look, Tensor, Tensor], None]) -> None:
        fast = ((_fast(some, last=captured, half=branches[0].half), labels) for some, labels in batches)
        _over(looks, fast, look, state, branches[0].weights.device, captured=captured, blind=look)

    over((images.take(np.arange(number * size, (number + 1) * size)) for number in range(count)), _Look.measure)
    for one in looks:
        one.settle(count)
    over(images.test_batches(config.validation_batch), _Look.test)
    return [100 * right / seen for right, seen in (one.right.tolist() for one in looks)]


class _Look:
    """A trained network that gets statistics for its batch norms, and is then shown test images."""

    def __init__(self, branch: Branch):
        self.branch, device = branch, branch.weights.device
        self.statistics: list[Tensor] = []  # of the last batch
        for norm in _norms(branch.module.train()):
            norm.track_running_stats, norm.momentum = True, 1.0
            norm.running_mean = torch.zeros(norm.num_features, device=device)
            norm.running_var = torch.ones(norm.num_features, device=device)
            self.statistics += [norm.running_mean, norm.running_var]
        self.totals = [torch.zeros_like(one) for one in self.statistics]
        self.right = torch.zeros(2, device=device, dtype=torch.int64)  # how many are, of how many

    @property
    def changing(self) -> list[Tensor]:
        """What a look changes."""
        return [*self.statistics, *self.totals, self.right]

    def measure(self, images: Tensor, _: Tensor) -> None:
        """Add the statistics of a batch to the totals."""
        self.branch.logits(images)
        for total, one in zip(self.totals, self.statistics, strict=True):
            total += one

    def settle(self, batches: int) -> None:
        """From here on statistics are the means of so many batches."""
        for total, one in zip(self.totals, self.statistics, strict=True):
            one.copy_(total / batches)
        self.branch.module.eval()

    def test(self, images: Tensor, labels: Tensor) -> None:
        """Count what is right."""
        right = (self.branch.logits(images).argmax(dim=1) == labels).sum()
        self.right += torch.stack([right, torch.full_like(right, len(labels))])


def _fast(images: Tensor, *, last: bool, half: bool) -> Tensor:
    """Images as a branch takes them: channels last or not, in bf16 or in full precision."""
    images = images.to(torch.bfloat16) if half else images
    return images.contiguous(memory_format=torch.channels_last) if last else images


class Feed:
    """The batches of a schedule: what every step sees is drawn beforehand, and made on the device.

    Images that are held there are picked there, by the number of the step. Others are fetched before every step into
    one place on the device, which a captured graph reads.
    """

    def __init__(
        self, images: Batches, config: ShortConfig, device: torch.device, seed: int, *, half: bool | None = None
    ):
        """In bf16 with `half`, by default on a GPU."""
        batch = min(config.batch, len(images))
        epochs = -(-config.steps * batch // len(images))
        order = np.concatenate([images.order(generator(seed, Use.ORDER, 2, epoch)) for epoch in range(epochs)])
        self.numbers = order[: config.steps * batch].reshape(config.steps, batch)
        self.order = torch.from_numpy(self.numbers).to(device)
        self.augment = images.augment if config.augment else Augment(shift=0, flip=False)
        draws = torch_generator(seed, Use.AUGMENT, 2)
        reach = 2 * self.augment.shift + 1
        self.shifts = torch.randint(0, reach, (config.steps, 2, batch), generator=draws).to(device)
        self.mirrored = (torch.rand(config.steps, batch, generator=draws) < 0.5).to(device)
        self.rates = _rates(config, device)
        self.source, self.seed = images, seed
        self.last = device.type == "cuda"
        self.half = self.last if half is None else half
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        shape = (0 if images.held else batch, 3, images.size, images.size)
        self.pixels = torch.empty(shape, dtype=torch.uint8, device=device)  # of the step, where they are fetched
        self.images: Tensor
        self.labels: Tensor
        self.rate: Tensor

    def fetch(self, step: int) -> None:
        """Bring the pixels of a step to the device, unless all are there: outside of a graph, before `load`."""
        if self.source.held:
            return
        self.pixels.copy_(self.source.fetch(self.numbers[step], self._crops(step)), non_blocking=True)
        if step + 1 < len(self.numbers):
            self.source.fetch_ahead(self.numbers[step + 1], self._crops(step + 1))

    def load(self, step: Tensor) -> None:
        """Make the batch of a step, a tensor of one number, so that a graph can replay it for any."""
        self.at = step
        chosen = self.order.index_select(0, step)[0]
        if self.source.held:
            images, labels = self.source.pick(chosen)
        else:
            images, labels = self.source.normalized(self.pixels), self.source.labels(chosen)
        down, right = self.shifts.index_select(0, step)[0]
        images = moved(images, self.augment, down, right, self.mirrored.index_select(0, step)[0])
        images = _fast(images, last=self.last, half=self.half)
        self.images, self.labels, self.rate = images, labels, self.rates.index_select(0, step)

    def _crops(self, step: int) -> NDArray[np.float32] | None:
        """The random parts that a step takes of photographs, where images are augmented."""
        return self.augment.draw_crops(self.numbers.shape[1], torch_generator(self.seed, Use.AUGMENT, 2, step + 1))


class LoadedFeed:
    """Batches that somebody else made, one for each step, brought to one place on the device."""

    def __init__(self, batches: Loaded, config: ShortConfig, device: torch.device):
        self.batches, self.rates = batches.train, _rates(config, device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        self.images, self.labels = tree_map(_own, moved_to(self.batches[0], device))
        self.rate: Tensor = self.rates[:1]

    def fetch(self, step: int) -> None:
        """Bring a batch to its place: outside of a graph, before `load`."""
        places, _ = tree_flatten((self.images, self.labels))
        for place, leaf in zip(places, tree_flatten(self.batches[step])[0], strict=True):
            if isinstance(place, Tensor):
                place.copy_(leaf, non_blocking=True)

    def load(self, step: Tensor) -> None:
        """The batch is there; the rest hangs on the number of the step, a tensor that a graph can count up."""
        self.at, self.rate = step, self.rates.index_select(0, step)


def _own(leaf: Any) -> Any:
    """A place for tensors like this one; numbers with a point are of usual precision."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.float().clone() if leaf.is_floating_point() else leaf.clone()


def _rates(config: ShortConfig, device: torch.device) -> Tensor:
    """Learning rates of all steps: up along a line, if at all, and down along a cosine."""
    rising = int(config.warm_up * config.steps)
    falling = config.steps - rising
    up = [(step + 1) / rising for step in range(rising)]
    down = [0.5 * (1 + math.cos(math.pi * step / falling)) for step in range(falling)]
    return config.learning_rate * torch.tensor(up + down, device=device)


def validation_batches(
    images: Batches | Loaded, config: ShortConfig, device: torch.device, *, half: bool | None = None
) -> Iterator[Batch]:
    """Validation batches on the device: those of a loader, or parts of nearly one size, in bf16 as a feed's are."""
    if isinstance(images, Loaded):
        for batch in images.validation:
            inputs, targets = tree_map(_own, moved_to(batch, device))
            yield inputs, targets
        return
    last = device.type == "cuda"
    parts = -(-len(images.validation) // config.validation_batch)
    both = (whole.tensor_split(parts) for whole in (images.validation, images.validation_labels))
    for some, labels in zip(*both, strict=True):
        yield _fast(some, last=last, half=last if half is None else half), labels


class Branch:
    """One network in training: its weights are one flat vector, so a step of the optimizer is a few launches.

    Each begins where a kernel may read many bytes at once; what lies between is zero and stays so.

    With `half`, by default on a GPU, convolutions and linear layers compute in bf16, from a copy of the weights; batch
    norms keep theirs. A module with a loss of its own may be of any kind: it then computes in mixed precision.
    """

    def __init__(
        self,
        build: Build,
        seed: int,
        config: ShortConfig,
        device: torch.device,
        own_loss: Loss | None = None,
        *,
        half: bool | None = None,
    ):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = build()
        for norm in _norms(module):  # statistics are always those of the batch
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
            norm.num_batches_tracked = None
        self.config, self.own_loss = config, own_loss
        self.last = fast_format(device) == torch.channels_last  # whether kernels lie so
        self.half = device.type == "cuda" if half is None else half
        copied = self.half and own_loss is None
        if own_loss is not None:
            module = module.float().to(device)
        norms = {id(parameter) for norm in _norms(module) for parameter in norm.parameters()}
        wanted = (parameter for parameter in module.parameters() if parameter.requires_grad)
        self.parameters = sorted(wanted, key=lambda p: id(p) in norms)  # stable: those of norms last
        self.low = sum(_room(p) for p in self.parameters if id(p) not in norms) if copied else 0  # computed in bf16
        self.weights = torch.cat(self._vectors(p.detach() for p in self.parameters) or [torch.empty(0)]).to(device)
        self.momentum = torch.zeros_like(self.weights)
        self.low_weights = self.weights[: self.low].to(torch.bfloat16)
        place = 0
        for parameter in self.parameters:
            values = self.low_weights if place < self.low else self.weights
            parameter.data = _shaped(values[place : place + parameter.numel()], parameter.shape, self.last)
            place += _room(parameter)
        for name, buffer in module.named_buffers():
            module.get_submodule(name.rpartition(".")[0])._buffers[name.rpartition(".")[2]] = buffer.to(device)
        self.module = module.train()
        self.losses = torch.zeros(config.steps, device=device)
        self.judged = torch.zeros(2, device=device)  # of validation images: sum of losses, number right

    def step(self, feed: Feed | LoadedFeed) -> None:
        """Forward, backward, and one step of SGD with Nesterov momentum."""
        loss, _ = self._loss(feed.images, feed.labels)
        with torch.no_grad():
            self.losses.index_copy_(0, feed.at, loss.detach().view(1))
        if not self.parameters or not loss.requires_grad:
            return
        found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)  # a dead network has some unused
        with torch.no_grad():
            flat = self._vectors(found)
            split = sum(gradient.dtype == torch.bfloat16 for gradient in flat)  # those in bf16 come first
            gradients = torch.cat([torch.cat(part).float() for part in (flat[:split], flat[split:]) if part])
            if self.config.clip is not None:
                gradients.mul_((self.config.clip / (gradients.norm() + 1e-6)).clamp(max=1))
            gradients.add_(self.weights, alpha=self.config.weight_decay)
            torch.add(gradients, self.momentum, alpha=0.9, out=self.momentum)
            self.weights.addcmul_(gradients.add_(self.momentum, alpha=0.9), feed.rate, value=-1)
            if self.low:
                self.low_weights.copy_(self.weights[: self.low])

    def _vectors(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Weights or their gradients one after the other, with zeros where one ends before the next may begin."""
        found: list[Tensor] = []
        for tensor in tensors:
            found.append(_flat(tensor, self.last))
            if missing := _room(tensor) - tensor.numel():
                found.append(found[-1].new_zeros(missing))
        return found

    def logits(self, images: Tensor) -> Tensor:
        """Of images as a feed has them."""
        with workarounds(self.weights.device):
            found: Tensor = self.module(images if self.last else images.contiguous())
        return found.float()

    def _loss(self, images: Any, labels: Any, reduction: str = "mean") -> tuple[Tensor, Any]:
        """Loss and output."""
        if self.own_loss is None:
            logits = self.logits(images)
            return functional.cross_entropy(logits, labels, reduction=reduction), logits
        device = self.weights.device
        output, loss = output_and_loss(self.module, images, labels, self.own_loss, device, half=self.half)
        return loss * samples_in((images, labels)) if reduction == "sum" else loss, output

    def judge(self, images: Any, labels: Any) -> None:
        """Add the losses of some validation images to `judged`, and how many are right."""
        if self.own_loss is not None:
            self.module.eval()  # nothing is dropped; batch norms have no statistics but those of the batch
        loss, output = self._loss(images, labels, "sum")
        self.judged += torch.stack([loss, right(output, labels)])

    def outcome(self, loss: float | None, right: float) -> Outcome:
        """What the training came to, by the mean loss of validation images and the share of them that is right.

        Without any it is what was fitted alone.

        A point of the curve is the mean over a part of the schedule; the last one is what was fitted.
        """
        curve = [part.mean().item() for part in self.losses.tensor_split(min(CURVE, len(self.losses)))]
        points = tuple(round(point, 4) for point in curve)
        if loss is None:
            found = curve[-1]
        else:
            share = self.config.fitting
            found = loss if share == 0 else (1 - share) * loss + share * curve[-1]
        if not math.isfinite(found):
            return Outcome(None, reason="diverged: its loss is not a number", curve=points)
        return Outcome(-found, None if math.isnan(right) else 100 * right, loss, curve=points)

    @property
    def changing(self) -> tuple[Tensor, ...]:
        """What a step changes and the next one reads."""
        return self.weights, self.momentum, self.low_weights, *self.module.buffers()


def output_and_loss(
    module: nn.Module, inputs: Any, targets: Any, loss: Loss, device: torch.device, *, half: bool | None = None
) -> tuple[Any, Tensor]:
    """Of a module of any kind, with `half`, by default on a GPU, in mixed precision.

    It gets inputs of its own, since it may work in place.
    """
    half = device.type == "cuda" if half is None else half
    own = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
    with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False), workarounds(device):
        output = call(module, own)
    return output, loss(output, targets).float()


def _train_captured(branches: Sequence[Branch], feed: Feed | LoadedFeed, config: ShortConfig, spent: Seconds) -> None:
    """All steps of all branches as replays of one CUDA graph."""
    device = branches[0].weights.device
    number = torch.zeros(1, dtype=torch.int64, device=device)
    streams = _streams(len(branches), device)

    def step() -> None:
        feed.load(number)
        _side_by_side(branches, streams, lambda branch: branch.step(feed), device)
        number.add_(1)

    with _timed(spent, "capture"):
        feed.fetch(0)
        state = [number, *(tensor for branch in branches for tensor in branch.changing)]
        ours = all(branch.own_loss is None for branch in branches)
        widths = frozenset(norm.num_features for branch in branches for norm in _norms(branch.module))
        captured = Captured(step, (), state, device, blind=(widths, branches[0].half) if ours else None)
    with _timed(spent, "training"):
        for index in range(config.steps):
            feed.fetch(index)  # after the replay before it, on the same stream
            captured()
        torch.cuda.synchronize(device)
    captured.graph.reset()


@contextlib.contextmanager
def _timed(spent: Seconds, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    spent[phase] += time.perf_counter() - start


@torch.no_grad()
def _over(
    ones: Sequence[One],
    batches: Iterable[Batch],
    look: Callable[[One, Any, Any], None],
    state: Sequence[Tensor],
    device: torch.device,
    *,
    captured: bool,
    blind: Hashable | None = None,
) -> None:
    """What each of some does with every batch, changing `state`: side by side, on a GPU as replays of a graph."""
    graphs: dict[object, Captured] = {}
    streams = _streams(len(ones), device) if captured else []
    for inputs, targets in batches:
        leaves, form = tree_flatten((inputs, targets))
        if not captured or not all(isinstance(leaf, Tensor) for leaf in leaves):
            for each in ones:
                look(each, inputs, targets)
            continue

        def step(*tensors: Tensor, form: Any = form) -> None:
            batch = tree_unflatten(tensors, form)
            _side_by_side(ones, streams, lambda one: look(one, *batch), device)

        key = tuple(leaf.shape for leaf in leaves)
        if key not in graphs:
            graphs[key] = Captured(step, leaves, state, device, blind=blind)
        graphs[key](*leaves)
    if graphs:
        torch.cuda.synchronize(device)
        for graph in graphs.values():
            graph.graph.reset()


def _streams(count: int, device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]


def _side_by_side(
    ones: Sequence[One], streams: Sequence[torch.cuda.Stream], run: Callable[[One], None], device: torch.device
) -> None:
    """What each of some does, on a stream of its own: while capturing, branches of the graph."""
    main = torch.cuda.current_stream(device)
    for one, stream in zip(ones, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            run(one)
    for stream in streams:
        main.wait_stream(stream)


def _flat(tensor: Tensor, last: bool) -> Tensor:
    """A weight or its gradient as a vector, with `last` in the order of channels-last kernels, which it then keeps."""
    return (tensor.permute(0, 2, 3, 1) if last and tensor.dim() == 4 else tensor).reshape(-1)


def _room(tensor: Tensor) -> int:
    """Elements from where a weight begins to where the next one may."""
    return -(-tensor.numel() // ALIGNED) * ALIGNED


def _shaped(vector: Tensor, shape: torch.Size, last: bool) -> Tensor:
    """The way back."""
    if last and len(shape) == 4:
        return vector.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
    return vector.view(shape)


def _norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [one for one in module.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]


def _give_back(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
