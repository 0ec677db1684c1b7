"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from natpp.errors import NatppError
from natpp.files import write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_whole(file, "first")
    write_whole(file, b"second")
    assert file.read_text() == "second"
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert list(tmp_path.iterdir()) == [file]


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text("first")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(NatppError, match=r"cannot write .*No space left"):
        write_whole(file, "second")
    assert file.read_text() == "first"
    assert list(tmp_path.iterdir()) == [file]


def test_the_longest_name_is_fine_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    write_whole(tmp_path / ("a" * 255), "x")
    for path in (tmp_path / ("a" * 256), tmp_path / ("a" * 256) / "b"):
        with pytest.raises(NatppError, match=r"cannot write|does not exist"):
            write_whole(path, "x")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NatppError, match="is a folder"):
        write_whole(tmp_path, "x")
    with pytest.raises(NatppError, match="does not exist"):
        write_whole(tmp_path / "nowhere" / "x", "x")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
