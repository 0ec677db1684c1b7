"""Ways to write a result: each writes something, the same for the same result."""

from pathlib import Path

import pytest
import torch
from torch import nn

import natpp
from natpp.registry import WRITERS


def written(path: Path) -> dict[str, bytes]:
    """The bytes of a file, or of all files of a folder."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name if path.is_dir() else "": file.read_bytes() for file in files}


@pytest.mark.parametrize("name", list(WRITERS))
def test_every_way_to_write_keeps_its_promises(name: str, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    results = natpp.optimize("darts"), natpp.optimize(module, budget="strict", example_input=torch.randn(1, 3, 8, 8))
    of_one = {one.subject.name: one for one in results}
    for place, result in enumerate([of_one.get(name, results[1])] if name != "page" else results):
        told = (WRITERS[name](result, tmp_path / f"{place} {time}") for time in "ab")
        first, second = (getattr(one, "path", one) for one in told)
        assert written(first)
        assert written(first) == written(second)
        with pytest.raises(natpp.NatppError, match="nowhere"):
            WRITERS[name](result, tmp_path / "nowhere" / "further" / "x")
        assert not (tmp_path / "nowhere").exists()
