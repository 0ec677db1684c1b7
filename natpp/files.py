"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from natpp.errors import NatppError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file through a temporary one beside it, so that nobody ever sees half of it."""
    path = Path(path)
    folder = path.parent
    if not os.path.isdir(folder):
        raise NatppError(f"the folder {str(folder)!r} does not exist. Make it first, or choose another place")
    if os.path.isdir(path):
        raise NatppError(f"{str(path)!r} is a folder, expected a file to write")
    data = content.encode() if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".natpp-")
    except OSError as error:
        raise NatppError(f"cannot write into {str(folder)!r}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty file in its place
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
