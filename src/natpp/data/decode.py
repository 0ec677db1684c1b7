"""One file becomes a picture in RGB bytes: what may be read, what is wrong with the rest, and which part is used."""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM")  # whatever the suffix, no other decoder is run
TRIES = 10  # random parts that are tried until one lies within the picture
AREA = (0.08, 1.0)  # of the picture, that a random part has
RATIO = (3 / 4, 4 / 3)  # of its width to its height
MIDDLE = 7 / 8  # of a photograph's shorter side, that is tested on: 224 of 256 pixels

Box = tuple[float, float, float, float]  # left, top, right, bottom
_one_at_a_time = threading.Lock()


class UnreadableError(Exception):
    """Why a file is no picture, in a few words."""


def picture_size(file: str) -> tuple[int, int]:
    """Width and height of a picture, by the first bytes of its file."""
    with _opened(file) as picture:
        return picture.size


def read_picture(file: str) -> Image.Image:
    """A picture in RGB bytes: transparent parts are black, 16 bits their upper 8, a moving picture its first frame."""
    with _opened(file) as picture:
        return _by_torchvision(file, picture) or _rgb(picture)


def middle_part(width: int, height: int) -> Box:
    """The middle square."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def middle_of_photograph(width: int, height: int) -> Box:
    """The middle square without its border: the shorter side scaled to 8/7 of a size, and that size cut out."""
    side = MIDDLE * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_part(width: int, height: int, draws: Sequence[Sequence[float]]) -> Box:
    """A part of random area, ratio and place, by numbers from 0 to 1 (tries, 4); the first that lies within counts.

    Where none does, it is the largest part in the middle whose ratio is allowed.
    """
    low, high = (math.log(ratio) for ratio in RATIO)
    for area, ratio, across, down in draws:
        pixels = (AREA[0] + (AREA[1] - AREA[0]) * area) * width * height
        shape = math.exp(low + (high - low) * ratio)
        wide, tall = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = int(across * (width - wide + 1)), int(down * (height - tall + 1))
            return left, top, left + wide, top + tall
    shape = min(max(width / height, RATIO[0]), RATIO[1])
    wide, tall = min(width, max(1, round(height * shape))), min(height, max(1, round(width / shape)))
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall


def scaled(picture: Image.Image, part: Box, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A part of a picture as bytes (3, size, size), antialiased."""
    return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=part)).transpose(2, 0, 1)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """While it lasts, Pillow does not warn. Filters are one for all threads: not for threads in the background."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of broken EXIF data, which is not used
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # looked at below
        yield


@contextmanager
def _opened(file: str) -> Iterator[Image.Image]:
    """A picture whose first bytes are read; whatever is wrong with it, now or later, in a few words."""
    try:
        with _open(file) as picture:
            pixels, most = picture.width * picture.height, Image.MAX_IMAGE_PIXELS
            if most is not None and pixels > most:
                raise UnreadableError(f"its {pixels} pixels are more than {most}")
            if picture.mode == "F":
                raise UnreadableError("its pixels are fractions, expected bytes")
            yield picture
    except UnidentifiedImageError:
        raise UnreadableError("no image, or a damaged one") from None
    except Image.DecompressionBombError:
        raise UnreadableError(f"its pixels are far more than {Image.MAX_IMAGE_PIXELS}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise UnreadableError(getattr(error, "strerror", None) or " ".join(str(error).split())) from None


def _open(file: str) -> Image.Image:
    try:
        return Image.open(file, formats=FORMATS)
    except Warning:  # where somebody made errors of warnings
        with _one_at_a_time, quiet_pillow():
            return Image.open(file, formats=FORMATS)


def _by_torchvision(file: str, picture: Image.Image) -> Image.Image | None:
    """A JPEG, coloured or grey, by torchvision's decoder; None where that cannot be imported."""
    io = _torchvision() if picture.format == "JPEG" and picture.mode in ("RGB", "L") else None
    if io is None:
        return None
    try:
        pixels = io.decode_jpeg(io.read_file(file), mode=io.ImageReadMode.RGB)  # (3, height, width)
    except RuntimeError as error:
        raise UnreadableError(" ".join(str(error).split())) from None
    return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))


@functools.cache
def _torchvision() -> Any:
    try:
        from torchvision import io
    except (ImportError, RuntimeError, OSError):  # not there, or made for another torch
        return None
    return io


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16 bits, which Pillow would clip
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if "A" not in picture.getbands() and "transparency" not in picture.info:
        return picture.convert("RGB")
    seen = picture.convert("RGBA")
    black = Image.new("RGB", picture.size)
    black.paste(seen, mask=seen)
    return black
