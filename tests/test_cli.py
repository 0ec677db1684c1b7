"""The command line as a person uses it, right and wrong."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
from torch import nn

import natpp
from natpp.arch.formats import to_json
from natpp.arch.ops import PAPER_OPS
from natpp.cli import VERBS, main
from natpp.cli.flags import Flag, flag_names, parse
from natpp.core.learned import Learned, Scored
from natpp.errors import SettingError
from natpp.registry import MODELS, OPS, ZOO
from natpp.runs.trainings import Trained

Run = tuple[int, str, str]  # status, standard output, standard error
Runner = Callable[..., Run]
RESNET_LIKE = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    def call(*arguments: str) -> Run:
        try:
            status = main(arguments)
        except SystemExit as stop:  # --help of a command
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def ok(result: Run) -> str:
    status, out, err = result
    assert (status, err) == (0, "")
    return out


def test_the_top_level_lists_the_verbs_quickly_without_torch() -> None:
    code = "import sys, natpp.cli; natpp.cli.main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"  {verb} " in done.stdout for verb in VERBS)


def test_python_m_natpp_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "natpp", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"natpp {natpp.__version__}\n"


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_has_help(verb: str, run: Runner) -> None:
    assert f"usage: natpp {verb}" in ok(run(verb, "--help"))


@pytest.mark.parametrize("verb", list(VERBS))
def test_a_flag_means_one_thing_and_is_explained(verb: str, run: Runner) -> None:
    names = flag_names(VERBS[verb])
    assert len(names) == len(set(names))
    told = ok(run(verb, "--help"))
    for name in names:
        assert re.search(rf"--(no-)?{name}\b[^-]*?[a-z]", told), name


def test_zoo(run: Runner) -> None:
    out = ok(run("zoo"))
    assert all(name in out for name in (*ZOO, *MODELS))
    assert re.search(r"resnet50 +3 x 224 x 224 +1000 classes +25,557,032 +4,089,184,256", out)
    assert "3,349,342" in out
    assert "breaks the two-level rule on two edges" in out
    data = json.loads(ok(run("zoo", "--json")))
    assert list(data) == [*ZOO, *MODELS]
    assert data["mobilefacenet"]["published"][0]["params_m"] == 1.0
    assert data["darts"]["madds"] == 528359040
    assert data["natpp_darts"]["published"][0]["method"] == "NAT++"


def test_cost(run: Runner) -> None:
    data = json.loads(ok(run("cost", "darts", "--json")))
    assert data == {
        "params": 3349342,
        "madds": 528359040,
        "live_params": 3349342,
        "live_madds": 528359040,
        "peak_memory_bytes": data["peak_memory_bytes"],
        "latency_ms": None,
    }
    assert "528,359,040" in ok(run("cost", "darts"))
    flags = ("--network", "imagenet", "--channels", "8", "--cells", "4", "--classes", "9", "--size", "64")
    data = json.loads(ok(run("cost", "darts", *flags, "--json")))
    found = natpp.cost("darts", "imagenet:channels=8,cells=4,classes=9,size=64")
    assert data["madds"] == found.madds
    timed = json.loads(ok(run("cost", "darts", "--channels", "2", "--cells", "2", "--latency", "--json")))
    assert timed["latency_ms"] > 0
    assert "latency" in ok(run("cost", "darts", "--channels", "2", "--cells", "2", "--latency"))


def test_an_architecture_comes_as_name_file_text_or_standard_input(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "darts.txt"
    file.write_text(to_json(natpp.load("darts")))
    expected = ok(run("cost", "darts", "--json"))
    assert ok(run("cost", str(file), "--json")) == expected
    assert ok(run("cost", file.read_text(), "--json")) == expected
    monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text()))
    assert ok(run("cost", "-", "--json")) == expected


def test_show(run: Runner, tmp_path: Path) -> None:
    assert "2 = sep_conv_3x3(0)  +  sep_conv_3x3(1)" in ok(run("show", "darts"))
    assert "6 edges changed" in ok(run("show", "natpp_darts", "--against", "darts"))
    for options in ((), ("--against", "darts"), ("--view", "network", "--cells", "8")):
        for suffix in ("svg", "png"):
            file = tmp_path / f"cell.{suffix}"
            assert ok(run("show", "natpp_darts", "-o", str(file), *options)) == ""
            assert file.stat().st_size > 1000
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["cell.png", "cell.svg"]  # nothing left over
    assert ok(run("show", "darts", "--output", str(tmp_path / "again.svg"))) == ""
    assert (tmp_path / "again.svg").read_text() == natpp.draw("darts")
    data = json.loads(ok(run("show", "natpp_darts", "--against", "darts", "--json")))
    assert len(data["changes"]) == 6
    assert data["alive"]["normal"] == list(natpp.load("natpp_darts").normal.liveness().live)
    assert json.loads(ok(run("show", "enas", "--against", "darts", "--json")))["changes"] is None  # different graphs
    assert json.loads(ok(run("show", "darts", "-o", str(tmp_path / "a.svg"), "--json"))) == {
        "picture": str(tmp_path / "a.svg")
    }


def test_transitions(run: Runner, tmp_path: Path) -> None:
    data = json.loads(ok(run("transitions", "--json")))
    assert list(data) == list(OPS)
    assert sum(len(data[op]["transitions"]) for op in PAPER_OPS) == 77
    assert data["conv_5x5"]["params"] == 128 * 128 * 25 + 256
    one = json.loads(ok(run("transitions", "null", "--rule", "cost", "--stride", "2", "--json")))
    assert "skip_connect" not in one["null"]["transitions"]
    assert "conv_1x1, conv_3x3, sep_conv_3x3" in ok(run("transitions", "conv_3x3", "--rule", "nat++"))
    assert "█" in ok(run("transitions", "--plot"))
    assert ok(run("transitions", "--plot", "-o", str(tmp_path / "bars.png"))) == ""
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_convert(run: Runner) -> None:
    text = ok(run("convert", "darts", "--to", "json"))
    assert json.loads(text)["version"] == 1
    genotype = ok(run("convert", text, "--to", "genotype")).strip()
    assert natpp.load(genotype) == natpp.load("darts")
    assert ok(run("convert", RESNET_LIKE, "--to", "nasbench201")).strip() == RESNET_LIKE
    data = json.loads(ok(run("convert", RESNET_LIKE, "--to", "nasbench201", "--json")))
    assert data == {"form": "nasbench201", "text": RESNET_LIKE}


def test_sample(run: Runner) -> None:
    assert natpp.load(ok(run("sample"))) == natpp.sample()
    lines = ok(run("sample", "--nodes", "5", "--seed", "7", "--count", "3")).splitlines()
    assert natpp.load(lines[0]) == natpp.sample(nodes=5, seed=7)
    assert len(lines) == 3
    assert natpp.load(ok(run("sample", "--json"))) == natpp.sample()
    assert len(json.loads(ok(run("sample", "--count", "3", "--json")))) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("shw",), "unknown command 'shw'. Did you mean 'show'?"),
        (("cost",), "ARCH"),
        (("cost", "dart"), "Did you mean 'darts'?"),
        (("cost", "darts", "enas"), "cost takes one ARCH|NETWORK|FILE.py:FUNCTION: 'enas' is one word too many"),
        (("zoo", "darts"), "zoo takes only flags: 'darts' is one word too many"),
        (("cost", "darts", "--latency=yes"), "--latency takes no value, but is followed by 'yes': leave that out"),
        (("cost", "darts", "--latency", "yes"), "--latency takes no value, but is followed by 'yes': leave that out"),
        (("convert", "darts", "--to", "nosuch"), "unknown form 'nosuch'. Known: json, genotype, nasbench201."),
        (("convert", "darts"), "convert needs --to json|genotype|nasbench201 (json, genotype or nasbench201)"),
        (
            ("train", "darts"),
            "train needs --out RUN (folder to keep the run in: settings, curves, checkpoints, the",
        ),
        (("score", "darts", "--train-steps", "x"), "train_steps is 'x', expected a whole number from 1 up"),
        (("cost", "darts", "--chanels", "3"), "Did you mean '--channels'?"),
        (("data", "cifar10", "--root", "x", "--form", "y"), "Did you mean '--from'?"),
        (("data", "cifar10", "--root", "x", "--source", "y"), "unknown flag --source. (natpp data"),
        (("cost", "darts", "--channels", "many"), "channels is 'many', expected a whole number from 1 up"),
        (("cost", "darts", "--channels", "0"), "channels is 0, expected a whole number from 1 up"),
        (("cost", "darts", "--network", "cifr"), "unknown network 'cifr'. Did you mean 'cifar'?"),
        (
            ("cost", "darts", "--network"),
            "--network has no value, expected --network cifar|imagenet|nasbench201 (cifar",
        ),
        (("cost", '{"normal": ['), "invalid JSON"),
        (("cost", "nowhere.json"), "no file 'nowhere.json'"),
        (("cost", "|conv_3x3~0|"), "Did you mean 'nor_conv_3x3'?"),
        (("show", "darts", "-o", "nowhere/cell.svg"), "the folder 'nowhere' does not exist"),
        (("show", "darts", "-o", "cell.pdf"), "a picture must end in .svg or .png"),
        (("show", "darts", "--view", "netwrk"), "Did you mean 'network'?"),
        (("show", "darts", "--view", "network"), "name a file with -o"),
        (("show", "darts", "--against", "drts"), "Did you mean 'darts'?"),
        (("transitions", "conv3x3"), "Did you mean 'conv_3x3'?"),
        (("transitions", "--rule", "nat+"), "Did you mean 'nat++'?"),
        (("transitions", "--stride", "3"), "is 3, expected 1 or 2"),
        (("transitions", "-o", "x.svg"), "-o can only be given with --plot"),
        (("transitions", "conv_3x3", "--plot"), "leave out the operation"),
        (("transitions", "None"), "unknown operation 'None'"),
        (("show", "darts", "--channels", "0"), "channels is 0"),
        (("show", "darts", "--network", "cifr"), "Did you mean 'cifar'?"),
        (("show", "darts", "--against", "None"), "unknown architecture 'None'"),
        (("show", "darts", "-o", "None"), "a picture must end in .svg or .png, not 'None'"),
        (("show", "darts", "-o", "a" * 300 + ".svg"), "cannot write"),
        (("show", "darts", "--arch", "enas"), "unknown flag --arch. (natpp show --help"),
        (("show", "darts", "--view", "network", "--against", "enas", "-o", "x.svg"), "shows one architecture"),
        (("cost", "darts", "--cells", "9" * 50), "cells is too large, expected at most 1,000"),
        (("sample", "--count", "9" * 20), "draw fewer at a time"),
        (("transitions", "--plot", "-o", "nowhere/x.svg"), "the folder 'nowhere' does not exist"),
        (("convert", "darts", "--to", "jsn"), "Did you mean 'json'?"),
        (("convert", "darts", "--to", "nasbench201"), "also has a reduction cell"),
        (("convert", "darts"), "--to"),
        (("sample", "--nodes", "0"), "nodes is 0"),
        (("sample", "--count", "0"), "count is 0"),
        (("sample", "--seed", "-1"), "seed is -1"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    arguments: tuple[str, ...], words: str, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert err.startswith("natpp: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_switch_that_is_on_is_switched_off() -> None:
    def made(*, together: Annotated[bool, Flag("side by side")] = True) -> None:
        """Do it."""

    assert parse(made, "made", ["--no-together"])[0].keywords == {"together": False}  # type: ignore[attr-defined]
    for word, told in (
        ("--together", r"unknown flag --together. Did you mean '--no-together'?"),
        ("--no-together=x", "--no-together takes no value, but is followed by 'x': leave that out"),
    ):
        with pytest.raises(SettingError, match=re.escape(told)):
            parse(made, "made", [word])


def test_one_thing_is_in_the_singular(run: Runner) -> None:
    told = ok(run("cost", "vgg_block", "--cells", "1", "--channels", "1", "--classes", "1"))
    assert "1 channel, 1 cell, 1 class," in told
    learned = Learned([Scored(-1.0, (), 0.0)], 0, -2.0, None, "short", 1.0)  # type: ignore[arg-type]
    assert "(1 candidate by short" in str(learned)
    assert "the best of 1 candidate," in learned.measured["how"]
    tuned = Trained(nn.Identity(), [{"epoch": 1, "seconds": 2.0, "loss": 0.5}], {})
    assert str(tuned).startswith("1 epoch in")


def test_a_network_with_an_unknown_setting_is_named() -> None:
    with pytest.raises(SettingError, match=r"the network 'cifar' has no setting 'chanels'. Did you mean 'channels'"):
        natpp.cost("darts", "cifar:chanels=3")


def test_a_narrow_terminal_changes_no_message(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, _, err = run("cost", "darts", "--channels", "many")
    assert "channels is 'many', expected a whole number from 1 up" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_of_any_encoding(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "natpp", *arguments]
        return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)

    shown = call("show", "natpp_darts", "--against", "darts")
    assert shown.returncode == 0
    assert "6 edges changed" in shown.stdout
    wrong = call("cost", "darts", "--chanels", "3")
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "natpp: unknown flag --chanels. Did you mean '--channels'? (natpp cost --help lists the flags)\n"
    )


def test_an_empty_file_is_refused(run: Runner, tmp_path: Path) -> None:
    file = tmp_path / "empty.json"
    file.touch()
    status, out, err = run("cost", str(file))
    assert (status, out) == (2, "")
    assert "empty.json': the text is empty" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r"printf '\xff' | PYTHONIOENCODING=utf-8 {natpp} show -", "standard input is not a text file"),
        ("{natpp} show - <&-", "standard input is closed"),
        ("{natpp} zoo > /dev/full", "No space left on device"),
    ],
)
def test_broken_standard_streams_are_one_line_too(line: str, words: str) -> None:
    command = line.replace("{natpp}", f"{sys.executable} -m natpp")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_stops_early_sees_no_traceback() -> None:
    command = f"{sys.executable} -m natpp sample --count 2000 | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Genotype(")
    assert done.stderr == ""
