"""Images from a folder that holds one folder for each class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from natpp.data.decode import SUFFIXES, quiet_pillow
from natpp.data.images import Images
from natpp.data.pictures import Labels, Pictures, Pixels, Say, picture_sizes
from natpp.errors import FormatError, SettingError

HELD_OUT = ("test", "val", "validation")  # the first one there is the test set
LAYOUT = "expected train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png"
PHOTOGRAPHS = "expected train/CLASS/*.JPEG and val/CLASS/*.JPEG"
HELD = 16 << 30  # bytes of decoded images that are held in memory at most


class Entry(NamedTuple):
    """A file by its name in the folder, and the number of its class."""

    name: str
    label: int


def read_folder(
    path: str | Path, size: int | None = None, *, photographs: bool = False, say: Say | None = None
) -> Images:
    """The images of a folder as RGB bytes, their classes numbered by sorted name.

    The folder holds `train/CLASS/*.png` and one of `test`, `val`, `validation` beside it as the test set. With `test`
    there, the images of `val` are training images, since `Images.split` draws its own validation part. Or it holds
    `CLASS/*.png`; then a fifth of each class, always the same, is the test set. A folder of photographs holds
    `train/CLASS` and, as the test set, `val/CLASS`; whatever else is there is left alone.

    With a size, the middle square of each image is scaled to it, antialiased; otherwise all images are squares of one
    size. Transparent parts become black, 16 bits their upper 8; of a moving picture the first frame counts, and
    EXIF rotation is left alone. Images that cannot be read are left out (`Images.skipped`); no other image changes
    its part for that.

    Photographs, and images that would fill the memory, stay on disk and are decoded when they are used. What turns
    out to be damaged only then is told by `say`, by default to Python's log.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise SettingError(f"size is {size}, expected 1 pixel or more")
    if not folder.is_dir():
        raise FormatError(f"there is no folder {str(path)!r}")
    train, test = _photographs(folder) if photographs else _parts(folder)
    skipped: dict[str, str] = {}
    with quiet_pillow():  # this thread waits for those that read
        shapes = _shapes(folder, train + test, skipped)
        _check_classes(folder, train, test, skipped)
        side = size or _side(folder, shapes)
        held = not photographs and len(shapes) * 3 * side**2 <= _room()
        parts = [
            Pictures(
                str(folder),
                [entry.name for entry in part if entry.name in shapes],
                np.array([entry.label for entry in part if entry.name in shapes], dtype=np.int64),
                side,
                photographs=photographs,
                say=(lambda _: None) if held else say,  # told at once below
            )
            for part in (train, test)
        ]
        first, second = (_decoded(part, skipped) if held else (part, part.labels) for part in parts)
    _check_classes(folder, train, test, skipped)
    told = tuple(f"{name} ({reason})" for name, reason in sorted(skipped.items()))
    classes = 1 + max(entry.label for entry in train)
    return Images(folder.resolve().name, classes, first[0], first[1], second[0], second[1], told)


def _shapes(folder: Path, entries: list[Entry], skipped: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Width and height of each image; those whose first bytes already tell that they are none go to `skipped`."""
    names = [entry.name for entry in entries]
    found = dict(zip(names, picture_sizes(str(folder), names), strict=True))
    skipped |= {name: shape for name, shape in found.items() if isinstance(shape, str)}
    return {name: shape for name, shape in found.items() if not isinstance(shape, str)}


def _side(folder: Path, shapes: dict[str, tuple[int, int]]) -> int:
    """The side of all images, which are squares of one size."""
    first, (width, height) = next(iter(shapes.items()))
    given = f"{str(folder / first)!r} is {width} x {height}"
    if width != height:
        raise FormatError(f"{given}, no square: --size N crops and scales the images")
    for name, (wide, high) in shapes.items():
        if (wide, high) != (width, height):
            found = f"{given} but {str(folder / name)!r} is {wide} x {high}"
            raise FormatError(f"{found}: --size N crops and scales the images")
    return width


def _room() -> int:
    """Bytes that decoded images may take: half of the memory at most, shared by the processes of this machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        return HELD
    return min(HELD, memory // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _decoded(pictures: Pictures, skipped: dict[str, str]) -> tuple[Pixels, Labels]:
    """All images in memory; those that are damaged go to `skipped`."""
    pixels, fine = pictures.decoded(slice(None))
    skipped |= {pictures.names[number]: reason for number, reason in pictures.damaged.items()}
    return (pixels, pictures.labels) if fine.all() else (pixels[fine], pictures.labels[fine])


def _check_classes(folder: Path, train: list[Entry], test: list[Entry], skipped: dict[str, str]) -> None:
    """An error where a class has lost all its training images, or all its test images."""
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
    """Training and test files, as ImageNet has them."""
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
        hint = f"name {str(folder / 'train')!r} to set a fifth of it apart"
        raise FormatError(f"{str(folder)!r} has a folder 'train' but no {' or '.join(map(repr, HELD_OUT))}: {hint}")
    names = ["train", *held_out]
    if {"val", "validation"} <= set(names) or len({(folder / name).resolve() for name in names}) < len(names):
        raise FormatError(f"{str(folder)!r} has a part twice among {', '.join(map(repr, names))}: leave one out")
    train, test, *more = _together(folder, names)
    return train + [entry for part in more for entry in part], test


def _together(folder: Path, names: list[str], layout: str = LAYOUT) -> list[list[Entry]]:
    """The files of each part; all parts have the same classes."""
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
    """The image files of each class, all in sorted order; their names begin with what is `before` the class.

    Errors say what `layout` is expected.
    """
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
    """Names of what a folder holds, hidden things left out."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise FormatError(f"cannot read the folder {str(folder)!r}: {error.strerror}") from None


def _set_apart(classes: dict[str, list[str]]) -> tuple[list[Entry], list[Entry]]:
    """Training files, and a fifth of each class, whatever the other classes are, as test files."""
    train: list[Entry] = []
    test: list[Entry] = []
    for label, (name, files) in enumerate(classes.items()):
        if len(files) < 2:
            raise FormatError(f"the class {name!r} has a single image {files[0]!r}: one more is needed to test")
        chosen = set(np.random.default_rng(0).permutation(len(files))[: max(1, len(files) // 5)].tolist())
        for index, file in enumerate(files):
            (test if index in chosen else train).append(Entry(file, label))
    return train, test
