"""Models on the command line: networks of the zoo, and what a function of the user's file makes."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_cli import Run, Runner, ok, run  # noqa: F401

import natpp
from natpp.cli.subjects import parse_shapes
from natpp.errors import SettingError
from natpp.registry import MODELS

FILE = """
import torch
from torch import nn

print("loaded")


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 5, padding=2), nn.Conv2d(1, 8, 3, padding=1)

    def forward(self, x, y):
        return torch.relu(self.first(x)) + torch.relu(self.second(y))


class Blind(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def make_model():
    layers = nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
    return nn.Sequential(*layers)


def fails():
    raise ValueError("no such\\nthing")


def leaves():
    raise SystemExit(3)


def number():
    return 3


made = make_model()
seven = 7
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "my_file.py"
    path.write_text(FILE)
    yield path
    for name in ("my_file", "natpp_given_my_file"):
        sys.modules.pop(name, None)


def fine(result: Run) -> str:
    """What was printed; the user's own printing is on standard error."""
    status, out, err = result
    assert status == 0, err
    assert err in ("", "loaded\n")
    return out


def test_a_network_of_the_zoo(run: Runner, tmp_path: Path) -> None:  # noqa: F811
    out = ok(run("optimize", "resnet20", "--budget", "strict"))
    assert re.match(r"[\w. →\[\]]+: \w+ → \w+", out)  # whatever the policy prefers
    assert re.search(r"multiply-adds +40,551,040 → ", out)
    folder = tmp_path / "saved"
    flags = ("--budget", "madds=0.6,params=0.9", "--keep", "layer3,conv1", "--classes", "7", "--seed", "3")
    data = json.loads(ok(run("optimize", "resnet20", *flags, "--json", "--out", str(folder))))
    assert data["cost_after"]["madds"] <= 0.6 * data["cost_before"]["madds"]
    assert data["settings"]["keep"] == ["layer3", "conv1"]
    assert data["settings"]["share_blocks"] is False  # as in Python, under a budget of figures
    one = json.loads(ok(run("optimize", "resnet20", "--budget", "0.9", "--share-blocks", "false", "--json")))
    assert one["settings"]["share_blocks"] is False
    assert not any(change["name"].startswith(("layer3", "conv1")) for change in data["changes"])
    for place in (place for group in data["groups"] for place in group["decisions"]):
        assert all(("probability" in option) != ("why_not" in option) for option in place["options"])
    assert natpp.restore(folder)(torch.randn(1, 3, 32, 32)).shape == (1, 7)


def test_weights_for_a_network_of_the_zoo(run: Runner, tmp_path: Path) -> None:  # noqa: F811
    made = natpp.zoo.network("resnet20")
    file, folder = tmp_path / "weights.safetensors", tmp_path / "better"
    save_file(made.state_dict(), file)
    ok(run("optimize", f"resnet20:weights={file}", "--budget", "madds=0.9", "--out", str(folder)))
    kept = natpp.restore(folder).state_dict()
    assert torch.equal(kept["fc.weight"], made.state_dict()["fc.weight"])
    assert "params" in ok(run("cost", f"resnet20:weights={file}", "--json"))
    assert "unknown model 'resnet2'. Did you mean 'resnet20'?" in run("cost", f"resnet2:weights={file}")[2]
    assert "cannot read the weights 'none.pt'" in run("cost", "resnet20:weights=none.pt")[2]


def test_a_result_that_needs_its_original_says_so(
    run: Runner,  # noqa: F811
    file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file.write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    module = nn.Sequential(nn.Conv2d(3, 8, 7, padding=3), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))\n"
        "    module[0].padding = (2, 2)\n"
        "    return module\n"
    )
    out = fine(run("optimize", "my_file.py:make", "--input", "1,3,16,16", "--budget", "strict", "--out", "saved"))
    assert "natpp.restore('saved', module=original) gives the module" in out
    assert "0 are custom: restore with natpp.restore(folder, module=original)" in caplog.text


@pytest.mark.parametrize("verb", ["optimize", "cost"])
@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("architecture.json", "weights.safetensors"), "of a saved module: natpp report run shows its costs"),
        (("config.json", "module.safetensors"), "of a training: natpp.restore('run') gives the network"),
        (
            ("config.json", "policy.safetensors"),
            "of a search: name an architecture, and add --method nat++:policy=run",
        ),
        (("config.json",), "of a run that has not ended"),
        ((), "'run' is a folder, expected an architecture"),
    ],
)
def test_a_folder_in_place_of_a_model_says_what_it_is(
    run: Runner,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    verb: str,
    files: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in files:
        (tmp_path / "run" / name).touch()
    status, _, said = run(verb, "run")
    assert (status, said.count("\n")) == (2, 1)
    assert words in said


def test_what_is_no_architecture_is_not_written_over(run: Runner, tmp_path: Path) -> None:  # noqa: F811
    notes, better = tmp_path / "notes.txt", str(tmp_path / "better.json")
    notes.write_text("mine")
    status, _, said = run("optimize", "naonet", "--out", str(notes))
    assert status != 0
    assert "exists and is not an architecture" in said
    assert notes.read_text() == "mine"
    for _ in range(2):  # an earlier result makes room
        ok(run("optimize", "naonet", "--out", better))


def test_a_function_of_a_file(run: Runner, file: Path) -> None:  # noqa: F811
    flags = ("--input", "1,3,32,32", "--out", "saved")
    out = fine(run("optimize", "my_file.py:make_model", *flags, "--budget", "strict", "--measure-latency"))
    assert "latency, ms" in out
    assert "written to saved" in out
    assert natpp.restore("saved")(torch.randn(1, 3, 32, 32)).shape == (1, 8, 32, 32)
    flags = ("--input", "2,3,8,8;2,1,8,8", "--budget", "madds=0.8")
    data = json.loads(fine(run("optimize", f"{file}:Two", *flags, "--json")))
    assert data["cost_after"]["madds"] <= 0.8 * data["cost_before"]["madds"]
    assert fine(run("optimize", "my_file.py:made", "--input", "1,3,8,8", "--budget", "rule"))
    for flags, shared in ((("--budget", "madds=0.6"), False), (("--budget", "strict"), True)):  # as in Python
        data = json.loads(fine(run("optimize", "my_file.py:made", "--input", "1,3,8,8", "--json", *flags)))
        assert data["settings"]["share_blocks"] is shared


def test_what_a_model_costs(run: Runner, file: Path) -> None:  # noqa: F811
    model = MODELS["resnet56"]
    assert f"{model.madds:,}" in ok(run("cost", "resnet56"))
    data = json.loads(fine(run("cost", "my_file.py:make_model", "--input", "1,3,8,8", "--json", "--latency")))
    assert (data["params"], data["madds"]) == (1208, 75264)
    assert data["latency_ms"] > 0
    assert "latency" in fine(run("cost", "my_file.py:make_model", "--input", "1,3,8,8", "--latency"))
    assert json.loads(ok(run("cost", "resnet20", "--classes", "5", "--json")))["params"] == 269_722 - 5 * 65


MODEL = ("my_file.py:make_model", "--input", "1,3,8,8")
WRONG = {
    "no file": (("gone.py:make", "--input", "1,3,8,8"), "there is no file 'gone.py'"),
    "no function named": (("my_file.py", *MODEL[1:]), "name the function that makes it: my_file.py:make_model"),
    "no such function": (
        ("my_file.py:make_modle", *MODEL[1:]),
        r"has no function make_modle. Did you mean 'make_model'\?",
    ),
    "raises": (("my_file.py:fails", *MODEL[1:]), r"fails of my_file.py raised: ValueError: no such thing \(line \d+\)"),
    "exits": (("my_file.py:leaves", *MODEL[1:]), "leaves of my_file.py raised: SystemExit: 3"),
    "no module": (
        ("my_file.py:number", *MODEL[1:]),
        "number of my_file.py returned a value of type int, expected a torch",
    ),
    "no function": (("my_file.py:seven", *MODEL[1:]), "seven of my_file.py is of type int, expected a function"),
    "no input": (("my_file.py:make_model",), "needs the shape of its input: --input 1,3,224,224"),
    "wrong channels": (
        ("my_file.py:make_model", "--input", "1,4,8,8"),
        r"does not run on the example input: .*channels.* \(in its submodule 0\). Give an example with the shape",
    ),
    "no shape": (("my_file.py:make_model", "--input", "1,x"), "input is '1,x', expected sizes separated by commas"),
    "zero": (("my_file.py:make_model", "--input", "0,3,8,8"), "input is '0,3,8,8', expected sizes"),
    "a second input": (("my_file.py:make_model", "--input", "1,3,8,8;1"), "the example input does not fit Sequential"),
    "too large": (("my_file.py:make_model", "--input", "9999999,9999999,9999"), "does not fit into the memory here"),
    "not traced": (
        ("my_file.py:Blind", *MODEL[1:]),
        r"Blind cannot be traced: its own forward stops it \(.*; my_file.py, line \d+\). .*natpp.leaf",
    ),
    "out of reach": (
        (*MODEL, "--budget", "madds=0.001"),
        r"the budget cannot be met: .* nearest allowed result has .* The nearest result meets --budget madds=0\.\d+",
    ),
    "no such cost": ((*MODEL, "--budget", "mads=0.6"), "unknown cost 'mads' in the budget. Did you mean 'madds'"),
    "no figure": ((*MODEL, "--budget", "madds=half"), "budget is 'madds=half', expected for example madds=0.6"),
    "no such budget": ((*MODEL, "--budget", "strickt"), "unknown budget 'strickt'. Did you mean 'strict'"),
    "twice": ((*MODEL, "--budget", "madds=0.6,madds=0.3"), "which limits the same cost twice"),
    "no figure at all": ((*MODEL, "--budget", "half"), r"unknown budget 'half'\. .* Or limits, such as madds=0\.6"),
    "a task in vain": (("darts", "--task", "digits"), "auto does not use a task: leave it out"),
    "samples of one": (
        ("darts", "--method", "nat++:samples=3"),
        "samples can only be given with the mode best-of, not",
    ),
    "no such part": ((*MODEL, "--keep", "head"), "keep names 'head', but Sequential has no such part"),
    "a scorer": ((*MODEL, "--scorer", "short"), "auto does not use a scorer: leave it out"),
    "no scores": ((*MODEL, "--method", "nat++:mode=best-of"), "chooses by scores: give a scorer, or a task"),
    "classes": ((*MODEL, "--classes", "3"), "classes can only be given with a network of the zoo"),
    "kept of a cell": (("darts", "--keep", "a"), "keep and share_blocks can only be given with a module"),
    "shared in a cell": (("darts", "--share-blocks", "false"), "share_blocks can only be given with a module"),
    "too few for a cell": (
        ("darts", "--budget", "madds=0.01"),
        r"the budget cannot be met: .* the nearest allowed result has .* of the architecture's",
    ),
    "unknown network": (("resnet5",), r"unknown architecture 'resnet5'. Did you mean 'resnet56'\?"),
    "unknown cell": (("dartz",), r"unknown architecture 'dartz'. Did you mean 'darts'\?"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line_and_writes_nothing(name: str, run: Runner, file: Path) -> None:  # noqa: F811
    arguments, message = WRONG[name]
    budget = () if "--budget" in arguments else ("--budget", "strict")
    status, out, err = run("optimize", *arguments, *budget, "--out", "saved")
    assert (status, out) == (2, "")
    line = err.removeprefix("loaded\n")
    assert re.fullmatch(rf"natpp: .*{message}.*\n", line), line
    assert [path.name for path in file.parent.iterdir() if path.name != "__pycache__"] == ["my_file.py"]


def test_a_file_that_does_not_run_says_where(run: Runner, file: Path) -> None:  # noqa: F811
    for text, message in (
        ("x = 1\nimport nowhere_to_be_found", r"ModuleNotFoundError: .* \(line 2\)"),
        ("x = (", r"SyntaxError: [^()]*'\(' was never closed \(line 1\)"),
    ):
        file.write_text(text)
        status, _, err = run("cost", "my_file.py:make_model", "--input", "1,3,8,8")
        assert status == 2
        assert re.fullmatch(rf"natpp: my_file.py cannot be run: .*{message}.*\n", err), err


def test_a_network_is_no_architecture_of_cells(run: Runner) -> None:  # noqa: F811
    status, _, err = run("show", "resnet50")
    assert status == 2
    assert "resnet50 is a whole network" in err
    assert "--input can only be given with a model" in run("cost", "darts", "--input", "1,3,8,8")[2]
    assert "only be given with an architecture" in run("cost", "resnet20", "--cells", "3")[2]


def test_shapes() -> None:
    assert parse_shapes("1,3,8,8") == [(1, 3, 8, 8)]
    assert parse_shapes("1, 3;2") == [(1, 3), (2,)]
    with pytest.raises(SettingError):
        parse_shapes("")


def test_a_model_needs_a_budget(run: Runner) -> None:  # noqa: F811
    status, out, err = run("optimize", "resnet20")
    assert (status, out) == (2, "")
    assert err == "natpp: a model needs a budget, such as half of its multiply-adds: --budget madds=0.5\n"
