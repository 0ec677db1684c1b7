"""Images from a folder that holds one folder for each class."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from natpp.data.images import Images, Labels, Pixels
from natpp.errors import FormatError, SettingError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM")  # whatever the suffix, no other decoder is run
HELD_OUT = ("test", "val", "validation")  # the first one there is the test set
LAYOUT = "expected train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png"
LARGEST = 16 << 30  # bytes of all images
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)

Part = list[tuple[Path, int]]  # files, and the numbers of their classes


def read_folder(path: str | Path, size: int | None = None) -> Images:
    """The images of a folder as RGB bytes, their classes numbered by sorted name.

    The folder holds `train/CLASS/*.png` and one of `test`, `val`, `validation` beside it as the test set. With `test`
    there, the images of `val` are training images, since `Images.split` draws its own validation part. Or it holds
    `CLASS/*.png`; then a fifth of each class, always the same, is the test set.

    With a size, the middle square of each image is scaled to it, antialiased; otherwise all images are squares of one
    size. Transparent parts become black, 16 bits their upper 8; of a moving picture the first frame counts, and
    EXIF rotation is left alone.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise SettingError(f"size is {size}, expected 1 pixel or more")
    if not folder.is_dir():
        raise FormatError(f"there is no folder {str(path)!r}")
    train, test = _parts(folder)
    first = train[0][0]
    width, height = _picture(first).size
    if size is None and width != height:
        raise FormatError(f"{str(first)!r} is {width} x {height}, no square: --size N crops and scales the images")
    side = size or width
    needed = 3 * side**2 * (len(train) + len(test))
    if needed > LARGEST:
        raise FormatError(
            f"{len(train) + len(test)} images of {side} x {side} are {needed / 2**30:.1f} GiB, "
            f"expected at most {LARGEST >> 30}: choose a lower --size"
        )

    def decoded(part: Part) -> tuple[Pixels, Labels]:
        pixels = np.empty((len(part), 3, side, side), dtype=np.uint8)
        for index, (file, _) in enumerate(part):
            picture = _picture(file)
            if size is not None:
                picture = _fitted(picture, size)
            elif picture.size != (side, side):
                found = f"{str(first)!r} is {side} x {side} but {str(file)!r} is {picture.width} x {picture.height}"
                raise FormatError(f"{found}: --size N crops and scales the images")
            pixels[index] = np.asarray(picture).transpose(2, 0, 1)
        return pixels, np.array([label for _, label in part], dtype=np.int64)

    classes = 1 + max(label for _, label in train)
    return Images(folder.resolve().name, classes, *decoded(train), *decoded(test))


def _parts(folder: Path) -> tuple[Part, Part]:
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
    parts = {name: _classes(folder / name) for name in names}
    for name in held_out:
        for label in sorted(parts["train"].keys() ^ parts[name].keys()):
            has, lacks = ("train", name) if label in parts["train"] else (name, "train")
            raise FormatError(f"the class {label!r} of {str(folder)!r} is in {has!r} but not in {lacks!r}")
    train, test, *more = (
        [(file, label) for label, files in enumerate(classes.values()) for file in files] for classes in parts.values()
    )
    return train + [entry for part in more for entry in part], test


def _classes(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class, all in sorted order."""
    found = {
        entry.name: [file for file in _listed(entry) if file.suffix.lower() in SUFFIXES]
        for entry in _listed(folder)
        if entry.is_dir()
    }
    if not found:
        raise FormatError(f"{str(folder)!r} has no class folders: {LAYOUT}")
    if len(found) == 1:
        raise FormatError(f"{str(folder)!r} has the single class {next(iter(found))!r}, expected two or more")
    for name, files in found.items():
        if not files:
            raise FormatError(f"the class folder {str(folder / name)!r} has no images: {LAYOUT}")
    return found


def _listed(folder: Path) -> list[Path]:
    """What a folder holds by name, hidden things left out."""
    try:
        return sorted((entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=lambda at: at.name)
    except OSError as error:
        raise FormatError(f"cannot read the folder {str(folder)!r}: {error.strerror}") from None


def _set_apart(classes: dict[str, list[Path]]) -> tuple[Part, Part]:
    """Training files, and a fifth of each class, whatever the other classes are, as test files."""
    train: Part = []
    test: Part = []
    for label, (name, files) in enumerate(classes.items()):
        if len(files) < 2:
            raise FormatError(f"the class {name!r} has a single image {str(files[0])!r}: one more is needed to test")
        chosen = set(np.random.default_rng(0).permutation(len(files))[: max(1, len(files) // 5)].tolist())
        for index, file in enumerate(files):
            (test if index in chosen else train).append((file, label))
    return train, test


def _picture(file: Path) -> Image.Image:
    """A picture in RGB bytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of broken EXIF data, which is not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as picture:
                return _rgb(picture)
    except UnidentifiedImageError:
        raise FormatError(f"{str(file)!r} is no image, or a damaged one") from None
    except (OSError, SyntaxError, ValueError, *BOMBS) as error:
        raise FormatError(f"cannot read the image {str(file)!r}: {getattr(error, 'strerror', None) or error}") from None


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "F":
        raise ValueError("its pixels are fractions, expected bytes")
    if picture.mode.startswith("I"):  # 16 bits, which Pillow would clip
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if "A" not in picture.getbands() and "transparency" not in picture.info:
        return picture.convert("RGB")
    seen = picture.convert("RGBA")
    black = Image.new("RGB", picture.size)
    black.paste(seen, mask=seen)
    return black


def _fitted(picture: Image.Image, size: int) -> Image.Image:
    """The middle square, scaled: the shorter side becomes the size."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
