"""The network that an architecture is placed in, given by name and with numbers of your own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from natpp.arch.networks import Setting, setting
from natpp.config import Among, At, Config
from natpp.errors import SettingError, shortened
from natpp.registry import NETWORKS


@dataclass(frozen=True)
class Where(Config):
    """The network that an architecture is placed in. None (auto) means the default of that network."""

    network: Annotated[str, Among(NETWORKS)] | None = None
    """cifar, imagenet or nasbench201; auto is cifar"""
    channels: Annotated[int | None, At(least=1)] = None
    """channels of the first cells; auto is the network's own, here and below"""
    cells: Annotated[int | None, At(least=1)] = None
    """number of cells (nasbench201: a stage)"""
    classes: Annotated[int | None, At(least=1)] = None
    """number of classes"""
    size: Annotated[int | None, At(least=1)] = None
    """height and width of the image"""

    def setting(self, usual: str = "cifar") -> Setting:
        """With every number known; `usual` is the network where none is named."""
        own = {name: getattr(self, name) for name in ("channels", "cells", "classes", "size")}
        return setting(self.network or usual, **own)


def as_setting(given: Setting | Where | str) -> Setting:
    """The setting of a network's name, or of a text such as `imagenet:channels=16,classes=100`.

    Examples:
        >>> from natpp.arch.where import as_setting
        >>> as_setting("imagenet:classes=100").classes
        100
    """
    if isinstance(given, Setting):
        return given
    if isinstance(given, str):
        name, _, text = given.partition(":")
        given = Where.parse(text, Where(name), f"the network {name!r}")
    if not isinstance(given, Where):
        raise SettingError(f"expected a network's name or a Setting, not {shortened(repr(given))}")
    return given.setting()
