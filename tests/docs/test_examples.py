"""The examples run: those that take long in their small form, the additions in under 30 lines."""

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import natpp
import natpp.decisions
import natpp.methods
import natpp.training.task  # the registries are full before an example adds to them
from natpp import registry
from natpp.registry import Registry

Run = Callable[..., list[str]]
EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What an example registers is gone afterwards."""
    before = [(one, set(one)) for one in vars(registry).values() if isinstance(one, Registry)]
    yield
    for one, names in before:
        for name in set(one) - names:
            one.remove(name)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs an example in an empty folder and gives what it printed, as lines."""

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    others = [file.name for file in EXAMPLES.glob("*.py") if not file.name.startswith("add_")]
    assert [name for name in others if f'"{name}"' not in text] == []


def test_a_named_model(run: Run, tmp_path: Path) -> None:
    said = run("named_model.py")
    assert said[:-1] == str(natpp.optimize("darts")).splitlines()
    assert said[-1].startswith("resnet20: 10 changes, 40,551,040 → ")
    assert (tmp_path / "darts.svg").read_text(encoding="utf-8").startswith("<svg")


def test_an_own_module(run: Run, tmp_path: Path) -> None:
    said = run("own_module.py", "--small")
    assert said[0].startswith("the original: ")
    assert "(3 candidates by short in " in said[-3]
    assert "fitted to what the original computes on" in said[-2]
    assert said[-1].startswith("the better one: ")
    assert (tmp_path / "better" / "model.py").is_file()


def test_own_data(run: Run, tmp_path: Path) -> None:
    said = run("own_data.py", "--small")
    assert said[-3].startswith("parameters")
    assert len(list((tmp_path / "images").glob("t*/*/*.png"))) == 1797
    assert (tmp_path / "run" / "policy.safetensors").is_file()


@pytest.mark.data
def test_nasbench201(run: Run, data_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run("nasbench201.py", str(data_folder / "nasbench201_cifar10.parquet"), "--small")
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("inputs 86.97, best reachable by val_200 91.22")
    assert "random-best-of-10" in said


def test_nasbench201_says_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATPP_DATA", raising=False)
    with pytest.raises(SystemExit, match="there is no table 'nasbench201_cifar10"):
        run("nasbench201.py")


LAST = {  # how the last line begins that they print
    "add_op.py": "torch.Size([1, 10])",
    "add_rule.py": "peak memory, bytes         2,371,584 →       2,371,584  (+0.0%)",
    "add_decision.py": "peak memory, bytes             5,184 →           5,184  (+0.0%)",
    "add_method.py": "peak memory, bytes           208,896 →         143,360  (-31.4%)",
    "add_scorer.py": "3.47 → ",
    "add_task.py": "4 batches to train on",
}


@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.glob("add_*.py")))
def test_an_addition(run: Run, name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= 30
    assert "check_" in text  # its contract
    assert run(name)[-1].startswith(LAST.get(name, ""))
