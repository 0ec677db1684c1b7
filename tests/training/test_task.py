"""Tasks: made from names, images, loaders and inputs; wrong ones stop with a sentence; the contract of each."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import natpp
from natpp.data.batches import Batches
from natpp.data.feeds import ImageFeed, LoaderFeed
from natpp.data.loader import Loaded
from natpp.data.sets import NAMES
from natpp.errors import NatppError, SettingError
from natpp.registry import TASKS
from natpp.runs.fabric import make_fabric
from natpp.testing import check_task
from natpp.training.loop import Loop, fit
from natpp.training.losses import ACCURACY, accuracy, cross_entropy, distance, softened, squared
from natpp.training.recipe import Recipe
from natpp.training.task import Task

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=2, batch=8, learning_rate=0.1)


def loader(count: int = 24, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(seed)
    images, labels = torch.randn(count, 3, 4, 4, generator=chance), torch.arange(count) % 3
    return list(zip(images.split(8), labels.split(8), strict=True))


def model(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, outputs))


@pytest.mark.parametrize("name", list(TASKS))
def test_the_promises_of_a_task(name: str) -> None:
    if name != "digits":
        pytest.skip(f"{name} needs data")
    check_task(Task.named(name))


def test_promises_that_are_broken_are_found() -> None:
    good = Task(loader(), loader(seed=1), loader(seed=2))
    check_task(good)
    check_task(Task.inputs([torch.ones(2, 3)]))
    check_task(Task([(torch.randn(4, 2), torch.randn(4, 2))], loss=functional.mse_loss))
    shared = loader()
    for task, words in (
        (Task(shared, shared[:1]), "the same sample in train and val"),
        (
            replace(good, loss=lambda output, targets: -functional.cross_entropy(output, targets)),
            "loss of list is higher",
        ),
        (replace(good, loss=lambda output, targets: output.sum() / 0), "expected finite numbers"),
        (
            replace(good, metrics={"error": lambda output, targets: 1 - accuracy(output, targets)}),
            "error of list is 0.0",
        ),
        (replace(good, metrics={"per cent": lambda output, targets: 100 * accuracy(output, targets)}), "is 100.0"),
    ):
        with pytest.raises(AssertionError, match=words):
            check_task(task, lambda targets: 10 * functional.one_hot(targets).float())
    with pytest.raises(AssertionError, match="no batch of inputs"):
        check_task(Task.inputs([]))


def test_a_task_is_made_from_a_name(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = Task.named("digits")
    assert (digits.name, digits.images.classes, digits.loss, digits.metrics) == ("digits", 10, cross_entropy, ACCURACY)
    assert set(NAMES) <= set(TASKS)
    folder = Task.named(f"imagenet:root={photographs},size=8")
    assert (folder.name, folder.images.train.shape[2]) == ("imagenet", 8)
    assert Task.named(f"{photographs}:size=8").name == str(photographs)
    assert Task.of(photographs, size=8).name == "stripes"
    assert Task.of("imagenet", root=photographs, size=8).images.train.shape[2] == 8
    monkeypatch.setitem(TASKS._entries, "mine", lambda count=24: Task(loader(count)))
    assert [len(labels) for _, labels in Task.named("mine:count=10").part("train")] == [8, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("digit", "unknown data set 'digit'. Did you mean 'digits'"),
        ("digits:root", "'root', expected key=value, as in digits:root=data"),
        ("digits:rot=x", "unknown option 'rot' of the task digits. Did you mean 'root'"),
        ("digits:say=x", "unknown option 'say'"),
        ("digits:root=x", "does not apply: leave it out"),
        ("cifar10", "needs the folder it is stored in"),
    ],
)
def test_a_wrong_name_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(NatppError, match=words):
        Task.named(text)


def test_a_task_is_made_from_whatever_holds_one() -> None:
    digits = Task.named("digits")
    assert Task.of(digits) is digits
    assert Task.of(digits.images).name == "digits"
    given = Task.of(loader(), loader(seed=1), loss=functional.mse_loss)
    assert (given.name, given.loss) == ("list", functional.mse_loss)
    assert Task.of("digits", loss=functional.mse_loss).loss is functional.mse_loss
    for wrong, words in (
        (lambda: Task.of(digits, loader()), "a task already has data"),
        (lambda: Task.of("digits", loader()), "leave val out"),
        (lambda: Task(digits.images, loader()), "leave val out"),
        (lambda: Task.of(loader(), root="x"), "root and size can only be given with the name of a data set"),
        (lambda: Task(loader(), iter(loader())), "val is an iterator"),
        (lambda: Task(3), "expected batches"),
        (lambda: Task(loader(), loss="mse"), "loss is 'mse', expected a function"),
        (lambda: Task(loader(), metrics={"top": 1}), "top is 1, expected a function"),
        (lambda: Task(loader(), metrics={"loss": accuracy}), "a metric cannot be named 'loss'"),
        (lambda: Task(digits.images, targets=False), "images always have labels"),
        (lambda: Task(loader()).images, "the task list has loaders, expected images"),
        (lambda: Task(loader()).kept(CPU, 2), "train needs val"),
        (lambda: Task.inputs([torch.ones(2, 3)]).kept(CPU, 2), "no targets: give a teacher"),
        (lambda: digits.taught_by(model()), "images have labels to learn from"),
    ):
        with pytest.raises(SettingError, match=words):
            wrong()


def test_parts_of_images_are_all_there_once() -> None:
    task = Task.named("digits")
    counts = [sum(len(labels) for _, labels in task.part(name)) for name in ("train", "val", "test")]
    assert counts == [1078, 359, 360]
    batches = task.batches(CPU)
    assert Task(batches).batches(CPU) is batches
    assert Task(batches).name == "digits"
    feed = task.feed(RECIPE, make_fabric("cpu"), 0)
    assert isinstance(feed, ImageFeed)
    assert isinstance(task.kept(CPU, 3), Batches)
    assert len(task.batches(CPU, replace(RECIPE, validation=100)).validation) == 100
    with pytest.raises(SettingError, match="cuts out 9 x 9 pixels, but the images are 8 x 8"):
        task.batches(CPU, replace(RECIPE, cutout=9))


def test_loaders_are_fed_kept_and_tested() -> None:
    task = Task(loader(), loader(seed=1), loader(16, seed=2))
    feed = task.feed(RECIPE, make_fabric("cpu"), 0)
    assert isinstance(feed, LoaderFeed)
    assert [len(list(some)) for some in (feed.validation(), feed.test())] == [3, 2]
    assert list(Task(loader()).part("test")) == []
    kept = task.kept(CPU, 5)
    assert isinstance(kept, Loaded)
    assert (len(kept.train), kept.samples) == (5, 24)


def test_inputs_to_calibrate_on() -> None:
    assert [len(inputs) for inputs in Task.named("digits").calibration(CPU, 2)] == [128, 128]
    assert torch.equal(next(Task(loader()).calibration(CPU)), loader()[0][0])
    pairs = [[torch.ones(2, 3), torch.zeros(2)]] * 12
    (first, second), *others = Task.inputs(pairs).calibration(CPU)
    assert (first.shape, second.shape, len(others)) == ((2, 3), (2,), 9)


def test_the_task_says_how_outputs_agree() -> None:
    images = Task(loader())
    assert images.agrees is softened
    assert replace(images, loss=functional.mse_loss).agrees is squared
    assert replace(images, agreement=functional.l1_loss).agrees is functional.l1_loss
    one, other = torch.randn(4, 3), torch.randn(4, 3)
    assert distance(one, other) == softened(one, other)
    assert (
        distance(one[:, :1], other[:, :1])
        == squared(one[:, :1], other[:, :1])
        == functional.mse_loss(one[:, :1], other[:, :1])
    )


def test_without_targets_a_network_learns_what_a_teacher_says() -> None:
    teacher, inputs = model(2), [images for images, _ in loader()]
    teacher[1].weight.requires_grad_(False)
    task = Task.inputs(inputs, inputs).taught_by(teacher)
    assert (task.targets, task.loss, dict(task.metrics)) == (True, softened, {})
    task.check(model(2), next(task.part("train")))
    torch.manual_seed(1)
    student = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    fabric = make_fabric("cpu")
    loop = Loop(
        student, task.feed(RECIPE, fabric, 0), replace(RECIPE, epochs=30), fabric, loss=task.loss, metrics=task.metrics
    )
    fit(loop)
    assert loop.curve[-1]["validation_loss"] < loop.curve[0]["validation_loss"]
    agree = [(student(x).argmax(1) == teacher(x).argmax(1)).float().mean().item() for x in inputs]
    assert np.mean(agree) > 0.9
    assert teacher.training
    named = Task(loader(), loader(seed=1)).taught_by(teacher)
    assert all(targets.shape == (8, 2) for _, targets in named.part("train"))


def test_metrics_of_ones_own_are_in_the_curve() -> None:
    """A share for each sample, or of the batch; in per cent, and left out if they do not apply."""
    metrics: dict[str, Any] = {
        "first": lambda output, targets: (targets == 0).float(),
        "batch": lambda output, targets: (targets == 0).float().mean(),
        "never": lambda output, targets: torch.tensor(float("nan")),
    }
    task = Task(loader(20), loader(20, seed=1), metrics=metrics)
    fabric = make_fabric("cpu")
    loop = Loop(model(), task.feed(RECIPE, fabric, 0), RECIPE, fabric, metrics=task.metrics)
    fit(loop)
    row = loop.curve[-1]
    assert row["validation_first"] == pytest.approx(35)  # 7 of 20
    assert row["validation_batch"] == pytest.approx(35)
    assert row["train_first"] == pytest.approx(100 * np.mean([3 / 8, 3 / 8, 1 / 4]))  # the mean over steps
    assert not any(name.endswith(("never", "accuracy")) for name in row)


def test_a_task_goes_to_another_process() -> None:
    task = pickle.loads(pickle.dumps(Task(loader(), loader(seed=1))))  # noqa: S301 (our own)
    assert (task.loss, task.metrics) == (cross_entropy, ACCURACY)


def test_a_loss_may_be_a_module() -> None:
    found = natpp.finetune(model(), natpp.Task(loader(), loader(seed=1), loss=nn.CrossEntropyLoss()), "tune:epochs=1")
    same = natpp.finetune(model(), natpp.Task(loader(), loader(seed=1)), "tune:epochs=1")
    assert found.validation_loss == pytest.approx(same.validation_loss)
    assert found.validation_accuracy == same.validation_accuracy
