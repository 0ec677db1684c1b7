"""Images by name: which, where they lie, and how large."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from natpp.config import At, Config, Form
from natpp.data.images import Images
from natpp.errors import SettingError


@dataclass(frozen=True)
class Data(Config):
    """Images by name.

    Examples:
        >>> from natpp.data.named import as_data
        >>> as_data("cifar10:root=data")
        Data(data='cifar10', root='data', size=None)
    """

    data: Annotated[str | Path | None, Form("DATA")] = None
    """digits, cifar10, cifar100, fashion-mnist, imagenet or a folder of images"""
    root: Annotated[str | Path | None, Form("DIR")] = None
    """folder that natpp data put the data into; of imagenet the one with train and val"""
    size: Annotated[int | None, At(least=1)] = None
    """pixels a side that a folder's images are cropped and scaled to (imagenet: 224)"""


def named(data: Data | Images) -> Data:
    """What a run keeps of its data: of images that were given as a value, their name alone."""
    return Data(data.name) if isinstance(data, Images) else data


def as_data(given: object) -> Data | Images:
    """What data is: images themselves, or the name or path of some, with settings as in `cifar10:root=data`."""
    if given is None:
        return Data()
    if isinstance(given, Data | Images):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and os.path.exists(given)):
        return Data(given)
    if isinstance(given, str):
        name, colon, settings = given.partition(":")
        return Data.parse(settings, Data(name)) if colon and "=" in settings else Data(given)
    raise SettingError(
        f"data is of type {type(given).__name__}, expected a name such as digits, a folder's path, or "
        "natpp.data.images.Images"
    )
