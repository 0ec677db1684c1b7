"""Images by name: which, where they lie, and how large."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from natpp.config import At, Config, Form


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
    """folder that natpp data put the data into; for imagenet, the one with train and val"""
    size: Annotated[int | None, At(least=1)] = None
    """pixels a side that a folder's images are cropped and scaled to (imagenet: 224)"""

    @property
    def text(self) -> str | None:
        """The images as `as_data` reads them, such as `cifar10:root=data`."""
        more = self.to_text(Data(self.data))
        return None if self.data is None else f"{self.data}:{more}" if more else str(self.data)


def as_data(given: Data | str | Path | None) -> Data:
    """Images by their name or path, with settings as in `cifar10:root=data`; a text with others is left as it is."""
    if given is None or isinstance(given, Data):
        return given or Data()
    if isinstance(given, Path) or os.path.exists(given):
        return Data(given)
    name, _, text = given.partition(":")
    own = all(part.partition("=")[0] in ("root", "size") for part in text.split(","))
    return Data.parse(text, Data(name)) if own else Data(given)
