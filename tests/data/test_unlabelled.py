"""Folders of images without classes: enough to calibrate a module on."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import natpp
from natpp.cli import main
from natpp.data.unlabelled import IMAGENET, Unlabelled
from natpp.errors import NatppError
from natpp.training.task import Task

X = torch.randn(1, 3, 32, 32)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images of several sizes in `photos`, which the working directory holds."""
    monkeypatch.chdir(tmp_path)
    folder, chance = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(20):
        pixels = chance.integers(0, 256, (32 + number % 3, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("mine")
    return folder


def test_batches_are_normalized_and_the_same_in_every_pass(photos: Path) -> None:
    own, plain, known = (Unlabelled(photos, 16, how) for how in ("own", "none", "imagenet"))
    (batch,), (again,), (pixels,), (imagenet,) = own, own, plain, known
    assert batch.shape == (20, 3, 16, 16)
    assert torch.equal(batch, again)
    assert torch.allclose(batch.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(batch.std((0, 2, 3)), torch.ones(3), atol=1e-3)
    assert 0 <= pixels.min() < pixels.max() <= 1
    mean, spread = (torch.tensor(one).view(3, 1, 1) for one in IMAGENET)
    assert torch.allclose(imagenet, (pixels - mean) / spread, atol=1e-6)
    assert len(own) == 1


@pytest.mark.parametrize("text", ["photos", "photos/", "photos:normalize=imagenet", "photos:size=32,normalize=none"])
def test_a_module_is_fitted_on_them(photos: Path, text: str) -> None:
    model = natpp.zoo.network("resnet20").eval()
    result = natpp.optimize(model, "nat++", 0.6, example_input=X, task=text)
    assert result.notes[-1].endswith("fitted to what the original computes on 20 inputs")
    assert result.settings["task"] == "photos"
    assert "policy" in result.settings  # not tuned, which needs classes


def test_the_command_and_an_unreadable_image(photos: Path, capsys: pytest.CaptureFixture) -> None:
    (photos / "bad.png").write_text("no image")
    assert (
        main(["optimize", "resnet20", "--method", "nat++", "--budget", "madds=0.6", "--task", "photos", "--json"]) == 0
    )
    out, err = capsys.readouterr()
    assert json.loads(out)["notes"][-1].endswith("on 20 inputs")
    assert err == "natpp: cannot read the image 'photos/bad.png' (not an image, or damaged), so it is left out\n"


def test_a_teacher_replaces_classes(photos: Path) -> None:
    model = natpp.zoo.network("resnet20")
    tuned = natpp.finetune(model, "photos:size=32", "tune:epochs=1", teacher=natpp.zoo.network("resnet20"))
    assert len(tuned.curve) == 1


WRONG = {
    "train": (["train", "darts", "--task", "photos", "--out", "run"], "the images of photos have no classes to learn"),
    "search": (["search", "--task", "photos", "--out", "run"], "expected photos/CLASS/*.png"),
    "evaluate": (["evaluate", "resnet20", "--task", "photos"], "photos has no targets to compare with"),
    "tuned": (["optimize", "resnet20", "--budget", "0.6", "--method", "tuned", "--task", "photos"], "to train on"),
    "finetune": (["finetune", "resnet20", "--task", "photos:size=32", "--out", "run"], "give a teacher to learn from"),
    "size": (
        ["optimize", "resnet20", "--budget", "0.6", "--task", "photos:size=0"],
        "size is 0, expected a whole number from 1 up",
    ),
    "normalize": (
        ["optimize", "resnet20", "--budget", "0.6", "--task", "photos:normalize=imagnet"],
        "unknown normalize=imagnet. Did you mean 'imagenet'",
    ),
    "option": (["optimize", "resnet20", "--budget", "0.6", "--task", "photos:mean=1"], "unknown option 'mean'"),
    "classes": (["train", "darts", "--task", "digits:normalize=own", "--out", "run"], "folder of images without"),
    "sizes": (
        ["finetune", "resnet20", "--task", "photos", "--teacher", "resnet20", "--out", "run"],
        "size=N crops and resizes all images",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line(name: str, photos: Path, capsys: pytest.CaptureFixture) -> None:
    arguments, said = WRONG[name]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_inputs_that_are_not_square_images_are_refused(photos: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3))
    with pytest.raises(NatppError, match=r"become squares .* the example input is \(1, 3, 8, 16\)"):
        natpp.optimize(model, budget=0.6, example_input=torch.randn(1, 3, 8, 16), task="photos")
    for file in photos.glob("*.png"):
        file.write_text("no image")
    with pytest.raises(NatppError, match=r"none of the images in .photos. can be read, such as 0\.png"):
        list(Task.named("photos").train)
