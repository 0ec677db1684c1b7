"""A file of scores: one JSON line each, appended whole, so that nothing is trained twice and searches can share it.

A line is identified by what the architecture computes, the settings and the data. Lines for other settings or other
data are kept but not used, and so is a line that a crash cut short. Both are reported through `say`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from natpp.arch.formats import from_json, to_json
from natpp.arch.graph import Architecture
from natpp.errors import NatppError, SettingError
from natpp.training.outcome import Outcome

START = b'{"mark"'  # of every line


class Store:
    """Outcomes of short trainings, by architecture, for one setting and one set of images."""

    def __init__(self, path: str | Path, settings: dict[str, Any], data: str, say: Callable[[str], None] | None = None):
        """`settings` and `data` (a fingerprint) decide which lines are used."""
        if not isinstance(path, str | Path):
            raise SettingError(f"the store is of type {type(path).__name__}, expected the path of a file")
        self.path = Path(path)
        self.mark = hashlib.sha256(json.dumps([settings, data], sort_keys=True).encode()).hexdigest()[:16]
        self.say = say or (lambda _: None)
        self._known: dict[Architecture, Outcome] = {}
        self._read = 0  # bytes
        self._cut = -1  # start of the line that was reported as cut short
        if self.path.is_dir():
            raise NatppError(f"{str(self.path)!r} is a folder, expected a file of scores")
        if not self.path.parent.is_dir():
            raise NatppError(f"the folder {str(self.path.parent)!r} does not exist. Create it first")
        others, damaged, rest = self._more()
        if not others and not self._known and (self._read or not START.startswith(rest[: len(START)])):
            raise NatppError(
                f"{str(self.path)!r} is not a file of scores: none of its lines is a score. Choose another file"
            )
        self._tell(damaged)
        if rest:
            self._tell_cut()
        if others and not self._known:
            scores, are, they = ("score", "is", "it is") if others == 1 else ("scores", "are", "they are")
            self.say(f"{others} {scores} in {str(self.path)!r} {are} for other data or settings: {they} not used")

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Architecture) -> Outcome | None:
        """The outcome of an architecture, in canonical form, if it is in the file."""
        return self._known.get(key)

    def refresh(self) -> None:
        """Read the lines added since, by this or another run."""
        self._tell(self._more()[1])

    def add(self, key: Architecture, outcome: Outcome) -> None:
        """Append an outcome: one write of one whole line."""
        row = {"mark": self.mark, "arch": json.loads(to_json(key)), **asdict(outcome)}
        line = json.dumps(row).encode() + b"\n"
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":  # a crash cut the last line short
                    self.refresh()  # up to there
                    self._tell_cut()
                    line = b"\n" + line
                os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise NatppError(f"cannot write {str(self.path)!r}: {error.strerror}") from None
        self._known[key] = outcome

    def _more(self) -> tuple[int, int, bytes]:
        """Read new lines: how many are for other settings, how many are damaged, and the unfinished last one."""
        if not self.path.exists():
            return 0, 0, b""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except OSError as error:
            raise NatppError(f"cannot read {str(self.path)!r}: {error.strerror}") from None
        lines = content.split(b"\n")
        found = [self._take(line) for line in lines[:-1] if line.strip()]
        if found[:1] == [None] and self._cut == self._read:  # a later writer has ended it since
            found = found[1:]
        self._read += len(content) - len(lines[-1])
        return found.count(False), found.count(None), lines[-1]

    def _tell(self, damaged: int) -> None:
        if damaged:
            self.say(f"damaged lines in {str(self.path)!r} are not used: {damaged}")

    def _tell_cut(self) -> None:
        """Report it once, whether found in reading or in writing; it is not damaged once another line follows."""
        if self._cut != self._read:
            self.say(f"the last line of {str(self.path)!r} was cut short and is not used")
        self._cut = self._read

    def _take(self, line: bytes) -> bool | None:
        """Read one line; False if it is for other settings or data, None if it is not a score."""
        try:
            row = json.loads(line)
            mark, arch = row.pop("mark"), row.pop("arch")
            if mark != self.mark:
                return False
            outcome = Outcome(**row | {"curve": tuple(row["curve"])})
            if not all(isinstance(one, float | int | None) for one in (outcome.value, outcome.loss, outcome.accuracy)):
                raise ValueError("a score is a number")
            self._known[from_json(json.dumps(arch))] = outcome
        except (ValueError, KeyError, TypeError, AttributeError, NatppError):
            return None
        return True
