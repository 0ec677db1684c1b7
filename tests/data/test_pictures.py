"""Images on disk: the same pixels as in memory, damaged ones told once and replaced, and their files told apart."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from natpp.data import pictures
from natpp.data.decode import TRIES, random_part, read_picture, scaled
from natpp.data.pictures import Pictures, in_threads
from natpp.errors import FormatError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six photographs of mixed sizes, the fourth of which is cut off."""
    rng = np.random.default_rng(0)
    for index, (width, height) in enumerate(((40, 30), (30, 50), (64, 64), (33, 47), (20, 80), (51, 50))):
        pixels = rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(tmp_path / f"{index}.jpg")
    content = (tmp_path / "3.jpg").read_bytes()
    (tmp_path / "3.jpg").write_bytes(content[: len(content) // 2 + 200])
    return tmp_path


NAMES = [f"{index}.jpg" for index in range(6)]
LABELS = np.array([0, 1, 0, 0, 0, 1])


def made(folder: Path, said: list[str] | None = None, **how: bool) -> Pictures:
    return Pictures(str(folder), NAMES, LABELS, 16, say=None if said is None else said.append, **how)


def test_they_look_like_an_array(folder: Path) -> None:
    found = made(folder)
    assert (len(found), found.shape, found.ndim, found.dtype, found.nbytes) == (6, (6, 3, 16, 16), 4, np.uint8, 4608)
    some = found[np.array([5, 0, 5])]
    assert (some.shape, some.dtype) == ((3, 3, 16, 16), np.uint8)
    assert (some[0] == some[2]).all()
    assert (found[1:3] == found[np.array([1, 2])]).all()
    assert found[np.array([], dtype=np.int64)].shape == (0, 3, 16, 16)


def test_a_damaged_one_is_told_once_and_the_next_of_its_class_stands_in(folder: Path) -> None:
    said: list[str] = []
    found = made(folder, said)
    pixels, fine = found.decoded(slice(None))
    assert fine.tolist() == [True, True, True, False, True, True]
    assert (pixels[3] == 0).all()
    assert len(said) == 1
    assert said[0].startswith(f"cannot read the image '{folder / '3.jpg'}' (")
    assert (found[np.array([3])] == pixels[4]).all()
    assert (found[np.array([4, 3])] == pixels[[4, 4]]).all()
    assert len(said) == 1
    (folder / "4.jpg").write_bytes(b"")  # the next one goes too: round to the first
    assert (made(folder, [])[np.array([3])] == pixels[0]).all()
    for index in (0, 2):
        (folder / f"{index}.jpg").write_bytes(b"")
    with pytest.raises(FormatError, match=r"none of the images in the class of '.*3.jpg' can be read"):
        made(folder, [])[np.array([3])]


def test_without_a_listener_the_log_hears_of_it(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="natpp"):
        made(folder)[:]
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"cannot read the image '{folder / '3.jpg'}'"
    ]


def test_crops_are_those_of_the_draws(folder: Path) -> None:
    found = made(folder, [], photographs=True)
    crops = torch.rand(2, TRIES, 4, generator=torch.Generator().manual_seed(1)).numpy()
    first, stands_in = found.take(np.array([1, 3]), crops)
    for pixels, name, draws in ((first, "1.jpg", crops[0]), (stands_in, "4.jpg", crops[1])):
        picture = read_picture(str(folder / name))
        assert (pixels == scaled(picture, random_part(*picture.size, draws.tolist()), 16)).all()
    assert not np.array_equal(found.take(np.array([1, 3]), crops[::-1])[0], first)
    assert not np.array_equal(found[np.array([1])], made(folder, [])[np.array([1])])  # the border is left out


def test_fingerprints_follow_names_sizes_and_form(folder: Path) -> None:
    found = made(folder).fingerprints
    assert found.shape == (6, 32)
    assert (made(folder).fingerprints == found).all()
    assert (made(folder, photographs=True).fingerprints != found).any(axis=1).all()
    (folder / "2.jpg").write_bytes((folder / "2.jpg").read_bytes() + b"\0")
    assert (made(folder).fingerprints != found).any(axis=1).tolist() == [False, False, True, False, False, False]
    (folder / "2.jpg").unlink()
    with pytest.raises(FormatError, match=r"cannot read the image '.*2.jpg': No such file"):
        assert len(made(folder).fingerprints)


def test_threads_keep_the_order_and_pass_errors_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_threads(lambda number: number**2, range(5000)) == [number**2 for number in range(5000)]
    assert in_threads(str, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda number: 1 // number, range(3))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    pool, threads = pictures._pool(-1)
    pool.shutdown()
    assert threads == 2
    pictures._pool.cache_clear()
