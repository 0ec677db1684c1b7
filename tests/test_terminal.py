"""What every command promises terminals and programs: JSON alone, quiet, colours where wanted, one-line errors."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import RESNET_LIKE, Runner, run  # noqa: F401

import natpp
from natpp.arch.formats import to_json
from natpp.cli import VERBS

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")
FAST = ("--train-steps=1", "--channels=2", "--cells=1")
SEARCH = ("--nodes=2,3", "--batch=64", "--evaluations=6", "--steps=2", *FAST)


def table(folder: Path) -> Path:
    """A table of all architectures of NAS-Bench-201, with scores that mean nothing."""
    from itertools import product

    ops = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
    rows = ["arch,val_200,test_200"]
    for number, (a, b, c, d, e, f) in enumerate(product(ops, repeat=6)):
        rows.append(f"|{a}~0|+|{b}~0|{c}~1|+|{d}~0|{e}~1|{f}~2|,{number % 97},{number % 89}")
    file = folder / "table.csv"
    file.write_text("\n".join(rows))
    return file


def arguments_of(verb: str, folder: Path) -> tuple[str, ...]:
    """Arguments with which a command works, and soon ends."""
    few = ("--method", "random,random-best-of-10", "--seeds", "1", "--holdout", "5")
    made = {"benchmark": table, "report": result}
    source = str(made[verb](folder)) if verb in made else ""
    return {
        "zoo": (),
        "show": ("darts",),
        "cost": ("darts",),
        "transitions": ("conv_3x3",),
        "convert": (RESNET_LIKE, "--to", "nasbench201"),
        "sample": (),
        "search": ("--task", "digits", "--out", str(folder / "run"), *SEARCH),
        "score": ("darts", "vgg_block", "--task", "digits", *FAST),
        "optimize": ("darts",),
        "benchmark": ("nasbench201", "--table", source, *few),
        "train": ("darts", "--task", "digits", "--epochs=1", "--out", str(folder / "trained"), *FAST[1:]),
        "finetune": ("resnet20", "--task", "digits", "--epochs=1", "--batch=512", "--out", str(folder / "tuned")),
        "export": ("resnet20", "-o", str(folder / "model.onnx")),
        "evaluate": ("resnet20", "--task", "digits"),
        "report": (source, "-o", str(folder / "report.html")),
        "data": ("fashion-mnist", "--root", str(folder)),
    }[verb]


def result(folder: Path) -> Path:
    """What `natpp optimize --out` writes."""
    file = folder / "result.json"
    file.write_text(to_json(natpp.load("darts"), natpp.optimize("darts").to_dict()))
    return file


@pytest.mark.parametrize("verb", list(VERBS))
def test_json_and_quiet(verb: str, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("natpp.data.sets.store_images", lambda name, root, source: Path(root) / name)  # nothing fetched
    arguments = arguments_of(verb, tmp_path)
    status, out, err = run(verb, *arguments, "--json", "--quiet")
    assert status == 0, err
    assert err == ""
    assert json.loads(out) not in (None, {}, [])
    assert not ESCAPE.search(out)


@pytest.mark.parametrize("verb", ["search", "score", "benchmark", "train"])
def test_progress_goes_to_standard_error(verb: str, run: Runner, tmp_path: Path) -> None:  # noqa: F811
    arguments = arguments_of(verb, tmp_path)
    status, out, err = run(verb, *arguments, "--json")
    assert status == 0, err
    json.loads(out)
    assert re.search(r"^\w+ \d+/\d+", err, flags=re.MULTILINE)
    assert not ESCAPE.search(err)


def test_quiet_leaves_the_result(run: Runner) -> None:  # noqa: F811
    loud, quiet = run("optimize", "darts")[1], run("optimize", "darts", "--quiet")[1]
    assert loud.startswith(quiet)
    assert loud.removeprefix(quiet).startswith("(changed by the policy cifar10")


@pytest.mark.parametrize("verb", list(VERBS))
def test_errors_are_one_line_also_when_quiet_and_for_programs(verb: str, run: Runner) -> None:  # noqa: F811
    for more in (("--no-such-flag",), ("--json", "--quiet", "--no-such-flag")):
        status, out, err = run(verb, *more)
        assert status == 2
        assert out == ""
        assert re.fullmatch(r"natpp: [^\n]+\n", err)


def on_terminal(*arguments: str, **environment: str) -> str:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    settings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    settings |= {"TERM": "xterm-256color", **environment}
    command = [sys.executable, "-m", "natpp", *arguments]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=settings) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody writes any more
                break
            if not part:
                break
            shown += part
        process.wait()
    os.close(ours)
    return shown.decode()


def test_names_and_figures_are_whole_on_narrow_terminals() -> None:
    for columns in ("40", "80"):
        shown = on_terminal("zoo", COLUMNS=columns, NO_COLOR="1")
        assert "…" not in shown
        assert "pc_darts_imagenet" in shown
        assert "1,673,814,240" in shown


def test_colours_are_for_terminals_that_want_them(run: Runner) -> None:  # noqa: F811
    assert COLOUR.search(on_terminal("cost", "--help"))
    scoring = ("score", "darts", "vgg_block", "--task", "digits", *FAST)
    for arguments, words in ((("cost", "--help"), "usage: natpp cost"), (scoring, "vgg_block")):
        shown = on_terminal(*arguments, NO_COLOR="1")
        assert words in shown
        assert not COLOUR.search(shown)
    assert not ESCAPE.search(run("cost", "--help")[1])
    assert not ESCAPE.search(run("zoo")[1])
