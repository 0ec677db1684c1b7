"""Rivals of natpp meet a share of the multiply-adds, and the rows of their comparison are kept and shown."""

import contextlib
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import natpp
from experiments import beside_pruning
from experiments.__main__ import main
from experiments.lib import beside, held, rivals
from natpp.data.sets import load_images
from natpp.registry import KINDS
from natpp.zoo.networks.resnet import CifarResNet

SMALL = torch.zeros(1, 3, 8, 8)


def run(*words: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(words)
    return said.getvalue()


def test_the_small_form_keeps_every_row_and_resumes(tmp_path: Path) -> None:
    given = ["--smoke", "--runs", str(tmp_path / "runs"), "--rows", "0.5, low rank|original"]
    out = tmp_path / "beside_pruning.json"
    said = run("beside_pruning", "measure", *given)
    assert said.count("% on the test images") == 3
    assert run("beside_pruning", "measure", *given) == run("beside_pruning", "together", *given) == ""
    shown = run("beside_pruning", "report", *given, "--out", str(out))
    assert "| low rank | SVD of weights | 0.4" in shown
    assert shown == out.with_suffix(".md").read_text()
    rows = json.loads(out.read_text())["rows"]
    assert [row["epochs"] for row in rows] == [0, 0, 1]
    for row in rows:
        assert row["plan"]["calibration"] == 64
        assert {"torch", "natpp", "cores"} <= set(row["machine"])
        assert row["madds"] <= row["share"]
        assert row["time"]["ratio"] > 0
    assert set(rows[-1]["rates"]) == {"0.002", "0.006", "0.02"}


@pytest.mark.slow
def test_the_small_form_of_natpps_own_rows(tmp_path: Path) -> None:
    said = run("beside_pruning", "together", "--smoke", "--runs", str(tmp_path), "--processes", "1", "--device", "cpu")
    for part in ("| **auto** | natpp's row |", "| **auto, labels** |", "What decides after training (1 epochs)"):
        assert part in said


def test_every_kind_of_decision_has_a_row_and_auto_learns_where_it_may() -> None:
    starts = beside_pruning.asked(beside_pruning.BesidePruning(runs=Path("none")))
    methods = {start.method for start in starts if start.share == 0.5 and start.network == "resnet20"}
    assert {f"{kind} alone" for kind in KINDS} < methods
    auto = [(start.labels, epochs) for start, epochs in starts.items() if start.method == "auto" and start.seed == 0]
    assert (True, [3, 20]) in auto
    assert all(labels == (epochs != [0]) for labels, epochs in auto)
    settings = beside_pruning.BesidePruning(runs=Path("none"), rows="resnet56 0.3, low rank, seed 0, 3 epochs")
    assert list(beside_pruning.asked(settings).values()) == [[3]]
    with pytest.raises(natpp.NatppError, match="long has 'low', expected methods among auto, "):
        beside_pruning.asked(beside_pruning.BesidePruning(runs=Path("none"), long=("low",)))


def test_sizes_shrink_one_by_one() -> None:
    sizes = [16, 16, 32, 64]
    assert rivals.staggered(1.0, sizes) == sizes
    assert rivals.staggered(0.0, sizes) == [1, 1, 1, 1]
    sums = [sum(rivals.staggered(part / 1000, sizes)) for part in range(1001)]
    assert sums == sorted(sums)
    assert max(after - before for before, after in itertools.pairwise(sums)) <= 2


def test_a_convolution_split_at_full_rank_is_the_same() -> None:
    torch.manual_seed(0)
    layer, image = nn.Conv2d(3, 5, 3, stride=2, padding=1), torch.randn(2, 3, 9, 9)
    assert rivals.split(layer, 5)(image).allclose(layer(image), atol=1e-5)
    assert (rivals.split(layer, 1)(image) - layer(image)).abs().max() > 0.01


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_low_rank_meets_a_share(share: float) -> None:
    network = CifarResNet(10, depth=8).eval()
    made = rivals.low_rank(network, SMALL, share)
    assert share - 0.03 < rivals.madds(made, SMALL) / rivals.madds(network, SMALL) <= share
    assert made(SMALL).shape == (1, 10)


@pytest.mark.parametrize("scope", rivals.SCOPES)
@pytest.mark.parametrize("name", rivals.IMPORTANCES)
def test_pruned_channels_meet_a_share(name: str, scope: str) -> None:
    pytest.importorskip("torch_pruning")
    torch.manual_seed(0)
    network, images = CifarResNet(10, depth=8).eval(), torch.randn(8, 3, 8, 8)
    before = {path: tensor.clone() for path, tensor in network.state_dict().items()}
    made = rivals.pruned(network, SMALL, 0.5, name, scope, [images])
    assert 0.46 < rivals.madds(made, SMALL) / rivals.madds(network, SMALL) <= 0.5
    assert made(images).shape == (8, 10)
    assert all(torch.equal(tensor, before[path]) for path, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in (*network.parameters(), *made.parameters()))


def test_images_set_aside_are_the_last_and_each_pass_has_another_order() -> None:
    images = load_images("digits")
    some = held.Held(images, torch.device("cpu"), aside=300)
    assert torch.cat([labels for _, labels in some.aside()]).tolist() == images.train_labels[-300:].tolist()
    assert len(some.labels) == len(images.train) - 300
    assert sum(map(len, some.unlabelled(200, 0))) == 200
    loader = held.Shuffled(some, 64, seed=3)
    first, second = ([labels for _, labels in loader] for _ in range(2))
    assert len(first) == len(loader) == len(some.labels) // 64
    assert not torch.equal(torch.cat(first), torch.cat(second))
    again = [labels for _, labels in held.Shuffled(some, 64, seed=3)]
    assert torch.equal(torch.cat(first), torch.cat(again))
    black = some.normalized(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten()
    assert black.tolist() == pytest.approx([-mean / own for mean, own in zip(held.MEAN, held.DEVIATION, strict=True)])


def row(method: str, seed: int, epochs: int, accuracy: float, **more: Any) -> dict[str, Any]:
    start = {"name": f"{method} {seed} {epochs}", "network": "resnet20", "share": 0.5, "method": method, "seed": seed}
    found = {"epochs": epochs, "labels": False, "by": "natpp", "madds": 0.5, "params": 0.6, "search_seconds": 2.0}
    return start | found | {"test_accuracy": accuracy, "time": {"ratio": 0.8}} | more


def test_rows_are_kept_whole_and_shown(tmp_path: Path) -> None:
    rows = [
        row("original", 0, 0, 91.73, share=1.0),
        row("low rank", 0, 0, 63.0, by="SVD of weights"),
        row("auto", 0, 0, 90.0),
        row("auto", 1, 0, 91.0),
        row("auto", 0, 3, 91.5, labels=True, rate=0.006),
        {"name": "t", "network": "resnet20", "share": 0.5, "method": "term alone", "labels": False, "epochs": 0}
        | {"refused": "cannot be met"},
        row("fitted", 0, 3, 91.0, decides=True, rates={"0.006": 97.0, "0.02": 96.0}),
    ]
    assert beside.read_rows(tmp_path) == []
    for one in rows[:3]:
        beside.write_row(tmp_path, one)
    with (tmp_path / beside.ROWS).open("a") as file:
        file.write('{"name": "cut sho')
    for one in rows[3:]:
        beside.write_row(tmp_path, one)
    assert beside.read_rows(tmp_path) == rows
    lines = beside.markdown(rows, beside.NOTE).splitlines()
    assert lines[0].startswith("The images set aside, on which learning rates are chosen, were in the training set")
    assert lines[2] == "## resnet20 at 0.5 of its multiply-adds (91.73 as given)"
    shown = [line for line in lines if line.startswith("| ")][2:]
    assert shown[0].startswith("| **auto, labels** | natpp's row | 0.500 | 0.600 | 0.80 | 2.0 |  | 91.50 | 0.006 |")
    assert shown[1].startswith("| **auto** | natpp's row | 0.500 ± 0.000 |")
    assert "| 90.50 ± 0.71 |" in shown[1]
    assert shown[2].startswith("| low rank | SVD of weights |")
    assert shown[3].endswith("| cannot be met |")
    assert lines[-1] == "| fitted | 97.00 | 96.00 | 91.00 |"
