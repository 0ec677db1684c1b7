"""Data sets by name: the built-in digits, those stored by `natpp data`, ImageNet, and image folders."""

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
    """The 1,797 handwritten digits of scikit-learn, 8 x 8 pixels, available offline; 360 of them are the test set."""
    table = _digits_table()
    grey = (table[:, :-1] * (255 / 16)).round().astype(np.uint8).reshape(-1, 1, 8, 8)
    pixels, labels = np.repeat(grey, 3, axis=1), table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:360], order[360:]
    return Images("digits", 10, pixels[train], labels[train], pixels[test], labels[test])


def _digits_table() -> NDArray[np.float64]:
    """Rows of 64 pixels and a label, read directly from scikit-learn's file, since importing it takes seconds."""
    home = importlib.util.find_spec("sklearn")
    file = None if home is None or home.origin is None else Path(home.origin).parent / "datasets/data/digits.csv.gz"
    if file is not None and file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels])


BUILT_IN: dict[str, Callable[[], Images]] = {"digits": digits}
IMAGENET = "imagenet"
PIXELS = 224  # default side of ImageNet images
NAMES = (*BUILT_IN, *SETS, IMAGENET)


def store_images(name: str, root: str | Path, source: str | Path | None = None) -> Path:
    """Store a data set as one file in a folder, from a local file or folder, or by downloading it."""
    if name not in SETS:
        raise NatppError(f"unknown data set {name!r}. {did_you_mean(name, SETS)}")
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NatppError(f"cannot create the folder {str(root)!r}: {error.strerror}") from None
    found = fetch_images(SETS[name]) if source is None else read_images(source, SETS[name])
    found.save(stored(name, root))
    return stored(name, root)


def load_images(
    name: str | Path, root: str | Path | None = None, size: int | None = None, *, say: Say | None = None
) -> Images:
    """A data set by name (`digits`, or one that `natpp data` stored in `root`), or by the path of an image folder.

    `imagenet` reads photographs from `train/CLASS` and `val/CLASS` in `root`, decoded on use. The images of a folder
    are cropped and resized to `size` x `size` pixels if `size` is given (ImageNet: 224 by default); the other named
    data sets have a fixed size. A `Path` is always a folder. Images found damaged on use are reported through `say`.

    Examples:
        >>> from natpp.data.sets import load_images
        >>> digits = load_images("digits")
        >>> digits.train.shape, digits.test.shape
        ((1437, 3, 8, 8), (360, 3, 8, 8))
    """
    if isinstance(name, Path) or (name not in NAMES and name and os.path.isdir(name)):
        if root is not None:
            raise SettingError(
                f"{str(name)!r} is an image folder, so root ({str(root)!r}) does not apply: leave it out"
            )
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
        here = f". Did you mean {IMAGENET}:root=./{IMAGENET}?" if os.path.isdir(IMAGENET) else ""
        raise NatppError(f"{IMAGENET} needs its folder: {IMAGENET}:root=DIR, with train/CLASS/* and val/CLASS/*{here}")
    return replace(read_folder(root, size, photographs=True, say=say), name=IMAGENET)


def _named(name: str, root: str | Path | None) -> Images:
    if name in BUILT_IN:
        if root is not None:
            raise SettingError(f"{name} is built in, so root ({str(root)!r}) does not apply: leave it out")
        return BUILT_IN[name]()
    if name not in SETS and os.path.isfile(name):
        raise NatppError(f"{name!r} is a file, expected the name of a data set or an image folder")
    if name not in SETS:
        near = did_you_mean(name, NAMES)
        raise NatppError(f"unknown data set {name!r}. {near} Or give the path of an image folder")
    if root is None:
        raise NatppError(
            f"{name} needs the folder it is stored in: {name}:root=DIR (natpp data {name} --root DIR puts it there)"
        )
    file = stored(name, root)
    if not file.is_file():
        raise NatppError(f"{name} is not in {str(root)!r}. Run natpp data {name} --root {root} to store it there")
    return Images.load(file)
