"""Load images from a folder with one subfolder per class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from natpp.data.decode import SUFFIXES, quiet_pillow
from natpp.data.images import Images
from natpp.data.pictures import LOG, Labels, Pictures, Pixels, Say, picture_sizes
from natpp.errors import FormatError, SettingError

HELD_OUT = ("test", "val", "validation")  # the first one that exists is the test set
LAYOUT = "expected train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png"
PHOTOGRAPHS = "expected train/CLASS/*.JPEG and val/CLASS/*.JPEG"
HELD = 16 << 30  # maximum bytes of decoded images kept in memory


class Entry(NamedTuple):
    """A file's path relative to the folder, and its class index."""

    name: str
    label: int


def read_folder(
    path: str | Path, size: int | None = None, *, photographs: bool = False, say: Say | None = None
) -> Images:
    """The images of a folder as RGB bytes; classes are numbered in the order of their sorted names.

    The folder holds `train/CLASS/*.png` and one of `test`, `val` or `validation` as the test set. If there is a `test`,
    the images of `val` are added to the training images, since `Images.split` draws its own validation set. The folder
    may also hold `CLASS/*.png`; then a fixed fifth of each class is the test set. A folder of photographs holds
    `train/CLASS` and, as the test set, `val/CLASS`; anything else in it is ignored.

    If `size` is given, the central square of each image is resized to it, with antialiasing; otherwise all images must
    be squares of the same size. Transparent pixels become black, 16-bit images keep their upper 8 bits, only the first
    frame of an animation is used, and EXIF rotation is ignored. Unreadable images are left out (`Images.skipped`); the
    split of the others does not change.

    Photographs, and images that do not fit into memory, stay on disk and are decoded on use. Damage that is only found
    then is reported through `say`, by default to Python's log.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise SettingError(f"size is {size}, expected 1 pixel or more")
    if not folder.is_dir():
        raise FormatError(f"folder {str(path)!r} does not exist")
    train, test = _photographs(folder) if photographs else _parts(folder)
    skipped: dict[str, str] = {}
    with quiet_pillow():  # this thread waits for the reading threads
        shapes = _shapes(folder, train + test, skipped)
        _check_classes(folder, train, test, skipped)
        side = size or _side(folder, shapes)
        held = not photographs and len(shapes) * 3 * side**2 <= _room()
        quiet = (lambda _: None) if held else say  # damaged images are reported all at once below
        parts = []
        for part in (train, test):
            names = [entry.name for entry in part if entry.name in shapes]
            labels = np.array([entry.label for entry in part if entry.name in shapes], dtype=np.int64)
            parts.append(Pictures(str(folder), names, labels, side, photographs=photographs, say=quiet))
        first, second = (_decoded(part, skipped) if held else (part, part.labels) for part in parts)
    _check_classes(folder, train, test, skipped)
    told = tuple(f"{name} ({reason})" for name, reason in sorted(skipped.items()))
    classes = 1 + max(entry.label for entry in train)
    return Images(folder.resolve().name, classes, first[0], first[1], second[0], second[1], told)


def only_images(path: str | Path) -> bool:
    """Whether a folder has image files and no folders, so that nothing says what they show."""
    folder = Path(path)
    names = _listed(folder) if folder.is_dir() else []
    return any(name.lower().endswith(SUFFIXES) for name in names) and not any(
        (folder / name).is_dir() for name in names
    )


def read_unlabelled(path: str | Path, size: int | None = None, *, say: Say | None = None) -> Pictures:
    """The images of a folder without classes, in a fixed random order; they stay on disk and are decoded on use."""
    folder = Path(path)
    if size is not None and size < 1:
        raise SettingError(f"size is {size}, expected 1 pixel or more")
    files = [Entry(name, 0) for name in _listed(folder) if name.lower().endswith(SUFFIXES)]
    skipped: dict[str, str] = {}
    with quiet_pillow():
        shapes = _shapes(folder, files, skipped)
    if not shapes:
        first = next(iter(skipped.items()))
        raise FormatError(f"none of the images in {str(path)!r} can be read, such as {first[0]} ({first[1]})")
    for name, reason in sorted(skipped.items()):
        (say or LOG.warning)(f"cannot read the image {str(folder / name)!r} ({reason}), so it is left out")
    names = np.random.default_rng(0).permutation(list(shapes)).tolist()
    return Pictures(str(folder), names, np.zeros(len(names), np.int64), size or _side(folder, shapes), say=say)


def _shapes(folder: Path, entries: list[Entry], skipped: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Width and height of each image; files whose header is not that of an image are added to `skipped`."""
    names = [entry.name for entry in entries]
    found = dict(zip(names, picture_sizes(str(folder), names), strict=True))
    skipped |= {name: shape for name, shape in found.items() if isinstance(shape, str)}
    return {name: shape for name, shape in found.items() if not isinstance(shape, str)}


def _side(folder: Path, shapes: dict[str, tuple[int, int]]) -> int:
    """The side length of all images; an error if they are not squares of one size."""
    first, (width, height) = next(iter(shapes.items()))
    given = f"{str(folder / first)!r} is {width} x {height}"
    if width != height:
        raise FormatError(f"{given}, expected a square: size=N crops and resizes all images, as in FOLDER:size=64")
    for name, (wide, high) in shapes.items():
        if (wide, high) != (width, height):
            found = f"{given} but {str(folder / name)!r} is {wide} x {high}"
            raise FormatError(f"{found}: size=N crops and resizes all images, as in FOLDER:size=64")
    return width


def _room() -> int:
    """Bytes that decoded images may take: at most half of the memory, shared by the processes of this machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # systems that do not report their memory
        return HELD
    return min(HELD, memory // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _decoded(pictures: Pictures, skipped: dict[str, str]) -> tuple[Pixels, Labels]:
    """All images in memory; damaged ones are added to `skipped`."""
    pixels, fine = pictures.decoded(slice(None))
    skipped |= {pictures.names[number]: reason for number, reason in pictures.damaged.items()}
    return (pixels, pictures.labels) if fine.all() else (pixels[fine], pictures.labels[fine])


def _check_classes(folder: Path, train: list[Entry], test: list[Entry], skipped: dict[str, str]) -> None:
    """Raise an error if all training images or all test images of a class are unreadable."""
    for kind, part in (("training", train), ("test", test)):
        left = {entry.label for entry in part if entry.name not in skipped}
        for name, label in part:
            if label not in left:
                count = sum(entry.label == label for entry in part)
                lost = "the only" if count == 1 else f"none of the {count}"
                where = f"{kind} image{'s' if count > 1 else ''} of the class in {str((folder / name).parent)!r}"
                raise FormatError(
                    f"{lost} {where} {'cannot' if count == 1 else 'can'} be read: {name} ({skipped[name]})"
                )


def _photographs(folder: Path) -> tuple[list[Entry], list[Entry]]:
    """Training and test files in the layout of ImageNet."""
    for name in ("train", "val"):
        if not (folder / name).is_dir():
            raise FormatError(f"{str(folder)!r} has no folder {name!r}: {PHOTOGRAPHS}")
    train, test = _together(folder, ["train", "val"], PHOTOGRAPHS)
    return train, test


def _parts(folder: Path) -> tuple[list[Entry], list[Entry]]:
    """Training and test files."""
    held_out = [name for name in HELD_OUT if (folder / name).is_dir()]
    if not (folder / "train").is_dir():
        if held_out:
            raise FormatError(f"{str(folder)!r} has a folder {held_out[0]!r} but no 'train': {LAYOUT}")
        return _set_apart(_classes(folder))
    if not held_out:
        hint = f"give {str(folder / 'train')!r} instead to use a fifth of it as the test set"
        raise FormatError(f"{str(folder)!r} has a folder 'train' but no {' or '.join(map(repr, HELD_OUT))}: {hint}")
    names = ["train", *held_out]
    if {"val", "validation"} <= set(names) or len({(folder / name).resolve() for name in names}) < len(names):
        raise FormatError(f"{str(folder)!r} has the same part twice among {', '.join(map(repr, names))}: remove one")
    train, test, *more = _together(folder, names)
    return train + [entry for part in more for entry in part], test


def _together(folder: Path, names: list[str], layout: str = LAYOUT) -> list[list[Entry]]:
    """The files of each part; raises an error unless all parts have the same classes."""
    parts = {name: _classes(folder / name, f"{name}/", layout) for name in names}
    for name in names[1:]:
        for label in sorted(parts["train"].keys() ^ parts[name].keys()):
            has, lacks = ("train", name) if label in parts["train"] else (name, "train")
            raise FormatError(f"the class {label!r} of {str(folder)!r} is in {has!r} but not in {lacks!r}")
    return [
        [Entry(file, label) for label, files in enumerate(classes.values()) for file in files]
        for classes in parts.values()
    ]


def _classes(folder: Path, before: str = "", layout: str = LAYOUT) -> dict[str, list[str]]:
    """The image files of each class, sorted, with a prefix; errors quote the expected `layout`."""
    found = {
        name: [f"{before}{name}/{file}" for file in _listed(folder / name) if file.lower().endswith(SUFFIXES)]
        for name in _listed(folder)
        if (folder / name).is_dir()
    }
    if not found:
        raise FormatError(f"{str(folder)!r} has no class folders: {layout}")
    if len(found) == 1:
        raise FormatError(f"{str(folder)!r} has the single class {next(iter(found))!r}, expected two or more")
    for name, files in found.items():
        if not files:
            raise FormatError(f"the class folder {str(folder / name)!r} has no images: {layout}")
    return found


def _listed(folder: Path) -> list[str]:
    """Sorted names of a folder's entries, except hidden ones."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise FormatError(f"cannot read the folder {str(folder)!r}: {error.strerror}") from None


def _set_apart(classes: dict[str, list[str]]) -> tuple[list[Entry], list[Entry]]:
    """Training files and test files: a fixed fifth of each class, independent of the other classes."""
    train: list[Entry] = []
    test: list[Entry] = []
    for label, (name, files) in enumerate(classes.items()):
        if len(files) < 2:
            raise FormatError(
                f"the class {name!r} has a single image {files[0]!r}: it needs a second one for the test set"
            )
        chosen = set(np.random.default_rng(0).permutation(len(files))[: max(1, len(files) // 5)].tolist())
        for index, file in enumerate(files):
            (test if index in chosen else train).append(Entry(file, label))
    return train, test
