"""Benchmarks run in a small form on any machine; what they measure needs a GPU."""

import argparse
import datetime
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import natpp

FOLDER = Path(__file__).parents[1] / "benchmarks"
Read = Callable[[str], Any]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """A function that gives a benchmark as a module."""

    def read(name: str) -> Any:
        monkeypatch.syspath_prepend(FOLDER)
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        benchmark = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(benchmark)
        return benchmark

    return read


def test_results_are_kept_by_date(read: Read) -> None:
    keep = read("keep")
    parser = argparse.ArgumentParser()
    keep.add_flags(parser)
    today = f"{datetime.date.today()}-fx.json"
    assert keep.file_of(parser.parse_args(["--keep"]), "fx") == FOLDER / "results" / today
    assert keep.file_of(parser.parse_args(["--json", "a.json"]), "fx") == Path("a.json")
    assert keep.file_of(parser.parse_args([]), "fx") is None
    with pytest.raises(SystemExit, match="full-size results"):
        keep.file_of(parser.parse_args(["--keep"]), "kernels", small=True)
    assert {"natpp", "commit", "torch", "python", "processor", "cores", "threads", "gpu"} <= set(keep.machine())


def test_kept_results_name_their_benchmark_and_machine() -> None:
    for file in (FOLDER / "results").iterdir():
        year, month, day, name = file.stem.split("-")
        datetime.date(int(year), int(month), int(day))
        assert (FOLDER / f"{name}.py").exists()
        assert {"torch", "python", "gpu"} <= set(json.loads(file.read_text())["machine"])


def test_separable(tmp_path: Path, capsys: pytest.CaptureFixture[str], read: Read) -> None:
    benchmark = read("separable")
    file = tmp_path / "new" / "found.json"
    benchmark.main(["--smoke", "--json", str(file), "--only", "operations", "short", "supernet", "tune", "mixture"])
    found = json.loads(file.read_text())
    assert [row["op"] for row in found["operations"]] == ["sep_conv_3x3", "max_pool_3x3"]
    assert {"ratio", "bytes", "share_of_bandwidth", "torch"} <= set(found["operations"][0])
    assert {"natpp", "plain", "ratio"} <= set(found["short"])
    assert found["supernet"]["natpp"]["milliseconds_a_step"] > 0
    assert found["mixture"][0]["choices"] == {}
    assert found["mixture"][0]["first_seconds"] > 0
    assert "times as fast" in capsys.readouterr().out
    assert sum(benchmark.units("sep_conv_3x3", 1)) == 29  # activations read and written


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU it is small")
def test_training(tmp_path: Path, capsys: pytest.CaptureFixture[str], read: Read) -> None:
    benchmark = read("training")
    file = tmp_path / "speed.json"
    benchmark.main(["--json", str(file), "--only", "supernet"])
    first = json.loads(file.read_text())
    benchmark.main(["--json", str(file)])
    found = json.loads(file.read_text())
    assert found["supernet"] == first["supernet"]  # not measured again
    assert capsys.readouterr().out.count("supernet: ") == 1
    assert found["machine"]["natpp"] == natpp.__version__
    assert found["machine"]["gpu"] is None
    assert found["seed"] == 0
    (short,), (supernet,), (train,) = (found[part] for part in ("short", "supernet", "train"))
    for row in (short, supernet, train):  # as the results page reads them
        settings = row.pop("settings")
        assert {"channels", "cells", "size"} < set(settings["network"])
        assert all(isinstance(value, int | float) for value in row.values())
    assert (short["together"], supernet["cells_a_stage"], train["batch"]) == (2, 1, 4)
    assert supernet["milliseconds"] > 0
    a_step = 2 * short["milliseconds_an_architecture_step"] / 1000  # so short a one may come out below zero
    assert short["images_per_second"] * a_step == pytest.approx(8 * 2)
    assert short["gigabytes_per_second"] * a_step > 0
    assert train["ratio"] == pytest.approx(train["natpp_images_per_second"] / train["plain_images_per_second"])
    file.write_text(json.dumps(found | {"machine": {"gpu": "another"}}))
    with pytest.raises(SystemExit, match="name another file"):
        benchmark.main(["--json", str(file)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU it is small")
def test_workarounds(tmp_path: Path, capsys: pytest.CaptureFixture[str], read: Read) -> None:
    file = tmp_path / "steps.json"
    read("workarounds").main(["--json", str(file)])
    found = json.loads(file.read_text())
    assert [row["groups"] for row in found["steps"]] == [2, 3, 4, 8]
    assert all(row["torch_ms"] > 0 and row["dense_ms"] > 0 for row in found["steps"])
    assert "3 groups, 240 channels" in capsys.readouterr().out


def test_bytes_moved_are_those_read_and_written(read: Read) -> None:
    counting = read("training").counting
    x, y, layer = torch.ones(8, 16), torch.ones(8, 16), nn.Linear(16, 4)
    size = 8 * 16 * 4
    with counting() as found:
        x + y
    assert found.total == 3 * size
    with counting() as found:
        x += y  # once, though read and written
    assert found.total == 2 * size
    with counting() as found:
        layer(x)
    assert found.total == size + (4 * 16 + 4 + 8 * 4) * 4  # input, weight, bias, output
    with counting() as found:  # allocations and views
        torch.empty_like(x), torch.empty(8, 16), x.new_empty(4), x.view(16, 8).t()[2:], x.expand(3, 8, 16)
    assert found.total == 0
    with counting() as found:
        torch.neg(torch.ones(1).expand(8, 16))
    assert found.total == (1 + 1 + 128) * 4  # the one is written and read


def test_bytes_moved_are_also_those_of_kernels_of_triton(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    class KernelInterface:
        """As Triton has it."""

        def __getitem__(self, grid: object) -> Callable[..., object]:
            return lambda *args, **kwargs: (grid, torch.neg(args[0]) is not None)

    modules = {name: ModuleType(name) for name in ("triton", "triton.runtime", "triton.runtime.jit")}
    modules["triton.runtime.jit"].KernelInterface = KernelInterface  # type: ignore[attr-defined]
    for name, module in modules.items():
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    x, y, kernel = torch.ones(8, 16), torch.ones(2, dtype=torch.uint8), KernelInterface()
    counting = read("training").counting
    usual = KernelInterface.__getitem__
    with counting() as found:
        assert kernel[(1,)](x, y, x, 3, other=y) == ((1,), True)
    assert found.total == 8 * 16 * 4 + 2  # what a launch does is not counted again
    assert KernelInterface.__getitem__ is usual
