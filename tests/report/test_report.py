"""The report: what it says is what the result says, nothing given is read as HTML, and wrong input is one line."""

import functools
import json
import re
import shlex
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import natpp
from natpp.arch.cost import cost_of, counts
from natpp.arch.formats import to_dict, to_json
from natpp.arch.groups import cell_groups
from natpp.arch.networks import setting
from natpp.arch.rules import changes as changes_of
from natpp.arch.rules import same_graphs
from natpp.cli import VERBS, main
from natpp.cli.flags import parse
from natpp.config import fields_of
from natpp.errors import FormatError, NatppError
from natpp.registry import ZOO
from natpp.report.charts import Series, chart, number, ticks
from natpp.report.contents import page_of
from natpp.report.edges import Book
from natpp.report.groups import group_cards
from natpp.report.layers import layer_sections, total_row
from natpp.report.page import LARGEST, MARK, report_html, write_report
from natpp.report.searches import search_command, seconds, signed, spearman
from natpp.report.sources import read_source, trained_accuracies
from natpp.runs.phases import PRESETS, Phases
from natpp.runs.search import Search
from natpp.scorers.predicted import PredictConfig
from natpp.zoo import network
from tests.asking import searched
from tests.runs.test_search import TINY, images

pytestmark = pytest.mark.xdist_group("report")  # the searches are run once
EVIL = "</script><img src=x onerror=alert(1)><!--"
IMAGE = torch.randn(1, 3, 16, 16)


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))


class Page(HTMLParser):
    """The elements of a page, its text, and the data of its script."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.scripts: list[str] = []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())
        self.data: dict[str, Any] = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)


def page(source: Any, **options: Any) -> Page:
    html = report_html(source, **options)
    assert html.startswith(MARK)
    assert len(html.encode()) <= LARGEST
    for outside in ("http:", "https:", "url(", "@import", "src="):
        assert outside not in html.replace("src=x", "").replace("http-equiv", ""), outside
    return Page(html)


def test_the_page_says_what_the_result_says() -> None:
    result = natpp.optimize("darts")
    found = page(result.to_dict())
    assert f"{result.cost_before.live_madds:,} → {result.cost_after.live_madds:,}" in found.text
    assert f"{len(result.changes)} changes at 16 places in 2 cells" in found.text
    assert "Not measured" in found.text
    edges, chances, costs = (found.data["book"][name] for name in ("edges", "chances", "costs"))
    where = setting()
    assert [edge["name"] for edge in edges] == list(result.probabilities)
    ops = [op for arch in (result.before, result.after) for _, graph in arch.cells() for op in graph.ops]
    assert [edge[side] for side in ("before", "after") for edge in edges] == ops
    for edge in edges:
        allowed, masked = chances[edge["chances"]]
        told = dict(allowed)
        assert told == pytest.approx(result.probabilities[edge["name"]], abs=1e-4)
        assert list(told.values()) == sorted(told.values(), reverse=True)
        assert {op: why for why, _, ops in masked for op in ops} == result.masked[edge["name"]]
        assert set(costs[edge["costs"]]) == set(told)
    sep = next(edge for edge in edges if edge["before"] == "sep_conv_3x3")
    ops = {kind: list(graph.ops) for kind, graph in result.before.cells()}
    ops["normal"][edges.index(sep)] = "null"
    without = result.before.with_ops(ops)
    saved = counts(result.before, where).live_madds - counts(without, where).live_madds
    assert costs[sep["costs"]]["sep_conv_3x3"][1] == saved
    assert natpp.load(found.data["copies"][0]) == result.after
    assert json.loads(found.data["copies"][1]) == json.loads(json.dumps(result.to_dict()))


def test_fixed_edges_are_no_choices() -> None:
    found = page(natpp.optimize("|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|").to_dict())
    assert "at 6 places in 1 cell" in found.text
    numbers = json.loads(next(a["data-edges"] or "" for tag, a in found.tags if tag == "details"))
    assert [number for number in numbers if number is not None] == list(range(6))
    assert None in numbers


@pytest.mark.parametrize("name", list(ZOO))
def test_the_savings_add_up_to_the_headline(name: str) -> None:
    """Also where edges die with others, or the whole changes its width."""
    source = ZOO[name].optimized_from
    before, after = ZOO[source or name].arch, ZOO[name].arch
    where = setting("cifar" if before.reduce is not None else "nasbench201")
    if not same_graphs(before, after):
        pytest.skip("the two graphs differ")
    costs = {f"cost_{side}": cost_of(arch, where).to_dict() for side, arch in (("before", before), ("after", after))}
    data = {"groups": cell_groups(before, after, where), "changes": map(vars, changes_of(before, after)), **costs}
    changes = group_cards(data, Book()).changes
    old, new = counts(before, where), counts(after, where)
    assert sum(one.madds or 0 for one in changes) == old.live_madds - new.live_madds
    assert sum(one.params or 0 for one in changes) == old.live_params - new.live_params


def test_a_module_with_its_blocks(tmp_path: Path) -> None:
    result = natpp.optimize(model(), budget="strict", example_input=IMAGE)
    found = page(result.to_dict())
    assert f"{result.cost_before.madds:,} → {result.cost_after.madds:,}" in found.text
    assert sum(given.get("class") == "block" for _, given in found.tags) == len(result.subject.blocks)
    for change in result.changes:
        assert change.name in found.text
    names = {edge["name"] for edge in found.data["book"]["edges"]}
    assert names == set(result.probabilities)
    assert "Sequential" in found.text
    file = result.report(tmp_path / "report.html")
    result.save(tmp_path / "saved")
    again = write_report(tmp_path / "saved", tmp_path / "again.html")
    book = [Page(path.read_text()).data["book"] for path in (file, again)]
    assert book[0] == book[1]
    saved = dict.fromkeys(("params", "madds"), 0.0)
    for change in page_of(result.to_dict())["changes"]:
        saved = {name: saved[name] + (change[name] or 0) for name in saved}
    assert saved["madds"] == result.cost_before.madds - result.cost_after.madds
    assert saved["params"] == result.cost_before.params - result.cost_after.params
    terms = [term for block in result.to_dict()["groups"] for term in block["decisions"]]
    assert sum(term["spent"][0][1] for term in terms if term["places"]) == result.cost_before.madds


def test_what_is_removed_has_one_word_and_sums_say_where_they_are() -> None:
    resnet = natpp.optimize(network("resnet20"), example_input=torch.randn(1, 3, 32, 32), budget={"madds": 0.5})
    data = resnet.to_dict()
    made = page_of(data)
    cards = {card["name"]: card for card in made["groups"]}
    assert (cards["layer1.0"]["changed"], cards["layer1.0"]["removed"]) == (1, 2)
    assert {site["after"] for site in cards["layer1.0"]["sites"]} == {"removed"}
    told = {change["name"]: change["after"] for change in made["changes"]}
    assert (told["layer1.0.conv1"], told["layer1.0 [4 → 5]"]) == ("removed", "null")
    assert cards["add_3"]["note"] == "the sum after layer2.0"
    found = page(data)
    assert "1 changed , 2 removed" in found.text
    assert "gone" not in found.text
    bars = [str(given["style"]) for tag, given in found.tags if tag == "i"]
    assert "width:0.0%" not in bars


def test_a_module_that_learned(tmp_path: Path) -> None:
    labels = torch.arange(8) % 2
    batches = [(torch.randn(8, 3, 8, 8), labels)]
    network = nn.Sequential(model(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    asked = {"task": natpp.Task(batches, batches), "scorer": "short:steps=1"}
    result = natpp.optimize(network, "tuned:evaluations=8", "strict", example_input=torch.randn(1, 3, 8, 8), **asked)
    found = page(result.to_dict())
    assert "validation loss" in found.text
    assert "measured once, without a spread" in found.text
    assert result.learned is not None
    assert any(value is not None for value in result.learned.expected)
    assert sum(result.learned.phases.values()) == pytest.approx(result.learned.seconds)
    assert "natpp.optimize(module, 'tuned:evaluations=8', 'strict', example_input=x, decisions=natpp" in found.text
    assert "task='list', scorer='short:steps=1')" in found.text
    for words in ("score of candidates", "scored against predicted", "entropy of the policy", "seconds per phase"):
        assert words in found.text


def test_a_large_module_stays_below_two_megabytes() -> None:
    result = natpp.optimize(model(), budget="strict", example_input=IMAGE).to_dict()
    text, many = json.dumps(result["groups"][0]), []
    for number_ in range(4000):
        many.append(json.loads(text.replace('"name": "', f'"name": "part{number_}.')))
        for place in many[-1]["decisions"]:
            shares = {"null": 0.25, "conv_3x3": 0.75 - number_ / 1e6}
            place["options"] = [{"value": op, "probability": share} for op, share in shares.items()]
    found = page(result | {"groups": many, "changes": []})
    assert "of 4000 blocks all but the first" in found.text


def test_nothing_given_is_read_as_html() -> None:
    for name, make in (
        ("cells", lambda: evil_cells()),
        ("module", lambda: evil_module()),
    ):
        data = make()
        html = report_html(data)
        found = Page(html)
        assert "<img" not in html, name
        assert EVIL in found.text, name
        assert html.count("</script>") == 2
        assert not any(key.startswith("on") for _, attributes in found.tags for key in attributes)
    assert EVIL in found.data["copies"][1]
    policy = next(a["content"] or "" for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def evil_cells() -> dict[str, Any]:
    data = natpp.optimize("darts").to_dict()
    return data | {"settings": data["settings"] | {"name": EVIL, "command": EVIL, "policy": EVIL}}


def evil_module() -> dict[str, Any]:
    data = natpp.optimize(model(), budget="strict", example_input=IMAGE).to_dict()
    text = json.dumps(data)
    site = next(term["name"] for term in data["groups"][0]["decisions"] if term["places"])
    changed = json.loads(text.replace(json.dumps(site), json.dumps(EVIL)))
    changed["settings"] |= {"name": EVIL, "keep": [EVIL]}
    return changed | {"notes": [EVIL]}


SEARCHES: dict[str, dict[str, Any]] = {
    "short": {"scorer": "short", "train_steps": 2, "epochs": None, "architectures": None, "evaluations": 40},
    "supernet": {},
    "paper": {"preset": "paper", "steps": None, "evaluations": None},
    "one": {"scorer": "short", "train_steps": 2, "epochs": None, "architectures": None, "arch": "vgg_block"},
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: small_search(name, tmp_path_factory.mktemp("run") / name) for name in SEARCHES}


def small_search(name: str, folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for known, made in list(PRESETS.items()):
            patch.setitem(PRESETS, known, functools.partial(_small, made))
        searched(images(), **TINY | SEARCHES[name], out=folder)
    return folder


def _small(made: Any, **given: Any) -> Phases:
    """Few inputs and rounds."""
    config = made(**given)
    learn = replace(config.learn, inputs=min(config.learn.inputs, 8), samples=min(config.learn.samples, 4))
    return replace(config, pool=60, learn=learn, predict=PredictConfig(rounds=2))


def test_a_search_by_short_trainings(runs: dict[str, Path]) -> None:
    found = page(read_source(runs["short"]))
    for words in ("scored against predicted", "rank correlation", "entropy of the policy", "reward", "best so far"):
        assert words in found.text
    for phase in ("scoring architectures", "predicting scores and choosing what to score", "learning the policy"):
        assert phase in found.text
    assert "Best candidates over time" in found.text
    buttons = [given for tag, given in found.tags if tag == "button" and given.get("class") == "copy small"]
    assert all(natpp.load(str(given["data-text"])) for given in buttons[:-1])  # the last one copies the command
    assert len(buttons) > 1
    assert "standard deviation over" in found.text
    assert "Cost of an example the one of 2 inputs with the largest gain, score" in found.text
    chances = [allowed for allowed, _ in found.data["book"]["chances"] if allowed]
    assert all(sum(share for _, share in allowed) == pytest.approx(1, abs=1e-2) for allowed in chances)
    assert len(chances) > 1
    assert "natpp search --task stripes --nodes 2,3 --evaluations 40" in found.text


def test_a_search_by_a_supernet(runs: dict[str, Path]) -> None:
    for name in ("supernet", "paper"):
        found = page(read_source(runs[name]))
        assert "accuracy of the supernet, %" in found.text
        assert "training the supernet" in found.text
        assert "entropy of the policy" in found.text
    rows = [json.loads(line) for line in (runs["paper"] / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= row["accuracy"] <= 100 for row in rows if row["phase"] == "weights")


def test_a_search_for_one_architecture(runs: dict[str, Path], tmp_path: Path) -> None:
    source = read_source(runs["one"])
    found = page(source)
    assert "accuracy, %" in found.text
    assert "standard error over" in found.text
    assert "scored against predicted" in found.text
    chances = found.data["book"]["chances"]
    assert all(sum(share for _, share in allowed) == pytest.approx(1, abs=1e-2) for allowed, _ in chances if allowed)
    assert natpp.load(runs["one"] / "architecture.json") == natpp.load(json.dumps(source["result"]["after"]))


def test_what_an_older_run_has_not_kept_is_said(runs: dict[str, Path], tmp_path: Path) -> None:
    """Files as they were before: no predictions, candidates, accuracies, examples, and no result."""
    for name in ("one", "short", "supernet"):
        folder = tmp_path / name
        folder.mkdir()
        for file in runs[name].iterdir():
            if file.name not in ("result.json", "metrics.jsonl"):
                (folder / file.name).write_bytes(file.read_bytes())
        rows = [json.loads(line) for line in (runs[name] / "metrics.jsonl").read_text().splitlines()]
        new = ("predictions", "chosen", "examples")
        old = [
            {k: v for k, v in row.items() if k not in ("candidate", "accuracy")}
            for row in rows
            if row["phase"] not in new
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old) + '{"cut sh')
        text = page(read_source(folder)).text
        assert "Not in this report" in text
    assert "the supernet's accuracy after every epoch" in text
    (folder / "policy.safetensors").unlink()
    (folder / "metrics.jsonl").unlink()
    assert "it has not ended" in page(read_source(folder)).text


def test_an_older_result_is_answered_with_what_to_do(tmp_path: Path, runs: dict[str, Path]) -> None:
    """Of natpp 0.1: an architecture, the same of the time before results named their format, a saved module."""
    found = natpp.optimize("darts")
    cells = {"before": to_dict(found.before), "after": to_dict(found.after), "cost_before": {}, "cost_after": {}}
    command = "natpp optimize darts --seed 3"
    older = {
        "first": (cells, "install natpp 0.1"),
        "cells": (cells | {"format": "natpp result", "version": 1, "command": command}, command),
        "module": ({"format": "natpp module", "version": 1, "settings": {"command": command}}, command),
    }
    for name, (data, words) in older.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(data))
        with pytest.raises(FormatError, match=f"was written by natpp 0.1.*{words}"):
            read_source(file)
    folder = tmp_path / "run"
    shutil.copytree(runs["one"], folder)
    (folder / "result.json").write_text(json.dumps(older["cells"][0]))
    text = page(read_source(folder)).text  # of a search all but that is shown
    assert "how likely each transition was, and what was masked" in text


def test_the_command_writes_what_python_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("one.html", "two.html", "three.html")]
    better, printed = tmp_path / "better.json", tmp_path / "printed.json"
    flags = ["optimize", "enas", "--seed", "3", "--out", str(better), "--report", files[0]]
    assert main(flags) == 0
    assert f"report: {files[0]}\n" in capsys.readouterr().out
    assert natpp.load(better) == natpp.optimize("enas", run=natpp.Run(seed=3)).after
    assert main(["report", str(better), "-o", files[1]]) == 0
    assert capsys.readouterr().out == f"report: {files[1]}\n"
    assert Path(files[0]).read_text() == Path(files[1]).read_text()
    assert f"natpp {' '.join(flags)}" in unescape(Path(files[0]).read_text())
    assert main(["optimize", "enas", "--seed", "3", "--json"]) == 0
    printed.write_text(capsys.readouterr().out)
    assert main(["report", str(printed), "-o", files[2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": files[2], "bytes": Path(files[2]).stat().st_size}
    assert (
        main(["optimize", "resnet20", "--budget", "strict", "--report", files[2], "--quiet"]) == 0
    )  # an earlier report is replaced
    assert "<title>resnet20" in Path(files[2]).read_text()


def test_accuracies_of_trainings(tmp_path: Path) -> None:
    result = natpp.optimize("darts")
    folders = []
    for side, arch, found in (("before", result.before, (96.0, 97.0)), ("after", result.after, (97.5,))):
        for seed, accuracy in enumerate(found):
            folder = tmp_path / f"{side}{seed}"
            folder.mkdir()
            row = {"test_accuracy": accuracy, "architecture": to_dict(arch), "recipe": {"epochs": 600}}
            (folder / "result.json").write_text(
                json.dumps(row | {"data": "cifar10", "name": "cifar-600", "seed": seed})
            )
            folders.append(folder)
    text = Page(result.report(tmp_path / "report.html", trained=folders).read_text()).text
    assert "test accuracy, % 96.5 ± 0.71 97.5 trained from scratch on cifar10 by cifar-600, 600 epochs" in text
    assert "standard deviation over seeds: 2 before, 1 after" in text
    other = json.loads((folders[0] / "result.json").read_text()) | {"data": "cifar100"}
    (folders[0] / "result.json").write_text(json.dumps(other))
    with pytest.raises(NatppError, match="cannot be compared"):
        trained_accuracies(folders, to_dict(result.before), to_dict(result.after))
    with pytest.raises(NatppError, match="a different architecture"):
        trained_accuracies(folders[:1], to_dict(result.after), to_dict(result.after))
    with pytest.raises(FormatError, match="works for an architecture"):
        report_html(natpp.optimize(model(), budget="strict", example_input=IMAGE).to_dict(), trained=folders)


def _wrong(tmp_path: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    better = tmp_path / "better.json"
    better.write_text(to_json(natpp.load("darts"), natpp.optimize("darts").to_dict()))
    (tmp_path / "taken.html").write_text("mine")
    (tmp_path / "darts.json").write_text(to_json(natpp.load("darts")))
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "damaged.json").write_text(json.dumps(natpp.optimize("darts").to_dict() | {"groups": [{"before": 3}]}))
    (tmp_path / "edges.json").write_text(json.dumps(natpp.optimize("darts").to_dict() | {"cost_before": None}))
    (tmp_path / "new.json").write_text(json.dumps(natpp.optimize("darts").to_dict() | {"version": 9}))
    for name, config in (("training", {"recipe": {}}), ("other", {"a": 1}), ("broken", None), ("empty", "")):
        (tmp_path / name).mkdir()
        if config != "":
            (tmp_path / name / "config.json").write_text("{" if config is None else json.dumps(config))
    at = str(better)
    return {
        "no such file": (("nowhere.json",), "cannot read 'nowhere.json': No such file"),
        "an architecture": (("darts.json",), "is an architecture without the result it came from"),
        "a text": (("text.txt",), "is not valid JSON"),
        "a list": (("list.json",), "is not a result"),
        "bytes": (("bytes.json",), "is not valid JSON"),
        "deep": (("deep.json",), "is not valid JSON"),
        "damaged": (("damaged.json",), "the result is damaged or from another version"),
        "without costs": (("edges.json",), "the result is damaged or from another version"),
        "newer": (("new.json",), "has version 9"),
        "a training": (("training",), "is a training folder"),
        "another folder": (("other",), "is not a natpp search"),
        "a broken run": (("broken",), "is not valid JSON"),
        "an empty folder": (("empty",), "is not a search folder"),
        "no folder for it": ((at, "-o", "nowhere/report.html"), "the folder 'nowhere' does not exist"),
        "a folder": ((at, "-o", "empty"), "is a folder, expected the path of a file"),
        "taken": ((at, "-o", "taken.html"), "exists and is not a natpp report. Choose another name"),
        "no training": ((at, "--trained", "empty"), "cannot read"),
        "nothing": ((), "RUN|RESULT"),
    }


def test_wrong_input_is_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = _wrong(tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for name, (arguments, words) in wrong.items():
        assert main(["report", *arguments]) == 2, name
        out, err = capsys.readouterr()
        assert out == "", name
        assert re.fullmatch(r"natpp: [^\n]+\n", err), (name, err)
        assert words in err, (name, err)
    assert main(["optimize", "darts", "--report", "taken.html", "--out", "new.json2"]) == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "taken.html").read_text() == "mine"


def test_a_place_that_cannot_be_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "darts", "--report", "/proc/report.html"]) == 2
    assert "cannot write to '/proc'" in capsys.readouterr().err
    with pytest.raises(NatppError):
        natpp.optimize("darts").report("/dev/null/report.html")


def test_charts() -> None:
    assert ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert ticks(-1.2, -0.1, 4) == [-1.5, -1.0, -0.5, 0]
    assert ticks(3, 3, 4) == [3]
    assert [number(value) for value in (0, 0.25, -1.5, 12_000, 528e6)] == ["0", "0.25", "−1.5", "12 k", "528 M"]
    assert chart([Series([])], "x", "y") == ""
    assert chart([Series([(0, float("nan"))])], "x", "y") == ""
    assert chart([Series([(1, 2)], name=EVIL)], "x", "y").count("<img") == 0
    many = chart([Series([(x, x) for x in range(100_000)])], "x", "y")
    assert len(many) < 10_000
    assert chart([Series([(x, x) for x in range(100_000)], dots=True)], "x", "y").count("<circle") <= 2001


def test_rank_correlation_and_seconds() -> None:
    assert spearman([(1, 10), (2, 20), (3, 15)]) == pytest.approx(0.5)
    assert spearman([(1, 1), (1, 2), (2, 3)]) == pytest.approx(0.866, abs=1e-3)
    assert spearman([(1, 1), (1, 2)]) is None
    assert (signed(-0.001), signed(-0.257), signed(1)) == ("0.00", "−0.26", "1.00")
    rows = [
        {"phase": "scores", "seconds": 4.0},
        {"phase": "chosen", "seconds": 5.0},
        {"phase": "scores", "seconds": 1.0},  # resumed
        {"phase": "policy", "seconds": 3.5},
    ]
    assert {row["name"]: row["seconds"] for row in seconds(rows)} == {
        "scoring architectures": "5.0",
        "predicting scores and choosing what to score": "1.0",
        "learning the policy": "2.5",
    }


def test_the_command_of_a_search_asks_for_the_same(runs: dict[str, Path]) -> None:
    config = read_source(runs["one"])["config"]
    command, _ = parse(VERBS["search"], "search", shlex.split(search_command(config, "run"))[2:])
    given = command.keywords
    assert (given["task"], given["scorer"], given["run"].out) == ("stripes", None, "run-again")
    assert natpp.load(given["arch"]) == natpp.load("vgg_block")
    wanted = TINY | SEARCHES["one"]
    assert given["search"].changed() == {
        name: wanted[name] for name in fields_of(Search) if wanted.get(name) is not None
    }


def test_a_chart_of_one_point_has_axes_that_can_be_read() -> None:
    drawn = chart([Series([(20, 0.0036314)])], "steps", "reward")
    assert drawn.count('class="grid"') > 2
    assert ">0.0036314<" not in drawn  # it would not fit beside the axis
    assert 'class="grid"' in chart([Series([(0, 0)])], "steps", "reward")


def layer(name: str, after: list[dict[str, Any]], figures: tuple[int, int] = (4, 2)) -> dict[str, Any]:
    before = [{"op": "3x3", "channels": [64, 64]}]
    return {"name": name, "before": before, "after": after, "params": list(figures), "madds": list(figures)}


SAME, NARROW = [{"op": "3x3", "channels": [64, 64]}], [{"op": "3x3", "channels": [64, 40]}]


def test_layers_that_did_not_change_are_folded() -> None:
    rows = [layer("a", SAME, (9, 9)), layer("b", SAME, (1, 1)), layer("c", NARROW), layer("d", [], (3, 0))]
    found = layer_sections({"layers": rows})
    assert [one["title"] for one in found] == ["2 layers unchanged", ""]
    assert (found[0]["params"], found[0]["note"]) == ([10, 10], "")
    changed, removed = found[1]["rows"]
    assert changed["after"] == [{"op": "3x3", "new": False, "channels": [("64", False), ("40", True)]}]
    assert (changed["removed"], removed["removed"]) == (False, True)
    assert total_row({"layers": rows})["madds"] == [17, 12]


@pytest.mark.parametrize(
    ("names", "titles"),
    [
        ([f"layer{one // 20}.{one % 20 // 2}.conv{one % 2}" for one in range(60)], ["layer0", "layer1", "layer2"]),
        ([f"layer{one // 50}.{one % 50 // 2}.conv{one % 2}" for one in range(100)], ["layer0.0", "layer0.1"]),
        ([str(one) for one in range(300)], ["0 to 19", "20 to 39"]),
    ],
)
def test_many_layers_are_folded_block_by_block(names: list[str], titles: list[str]) -> None:
    found = layer_sections({"layers": [layer(name, NARROW) for name in names]})
    assert [one["title"] for one in found][: len(titles)] == titles
    assert [row["name"] for one in found for row in one["rows"]] == names
    assert found[0]["note"] == f"{len(found[0]['rows'])} of {len(found[0]['rows'])} layers changed"


def test_a_module_with_widths_shows_its_layers_instead_of_unchanged_blocks() -> None:
    widths = natpp.Decisions(kinds=("width",))
    result = natpp.optimize(network("resnet20"), budget=0.5, example_input=torch.randn(1, 3, 32, 32), decisions=widths)
    found = page(result.to_dict())
    for row in result.layers:
        assert row["name"] in found.text
    assert "Before and after" not in found.text
    assert "16 → 8" in found.text
    assert page_of(result.to_dict())["total"]["madds"] == [result.cost_before.madds, result.cost_after.madds]


def test_a_file_without_layers_says_what_to_do() -> None:
    data = natpp.optimize(model(), budget="strict", example_input=IMAGE).to_dict()
    del data["layers"]
    assert "what became of each layer: the file is from a natpp that did not keep it. Optimize again" in page(data).text
