"""Weights from elsewhere: names of other projects, files of either kind, and one line for what does not fit."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import natpp
from natpp.errors import FormatError, SettingError

NAME = "resnet20"


@pytest.fixture(scope="module")
def made() -> nn.Module:
    return natpp.zoo.network(NAME).eval()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize(
    "renamed",
    [
        lambda name: name,
        lambda name: f"module.{name}",
        lambda name: name.replace("fc.", "linear."),
        lambda name: f"module.{name.replace('fc.', 'linear.')}",
    ],
)
def test_names_of_other_projects(made: nn.Module, renamed: Callable[[str], str]) -> None:
    weights = {renamed(name): tensor for name, tensor in made.state_dict().items()}
    assert same(natpp.zoo.network(NAME, weights=weights), made)


def test_batch_norms_need_no_counter(made: nn.Module) -> None:
    weights = {name: tensor for name, tensor in made.state_dict().items() if "num_batches" not in name}
    assert same(natpp.zoo.network(NAME, weights=weights), made)


def test_files(made: nn.Module, tmp_path: Path) -> None:
    save_file(made.state_dict(), tmp_path / "a.safetensors")
    torch.save({"epoch": 3, "state_dict": made.state_dict()}, tmp_path / "b.th")
    for file in (tmp_path / "a.safetensors", str(tmp_path / "b.th")):
        assert same(natpp.zoo.network(NAME, weights=file), made)


def test_what_does_not_fit_is_named_in_one_line(made: nn.Module) -> None:
    weights = made.state_dict()
    weights["more.weight"] = weights.pop("conv1.weight")
    with pytest.raises(FormatError) as raised:
        natpp.zoo.network(NAME, 7, weights)
    assert str(raised.value) == (
        "the weights do not fit the network; missing: conv1.weight; unknown: more.weight; "
        "of another shape: fc.weight (10 x 64, expected 7 x 64), fc.bias (10, expected 7)"
    )
    with pytest.raises(FormatError, match=r"missing: conv1\.weight, .* and 94 more tensors$"):
        natpp.zoo.network(NAME, weights={})
    with pytest.raises(SettingError, match=r"'conv1\.weight' of type list, expected names and tensors"):
        natpp.zoo.network(NAME, weights={"conv1.weight": [1.0]})  # type: ignore[dict-item]


class Harmful:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return print, ("run",)


def test_files_that_hold_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, text, code, number = (tmp_path / name for name in ("a.safetensors", "b.pt", "c.pt", "d.pt"))
    for file in (broken, text):
        file.write_text("not weights")
    torch.save({"weights": Harmful()}, code)
    torch.save(3, number)
    for file in (broken, text, code):
        with pytest.raises(FormatError, match="is not a safetensors file or a torch checkpoint of tensors alone"):
            natpp.zoo.network(NAME, weights=file)
    assert capsys.readouterr().out == ""
    with pytest.raises(FormatError, match=r"of type int, expected names and tensors: save model.state_dict\(\)"):
        natpp.zoo.network(NAME, weights=number)
    for name in ("none.safetensors", "none.pt"):
        with pytest.raises(FormatError, match="cannot read the weights"):
            natpp.zoo.network(NAME, weights=tmp_path / name)


@pytest.mark.data
@pytest.mark.parametrize(("name", "wrong"), [("resnet20", 85), ("resnet56", 74)])
def test_trained_weights_are_as_accurate_as_they_were(data_folder: Path, name: str, wrong: int) -> None:
    weights, file = data_folder / "weights" / f"{name}_cifar10.safetensors", data_folder / "cifar10" / "test.webp"
    for path in (weights, file):
        if not path.exists():
            pytest.skip(f"there is nothing at {path}")
    with Image.open(file) as mosaic:
        rows = np.asarray(mosaic.convert("RGB"))[:320].reshape(10, 32, 100, 32, 3)
    pixels = torch.tensor(rows.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)) / 255
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
    labels = torch.tensor(json.loads((file.parent / "labels.json").read_text())["test"][:1000])
    network = natpp.zoo.network(name, weights=weights).eval()
    with torch.no_grad():
        found = network((pixels - mean) / deviation).argmax(1)
    assert int((found != labels).sum()) == pytest.approx(wrong, abs=1)  # rounding differs between processors
