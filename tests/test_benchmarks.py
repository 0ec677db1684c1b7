"""Benchmarks run in a small form on any machine; what they measure needs a GPU."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_separable(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("benchmark_separable", FOLDER / "separable.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    file = tmp_path / "new" / "found.json"
    benchmark.main(["--smoke", "--json", str(file), "--only", "operations", "short", "supernet", "tune"])
    found = json.loads(file.read_text())
    assert [row["op"] for row in found["operations"]] == ["sep_conv_3x3", "max_pool_3x3"]
    assert {"ratio", "bytes", "share_of_bandwidth", "torch"} <= set(found["operations"][0])
    assert {"natpp", "plain", "ratio"} <= set(found["short"])
    assert found["supernet"]["natpp"]["milliseconds_a_step"] > 0
    assert "times as fast" in capsys.readouterr().out
    assert sum(benchmark.units("sep_conv_3x3", 1)) == 29  # activations read and written
