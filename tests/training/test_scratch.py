"""Training from scratch: it learns, stops, goes on to the same bits, reads the test images once, and is a scorer."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.nn import functional

import natpp
from natpp.cli import main
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.data.named import Data
from natpp.errors import NatppError, SettingError
from natpp.folder import Interrupted
from natpp.registry import RECIPES
from natpp.runs.fabric import make_fabric
from natpp.runs.trainings import Trained
from natpp.scorers.scratch import ScratchScorer
from natpp.seeds import Use, generator, torch_generator
from natpp.testing import check_scorer
from natpp.training import loop
from natpp.training.loop import fit
from natpp.training.recipe import Recipe
from natpp.training.scratch import Training
from natpp.training.task import Task

TINY = Recipe(epochs=3, batch=16, learning_rate=0.1, channels=4, cells=2, drop_path=0.3, cutout=2, ema=0.5)
ONE_CELL = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|"


def images(count: int = 64, size: int = 8) -> Images:
    """Two kinds of stripes in noise."""
    pixels = np.random.default_rng(0).integers(0, 100, size=(count + 40, 3, size, size))
    labels = np.arange(count + 40, dtype=np.int64) % 2
    pixels[labels == 0, :, ::2] += 120
    pixels[labels == 1, :, :, ::2] += 120
    pixels = pixels.astype(np.uint8)
    return Images("stripes", 2, pixels[:count], labels[:count], pixels[count:], labels[count:])


@pytest.fixture(autouse=True)
def look_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SECONDS_A_LOOK", 0)


def train(recipe: Recipe = TINY, **settings: Any) -> Trained:
    return natpp.train("resnet_block", images(), recipe, run=natpp.Run(**settings))


def training(recipe: Recipe = TINY, *, size: int = 8, count: int = 64, seed: int = 0) -> Training:
    batches = Task(images(count, size)).batches("cpu", recipe, validation=0)
    return Training(natpp.load("resnet_block"), batches, recipe, make_fabric("cpu"), seed)


def bits(found: Trained) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in found.module.state_dict().values())


class Crash(Exception):
    pass


def crash_at(moment: int):
    def watch(phase: str, done: int, total: int, figures: dict[str, float]) -> None:
        if done == moment:
            raise Crash

    return watch


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_it_learns(tmp_path: Path) -> None:
    found = train(replace(RECIPES["quick"], epochs=6, batch=16, channels=4, validation=16), out=tmp_path)
    losses = [row["loss"] for row in found.curve]
    assert losses[-1] < 0.3 * losses[0]
    assert found.test_accuracy > 90
    last = found.curve[-1]
    assert min(last["train_accuracy"], last["validation_accuracy"]) > 90
    assert (last["phase"], last["epoch"], last["step"]) == ("train", 6, 18)
    assert rows(tmp_path)[:-1] == found.curve


def test_the_same_seed_gives_the_same_network() -> None:
    assert bits(train()) == bits(train()) != bits(train(seed=1))


def test_a_crash_at_any_moment_and_resume_give_the_same_bits(tmp_path: Path) -> None:
    straight = train(out=tmp_path / "straight")
    for moment in (1, 4, 5, 8, 11, 12):  # of three epochs of four steps
        out = tmp_path / str(moment)
        with pytest.raises(Crash):
            train(out=out, watch=crash_at(moment))
        again = train(out=out, resume=True)
        assert bits(again) == bits(straight)
        assert again.test_accuracy == straight.test_accuracy
        assert untimed(again.curve) == untimed(straight.curve)
        assert untimed(rows(out)) == untimed(rows(tmp_path / "straight"))
        kept = (tmp_path / name / "network.safetensors" for name in ("straight", str(moment)))
        assert len({file.read_bytes() for file in kept}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_after_the_step_with_everything_saved(number: int, tmp_path: Path) -> None:
    straight = train()

    def watch(phase: str, done: int, *_: object) -> None:
        if done == 6:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="--resume goes on") as stopped:
        train(out=tmp_path, watch=watch)
    assert stopped.value.status == 128 + number
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["steps"] == 7  # in the middle of an epoch of four
    again = train(out=tmp_path, resume=True)
    assert bits(again) == bits(straight)
    assert untimed(again.curve) == untimed(straight.curve)


def test_the_test_images_are_read_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    batches = Batches.test_batches

    def counted(self: Batches, count: int) -> Any:
        read.append(count)
        return batches(self, count)

    monkeypatch.setattr(Batches, "test_batches", counted)
    with pytest.raises(Crash):
        train(out=tmp_path, watch=crash_at(12))  # the last step
    assert not read
    found = train(out=tmp_path, resume=True)
    assert len(read) == 1

    def watch(*_: object) -> None:
        raise AssertionError

    again = train(out=tmp_path, resume=True, watch=watch)
    assert len(read) == 1
    assert (bits(again), again.test_accuracy) == (bits(found), found.test_accuracy)
    ScratchScorer(images(), replace(TINY, epochs=1), make_fabric("cpu"))([natpp.load("darts")])
    assert len(read) == 1


def test_what_a_run_keeps(tmp_path: Path) -> None:
    found = train(replace(TINY, validation=10, epochs=1), out=tmp_path, seed=5)
    result = json.loads((tmp_path / "result.json").read_text())
    assert natpp.load(json.dumps(result["architecture"])) == natpp.load("resnet_block")
    assert result["recipe"] == asdict(replace(TINY, validation=10, epochs=1))
    assert result["network"] == {"network": "cifar", "channels": 4, "cells": 2, "classes": 2, "size": 8}
    assert result["cost"] == natpp.cost("resnet_block", "cifar:channels=4,cells=2,classes=2,size=8").to_dict()
    assert (result["seed"], result["data"]) == (5, "stripes")
    assert RECIPES.given(result["name"]) == Recipe.from_dict(result["recipe"])
    assert (result["curve"], result["test_accuracy"]) == (found.curve, found.test_accuracy)
    assert set(result["versions"]) == {"natpp", "torch", "numpy", "python"}
    assert result["device"].startswith("cpu")
    assert result["images_per_second"] > 0
    network = natpp.build("resnet_block", "cifar:channels=4,cells=2,classes=2,size=8").eval()
    with safe_open(tmp_path / "network.safetensors", "pt") as file:
        assert json.loads(file.metadata()["natpp"])["setting"] == result["network"]
        network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no dict)
    assert bits(found) == b"".join(one.numpy().tobytes() for one in natpp.restore(tmp_path).state_dict().values())
    assert natpp.restore(found.save(tmp_path / "saved")).training is False
    [(pixels, labels)] = Task(images()).batches("cpu", replace(TINY, validation=10)).test_batches(40)
    assert (network(pixels).argmax(dim=1) == labels).float().mean().item() * 100 == pytest.approx(found.test_accuracy)


def test_all_training_images_are_learned_from_unless_some_are_set_aside() -> None:
    assert len(training().images) == 64
    some = training(replace(TINY, validation=20))
    assert (len(some.images), len(some.images.validation), some.steps_an_epoch, some.total) == (44, 20, 2, 6)
    fit(some)
    assert ["validation_accuracy" in row for row in some.curve] == [True] * 3
    assert some.curve[-1]["validation_accuracy"] == some.validated()["validation_accuracy"]


def test_the_learning_rate_falls_along_a_cosine_and_drop_path_grows_linearly() -> None:
    made = training()
    for step in range(12):
        made.step()
        expected = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 12))
        assert made.sgd.rate == pytest.approx(expected, rel=1e-12)
        assert made.network.drop_path == pytest.approx(0.3 * step / 12, rel=1e-12)


def test_a_step_is_sgd_on_the_loss_of_its_batch() -> None:
    """By hand: the batch of the step, label smoothing, weight decay, Nesterov momentum, the clipped gradient."""
    recipe = Recipe(
        epochs=1, batch=16, learning_rate=0.1, channels=4, cells=2, nesterov=True, label_smoothing=0.1, clip=0.5
    )
    made = training(recipe)
    other = training(recipe).network.train()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=3e-4)
    order = made.images.order(generator(0, Use.ORDER, 0, 0))
    for step in range(3):
        made.step()
        pixels, labels = made.images.take(order[16 * step :][:16], torch_generator(0, Use.AUGMENT, step))
        loss = functional.cross_entropy(other(pixels), labels, label_smoothing=0.1)
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5 * (1 + math.cos(math.pi * step / 4))
        optimizer.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5) > 0.5
        optimizer.step()
        assert made.look()["loss"] == pytest.approx(loss.item(), rel=1e-6)
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(made.network.state_dict()[name], tensor, rtol=1e-5, atol=1e-7)


def test_the_average_by_hand() -> None:
    made = training(replace(TINY, ema=0.4))
    assert made.average is not None
    expected = {name: tensor.clone() for name, tensor in made.network.state_dict().items()}
    for step in range(1, 13):
        made.step()
        decay = min(0.4, (1 + step) / (10 + step))
        for name, tensor in made.network.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor
    for name, tensor in made.judged.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name])
    weights = zip(made.judged.parameters(), made.network.parameters(), strict=True)
    assert not all(torch.equal(average, now) for average, now in weights)


def test_the_auxiliary_head_adds_its_loss() -> None:
    recipe = Recipe(epochs=1, batch=4, learning_rate=0.1, channels=2, cells=3, cutout=0, auxiliary=0.4)
    made = training(recipe, size=32, count=4)
    network = training(recipe, size=32, count=4).network.train()
    order = made.images.order(generator(0, Use.ORDER, 0, 0))
    pixels, labels = made.images.take(order, torch_generator(0, Use.AUGMENT, 0))
    logits, extra = network(pixels)
    loss = functional.cross_entropy(logits, labels) + 0.4 * functional.cross_entropy(extra, labels)
    made.step()
    assert made.look()["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert any(name.startswith("auxiliary.") for name in made.judged.state_dict())


def test_weights_of_an_auxiliary_head_are_not_kept(tmp_path: Path) -> None:
    natpp.train(
        "resnet_block",
        images(8, 32),
        "quick:epochs=1,batch=4,channels=2,cells=3,auxiliary=0.4",
        run=natpp.Run(out=tmp_path),
    )
    with safe_open(tmp_path / "network.safetensors", "pt") as file:
        assert not [name for name in file.keys() if name.startswith("auxiliary.")]  # noqa: SIM118 (no dict)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_comes_back_from_its_text_and_suits_some_images(name: str) -> None:
    recipe = RECIPES[name]
    assert RECIPES.given(RECIPES.text_of(recipe)) == RECIPES.given(name) == recipe
    assert Recipe.from_dict(json.loads(json.dumps(asdict(recipe)))) == recipe
    made = training(replace(recipe, channels=4, cells=3, auxiliary=0.0), size=32, count=4)
    assert made.where.cells == 3


def test_recipes_have_the_published_numbers() -> None:
    assert set(RECIPES) == {"cifar-600", "random-600", "imagenet-250", "quick", "tune"}
    cifar = RECIPES["cifar-600"]
    assert (cifar.batch, cifar.learning_rate, cifar.weight_decay, cifar.epochs) == (96, 0.025, 3e-4, 600)
    assert (cifar.network, cifar.channels, cifar.cells) == ("cifar", 36, 20)
    assert (cifar.drop_path, cifar.cutout, cifar.auxiliary, cifar.clip) == (0.2, 16, 0.4, 5)
    assert (cifar.momentum, cifar.label_smoothing, cifar.ema, cifar.validation) == (0.9, 0, 0, None)
    assert RECIPES["random-600"] == replace(cifar, batch=128)
    imagenet = RECIPES["imagenet-250"]
    assert (imagenet.batch, imagenet.learning_rate, imagenet.weight_decay, imagenet.epochs) == (128, 0.1, 3e-5, 250)
    assert (imagenet.network, imagenet.channels, imagenet.cells) == ("imagenet", 48, 14)
    assert (imagenet.label_smoothing, imagenet.auxiliary, imagenet.clip, imagenet.drop_path) == (0.1, 0.4, 5, 0)


@pytest.mark.parametrize(("size", "expected"), [(8, (8, 3, 0)), (32, (16, 8, 16))])
def test_the_quick_recipe_suits_the_images(size: int, expected: tuple[int, int, int]) -> None:
    made = training(RECIPES["quick"], size=size, count=4)
    assert (made.where.channels, made.where.cells, made.images.augment.cutout) == expected


def test_an_architecture_of_one_cell_is_trained_in_its_own_network() -> None:
    found = natpp.train(ONE_CELL, images(), "quick:epochs=1,channels=2")
    assert found.settings["network"] == {"network": "nasbench201", "channels": 2, "cells": 1, "classes": 2, "size": 8}


def test_a_loss_that_is_no_number_stops_with_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = train()
    loss = Training._loss

    def broken(self: Training, pixels: torch.Tensor, labels: torch.Tensor) -> Any:
        return loss(self, pixels * (float("nan") if self.steps == 6 else 1), labels)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_loss", broken)
        patch.setattr(loop, "SECONDS_A_LOOK", 100)  # it shows at the end of the epoch only
        told = "the loss in step 6 is not a number: a lower learning rate or precision 32 may help"
        with pytest.raises(NatppError, match=rf"{told}\. The last checkpoint is kept$"):
            train(out=tmp_path)
        with pytest.raises(NatppError, match=f"{told}$"):
            train()  # without a folder there is none
    assert bits(train(out=tmp_path, resume=True)) == bits(straight)


def test_a_weight_that_is_no_number_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Training.step

    def broken(self: Training) -> None:
        step(self)
        if self.steps == 8:
            next(iter(self.network.parameters())).data.fill_(float("inf"))

    monkeypatch.setattr(Training, "step", broken)
    with pytest.raises(NatppError, match="a weight after step 7 is not a number"):
        train(out=tmp_path)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["steps"] == 4


def test_where_there_is_no_checkpoint_yet_none_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Training._loss

    def broken(self: Training, pixels: torch.Tensor, labels: torch.Tensor) -> Any:
        return loss(self, pixels * (float("nan") if self.steps == 2 else 1), labels)

    monkeypatch.setattr(Training, "_loss", broken)
    with pytest.raises(NatppError, match=r"the loss in step 2 is not a number: .* may help$"):
        train(out=tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_out_of_memory_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Training, "_loss", full)
    with pytest.raises(NatppError, match=r"out of memory on cpu in step 0: lower --batch, --channels or --cells$"):
        train()


def test_a_run_is_not_overwritten_nor_resumed_with_other_settings(tmp_path: Path) -> None:
    short = replace(TINY, epochs=1)
    train(short, out=tmp_path)
    with pytest.raises(SettingError, match="already holds a run"):
        train(short, out=tmp_path)
    with pytest.raises(SettingError, match="started with seed 0, not 1"):
        train(short, out=tmp_path, seed=1, resume=True)
    with pytest.raises(SettingError, match="started with epochs 1, not 2"):
        train(replace(TINY, epochs=2), out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"recipe": "cifar600"}, "Did you mean 'cifar-600'"),
        ({"recipe": "cifar-600"}, "16 x 16 pixels, but the images are 8 x 8"),
        ({"recipe": "imagenet-250"}, "--auxiliary 0 leaves it out"),
        ({"epochs": 0}, "epochs is 0, expected a whole number from 1 up"),
        ({"epochs": 1.5}, "epochs is 1.5"),
        ({"batch": 1}, "batch is 1"),
        ({"channels": 0}, "channels is 0"),
        ({"cells": True}, "cells is True"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected a number above 0"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"auxiliary": -1.0}, "auxiliary is -1.0, expected a number from 0 up"),
        ({"ema": 1.0}, "ema is 1.0, expected a number from 0 to below 1"),
        ({"validation": -1}, "validation is -1"),
        ({"validation": 64}, "validation is 64, expected 1 to 63"),
        ({"validation": 63}, "there are 1 training images, expected at least 2"),
        ({"seed": -1}, "seed is -1"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"precision": "8"}, "unknown precision '8'"),
        ({"resume": True}, "need a folder for the run"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    def trained() -> None:
        recipe = settings.pop("recipe", TINY)
        of_run = {name: settings.pop(name) for name in ("seed", "device", "precision", "resume") if name in settings}
        train(replace(RECIPES.given(recipe), **settings), **of_run)

    settings = dict(settings)
    with pytest.raises(NatppError, match=words):
        trained()


def test_more_wrong_recipes_are_refused() -> None:
    for changes in ({"momentum": 1.0}, {"drop_path": -0.1}, {"label_smoothing": 2.0}, {"clip": -1.0}, {"cutout": -1}):
        with pytest.raises(SettingError, match=next(iter(changes))):
            replace(TINY, **changes)
    with pytest.raises(SettingError, match="momentum above 0"):
        replace(TINY, momentum=0.0, nesterov=True)
    with pytest.raises(SettingError, match="expected a recipe's name or Recipe, not '3'"):
        natpp.train("resnet_block", images(), 3)
    with pytest.raises(SettingError, match="the task list has loaders, expected images"):
        natpp.train("resnet_block", [images()], TINY)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--epochs=1", "--channels=2", "--cells=1", "--validation=100", "--learning-rate=0.05", "--ema=0.5"]
    given = ["train", "resnet_block", "--task", "digits", *short]
    assert main([*given, "--out", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["recipe"]["learning_rate"], found["recipe"]["ema"]) == (0.05, 0.5)
    assert found["name"].startswith("quick:epochs=1,learning_rate=0.05,channels=2,cells=1,ema=0.5,validation=100")
    assert found["test_accuracy"] == json.loads((tmp_path / "run" / "result.json").read_text())["test_accuracy"]
    assert main([*given, "--out", str(tmp_path / "run"), "--resume"]) == 0
    said = capsys.readouterr().out
    assert "accuracy on the 100 validation images" in said
    assert f"accuracy on the test images: {found['test_accuracy']:.2f} %" in said


def test_photographs_and_resume_give_the_same_bits(photographs: Path, tmp_path: Path) -> None:

    def run(out: str, **settings: Any) -> Trained:
        recipe = replace(TINY, batch=8, epochs=2, validation=4)
        where = natpp.Run(out=tmp_path / out, **settings)
        return natpp.train("resnet_block", Data("imagenet", root=photographs, size=8), recipe, run=where)

    straight = run("straight")
    for moment in (1, 2, 3):  # of two epochs of two steps
        with pytest.raises(Crash):
            run(str(moment), watch=crash_at(moment))
        again = run(str(moment), resume=True)
        assert bits(again) == bits(straight)
        assert untimed(again.curve) == untimed(straight.curve)
    assert bits(run("other", seed=1)) != bits(straight)


def test_the_next_photographs_are_begun_with(photographs: Path) -> None:
    recipe = replace(TINY, batch=8, epochs=2)
    batches = Task.of("imagenet", root=photographs, size=8).batches("cpu", recipe, validation=0)
    made = Training(natpp.load("resnet_block"), batches, recipe, make_fabric("cpu"))
    assert made.images.augment.crop
    assert made.images._ahead is None
    for step in range(made.total):
        begun = made.images._ahead
        made.step()
        if step:
            assert begun is not None
            assert begun[2].done()
    assert made.images._ahead is None  # nothing comes after the last step


def test_the_imagenet_recipe_by_command(photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photographs / "train" / "down" / "31.jpg").write_text("no image")
    short = ["--epochs=1", "--channels=4", "--cells=3", "--batch=10", "--auxiliary=0"]
    data = [f"--task=imagenet:root={photographs},size=32", f"--out={tmp_path / 'run'}", "--recipe=imagenet-250"]
    assert main(["train", "resnet_block", *data, *short, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["network"]["network"], found["network"]["size"], found["network"]["classes"]) == ("imagenet", 32, 2)
    assert said.err.startswith("natpp: 1 of 31 images of imagenet could not be read and is left out: train/down/31.jpg")


def test_wrong_commands_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, words in (
        (["darts"], "--task"),
        (["dart", "--task", "digits"], "Did you mean 'darts'"),
        (["darts", "--task", "digit"], "Did you mean 'digits'"),
        (["darts", "--task", "cifar10"], "natpp data cifar10 --root DIR"),
        (["darts", "--task", "imagenet"], "imagenet needs its folder: imagenet:root=DIR"),
        (["darts", "--task", f"imagenet:root={tmp_path}/no"], "does not exist"),
        (["darts", "--task", f"imagenet:root={tmp_path}"], "has no folder 'train': expected train/CLASS"),
        (["darts", "--task", str(tmp_path)], "has no class folders"),
        (["darts", "--task", "digits", "--recipe", "quik"], "Did you mean 'quick'"),
        (["darts", "--task", "digits", "--learning-rate", "x"], "learning_rate is 'x', expected a number above 0"),
        (["darts", "--task", "digits", "--epoch", "3"], "Did you mean '--epochs'"),
    ):
        assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_it_is_a_scorer() -> None:
    recipe = Recipe(epochs=1, batch=16, learning_rate=0.1, channels=2, cells=1)
    archs = [natpp.load(name) for name in ("resnet_block", "vgg_block", "resnet_block", "natpp_vgg_block")]

    def make(limit: int | None = None) -> ScratchScorer:
        return ScratchScorer(images(), recipe, make_fabric("cpu"), limit=limit)

    check_scorer(make, archs)
    assert len(make().images.validation) == 16  # a quarter
    scorer = ScratchScorer(images(), replace(recipe, validation=20), make_fabric("cpu"))
    again = training(replace(recipe, validation=20))
    fit(again)
    assert scorer([natpp.load("resnet_block")]) == [again.validated()["validation_accuracy"]]
    with pytest.raises(SettingError, match="the recipe has validation=0"):
        ScratchScorer(images(), replace(recipe, validation=0), make_fabric("cpu"))


@pytest.mark.slow
def test_two_processes_train_one_network(tmp_path: Path) -> None:
    short = ["--epochs=2", "--channels=4", "--cells=1", "--batch=64", "--precision=32", "--validation=100"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*start, "-m", "natpp", "train", "resnet_block", "--task", "digits", *short, "--out", str(tmp_path)]
    for more in ([], ["--resume"]):
        done = subprocess.run(
            [*command, *more], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["test_accuracy"] > 30
    assert result["device"].endswith("2 processes")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "16"])
def test_on_a_gpu_a_training_is_resumed_near_where_it_was(precision: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"device": "cuda", "precision": precision, "out": tmp_path, "seed": 1}
    with pytest.raises(Crash):
        train(watch=crash_at(9), **settings)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["steps"] == 8
    found = train(resume=True, **settings)
    assert found.test_accuracy > 60
    assert next(iter(found.module.parameters())).device.type == "cuda"
