"""Architectures by name, and from files, texts and standard input."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from natpp.arch.formats import looks_like_text, parse
from natpp.arch.graph import Architecture
from natpp.errors import FormatError, NatppError, did_you_mean, shortened
from natpp.registry import MODELS, ZOO


def load(given: str | Path) -> Architecture:
    """The architecture of a zoo name, a file, a text (JSON, DARTS genotype, NAS-Bench-201 string) or `-` (stdin).

    Examples:
        >>> natpp.load("darts").normal.ops[:2]
        ('sep_conv_3x3', 'sep_conv_3x3')
        >>> cell = natpp.load("|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|")
        >>> natpp.cost(cell, "nasbench201").live_params
        73306
    """
    if isinstance(given, Path):
        return _parse_file(given)
    if not isinstance(given, str):
        raise FormatError(f"expected a name, a file or a text, not {shortened(repr(given))}")
    if given == "-":
        return _parse_named(_decoded(_standard_input(), "standard input"), "standard input")
    if looks_like_text(given):
        return parse(given)
    if given in ZOO:
        return ZOO[given].arch
    if os.path.exists(given):
        return _parse_file(Path(given))
    if given in MODELS:
        raise FormatError(
            f"{given} is a whole network, not an architecture of cells: natpp.zoo.network({given!r}) builds it"
        )
    if not given.strip():
        raise FormatError("the text is empty. Expected a zoo name, a file or an architecture's text")
    if Path(given).suffix or "/" in given:
        raise FormatError(f"there is no file {shortened(given)}. Expected a zoo name, a file or an architecture's text")
    raise FormatError(
        f"unknown architecture {shortened(given)}. {did_you_mean(given, ZOO)} Or give a file, '-' or the text itself."
    )


def as_architecture(given: Architecture | str | Path) -> Architecture:
    """The given architecture, or the one that `load` finds."""
    return given if isinstance(given, Architecture) else load(given)


def name_of(given: Architecture | str | Path) -> str:
    """The name of a zoo entry or a file; empty if there is none."""
    if isinstance(given, Path):
        return given.stem
    return given if isinstance(given, str) and given in ZOO else ""


def _parse_file(path: Path) -> Architecture:
    name = repr(str(path))
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from None
    return _parse_named(_decoded(content, name), name)


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise FormatError("standard input is closed")
    buffer = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read().encode() if buffer is None else bytes(buffer.read())


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{name} is not a text file") from None


def _parse_named(text: str, where: str) -> Architecture:
    """Parse a text; errors say where it came from."""
    try:
        return parse(text)
    except NatppError as error:
        raise type(error)(f"{where}: {error}") from None
