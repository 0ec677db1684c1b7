"""Data sets by name: one that is built in, those that `natpp data` puts into a folder, ImageNet, folders of images."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from natpp.data.archives import SETS, fetch_images, read_images
from natpp.data.folders import read_folder
from natpp.data.images import Images
from natpp.data.pictures import Say
from natpp.errors import NatppError, SettingError, did_you_mean


def digits() -> Images:
    """The 1,797 handwritten digits that come with scikit-learn: 8 x 8, offline; 360 of them are the test set."""
    table = _digits_table()
    grey = (table[:, :-1] * (255 / 16)).round().astype(np.uint8).reshape(-1, 1, 8, 8)
    pixels, labels = np.repeat(grey, 3, axis=1), table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:360], order[360:]
    return Images("digits", 10, pixels[train], labels[train], pixels[test], labels[test])


def _digits_table() -> NDArray[np.float64]:
    """Rows of 64 pixels and a label, from the file that scikit-learn has: to import it would take seconds."""
    home = importlib.util.find_spec("sklearn")
    file = None if home is None or home.origin is None else Path(home.origin).parent / "datasets/data/digits.csv.gz"
    if file is not None and file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels])


BUILT_IN: dict[str, Callable[[], Images]] = {"digits": digits}
IMAGENET = "imagenet"
PIXELS = 224  # a side, of ImageNet where nobody says
NAMES = (*BUILT_IN, *SETS, IMAGENET)


def store_images(name: str, root: str | Path, source: str | Path | None = None) -> Path:
    """Put a data set into a folder as one file, from a file or folder at hand or from where it lives."""
    if name not in SETS:
        raise NatppError(f"unknown data {name!r}. {did_you_mean(name, SETS)}")
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NatppError(f"cannot make the folder {str(root)!r}: {error.strerror}") from None
    found = fetch_images(SETS[name]) if source is None else read_images(source, SETS[name])
    found.save(stored(name, root))
    return stored(name, root)


def load_images(
    name: str | Path, root: str | Path | None = None, size: int | None = None, *, say: Say | None = None
) -> Images:
    """A data set by name: `digits`, one that `natpp data` put into the folder `root`, or the path of an image folder.

    `imagenet` is the folder `root` with photographs in `train/CLASS` and `val/CLASS`, decoded when they are used. The
    images of a folder are cropped and scaled to `size` x `size` pixels where it is given (ImageNet's to 224 where not);
    those of another named data set have their own size. A `Path` is always a folder. What turns out to be damaged
    when it is used is told by `say`.

    Examples:
        >>> from natpp.data.sets import load_images
        >>> digits = load_images("digits")
        >>> digits.train.shape, digits.test.shape
        ((1437, 3, 8, 8), (360, 3, 8, 8))
    """
    if isinstance(name, Path) or (name not in NAMES and name and os.path.isdir(name)):
        if root is not None:
            raise SettingError(f"{str(name)!r} is a folder of images, which needs no root: leave {str(root)!r} out")
        return read_folder(name, size, say=say)
    if name == IMAGENET:
        return _imagenet(root, PIXELS if size is None else size, say)
    found = _named(name, root)
    own = found.train.shape[-1]
    if size not in (None, own):
        raise SettingError(f"size is {size}, but the images of {name} are {own} x {own}: leave it out")
    return found


def stored(name: str, root: str | Path) -> Path:
    """The file that holds a data set in a folder."""
    return Path(root) / f"{name}.safetensors"


def _imagenet(root: str | Path | None, size: int, say: Say | None) -> Images:
    if root is None:
        here = f". The folder of that name here is ./{IMAGENET}" if os.path.isdir(IMAGENET) else ""
        raise NatppError(
            f"{IMAGENET} needs the folder it is in: --root DIR, or root=DIR in Python, with train/CLASS/* and "
            f"val/CLASS/*{here}"
        )
    return replace(read_folder(root, size, photographs=True, say=say), name=IMAGENET)


def _named(name: str, root: str | Path | None) -> Images:
    if name in BUILT_IN:
        if root is not None:
            raise SettingError(f"{name} is built in, so it needs no root: leave {str(root)!r} out")
        return BUILT_IN[name]()
    if name not in SETS and os.path.isfile(name):
        raise NatppError(f"{name!r} is a file, expected the name of a data set or a folder of images")
    if name not in SETS:
        near = did_you_mean(name, NAMES)
        raise NatppError(f"unknown data {name!r}. {near} A folder of images is possible too: give its path")
    if root is None:
        raise NatppError(
            f"{name} needs the folder it is in: --root DIR, or root=DIR in Python (natpp data {name} --root DIR puts "
            "it there)"
        )
    file = stored(name, root)
    if not file.is_file():
        raise NatppError(f"there is no {name} in {str(root)!r}. natpp data {name} --root {root} puts it there")
    return Images.load(file)
