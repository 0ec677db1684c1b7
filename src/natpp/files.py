"""Atomic writes of files and folders."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from natpp.errors import NatppError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically: through a temporary file in the same folder."""
    path = Path(path)
    folder = path.parent
    if not os.path.isdir(folder):
        raise NatppError(f"the folder {str(folder)!r} does not exist. Create it first, or choose another path")
    if os.path.isdir(path):
        raise NatppError(f"{str(path)!r} is a folder, expected the path of a file")
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".natpp-")
    except OSError as error:
        raise NatppError(f"cannot write to {str(folder)!r}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut may leave an empty file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            raise NatppError(f"cannot write {str(path)!r}: {error.strerror}") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def whole_folder(path: str | Path, mark: str, names: Collection[str]) -> Iterator[Path]:
    """A new folder that moves to `path` once it is complete; after an error nothing is left behind.

    An existing folder is replaced if it is empty, or if it holds the file `mark` and only files in `names`.
    """
    path = Path(path)
    _check_replaceable(path, mark, names)
    try:
        fresh = Path(tempfile.mkdtemp(dir=path.absolute().parent, prefix=".natpp-"))
    except OSError as error:
        raise NatppError(f"cannot write to {str(path.parent)!r}: {error.strerror}") from None
    old = fresh.with_name(f"{fresh.name}-old")
    try:
        yield fresh
        os.chmod(fresh, 0o777 & ~_umask())
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
    except OSError as error:
        if old.exists():
            os.replace(old, path)
        raise NatppError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(path: Path, mark: str, names: Collection[str]) -> None:
    if not path.absolute().parent.is_dir():
        raise NatppError(f"the folder {str(path.parent)!r} does not exist. Create it first, or choose another path")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise NatppError(f"{str(path)!r} is a file, expected the path of a folder")
    held = {file.name for file in path.iterdir()} - {"__pycache__"} if path.exists() else set()
    if held and not (mark in held and held <= set(names)):
        raise NatppError(f"the folder {str(path)!r} holds other files. Choose an empty or new one")
