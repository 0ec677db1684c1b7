"""Decode one file into an RGB picture: which formats are read, how errors are described, and which part is used."""

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
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM")  # no other decoder is used, whatever the suffix
TRIES = 10  # random crops to try before falling back to the central one
AREA = (0.08, 1.0)  # of a random crop, as a share of the picture's
RATIO = (3 / 4, 4 / 3)  # aspect ratio of a random crop, width to height
MIDDLE = 7 / 8  # share of a photograph's shorter side that is used for testing: 224 of 256 pixels

Box = tuple[float, float, float, float]  # left, top, right, bottom
_one_at_a_time = threading.Lock()


class UnreadableError(Exception):
    """The reason why a file cannot be read as a picture."""


def picture_size(file: str) -> tuple[int, int]:
    """Width and height of a picture, from its file header."""
    with _opened(file) as picture:
        return picture.size


def read_picture(file: str) -> Image.Image:
    """A picture as RGB bytes: transparent pixels black, the upper 8 of 16 bits, the first frame of an animation."""
    with _opened(file) as picture:
        return _by_torchvision(file, picture) or _rgb(picture)


def middle_part(width: int, height: int) -> Box:
    """The central square."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def middle_of_photograph(width: int, height: int) -> Box:
    """The central square without its border: resize the shorter side to 8/7 of the size, then crop the center."""
    side = MIDDLE * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def random_part(width: int, height: int, draws: Sequence[Sequence[float]]) -> Box:
    """A crop of random area, aspect ratio and position; `draws` are numbers from 0 to 1, (tries, 4).

    The first try that lies within the picture is used, else the largest central crop with an allowed aspect ratio.
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
    """A part of a picture resized to bytes (3, size, size), antialiased."""
    return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=part)).transpose(2, 0, 1)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings; not for background threads, since all threads share the warning filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about broken EXIF data, which is not used
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # checked in `_opened`
        yield


@contextmanager
def _opened(file: str) -> Iterator[Image.Image]:
    """An opened picture whose header has been read; any error, now or later, becomes an `UnreadableError`."""
    try:
        with _open(file) as picture:
            pixels, most = picture.width * picture.height, Image.MAX_IMAGE_PIXELS
            if most is not None and pixels > most:
                raise UnreadableError(f"it has {pixels} pixels, more than the limit of {most}")
            if picture.mode == "F":
                raise UnreadableError("its pixels are floating-point numbers, expected bytes")
            yield picture
    except UnidentifiedImageError:
        raise UnreadableError("not an image, or damaged") from None
    except Image.DecompressionBombError:
        raise UnreadableError(f"it has more than twice the limit of {Image.MAX_IMAGE_PIXELS} pixels") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise UnreadableError(getattr(error, "strerror", None) or " ".join(str(error).split())) from None


def _open(file: str) -> Image.Image:
    try:
        return Image.open(file, formats=FORMATS)
    except Warning:  # if warnings have been turned into errors
        with _one_at_a_time, quiet_pillow():
            return Image.open(file, formats=FORMATS)


def _by_torchvision(file: str, picture: Image.Image) -> Image.Image | None:
    """A JPEG, in colour or grey, decoded by torchvision; None if torchvision cannot be imported."""
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
    except (ImportError, RuntimeError, OSError):  # not installed, or built for another torch
        return None
    return io


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):  # 16 bits; Pillow would clip them
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if "A" not in picture.getbands() and "transparency" not in picture.info:
        return picture.convert("RGB")
    seen = picture.convert("RGBA")
    black = Image.new("RGB", picture.size)
    black.paste(seen, mask=seen)
    return black
