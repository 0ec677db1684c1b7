"""Short trainings: real ones, alone or side by side the same, kept in a file, and none spoiling another."""

import json
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace
from natpp.cli import main
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.data.loader import Loaded
from natpp.data.named import Data
from natpp.data.sets import load_images
from natpp.errors import NatppError, SettingError
from natpp.nets.policy import Policy
from natpp.runs.fabric import make_fabric
from natpp.scorers import short
from natpp.scorers.outcome import Outcome
from natpp.scorers.short import ShortConfig, ShortScorer, train_together
from natpp.testing import check_scorer
from natpp.training.losses import classification

CPU = torch.device("cpu")
WHERE = setting("cifar", channels=2, cells=2, classes=2, size=8)
QUICK = ShortConfig(batch=16, steps=6, together=3, validation_batch=8)


@pytest.fixture(scope="module")
def stripes() -> Batches:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 100, size=(80, 3, 8, 8))
    labels = np.arange(80) % 2
    pixels[labels == 0, :, ::2] += 120
    pixels[labels == 1, :, :, ::2] += 120
    given = pixels.astype(np.uint8), labels.astype(np.int64)
    return Batches(Images("stripes", 2, *given, given[0][:4], given[1][:4]))


def archs(count: int) -> list[Architecture]:
    return CellSpace((2,)).draw(count, np.random.default_rng(3))


def scorer(images: Batches, **settings: Any) -> ShortScorer:
    config = replace(QUICK, **settings.pop("config", {}))
    return ShortScorer(images, WHERE, config, make_fabric("cpu", settings.pop("precision", "auto")), **settings)


class Block(nn.Module):
    """A plain residual block."""

    def __init__(self, channels: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), Block(4), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def test_a_plain_resnet_learns_by_the_steps_of_torch(stripes: Batches) -> None:
    """One flat vector of weights takes the steps that torch's own optimizer takes."""
    config = replace(QUICK, steps=40, learning_rate=0.05, weight_decay=1e-2)
    (outcome,) = train_together([resnet], [5], stripes, config, CPU, seed=1)
    torch.manual_seed(5)
    network = resnet()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2, nesterov=True)
    feed = short.Feed(stripes, config, CPU, seed=1)
    for step in range(config.steps):
        feed.load(torch.tensor([step]))
        optimizer.param_groups[0]["lr"] = feed.rate.item()
        loss = nn.functional.cross_entropy(network(feed.images), feed.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():  # batch statistics
        parts = zip(stripes.validation.tensor_split(3), stripes.validation_labels.tensor_split(3), strict=True)
        total = sum(nn.functional.cross_entropy(network(x), y, reduction="sum").item() for x, y in parts)
    assert outcome.loss == pytest.approx(total / len(stripes.validation), rel=1e-3)
    assert outcome.value == -outcome.loss
    assert outcome.accuracy > 90
    assert outcome.curve[0] > outcome.curve[-1]
    assert len(outcome.curve) == 20


def test_neighbours_and_number_change_nothing(stripes: Batches) -> None:
    given = archs(5)
    together = scorer(stripes).outcomes(given)
    for arch, outcome in zip(given, together, strict=True):
        (alone,) = scorer(stripes, config={"together": 1}).outcomes([arch])
        assert (alone.value, alone.accuracy, alone.curve) == (outcome.value, outcome.accuracy, outcome.curve)
    assert scorer(stripes, seed=1).outcomes(given)[0].value != together[0].value


def test_images_kept_on_the_host_give_the_same(stripes: Batches) -> None:
    kept = Batches(stripes._images, held=False)
    assert (stripes.held, kept.held) == (True, False)
    for augment in (False, True):
        config = replace(QUICK, augment=augment)
        one, other = (train_together([resnet], [5], images, config, CPU)[0] for images in (stripes, kept))
        assert (one.value, one.curve) == (other.value, other.curve)


def test_a_feed_fills_one_place_before_every_step(stripes: Batches) -> None:
    """What a captured graph needs: the batch of a step is made from tensors that stay where they are."""
    config = replace(QUICK, augment=True)
    held = short.Feed(stripes, config, CPU, seed=3)
    kept = short.Feed(Batches(stripes._images, held=False), config, CPU, seed=3)
    place = kept.pixels.data_ptr()
    kept.fetch(0)  # for a first step that warms up
    step = torch.zeros(1, dtype=torch.int64)
    for number in range(config.steps):
        held.fetch(number)
        kept.fetch(number)
        held.load(step)
        kept.load(step)
        assert torch.equal(held.images, kept.images)
        assert torch.equal(held.labels, kept.labels)
        assert torch.equal(held.rate, kept.rate)
        step.add_(1)
    assert kept.pixels.data_ptr() == place
    assert len(held.pixels) == 0


def test_batches_of_a_loader_are_fed_into_one_place(stripes: Batches) -> None:
    batches = [stripes.take(np.arange(8) + 8 * place) for place in range(4)]
    few = [stripes.take(np.arange(3))]
    given = Loaded.of(
        [*batches, *few], [(stripes.validation, stripes.validation_labels), *few, stripes.take(np.arange(1))], 6
    )
    assert len(given.train) == 6  # from a second pass, without the small one
    assert all(torch.equal(given.train[place][0], batches[place % 4][0]) for place in range(6))
    assert given.samples == len(stripes.validation) + 3  # without the single one
    feed = short.LoadedFeed(given, replace(QUICK, steps=6), CPU)
    place = feed.images.data_ptr()
    for step, (inputs, targets) in enumerate(given.train):
        feed.fetch(step)
        feed.load(torch.tensor([step]))
        assert torch.equal(feed.images, inputs)
        assert torch.equal(feed.labels, targets)
    assert feed.images.data_ptr() == place != given.train[0][0].data_ptr()
    held = short.Feed(stripes, replace(QUICK, steps=6), CPU, seed=0)
    assert torch.equal(held.rates, feed.rates)
    one, other = (
        train_together([resnet], [5], given, replace(QUICK, steps=6), CPU, loss=loss)[0]
        for loss in (classification(), lambda output, labels: nn.functional.cross_entropy(output, labels))
    )
    assert one.value == other.value
    assert one.accuracy is not None


@pytest.mark.gpu
def test_on_a_gpu_neighbours_and_number_change_little() -> None:
    """The same network alone, and among two and eight others: losses within 0.02, accuracies within 2 per cent.

    The order of atomic additions may turn roundings to bf16 over, and no more than that. All roundings together, bf16
    instead of full precision on a CPU, moved these nine by up to 0.009 and 0.84 per cent: the bounds are twice as much.
    """
    chance = np.random.default_rng(0)
    labels = np.arange(960) % 4
    pixels = chance.integers(0, 200, size=(960, 3, 16, 16))
    for kind in range(4):  # each with a brighter quarter
        down, right = 8 * (kind // 2), 8 * (kind % 2)
        pixels[labels == kind, :, down : down + 8, right : right + 8] += 30
    given = pixels.astype(np.uint8), labels.astype(np.int64)
    fabric = make_fabric("cuda")
    images = Batches(Images("quarters", 4, *given, given[0][:4], given[1][:4]), fabric.device)
    where = setting("cifar", channels=8, cells=2, classes=4, size=16)
    config = ShortConfig(batch=32, steps=40, learning_rate=0.02, warm_up=0.2, clip=1.0, validation_batch=120)

    def outcomes(some: list[Architecture], together: int) -> list[Outcome]:
        return ShortScorer(images, where, replace(config, together=together), fabric).outcomes(some)

    drawn = CellSpace((4,)).draw(9, np.random.default_rng(4))
    among = outcomes(drawn, 9)
    for others in (outcomes(drawn, 3), [outcomes([arch], 1)[0] for arch in drawn[:4]]):
        for one, other in zip(others, among, strict=False):
            assert one.curve == pytest.approx(other.curve, abs=0.02)
            assert one.loss == pytest.approx(other.loss, abs=0.02)
            assert one.accuracy == pytest.approx(other.accuracy, abs=2)
    for one in among[1:]:  # networks differ by far more than that
        assert max(np.abs(np.subtract(one.curve, among[0].curve))) > 0.1


@pytest.mark.gpu
def test_on_a_gpu_a_graph_reads_images_that_are_fetched(stripes: Batches) -> None:
    device = torch.device("cuda")
    config = replace(QUICK, steps=60, learning_rate=0.05, augment=True)
    held, kept = (Batches(stripes._images, device, held=held) for held in (True, False))
    one, other = (train_together([resnet, resnet], [5, 6], images, config, device) for images in (held, kept))
    for first, second in zip(one, other, strict=True):
        assert first.loss == pytest.approx(second.loss, abs=0.05)  # as far as bf16 and atomics allow
        assert first.curve == pytest.approx(second.curve, abs=0.1)


def test_photographs_are_fed_in_random_parts(photographs: Path) -> None:
    images = Batches(load_images("imagenet", photographs, size=8))
    seen = []
    for augment, seed in ((True, 0), (True, 0), (True, 1), (False, 0)):
        feed = short.Feed(images, replace(QUICK, batch=4, augment=augment), CPU, seed=seed)
        feed.numbers[1] = feed.numbers[0]
        for step in range(2):
            feed.fetch(step)
            seen.append(feed.pixels.clone())
    first, second, again, _, other, _, plain, still = seen
    assert torch.equal(first, again)
    assert not torch.equal(first, second)  # the same images, in another step
    assert not torch.equal(first, other)
    assert torch.equal(plain, still)


def test_a_folder_is_scored_without_what_cannot_be_read(
    photographs: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (photographs / "train" / "down" / "99.jpg").write_text("no image")
    few = {"train_steps": 1, "channels": 2, "cells": 1}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in few.items()]
    line = "1 of 31 images of {} could not be read and is left out: train/down/99.jpg (no image, or a damaged one)"
    given = ["score", "resnet_block", "--json", *flags, "--size=16"]
    for name, *data in (("stripes", str(photographs)), ("imagenet", "imagenet", f"--root={photographs}")):
        assert main([*given, "--data", *data]) == 0
        found = capsys.readouterr()
        assert found.err == f"natpp: {line.format(name)}\n"
        assert json.loads(found.out)[0]["reason"] is None
    natpp.score(["resnet_block"], natpp.Short(steps=1, channels=2, cells=1), task=Data(photographs, size=16))
    assert [record.getMessage() for record in caplog.records] == [line.format("stripes")]


def test_seconds_are_told_by_phase(stripes: Batches) -> None:
    made = scorer(stripes)
    made(archs(2))
    assert made.spent.keys() == {"capture", "training", "judging"}
    assert all(seconds > 0 for seconds in made.spent.values())


def test_the_promises_of_a_scorer(stripes: Batches) -> None:
    check_scorer(lambda limit=None: scorer(stripes, limit=limit, config={"steps": 1}), archs(4))


def test_one_that_diverges_spoils_no_other(stripes: Batches) -> None:
    def broken() -> nn.Module:
        network = resnet()
        next(network.parameters()).data.fill_(float("nan"))
        return network

    fine, wrong, too = train_together([resnet, broken, resnet], [1, 1, 1], stripes, QUICK, CPU)
    assert fine.value is not None
    assert (fine.value, fine.curve) == (too.value, too.curve)
    assert wrong.value is None
    assert wrong.reason is not None
    assert "not a number" in wrong.reason


def test_what_fails_counts_as_a_guess(stripes: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(builds: Sequence[Any], *_: Any, **__: Any) -> list[Outcome]:
        return [Outcome(None, reason="no luck") for _ in builds]

    monkeypatch.setattr(short, "train_together", failing)
    made = scorer(stripes)
    assert made(archs(1))[0] == pytest.approx(-np.log(2))
    assert made.outcomes(archs(1))[0].reason == "no luck"


def with_room_for(most: int, sizes: list[int]) -> Any:
    """Trainings on a device where only so many fit side by side, which notes the sizes of groups."""
    trained = short._trained

    def small(builds: Sequence[Any], *rest: Any) -> Any:
        sizes.append(len(builds))
        if len(builds) > most:
            raise torch.OutOfMemoryError
        return trained(builds, *rest)

    return small


def test_too_many_for_the_memory_are_halved(stripes: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    trained, expected = short._trained, scorer(stripes).outcomes(archs(3))
    monkeypatch.setattr(short, "_trained", with_room_for(1, sizes))
    said: list[str] = []
    found = scorer(stripes, say=said.append).outcomes(archs(3))
    assert [one.value for one in found] == [one.value for one in expected]
    assert sizes == [3, 2, 1, 1, 1]
    assert [line.split()[0] for line in said] == ["3", "2"]
    assert all("half of them at a time" in line for line in said)

    alive: list[weakref.ref[short.Branch]] = []

    def full(self: short.Branch, feed: short.Feed) -> None:
        alive.append(weakref.ref(self))
        assert sum(one() is not None for one in alive) <= 3  # nothing is left of a group that failed
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(short, "_trained", trained)
        patch.setattr(short.Branch, "step", full)
        file = tmp_path / "scores.jsonl"
        assert all(one.value is None for one in scorer(stripes, store=file).outcomes(archs(3)))
        assert not file.exists()  # on another machine it may fit

    def none_fits(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(short, "_trained", none_fits)
    assert [one.reason for one in scorer(stripes).outcomes(archs(2))] == ["does not fit into the memory of cpu"] * 2


def test_a_group_that_was_halved_stays_so(stripes: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    given = archs(12)
    expected = scorer(stripes).outcomes(given)
    monkeypatch.setattr(short, "_trained", with_room_for(2, sizes))
    said: list[str] = []
    made = scorer(stripes, config={"together": 4}, say=said.append)
    assert [one.value for one in made.outcomes(given[:8])] == [one.value for one in expected[:8]]
    assert [one.value for one in made.outcomes(given[8:])] == [one.value for one in expected[8:]]
    assert sizes == [4] + [2] * 6  # in the next group, and the next time
    assert len(said) == 1


def test_one_that_is_too_large_by_itself_does_not_make_groups_small(
    stripes: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, sizes = short._trained, []

    def large() -> nn.Module:
        return resnet()

    def small(builds: Sequence[Any], *rest: Any) -> Any:
        sizes.append(len(builds))
        if large in builds:
            raise torch.OutOfMemoryError
        return trained(builds, *rest)

    monkeypatch.setattr(short, "_trained", small)
    said: list[str] = []
    heard: list[tuple[int, Outcome]] = []
    builds = [resnet, large, *[resnet] * 6]
    found = train_together(
        builds, [1] * 8, stripes, QUICK, CPU, say=said.append, done=lambda place, one: heard.append((place, one))
    )
    assert [one.value is None for one in found] == [False, True, *[False] * 6]
    assert sizes == [8, 4, 2, 1, 1, 6]
    assert [line.split()[0] for line in said] == ["8", "4", "2"]
    assert heard == list(enumerate(found))


def test_what_is_done_is_in_the_store_while_the_rest_is_trained(
    stripes: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, file = short._trained, tmp_path / "scores.jsonl"
    lines: list[int] = []

    def small(builds: Sequence[Any], *rest: Any) -> Any:
        lines.append(len(file.read_text().splitlines()) if file.exists() else 0)
        if len(builds) > 2:
            raise torch.OutOfMemoryError
        if len(lines) == 3:
            raise KeyboardInterrupt
        return trained(builds, *rest)

    given, config = archs(4), {"together": 4}
    expected = scorer(stripes).outcomes(given)
    monkeypatch.setattr(short, "_trained", small)
    with pytest.raises(KeyboardInterrupt):
        scorer(stripes, config=config, store=file)(given)
    assert lines == [0, 0, 2]
    found = scorer(stripes, config=config, store=file).outcomes(given)
    assert lines == [0, 0, 2, 2]  # only the other two
    assert [one.value for one in found] == [one.value for one in expected]
    assert len(file.read_text().splitlines()) == 4


def test_a_store_keeps_what_is_trained(stripes: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scores.jsonl"
    given = archs(4)
    first = scorer(stripes, store=file)
    values = first(given)
    assert len(file.read_text().splitlines()) == first.queries

    def nothing(*_: Any, **__: Any) -> list[Outcome]:
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(short, "train_together", nothing)
        again = scorer(stripes, store=file, config={"together": 2})
        assert np.array_equal(again(given), values)
        assert again.outcomes(given)[0].curve == first.outcomes(given)[0].curve
    said: list[str] = []
    scorer(stripes, store=file, seed=9, say=said.append)
    assert said == [f"4 scores in {str(file)!r} are for other data or settings: they are not used"]
    single = tmp_path / "one.jsonl"
    single.write_text(file.read_text().splitlines(keepends=True)[0])
    scorer(stripes, store=single, seed=9, say=said.append)
    assert said[1:] == [f"1 score in {str(single)!r} is for other data or settings: it is not used"]
    one, other = scorer(stripes, store=file), scorer(stripes, store=file)  # two searches share it
    more = archs(8)[4:]
    expected = other(more)
    with monkeypatch.context() as patch:
        patch.setattr(short, "train_together", nothing)
        assert np.array_equal(one(more), expected)


def test_the_precision_that_is_asked_for_counts(stripes: Batches) -> None:
    config = {"steps": 40, "learning_rate": 0.05}
    usual, full, half = (
        scorer(stripes, config=config, precision=precision).outcomes(archs(2)) for precision in ("auto", "32", "bf16")
    )
    for one, same, other in zip(usual, full, half, strict=True):
        assert (one.value, one.curve) == (same.value, same.curve)
        assert one.value != other.value
        assert one.curve == pytest.approx(other.curve, abs=0.05)
    (tested,) = scorer(stripes, precision="bf16", tested=True).outcomes(archs(1))
    assert tested.test_accuracy is not None


def test_16_bits_without_a_scale_are_refused() -> None:
    class Sixteen:
        device = CPU

        def autocast(self) -> Any:
            return torch.autocast("cpu", torch.float16)

    with pytest.raises(SettingError, match="use --precision bf16, or 32"):
        short.in_half(Sixteen())


def test_a_store_tells_full_precision_from_bf16(stripes: Batches, tmp_path: Path) -> None:
    file, given = tmp_path / "scores.jsonl", archs(2)
    half = scorer(stripes, store=file, precision="bf16")
    half(given)
    assert half.store.mark == "7fc03c2d19d94450"  # of files that GPUs wrote before there was a choice
    said: list[str] = []
    full = scorer(stripes, store=file, say=said.append)
    assert full.store.mark == scorer(stripes, store=file, precision="32").store.mark != half.store.mark
    assert said == [f"2 scores in {str(file)!r} are for other data or settings: they are not used"]
    assert full.recorded(given[0]) is None
    full(given)
    assert len(file.read_text().splitlines()) == 4
    assert len(scorer(stripes, store=file, precision="bf16").store) == 2


@pytest.mark.parametrize("half", [False, True])
def test_weights_begin_where_kernels_may_read_many_bytes_at_once(half: bool) -> None:
    def odd() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(180, 2))

    branch = short.Branch(odd, 1, QUICK, CPU, half=half)
    assert [parameter.numel() for parameter in branch.parameters] == [135, 5, 360, 2, 5, 5]
    assert [parameter.data_ptr() % 16 for parameter in branch.parameters] == [0] * 6
    assert len(branch.weights) == 136 + 8 + 360 + 8 + 8 + 8


@pytest.mark.gpu
def test_on_a_gpu_full_precision_computes_as_a_cpu_does(stripes: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    config = replace(QUICK, steps=20, learning_rate=0.05)
    device = torch.device("cuda")
    there = Batches(stripes._images, device)
    (here,) = train_together([resnet], [5], stripes, config, CPU, tested=True)
    full, half = (
        train_together([resnet], [5], there, config, device, half=half, tested=True)[0] for half in (False, True)
    )
    assert full.curve == pytest.approx(here.curve, abs=2e-3)  # sums in another order, over twenty steps
    assert full.loss == pytest.approx(here.loss, abs=2e-3)
    assert here.test_accuracy is not None
    assert full.test_accuracy == pytest.approx(here.test_accuracy, abs=5)
    assert half.curve != full.curve
    for precision, asked in (("auto", True), ("bf16", True), ("32", False)):
        assert short.in_half(make_fabric("cuda", precision)) is asked
    with pytest.raises(SettingError, match="use --precision bf16, or 32"):
        natpp.search("digits", run=natpp.Run(device="cuda", precision="16"))


def test_a_line_cut_short_is_dropped_and_said(stripes: Batches, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    given = archs(2)
    values = scorer(stripes, store=file)(given)
    whole = file.read_text()
    file.write_text(whole[:-30])
    said: list[str] = []
    again = scorer(stripes, store=file, say=said.append)
    assert len(again.store) == 1
    assert ["cut short" in line for line in said] == [True]  # at once, and not again
    assert np.array_equal(again(given), values)
    again(archs(4)[2:])  # reads on, over that line
    assert len(said) == 1
    said.clear()
    lines = file.read_text().splitlines()
    assert json.loads(lines[0])["value"] == json.loads(whole.splitlines()[0])["value"]
    fresh = scorer(stripes, store=file, say=said.append)
    assert len(fresh.store) == 4
    fresh(archs(6)[4:])
    assert said == [f"damaged lines in {str(file)!r} that are not used: 1"]
    said.clear()
    with file.open("a") as handle:
        handle.write("nonsense\n" + whole[:40])  # by a search beside this one, which then crashed
    fresh(archs(8)[6:])
    fresh(archs(9)[8:])
    assert said == [
        f"damaged lines in {str(file)!r} that are not used: 1",
        f"the last line of {str(file)!r} was cut short and is not used",
    ]


def test_lines_that_are_no_scores_are_dropped(stripes: Batches, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    scorer(stripes, store=file)(archs(1))
    row = json.loads(file.read_text())
    wrong = [row | {"value": "x"}, row | {"arch": {"version": 1}}, row | {"more": 1}, [], 3]
    broken = json.loads(json.dumps(row))
    broken["arch"]["normal"][0][1] = 99
    before = ("".join(json.dumps(one) + "\n" for one in [*wrong, broken]) + "{half\n").encode()
    for content in (b"a letter without an end", before):
        file.write_bytes(content)
        heard: list[str] = []
        with pytest.raises(NatppError, match="is no file of scores"):
            scorer(stripes, store=file, say=heard.append)
        assert file.read_bytes() == content
        assert not heard  # the error is all there is to say
    with pytest.raises(NatppError, match="the store is of type int, expected the path of a file"):
        scorer(stripes, store=3)
    file.write_text(json.dumps(row) + "\n" + before.decode())
    said: list[str] = []
    assert len(scorer(stripes, store=file, say=said.append).store) == 1
    assert said == [f"damaged lines in {str(file)!r} that are not used: 7"]


def test_a_store_in_a_wrong_place_is_refused(stripes: Batches, tmp_path: Path) -> None:
    with pytest.raises(NatppError, match="is a folder"):
        scorer(stripes, store=tmp_path)
    with pytest.raises(NatppError, match="does not exist"):
        scorer(stripes, store=tmp_path / "nowhere" / "x.jsonl")


@pytest.mark.parametrize(
    "settings",
    [
        *({"batch": 1}, {"steps": 0}, {"together": 0}, {"learning_rate": 0.0}, {"weight_decay": -1.0}),
        *({"warm_up": -0.1}, {"warm_up": 1.0}, {"fitting": -0.1}, {"fitting": 1.1}),
    ],
)
def test_bad_schedules_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        ShortConfig(**settings)


def test_a_learning_rate_rises_and_falls(stripes: Batches) -> None:
    rates = short.Feed(stripes, replace(QUICK, steps=20, learning_rate=0.4, warm_up=0.25), CPU, seed=0).rates.tolist()
    assert rates[:6] == pytest.approx([0.08, 0.16, 0.24, 0.32, 0.4, 0.4])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.01
    falling = short.Feed(stripes, replace(QUICK, steps=20, learning_rate=0.4), CPU, seed=0).rates.tolist()
    assert falling == pytest.approx([0.2 * (1 + math.cos(math.pi * step / 20)) for step in range(20)])


def test_what_was_fitted_may_count_in_the_score(stripes: Batches) -> None:
    values = {}
    for fitting in (0.0, 0.25, 1.0):
        (found,) = train_together([resnet], [5], stripes, replace(QUICK, steps=40, fitting=fitting), CPU)
        values[fitting] = found.value
        assert found.loss == pytest.approx(-values[0.0])
    assert found.curve[-1] == pytest.approx(-values[1.0], abs=1e-4)
    assert values[0.25] == pytest.approx(0.75 * values[0.0] + 0.25 * values[1.0])
    assert values[1.0] != values[0.0]


def test_scores_from_python_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = "|nor_conv_3x3~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|"
    found = natpp.score(["darts", cell], natpp.Short(steps=2, channels=2, cells=1, store=tmp_path / "s"), task="digits")
    assert all(isinstance(one.value, float) and 0 <= one.accuracy <= 100 and one.reason is None for one in found)
    flags = [
        "--data",
        "digits",
        "--train-steps",
        "2",
        "--channels",
        "2",
        "--cells",
        "1",
        "--store",
        str(tmp_path / "s"),
    ]
    assert main(["score", "darts", cell, *flags, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in rows] == [one.value for one in found]
    assert main(["score", "darts", *flags]) == 0
    assert "accuracy" in capsys.readouterr().out
    with pytest.raises(SettingError, match="a list of architectures"):
        natpp.score("darts", task="digits")
    for wrong, words in (
        (["score", "darts"], "give data"),
        (["score", "--data", "digits"], "at least one architecture"),
        (["score", "darts", "--data", "digits", "--device", "cuda"], "no CUDA device"),
        (["score", "darts", "--scorer", "nowhere"], "unknown scorer"),
    ):
        if "cuda" in wrong and torch.cuda.is_available():
            continue
        assert main(wrong) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1


def test_best_of_by_short_trainings(tmp_path: Path) -> None:
    arch = CellSpace((2,)).draw(1, np.random.default_rng(0))[0]
    policy = Policy()
    store = tmp_path / "s"
    result = natpp.optimize(arch, policy, mode="best-of", scorer="short", data="digits", samples=2, store=store)
    assert 1 <= len(store.read_text().splitlines()) <= 2
    assert result.cost_after.live_madds <= result.cost_before.live_madds


def test_test_images_are_looked_at_once_where_that_is_asked_for(stripes: Batches) -> None:
    given = stripes._images
    whole = Batches(replace(given, test=given.train, test_labels=given.train_labels), validation=0)
    (one,) = archs(1)
    config = {"steps": 60, "learning_rate": 0.1}
    (found,) = scorer(whole, config=config, tested=True).outcomes([natpp.load("resnet_block")])
    assert (found.accuracy, found.loss) == (None, None)  # none is set aside
    assert found.value == pytest.approx(-found.curve[-1], abs=1e-3)
    assert found.test_accuracy is not None
    assert found.test_accuracy > 90  # stripes are easy
    (other,) = scorer(stripes, config={"steps": 2}).outcomes([one])
    assert other.test_accuracy is None
    with pytest.raises(SettingError, match="leave tested out"):
        train_together([], [], whole, QUICK, CPU, loss=classification, tested=True)


def with_noise(images: Batches) -> Images:
    """The same with 90 test images of noise, whose labels nobody can know: so networks differ in how many are right."""
    chance = np.random.default_rng(5)
    labels = chance.integers(2, size=90)
    return replace(images._images, test=chance.integers(256, size=(90, 3, 8, 8)).astype(np.uint8), test_labels=labels)


def test_test_images_are_judged_with_mean_statistics_of_training_images(stripes: Batches) -> None:
    """As torch does with a batch norm that takes the mean of all batches it has seen."""
    images = Batches(with_noise(stripes), validation=0)
    config = replace(QUICK, validation_batch=20)
    branches = [short.Branch(resnet, seed, config, CPU) for seed in (1, 2, 3)]
    found = short._tested(branches, images, config, captured=False)
    right = []
    for seed, branch in zip((1, 2, 3), branches, strict=True):
        torch.manual_seed(seed)
        network = resnet()
        for norm in short._norms(network):
            norm.momentum = None
        with torch.no_grad():
            for start in range(0, 80, 20):
                network(images.take(np.arange(start, start + 20))[0])
            network.eval()
            hits = sum((network(some).argmax(dim=1) == y).sum().item() for some, y in images.test_batches(90))
        right.append(100 * hits / 90)
        for one, other in zip(short._norms(branch.module), short._norms(network), strict=True):
            torch.testing.assert_close((one.running_mean, one.running_var), (other.running_mean, other.running_var))
    assert found == pytest.approx(right)
    assert len(set(found)) > 1


@pytest.mark.gpu
def test_on_a_gpu_test_images_are_judged_side_by_side(stripes: Batches) -> None:
    """Replays of a graph give what the same steps give without one, also for a last batch that is smaller."""
    device = torch.device("cuda")
    images = Batches(with_noise(stripes), device, validation=0)
    config = replace(QUICK, validation_batch=20)
    found, means = [], []
    for captured in (True, False):
        branches = [short.Branch(resnet, seed, config, device) for seed in range(6)]
        found.append(short._tested(branches, images, config, captured=captured))
        means.append([norm.running_mean for branch in branches for norm in short._norms(branch.module)])
    torch.testing.assert_close(*means, rtol=0.02, atol=0.02)  # as far as bf16 allows
    assert found[0] == pytest.approx(found[1], abs=5)  # four of ninety, by roundings
    assert len(set(found[0])) > 1


def test_a_tested_outcome_is_kept_apart_from_others(stripes: Batches, tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    (one,) = archs(1)
    first = scorer(stripes, store=file, tested=True).outcomes([one])[0]
    assert scorer(stripes, store=file, tested=True).recorded(one) == first
    assert first.test_accuracy is not None
    assert scorer(stripes, store=file).recorded(one) is None
