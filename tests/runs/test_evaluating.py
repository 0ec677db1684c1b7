"""Evaluations: figures of modules, paired comparisons, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.cli import main
from natpp.errors import NatppError
from natpp.training.losses import accuracy

X = torch.randn(1, 3, 8, 8)


class First(nn.Module):
    """Answers a given class with all confidence, for inputs whose first number is positive; else class 0."""

    def __init__(self, answer: int):
        super().__init__()
        self.answer = nn.Parameter(torch.tensor(float(answer)))

    def forward(self, x: Tensor) -> Tensor:
        picked = torch.where(x[:, 0] > 0, self.answer.long(), 0)
        return 10 * nn.functional.one_hot(picked, 3).float()


def data(size: int) -> natpp.Task:
    inputs = torch.tensor([1.0, 1.0, -1.0, -1.0])[:, None]
    targets = torch.tensor([1, 2, 0, 0])
    batches = list(zip(inputs.split(size), targets.split(size), strict=True))
    return natpp.Task(batches, batches, metrics={"accuracy": accuracy, "mean": lambda *pair: accuracy(*pair).mean()})


@pytest.mark.parametrize("size", [4, 3, 2])
def test_two_modules_are_compared_sample_by_sample(size: int) -> None:
    found = natpp.evaluate(First(0), data(size), against=First(1))
    assert (found.samples, found.part, found.task) == (4, "val", "list")
    assert found.before is not None
    assert (found.before["accuracy"], found.figures["accuracy"]) == (75, 50)
    pair = found.paired["accuracy"]
    assert (pair.difference, pair.better, pair.worse) == (-25, 0, 1)
    assert pair.error == pytest.approx(25)  # deviation of -100, 0, 0, 0 over the root of 4
    assert (found.figures["mean"], found.paired["mean"].error) == (pytest.approx(50), None)
    assert found.paired["loss"].difference == pytest.approx(found.figures["loss"] - found.before["loss"])
    assert "accuracy   75.00 → 50.00 %  -25.00 ± 25.00 (better on 0 samples, worse on 1)" in str(found)


def test_a_result_is_compared_with_its_original() -> None:
    model = natpp.zoo.network("resnet20").eval()
    result = natpp.optimize(model, budget=0.8, example_input=torch.randn(1, 3, 32, 32))
    batches = [(torch.randn(6, 3, 32, 32), torch.arange(6))] * 2
    found = natpp.evaluate(result, natpp.Task(batches, batches))
    assert found.before == natpp.evaluate(model, natpp.Task(batches, batches)).figures
    assert found.figures == natpp.evaluate(result.module, natpp.Task(batches, batches)).figures
    alone = natpp.evaluate(model, natpp.Task(batches, test=batches[:1]), "test")
    assert (alone.samples, alone.part, alone.paired) == (6, "test", {})


def test_a_module_keeps_its_mode_and_device() -> None:
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 10))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    natpp.evaluate(module, "digits")
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    trained = natpp.train("darts", "digits", "quick:epochs=1,channels=4,cells=3", run=natpp.Run(out="run"))
    assert main(["evaluate", "run", "--task", "digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["part"], found["samples"]) == ("test", 360)
    assert found["figures"]["accuracy"] == pytest.approx(trained.test_accuracy)
    Path("made.py").write_text("from torch import nn\nmade = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))\n")
    assert main(["evaluate", "made.py:made", "--task", "digits", "--against", "run"]) == 0
    assert "359 samples, val of digits" in capsys.readouterr().out
    assert main(["evaluate", "run", "--task", "digits", "--part", "val"]) == 2
    assert "the task digits has no val data" in capsys.readouterr().err


LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
WRONG = [
    (LINEAR, {"task": natpp.Task.inputs([X])}, "no targets to compare with"),
    (LINEAR, {"task": natpp.Task([(X, torch.zeros(1).long())])}, r"has no val data: .*natpp.Task\(train, val, test\)"),
    (LINEAR, {"task": "digits", "part": "tests"}, "unknown part 'tests'. Did you mean 'test'"),
    (LINEAR, {"task": "digitz"}, "unknown data set 'digitz'. Did you mean 'digits'"),
    (nn.Linear(5, 2), {"task": "digits"}, "Linear does not run on the inputs of a training batch"),
    ("darts", {"task": "digits"}, "expected a torch.nn.Module, a result, a training or the folder of one"),
    (natpp.load("darts"), {"task": "digits"}, "natpp.train"),
]


@pytest.mark.parametrize(("of", "asked", "said"), WRONG)
def test_wrong_input_is_one_line(of: object, asked: dict, said: str) -> None:
    with pytest.raises(NatppError, match=said) as error:
        natpp.evaluate(of, **asked)
    assert "\n" not in str(error.value)
