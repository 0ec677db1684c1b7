"""Short trainings as scores: the same alone and side by side, kept in a file, in the precision asked for."""

import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import natpp
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace
from natpp.cli import main
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.data.named import Data
from natpp.errors import NatppError, SettingError
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import Policy
from natpp.runs.fabric import make_fabric
from natpp.scorers import short
from natpp.scorers.short import ShortScorer
from natpp.testing import check_scorer
from natpp.training import together
from natpp.training.branch import Branch
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig

CPU = torch.device("cpu")
WHERE = setting("cifar", channels=2, cells=2, classes=2, size=8)
QUICK = ShortConfig(batch=16, steps=6, together=3, validation_batch=8)


def archs(count: int) -> list[Architecture]:
    return CellSpace((2,)).draw(count, np.random.default_rng(3))


def scorer(images: Batches, **settings: Any) -> ShortScorer:
    config = replace(QUICK, **settings.pop("config", {}))
    return ShortScorer(images, WHERE, config, make_fabric("cpu", settings.pop("precision", "auto")), **settings)


def test_neighbours_and_number_change_nothing(stripes: Batches) -> None:
    given = archs(5)
    together = scorer(stripes).outcomes(given)
    for arch, outcome in zip(given, together, strict=True):
        (alone,) = scorer(stripes, config={"together": 1}).outcomes([arch])
        assert (alone.value, alone.accuracy, alone.curve) == (outcome.value, outcome.accuracy, outcome.curve)
    assert scorer(stripes, seed=1).outcomes(given)[0].value != together[0].value


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


def test_a_folder_is_scored_without_what_cannot_be_read(
    photographs: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (photographs / "train" / "down" / "99.jpg").write_text("no image")
    few = {"train_steps": 1, "channels": 2, "cells": 1}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in few.items()]
    line = "1 of 31 images of {} could not be read and is left out: train/down/99.jpg (not an image, or damaged)"
    given = ["score", "resnet_block", "--json", *flags, "--task"]
    for name, task in (("stripes", f"{photographs}:size=16"), ("imagenet", f"imagenet:root={photographs},size=16")):
        assert main([*given, task]) == 0
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


def test_what_fails_counts_as_a_guess(stripes: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(builds: Sequence[Any], *_: Any, **__: Any) -> list[Outcome]:
        return [Outcome(None, reason="no luck") for _ in builds]

    monkeypatch.setattr(short, "train_together", failing)
    made = scorer(stripes)
    assert made(archs(1))[0] == pytest.approx(-np.log(2))
    assert made.outcomes(archs(1))[0].reason == "no luck"


def with_room_for(most: int, sizes: list[int]) -> Any:
    """Trainings on a device where only so many fit side by side, which notes the sizes of groups."""
    trained = together._trained

    def small(builds: Sequence[Any], *rest: Any) -> Any:
        sizes.append(len(builds))
        if len(builds) > most:
            raise torch.OutOfMemoryError
        return trained(builds, *rest)

    return small


def test_too_many_for_the_memory_are_halved(stripes: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    trained, expected = together._trained, scorer(stripes).outcomes(archs(3))
    monkeypatch.setattr(together, "_trained", with_room_for(1, sizes))
    said: list[str] = []
    found = scorer(stripes, say=said.append).outcomes(archs(3))
    assert [one.value for one in found] == [one.value for one in expected]
    assert sizes == [3, 2, 1, 1, 1]
    assert [line.split()[0] for line in said] == ["3", "2"]
    assert all("trying half as many" in line for line in said)

    alive: list[weakref.ref[Branch]] = []

    def full(self: Branch, *_: Any) -> None:
        alive.append(weakref.ref(self))
        assert sum(one() is not None for one in alive) <= 3  # nothing is left of a group that failed
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(together, "_trained", trained)
        patch.setattr(Branch, "step", full)
        file = tmp_path / "scores.jsonl"
        assert all(one.value is None for one in scorer(stripes, store=file).outcomes(archs(3)))
        assert not file.exists()  # on another machine it may fit

    def none_fits(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(together, "_trained", none_fits)
    assert [one.reason for one in scorer(stripes).outcomes(archs(2))] == ["does not fit into the memory of cpu"] * 2


def test_a_group_that_was_halved_stays_so(stripes: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    given = archs(12)
    expected = scorer(stripes).outcomes(given)
    monkeypatch.setattr(together, "_trained", with_room_for(2, sizes))
    said: list[str] = []
    made = scorer(stripes, config={"together": 4}, say=said.append)
    assert [one.value for one in made.outcomes(given[:8])] == [one.value for one in expected[:8]]
    assert [one.value for one in made.outcomes(given[8:])] == [one.value for one in expected[8:]]
    assert sizes == [4] + [2] * 6  # in the next group, and the next time
    assert len(said) == 1


def test_what_is_done_is_in_the_store_while_the_rest_is_trained(
    stripes: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, file = together._trained, tmp_path / "scores.jsonl"
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
    monkeypatch.setattr(together, "_trained", small)
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
    assert said == [f"damaged lines in {str(file)!r} are not used: 1"]
    said.clear()
    with file.open("a") as handle:
        handle.write("nonsense\n" + whole[:40])  # by a search beside this one, which then crashed
    fresh(archs(8)[6:])
    fresh(archs(9)[8:])
    assert said == [
        f"damaged lines in {str(file)!r} are not used: 1",
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
        with pytest.raises(NatppError, match="is not a file of scores"):
            scorer(stripes, store=file, say=heard.append)
        assert file.read_bytes() == content
        assert not heard  # the error is all there is to say
    with pytest.raises(NatppError, match="the store is of type int, expected the path of a file"):
        scorer(stripes, store=3)
    file.write_text(json.dumps(row) + "\n" + before.decode())
    said: list[str] = []
    assert len(scorer(stripes, store=file, say=said.append).store) == 1
    assert said == [f"damaged lines in {str(file)!r} are not used: 7"]


def test_a_store_in_a_wrong_place_is_refused(stripes: Batches, tmp_path: Path) -> None:
    with pytest.raises(NatppError, match="is a folder"):
        scorer(stripes, store=tmp_path)
    with pytest.raises(NatppError, match="does not exist"):
        scorer(stripes, store=tmp_path / "nowhere" / "x.jsonl")


def test_scores_from_python_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = "|nor_conv_3x3~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|"
    found = natpp.score(["darts", cell], natpp.Short(steps=2, channels=2, cells=1, store=tmp_path / "s"), task="digits")
    assert all(isinstance(one.value, float) and 0 <= one.accuracy <= 100 and one.reason is None for one in found)
    flags = [
        "--task",
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
        (["score", "darts"], "give a task"),
        (["score", "--task", "digits"], "at least one architecture"),
        (["score", "darts", "--task", "digits", "--device", "cuda"], "no CUDA device"),
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
    store = tmp_path / "s"
    best_of = PolicyMethod(learned=Policy(), mode="best-of", samples=2)
    result = natpp.optimize(arch, best_of, scorer=natpp.Short(store=store), task="digits")
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


def test_a_tested_outcome_is_kept_apart_from_others(stripes: Batches, tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    (one,) = archs(1)
    first = scorer(stripes, store=file, tested=True).outcomes([one])[0]
    assert scorer(stripes, store=file, tested=True).recorded(one) == first
    assert first.test_accuracy is not None
    assert scorer(stripes, store=file).recorded(one) is None


def test_modules_are_scored_beside_architectures() -> None:
    model, example = natpp.zoo.network("resnet20"), torch.randn(1, 3, 8, 8)
    by = natpp.Short(steps=2, channels=2, cells=1)
    one, other = natpp.score(["resnet_block", model], by, task="digits", example_input=example)
    assert one.value == natpp.score(["resnet_block"], by, task="digits")[0].value
    assert (other.value, other.reason) == (-other.loss, None)
    assert other.accuracy is not None
    with pytest.raises(NatppError, match="a module needs an example input"):
        natpp.score([model], by, task="digits")
