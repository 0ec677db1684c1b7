"""ONNX files: equal to the module in onnxruntime, or not written."""

import importlib
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.cli import main
from natpp.errors import NatppError
from tests.fx.promises import TORCH_2_6

pytestmark = pytest.mark.skipif(TORCH_2_6, reason="torch 2.6 exports few networks")
X = torch.randn(1, 3, 8, 8)


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))


class Flat(nn.Module):
    """Takes inputs by name, one of them integers, and works for its own batch size only."""

    def forward(self, image: Tensor, which: Tensor) -> dict[str, Tensor]:
        return {"rows": image.reshape(2, -1), "picked": image.flatten()[which]}


class Noise(nn.Module):
    """Never computes the same twice."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_a_result_as_onnx(tmp_path: Path) -> None:
    result = natpp.optimize(small(), budget=0.6, example_input=X)
    result.module.train()
    found = result.export(tmp_path / "better.onnx")
    assert list(found.inputs.values()) == [("batch", 3, 8, 8)]
    assert found.any_batch
    assert found.difference < 1e-5
    assert result.module.training
    (name,) = found.inputs
    images = torch.randn(5, 3, 8, 8)
    session = onnxruntime.InferenceSession(found.path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {name: images.numpy()})
    assert np.allclose(output, result.module.eval()(images).detach().numpy(), atol=1e-5)
    content = found.path.read_bytes()
    assert b".py" not in content  # stack traces with paths
    assert natpp.export(result, tmp_path / "again.onnx").path.read_bytes() == content


def test_a_fixed_batch_size_and_inputs_by_name(tmp_path: Path) -> None:
    given = {"image": torch.randn(2, 6), "which": torch.tensor([3, 5])}
    found = natpp.export(Flat(), tmp_path / "flat.onnx", given)
    assert (found.any_batch, found.inputs) == (False, {"image": (2, 6), "which": (2,)})
    assert found.difference == 0
    assert "image (2, 6), which (2)" in str(found)


def test_what_onnxruntime_computes_otherwise_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(NatppError, match=r"onnxruntime differs from the module by .* nothing was written"):
        natpp.export(Noise(), tmp_path / "noise.onnx", X)
    with pytest.raises(NatppError, match="tolerance 1e-30"):
        natpp.export(small(), tmp_path / "near.onnx", X, tolerance=1e-30)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_and_a_training_have_their_own_example(tmp_path: Path) -> None:
    result = natpp.optimize(natpp.zoo.network("resnet20"), budget=0.6, example_input=torch.randn(1, 3, 32, 32))
    result.save(tmp_path / "saved")
    assert main(["export", str(tmp_path / "saved"), "-o", str(tmp_path / "a.onnx")]) == 0
    batches = [(torch.randn(4, 3, 32, 32), torch.arange(4))]
    tuned = natpp.finetune(result, natpp.Task(batches, batches), "tune:epochs=1")
    assert natpp.export(tuned, tmp_path / "b.onnx").inputs == {"x": ("batch", 3, 32, 32)}


@pytest.mark.parametrize(
    ("of", "example", "file", "said"),
    [
        (small(), None, "x.onnx", "a module needs an example input: natpp.export"),
        ("darts", X, "x.onnx", "An architecture has no weights yet"),
        (small(), X, "nowhere/x.onnx", "the folder '.*nowhere' does not exist"),
        (small(), torch.randn(1, 4, 8, 8), "x.onnx", "Sequential cannot be written as ONNX: .*"),
    ],
)
def test_wrong_input_is_one_line(of: object, example: object, file: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(NatppError, match=said) as error:
        natpp.export(of, tmp_path / file, example)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_architecture_is_not_a_module(tmp_path: Path) -> None:
    with pytest.raises(NatppError, match="an architecture is not a module yet"):
        natpp.optimize("darts").export(tmp_path / "x.onnx")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NatppError, match=r"ONNX files need onnxscript and onnxruntime: pip install 'natpp\[onnx\]'"):
        natpp.export(small(), tmp_path / "x.onnx", X)
    monkeypatch.undo()
    assert importlib.import_module("onnxscript")
