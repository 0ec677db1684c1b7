"""The experiments run in their small form, and the page of results is what they say."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments import images_nasbench201, pictures
from experiments.__main__ import experiment, files, main
from experiments.lib.settings import Settings
from experiments.page import page, summary
from natpp.arch.formats import from_dict
from natpp.config import helps
from natpp.policies import BY_RULE, FOLDER, names
from natpp.scorers import short

ROOT = Path(__file__).parent.parent
TOLD = {
    "seed",
    "test_accuracy",
    "params",
    "madds",
    "live_params",
    "live_madds",
    "latency_ms",
    "seconds",
    "curve",
}  # of every training of a table


def run(*words: str) -> str:
    """What an experiment prints, run in this process, since a new one would have to import torch."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(words)
    return said.getvalue()


def run_apart(*words: str) -> str:
    """The same in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "experiments", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seed and both rivals of the experiment on truth."""
    folder = tmp_path_factory.mktemp("runs")
    for given in (
        ["search", "--seeds", "0"],
        ["direct", "--seeds", "0"],
        ["rival", "--name", "supernet"],
        ["rival", "--name", "paper"],
    ):
        run("images_nasbench201", *given, "--runs", str(folder), "--smoke")
    return folder


@pytest.mark.xdist_group("truth")
def test_truth_is_searched_on_digits(runs: Path) -> None:
    for stem in ("seed_0", "supernet_0", "paper_0"):
        said = json.loads((runs / f"{stem}.json").read_text())
        assert said["seconds"] >= sum(said["phases"].values()) - 1e-6
        assert len(said["scores"]) == said["evaluations"] or said["evaluations"] is None
        assert (runs / f"{stem}.safetensors").exists()
    said = json.loads((runs / "seed_0.json").read_text())
    more = json.loads((runs / "direct_0.json").read_text())["scores"]
    named = {arch.essence() for arch in images_nasbench201.named_set()}
    drawn = [from_dict(arch).essence() for arch, _ in [*said["scores"][: said["at_random"]], *more]]
    assert not named & {from_dict(arch).essence() for arch, _ in more}
    assert len(set(drawn) - named) == said["at_random"]  # as many as were drawn, without what the schedule saw
    again = run("images_nasbench201", "search", "--seeds", "0", "--runs", str(runs), "--smoke")
    assert again == ""  # what is there is not done again


@pytest.mark.data
@pytest.mark.xdist_group("truth")
def test_truth_is_judged_by_the_table(runs: Path, data_folder: Path, tmp_path: Path) -> None:
    table, out = data_folder / "nasbench201_cifar10.parquet", tmp_path / "images_nasbench201.json"
    run("images_nasbench201", "judge", "--smoke", "--runs", str(runs), "--table", str(table), "--out", str(out))
    found = json.loads(out.read_text())
    assert set(found["rivals"]) == {"constant", "random-best-of-10", "live MAdds", "supernet", "paper"}
    assert found["rivals"]["live MAdds"]["spearman"]["mean"] == pytest.approx(0.811, abs=1e-3)  # the published figure
    assert found["rivals"]["live MAdds"]["share_of_oracle"]["mean"] == pytest.approx(0.59, abs=0.01)


def test_a_schedule_on_digits(tmp_path: Path) -> None:
    out = tmp_path / "schedules.json"
    run("schedules", "--smoke", "--only", "400 steps", "--out", str(out))
    assert len(json.loads(out.read_text())["400 steps"]["losses"]) == 4


@pytest.fixture(scope="session")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells trained by the longer recipe and by one schedule, a search, and both its rivals."""
    folder = tmp_path_factory.mktemp("cells")
    given = ["--smoke", "--runs", str(folder)]
    assert "seed 0: 4 in " in run("images_cells", "train", *given)
    run("images_cells", "schedules", "--only", "5 cells, 1200 steps, learning rate 0.05", *given)
    run("images_cells", "search", *given)
    for name in ("supernet", "paper"):
        run("images_cells", "rival", "--name", name, "--seconds", "1", *given)
    return folder


@pytest.mark.xdist_group("cells")
def test_cells_are_trained_searched_and_judged_on_digits(cells: Path, tmp_path: Path) -> None:
    given = ["--smoke", "--runs", str(cells)]
    for command in ("train", "search"):
        assert run("images_cells", command, *given) == ""  # what is there is not done again
    run("ship_policies", "learn", *given, "--only", "nat")
    run("ship_policies", "learn", *given, "--only", "nat++")  # the other one stays
    learned = json.loads((cells / "policies_1.json").read_text())["policies"]
    assert learned["nat++"]["bytes"] == (cells / "policy_1_natpp.safetensors").stat().st_size
    run("judge_policies", "train", *given)
    assert run("judge_policies", "train", *given) == ""
    run("judge_policies", "judge", "--out", str(tmp_path / "judge_policies.json"), *given)
    out = ["--out", str(tmp_path / "ship_policies.json"), "--package", str(tmp_path)]
    run("ship_policies", "ship", *given, *out)
    crossed = ["--round", "3", "--only", "beside cost", "--out", str(tmp_path / "crossed.json")]
    assert run("crossed", *given, *crossed).count("half") == 2
    assert run("crossed", *given, *crossed) == ""
    run("images_cells", "direct", *given)
    run("images_cells", "judge", "--out", str(tmp_path / "images_cells.json"), *given)
    found = json.loads((tmp_path / "images_cells.json").read_text())
    assert found["cells"] == 8
    (one,) = found["schedules"].values()
    assert one["trained"] == 5  # three are set aside
    (search,) = found["searches"]
    assert search["evaluations"] == 12
    assert found["seconds"] >= search["seconds"] >= sum(search["phases"].values()) - 1e-6
    for one in (found, search, *found["rivals"].values()):
        assert {"direct_spearman", "spearman", "partial_given_madds", "paired_spearman"} <= set(one)
    assert {"live MAdds", "parameters", "supernet", "paper"} <= set(found["rivals"])
    assert found["spearman"]["low"] <= found["spearman"]["value"] <= found["spearman"]["high"]
    assert found["rivals"]["supernet"]["direct_spearman"] is not None
    assert found["judged"] > 10  # three set aside, and those of the experiment on worth
    assert isinstance(found["darts_change"], float)
    assert all(isinstance(found["rivals"][name]["darts_change"], float) for name in ("supernet", "paper"))
    worth = json.loads((tmp_path / "judge_policies.json").read_text())["rounds"]["1"]
    assert worth["inputs"] == 4
    assert worth["agreement"]["dear_scores"] == 5
    for row in worth["rows"].values():
        for one in row.values():
            assert one["live_madds"] <= row["input"]["live_madds"]
            assert one["live_params"] <= row["input"]["live_params"]
    assert set(worth["harm"]["darts"]) == {"input", "ours", "published NAT++"}
    assert worth["harm"]["darts"]["ours"]["seeds"] == 2
    for name in ("cifar10", "cifar10_nat"):
        assert (tmp_path / f"{name}.safetensors").stat().st_size < 4 << 20
        assert "## Do not use it" in (tmp_path / f"{name}.md").read_text()
    assert "8 cells trained from scratch, 3 steps of 16 images" in " ".join(page(tmp_path).split())
    for row in (
        "| beside cost: `mixture beside cost` | 0.5, 0.25 | ",
        "| **short training runs and prediction** | ",
        "| `darts`, ours | 2 |",
        "| `nat++` | ",
        "| live MAdds | – |",
    ):
        assert row in page(tmp_path)
    assert "Thirteen operations" in summary(tmp_path)
    assert "4 new random cells" in summary(tmp_path)
    few = tmp_path / "few"
    left = shutil.ignore_patterns("search_0.json", "worth_1.json", "harm_1.json")  # a page while not all is there yet
    shutil.copytree(cells, few, ignore=left)
    run("images_cells", "judge", "--out", str(tmp_path / "images_cells.json"), "--smoke", "--runs", str(few))
    (tmp_path / "judge_policies.json").unlink()
    assert "| `mixture` |" in page(tmp_path)
    assert "**short training runs and prediction**" not in page(tmp_path)
    assert "Thirteen operations" not in summary(tmp_path)


def test_how_many_meet_in_a_final_is_simulated(tmp_path: Path) -> None:
    out = tmp_path / "finals.json"
    run("finals", "--smoke", "--runs", str(ROOT / "experiments" / "runs" / "cells"), "--out", str(out))
    found = json.loads(out.read_text())
    assert found["inputs"] == 2
    (one,) = found["temperatures"].values()
    assert 1 <= one["distinct"] <= 10
    for truth in ("losses", "accuracies"):
        best = one[truth]["best"]
        assert best == sorted(best)  # who looks at more of them does better
        assert best[-1] > one[truth]["one_shot"]  # which is one of the ten
        assert best[-1] > one[truth]["sample"]
    assert {one["finals"] for one in found["shown"].values()} == {20}
    assert "by training losses: among those of `nat++ best of 10` the first by" in " ".join(page(tmp_path).split())
    assert "| best of 10 by score | final of 2 | final of 3 | final of 10 |" in page(tmp_path)
    assert f"| 1.0 | {one['distinct']:.1f} | " in page(tmp_path)


def test_random_architectures_are_changed_and_trained_on_digits(tmp_path: Path) -> None:
    out = tmp_path / "table_random.json"
    said = run("table_random", "--smoke", "--round", "2", "--out", str(out))
    assert "round 2, `nat++` over `random best of 10`" in said
    (one,) = json.loads(out.read_text())["rounds"].values()
    assert one["inputs"] == 2
    assert one["images"] == 1437  # all training images
    assert one["drawn_by"] == [1401, 2]
    assert set(one["methods"]) == {
        "input",
        "nat",
        "nat++",
        "nat++ best of 10",
        "constant",
        "random",
        "random best of 10",
    }
    default = one["default"]
    assert set(default["methods"]) == {"input", "nat++", "constant", "nat++ by cifar10"}
    for figures in (*one["methods"].values(), *default["methods"].values()):
        assert 0 <= figures["test_accuracy"]["mean"] <= 100
        assert figures["latency_ms"]["mean"] > 0
        assert figures["live_madds_change"] <= 0  # the budget is strict
    close = {"input", "nat++", "nat++ best of 10", "constant"}
    assert one["trainings"] == 2 * (7 + 2 * len(close))
    assert all(set(methods) == set(one["methods"]) for methods in one["rows"].values())
    rows = [row for methods in one["rows"].values() for row in methods.items()]
    rows += [("nat++ by cifar10", row) for row in default["rows"].values()]
    for name, row in rows:
        assert set(row) == (TOLD - {"seed", "seconds", "curve"}) | {"trainings"}
        seeds = [0, 1, 2] if name in close | {"nat++ by cifar10"} else [0]
        assert [training["seed"] for training in row["trainings"]] == seeds
        mean = statistics.fmean(training["test_accuracy"] for training in row["trainings"])
        assert row["test_accuracy"] == pytest.approx(mean)
        for training in row["trainings"]:
            assert set(training) == TOLD
            assert len(training["curve"]) == 3  # a point a step
        assert row["params"] >= row["live_params"]
    assert len(one["convergence"]) == 2
    assert set(one["bias"]) == set(one["methods"])
    assert all(0 <= of["ahead"] <= of["changed"] <= 2 for of in one["bias"].values())
    assert one["bias"]["input"]["changed"] == 0
    assert one["distinct"] <= one["trainings"]
    short = one["shortlist"]
    assert short["candidates"] == 2 * 2 * 10  # of `nat++` and random ones alike
    assert 0 < sum(group["trainings"] for group in short["groups"]) <= 40
    assert short["fit"]["weights"] == [1, 1]  # nothing to fit them on
    assert short["finals"]["candidates"] == 2 * 2 * 2  # two of either, for both inputs
    finals, others = (sum(group["trainings"] for group in some) for some in (short["finals"]["groups"], one["groups"]))
    assert 4 <= finals <= 8
    assert finals + others <= 8 + 2 * (6 + 2 * len(close))  # an answer that met in a final is not trained again
    found = json.loads(out.read_text())["agreement"]
    counted = {name: score["networks"] for name, score in found["scores"].items()}
    assert 2 <= counted.pop("a short training") < found["networks"]  # finalists, and what computes the same
    assert counted == dict.fromkeys(("live parameters", "live MAdds", "the value model of round 2"), found["networks"])
    assert "| `random best of 10` | " in page(tmp_path)
    assert "- `nat++` over the inputs: " in page(tmp_path)
    assert "- `nat++ best of 10` over `nat++`: " in page(tmp_path)
    assert set(one["later_seeds"]) == {
        f"`nat++ best of 10` over {name}" for name in ("the inputs", "`nat++`", "`constant`")
    }
    seeds = "one seed (3 of the inputs, `nat++`, `nat++ best of 10`, `constant`),"
    assert seeds in " ".join(page(tmp_path).split())
    assert "trained on 2 of 2 of these cells (3 seeds, " in " ".join(page(tmp_path).split())
    assert "- `nat++ by cifar10` over `constant`: " in page(tmp_path)
    assert f"| the value model of round 2 | {found['networks']} | " in page(tmp_path)
    assert "Best of ten: all 40 candidates, both of `nat++` and random, were trained for 3 steps in" in " ".join(
        page(tmp_path).split()
    )
    assert "The best 2 of each were trained with the table's own recipe (8, " in " ".join(page(tmp_path).split())
    assert "2 random cells (" in summary(tmp_path)
    assert "NAT++ 96.79 ± 0.32" in page(tmp_path)  # the paper's
    drawn = ElementTree.fromstring(pictures.random_cells(tmp_path))  # noqa: S314 (our own)
    assert len([one for one in drawn if one.tag.endswith("circle")]) == 2 * 6  # originals, for every method
    assert 0 < len([one for one in drawn if "marker-end" in one.attrib]) <= 2 * 6
    drawn = ElementTree.fromstring(pictures.convergence(tmp_path))  # noqa: S314
    assert len([one for one in drawn if one.tag.endswith("polyline")]) == 2 * 2


def test_published_cells_are_changed_and_trained_on_digits(tmp_path: Path) -> None:
    given = ["--smoke", "--runs", str(tmp_path)]
    with pytest.raises(SystemExit, match="run train first"):
        run("table_cells", "judge", *given)
    run("table_cells", "train", *given)
    run("table_cells", "judge", "--out", str(tmp_path / "table_cells.json"), *given)
    (one,) = json.loads((tmp_path / "table_cells.json").read_text())["rounds"].values()
    found = one["cells"]
    kinds = {"input", "published NAT", "published NAT++", "ours, `nat`", "ours, `nat++`"}
    assert {name: set(one) for name, one in found.items()} == {"darts": kinds, "enas": kinds}
    for one in (one for of in found.values() for one in of.values()):
        assert one["seeds"] == 2
        assert one["latency_ms"] > 0
        assert [row["seed"] for row in one["trainings"]] == [0, 1]
        assert all(set(row) == TOLD for row in one["trainings"])
    text = " ".join(page(tmp_path).split())
    assert "| `darts`, ours, `nat++` | 2 | " in text
    assert " 97.30 (2.5, 395) |" in text  # the paper's, in the network that the original is in
    assert " 97.31 (3.7, 580)† |" in text
    assert "`enas`, published NAT++ has 0.72 of the original's MAdds there and 0.96 in the same network" in text


def test_hand_crafted_networks_are_changed_and_trained_on_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--smoke", "--runs", str(tmp_path)]
    with pytest.raises(SystemExit, match="run train first"):
        run("table_handcrafted", "judge", *given)
    said = run("table_handcrafted", "train", *given, "--seconds", "1e-9")
    assert [line.partition(", it takes ")[0] for line in said.splitlines()] == [
        "resnet20, seed 0: not started",  # after a trial
        "resnet20, seed 1: not started",
    ]
    assert "resnet20, seed 1: " in run("table_handcrafted", "train", *given, "--seconds", "1e9")
    assert run("table_handcrafted", "train", *given) == ""  # what is there is not done again
    run("table_handcrafted", "judge", "--out", str(tmp_path / "table_handcrafted.json"), *given)
    found = json.loads((tmp_path / "table_handcrafted.json").read_text())["models"]
    assert set(found) == {"resnet20"}
    one = found["resnet20"]
    assert set(one) == {"input", "nat", "nat++", "random to the same budget"}
    for of in one.values():
        assert of["seeds"] == 2
        assert of["latency_ms"] > 0
        assert [row["seed"] for row in of["trainings"]] == [0, 1]
        assert all(set(row) == TOLD for row in of["trainings"])
    assert one["input"]["params"] == one["input"]["live_params"] == 269722
    for kind in ("nat", "nat++", "random to the same budget"):
        assert 0.65 < one[kind]["live_madds"] / one["input"]["live_madds"] <= 0.75
    text = page(tmp_path)
    assert "| `resnet20`, nat++ | 2 | " in text
    assert " 93.23 (0.3, 39) |" in text  # the paper's
    assert (
        "cut to 0.75 of the MAdds, or the next possible value below, without data, by the policies of [round 4 of"
        in " ".join(text.split())
    )
    file = tmp_path / "table_handcrafted_resnet20_0.json"
    group = json.loads(file.read_text())
    assert [row["name"] for row in group["trained"]] == [f"resnet20, {kind}" for kind in one]
    rows = {row["name"]: row for row in group["trained"]}
    rows["resnet20, nat"]["changes"] = [["conv1", "conv_3x3", "null"]]  # what natpp made of it before
    file.write_text(json.dumps(group))
    run("table_handcrafted", "train", *given)
    again = json.loads(file.read_text())
    assert again["earlier"] == [rows.pop("resnet20, nat")]
    assert {row["name"]: row for row in again["trained"]}.items() > rows.items()  # the others are not trained anew
    run("table_handcrafted", "judge", "--out", str(tmp_path / "table_handcrafted.json"), *given)
    text = " ".join(page(tmp_path).split())
    assert "1 that was replaced" in text
    assert "`resnet20`, tested earlier and then replaced: nat (conv1 conv_3x3 → null; " in text
    assert "Reason: natpp now counts blocks that are removed together with a branch." in text
    before = file.read_text()
    file.unlink()
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    run("table_handcrafted", "train", "--ray", *given)
    after = (tmp_path / "table_handcrafted_resnet20_0.json").read_text()
    told = [[row["test_accuracy"] for row in json.loads(text)["trained"]] for text in (before, after)]
    assert told[0] == told[1]  # over a cluster the same


def test_groups_that_ended_are_kept_when_the_next_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = short.train_together, []

    def failing(builds: Any, *given: Any, **options: Any) -> Any:
        calls.append(len(builds))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(builds, *given, **options)

    monkeypatch.setattr(short, "train_together", failing)
    given = ["train", "--smoke", "--runs", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        run("table_random", *given)
    said = json.loads((tmp_path / "table_random_1.json").read_text())
    assert [group["trainings"] for group in said["groups"]] == [4, 4]
    assert len({json.dumps(row["arch"]) for row in said["trained"]}) >= 8
    run("table_random", *given)
    said = json.loads((tmp_path / "table_random_1.json").read_text())
    assert len(said["trained"]) == said["asked"] == 14
    distinct = distinct_in(tmp_path / "table_random_1.json")
    assert sum(calls[3:]) == distinct - 8  # those of the first two groups are not trained again
    assert {*calls[3:]} <= {3, 4}  # as large as each other


def distinct_in(file: Path) -> int:
    """How many trainings stand behind those of a file: what computes the same is trained once."""
    return len({from_dict(row["arch"]).essence() for row in json.loads(file.read_text())["trained"]})


class FakeRay(ModuleType):
    """What of Ray is used, done at once."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.tasks = 0
        self.environment: Any = None

    def init(self, *, runtime_env: dict[str, Any], **_: object) -> None:
        self.environment = runtime_env

    def remote(self, **_: object) -> Callable[[Any], Any]:
        def wrapped(function: Any) -> Any:
            def start(*given: Any) -> Any:
                self.tasks += 1
                return self.tasks, function(*given)

            return SimpleNamespace(remote=lambda *given: _Job(*start(*given)))

        return wrapped

    def wait(self, jobs: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return jobs[-num_returns:], jobs[:-num_returns]

    def get(self, job: Any) -> Any:
        return job.result


class _Job:
    def __init__(self, number: int, result: Any):
        self.number, self.result = number, result


def test_trainings_over_a_cluster_are_those_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["train", "--smoke", "--runs"]
    monkeypatch.setitem(sys.modules, "ray", None)  # not installed
    with pytest.raises(SystemExit, match="pip install ray, or leave out workers"):
        run("table_random", *given, str(tmp_path / "no"), "--ray")
    monkeypatch.setitem(sys.modules, "ray", ray := FakeRay())
    run("table_random", *given, str(tmp_path / "one"))
    run("table_random", *given, str(tmp_path / "many"), "--ray")
    assert ray.tasks == math.ceil(distinct_in(tmp_path / "one" / "table_random_1.json") / 4)  # four at a time
    one, many = (
        {row["name"]: row["test_accuracy"] for row in json.loads(file.read_text())["trained"]}
        for file in (tmp_path / "one" / "table_random_1.json", tmp_path / "many" / "table_random_1.json")
    )
    assert one == many
    said = json.loads((tmp_path / "many" / "table_random_1.json").read_text())
    assert len(said["groups"]) == ray.tasks
    assert sum(group["trainings"] for group in said["groups"]) == distinct_in(tmp_path / "one" / "table_random_1.json")
    assert all(group["seconds"] > 0 for group in said["groups"])
    assert set(ray.environment["excludes"]) == {"results", "runs"}  # what was measured is not sent around
    assert "trained over" not in run("table_random", *given, str(tmp_path / "many"), "--ray")  # all is kept


def test_the_small_form_keeps_apart_from_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, full = str(tmp_path / "small"), tmp_path / "full"
    run("table_handcrafted", "train", "--smoke", "--runs", small)
    with pytest.raises(SystemExit, match="has runs of --smoke"):
        run("table_handcrafted", "judge", "--runs", small)
    shutil.copytree(small, full)
    (full / ".smoke").unlink()
    before = {file.name: file.read_bytes() for file in full.iterdir()}
    for command in ("train", "judge"):
        with pytest.raises(SystemExit, match="has runs of full size"):
            run("table_handcrafted", command, "--smoke", "--runs", str(full))
    assert {file.name: file.read_bytes() for file in full.iterdir()} == before
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="is a file"):
        run("table_cells", "judge", "--runs", str(tmp_path / "file"))
    published = ROOT / "experiments" / "results" / "table_handcrafted.json"
    before_it = published.read_bytes()
    run("table_handcrafted", "judge", "--smoke", "--runs", small)
    assert published.read_bytes() == before_it
    assert json.loads((tmp_path / "small" / published.name).read_text())["asked"] == 40
    assert "results of --smoke go to " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("table_cells", "enas, published NAT"), ("table_handcrafted", "resnet20, ")]
)
def test_the_small_form_without_a_command_does_all_of_it(name: str, said: str) -> None:
    assert said in run(name, "--smoke")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray")
def test_trainings_over_a_real_cluster(tmp_path: Path) -> None:
    given = [sys.executable, ROOT / "experiments" / "table_handcrafted", "train", "--smoke", "--runs"]
    for folder, more in (("one", []), ("many", ["--ray"])):
        done = subprocess.run([*given, tmp_path / folder, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, many = (
        {
            (row["name"], row["seed"]): row["test_accuracy"]
            for file in sorted((tmp_path / folder).glob("table_handcrafted_*.json"))
            for row in json.loads(file.read_text())["trained"]
        }
        for folder in ("one", "many")
    )
    assert len(one) == 8
    assert one == many


def test_quick_trainings_on_digits(tmp_path: Path) -> None:
    out = tmp_path / "quick.json"
    run("quick_cifar10", "--smoke", "--out", str(out))
    for one in json.loads(out.read_text()).values():
        assert 0 <= one["test_accuracy"] <= 100
        assert len(one["curve"]) == 1


def test_models_cut_to_half_are_kept_and_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "coverage.json"
    assert "natpp: 3 of 3 met" in run_apart("coverage", "--smoke", "--out", str(out))
    found = json.loads(out.read_text())
    for one in found["models"].values():
        row = one["natpp"]
        assert row["shapes"] and row["unchanged"] and row["restored"]  # noqa: PT018
        assert row["share"] <= 0.5
        assert one["onnx"] == {"state": "runs", "given": "", "made": ""}
    before = out.read_text()
    run_apart("coverage", "--smoke", "--out", str(out))
    assert {name: one["natpp"] for name, one in json.loads(before)["models"].items()} == {
        name: one["natpp"] for name, one in json.loads(out.read_text())["models"].items()
    }


def test_models_are_put_through_natpp_and_told_on_the_page(tmp_path: Path) -> None:
    out = tmp_path / "fx_models.json"
    said = run_apart("fx_models", "--smoke", "--out", str(out))
    assert "3 traced" in said
    found = json.loads(out.read_text())
    for row in found["models"].values():
        assert row["bit_equal"] and row["same_shapes"] and row["no_dearer"] and row["restored"]  # noqa: PT018
        assert row["changes"] > 0
    wrong = ("--models", "zoo:no_such_model", "zoo:vgg16_imagenet", "--limit", "1")
    assert "1 missing, 1 failed" in run_apart("fx_models", *wrong, "--out", str(out))
    found = json.loads(out.read_text())["models"]
    assert found["zoo:vgg16_imagenet"]["reason"] == "not done in 1 s"
    text = page(tmp_path)
    assert "4 models. Traced: 3," in text
    assert "| `zoo:resnet20` | 19 |" in text
    assert "- `zoo:vgg16_imagenet` (failed): not done" in text
    assert "no_such_model" not in text


def test_a_network_cut_and_tuned_on_digits(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "resnet20.json"
    given = ["--runs", str(runs), "--out", str(out), "--seeds", "0", "--smoke"]
    said = run("resnet20", *given, "--only", "original", "learned")
    assert [line.split()[0] for line in said.splitlines()] == ["original", "learned"]
    said = run("resnet20", *given)
    assert "original" not in said  # what is there is not done again
    pieces = json.loads(out.read_text())["pieces"]
    assert set(pieces) == {"original", "learned", "policy", "random", "scratch", "long", "agreement"}
    for name in ("learned", "policy", "random"):
        assert pieces[name][0]["share_of_madds"] <= 0.6
        assert pieces[name][0]["cost"]["madds"] <= 0.6 * pieces["original"][0]["cost"]["madds"]
    assert pieces["scratch"][0]["cost"] == pieces["learned"][0]["cost"]
    assert set(pieces["agreement"][0]["spearman"]) == {"short", "supernet", "madds"}
    text = page(tmp_path)
    assert "| learned on the network and its data | 1 |" in text
    assert "| validation accuracy after epoch | 1 |" in text


@pytest.mark.parametrize("name", ["images_cells", "judge_policies", "table_random", "table_cells", "table_handcrafted"])
def test_there_is_nothing_to_judge_yet(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with pytest.raises(SystemExit, match="run train"):
        run(name, "judge", "--runs", str(tmp_path / "runs"), "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize("name", ["images_cells", "judge_policies", "table_random", "table_cells", "table_handcrafted"])
def test_missing_images_are_told_in_a_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: cifar10 needs the folder it is stored in: cifar10:root=DIR"):
        run(name, "train", "--runs", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^error: cifar10 is not in"):
        run(name, "train", "--runs", str(tmp_path), "--root", str(tmp_path))


def test_experiments_are_listed_and_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == list(files()) == sorted(files())
    assert all(re.fullmatch(r"\w+ +[A-Z][^[]+ \[.+\]", line) for line in lines)  # what it measures, what it needs
    for words, told in (
        (["tabel_random"], "unknown experiment 'tabel_random'. Did you mean 'table_random'"),
        (["table_random"], "steps: train, judge. Give one of them, or --smoke"),
        (["table_random", "trian"], "unknown step 'trian'. Did you mean 'train'"),
        (["table_random", "train", "--runs", "x", "--round", "3"], "error: round is 3, expected a whole number from 1"),
    ):
        with pytest.raises(SystemExit, match=re.escape(told)):
            main(words)
    with pytest.raises(SystemExit) as stop:
        main(["table_random", "train", "--help"])
    assert stop.value.code == 0
    assert "start no group of trainings" in capsys.readouterr().out


def test_experiments_have_frozen_settings_and_steps() -> None:
    for name in files():
        known = experiment(name)
        assert issubclass(known.settings, Settings)
        assert known.steps
        assert known.after in (None, *files())
        fields = {field.name: field.default for field in dataclasses.fields(known.settings)}
        assert fields["out"].stem in (name, "results")  # of JSON files and pages, that of results.md
        assert set(fields) - {"smoke", "out", "runs"} <= set(helps(known.settings)), name


def test_an_unknown_model_is_told_in_a_line(tmp_path: Path) -> None:
    for wrong, told in (("resnet21", "Did you mean 'resnet20'"), ("vgg16_imagenet", "Known: resnet20, ")):
        with pytest.raises(SystemExit, match=f"^unknown model '{wrong}'. {told}"):
            run("table_handcrafted", "train", "--smoke", "--runs", str(tmp_path), "--only", wrong)


def test_there_is_no_policy_to_ship_yet(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there are no policies yet"):
        run("ship_policies", "ship", "--runs", str(tmp_path), "--package", str(tmp_path))


def test_the_cards_that_ship_are_those_of_the_results(tmp_path: Path) -> None:
    package, results = tmp_path / "package", tmp_path / "results"
    for folder in (package, results):
        folder.mkdir()
    for name in ("judge_policies", "table_random", "table_cells"):
        shutil.copy(ROOT / "experiments" / "results" / f"{name}.json", results)
    told = json.loads((ROOT / "experiments" / "results" / "ship_policies.json").read_text())
    assert list(told) == ["cifar10", "cifar10_accurate"]
    out = ["--package", str(package), "--out", str(results / "ship_policies.json")]
    given = ["--runs", str(ROOT / "experiments" / "runs" / "cells"), *out]
    for name, one in told.items():
        run("ship_policies", "ship", *given, "--round", str(one["round"]), "--name", name)
    assert json.loads((results / "ship_policies.json").read_text()) == told
    shipped = {file.name: file.read_bytes() for file in package.iterdir()}
    assert sorted(shipped) == sorted(f"{name}{end}" for name in names() for end in (".md", ".safetensors"))
    assert set(BY_RULE.values()) < set(names())
    assert [name for name, content in shipped.items() if content != (FOLDER / name).read_bytes()] == []


@pytest.mark.slow
def test_results_are_what_the_kept_runs_come_to(tmp_path: Path) -> None:
    out, published = tmp_path / "images_cells.json", ROOT / "experiments" / "results" / "images_cells.json"
    shutil.copy(published, out)
    run("images_cells", "judge", "--runs", str(ROOT / "experiments" / "runs" / "cells"), "--out", str(out))
    found, told = (
        json.loads(file.read_text(), parse_float=lambda text: round(float(text), 6)) for file in (out, published)
    )
    assert found == told


def test_the_page_of_results_is_up_to_date() -> None:
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == page()
