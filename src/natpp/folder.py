"""A run's folder, written so that an interrupted run can be resumed.

`config.json` has the settings, `metrics.jsonl` the curves, `checkpoint.pt` the last state and `previous.pt` that of
the checkpoint before. Files are written atomically.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from natpp.errors import FormatError, NatppError, SettingError
from natpp.files import write_whole

MAY_CHANGE = ("root", "device", "together", "store", "command", "name", "versions")  # when a run is resumed


class Folder:
    """A folder to keep a run in; without a folder nothing is saved."""

    def __init__(
        self, folder: str | Path | None, config: dict[str, Any], *, resume: bool = False, tensorboard: bool = False
    ):
        """A new run needs a folder that holds no run; with `resume` an existing run continues."""
        self.folder = None if folder is None else Path(folder)
        self.config = json.loads(json.dumps(config))
        self.rows = 0  # of the curves
        self.saved = False  # whether there is a checkpoint
        self._writer: Any = None
        if self.folder is None:
            if resume or tensorboard:
                raise SettingError("resume and tensorboard need a folder for the run: give it with out")
            return
        started = any((self.folder / name).exists() for name in ("checkpoint.pt", "previous.pt", "policy.safetensors"))
        if started and not resume:
            raise SettingError(
                f"{str(self.folder)!r} already holds a run. Continue it with --resume, or choose another folder"
            )
        if started:
            _same(read_config(self.folder), self.config)
        else:  # no folder yet, or only the start of a run
            _make(self.folder)
            write_whole(self.folder / "config.json", json.dumps(self.config, indent=2) + "\n")
        if tensorboard:
            self._writer = _summary_writer(self.folder)

    def load(self) -> dict[str, Any] | None:
        """The state at the last readable checkpoint; None if there is none yet."""
        if self.folder is None:
            return None
        damaged: Path | None = None
        for name in ("checkpoint.pt", "previous.pt"):
            file = self.folder / name
            if not file.exists():
                continue
            try:
                state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
                self.rows = state["rows"]
            except (RuntimeError, OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile):
                damaged = file
                continue
            if damaged is not None:  # else it would be kept in place of the good one
                os.replace(file, damaged)
            self._cut_metrics()
            self.saved = True
            return state
        if damaged is not None:
            raise FormatError(
                f"the checkpoint of {str(self.folder)!r} is damaged, and so is the one before it, if any: "
                "start again in another folder"
            )
        self._cut_metrics()
        return None

    def save(self, state: dict[str, Any]) -> None:
        """Save a state; the previous one is kept too."""
        if self.folder is None:
            return
        buffer = io.BytesIO()
        torch.save(state | {"rows": self.rows}, buffer)
        last = self.folder / "checkpoint.pt"
        if last.exists():
            os.replace(last, self.folder / "previous.pt")
        write_whole(last, buffer.getvalue())
        self.saved = True

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Errors raised inside the block also say that the last checkpoint is kept, if there is one."""
        try:
            yield
        except NatppError as error:
            if not self.saved:
                raise
            raise type(error)(f"{error}. The last checkpoint is kept") from None

    def log(self, row: dict[str, Any]) -> None:
        """Add a row to the curves."""
        self.rows += 1
        if self.folder is None:
            return
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._writer is not None:
            for name, value in row.items():
                if isinstance(value, int | float) and name not in ("step", "epoch"):
                    self._writer.add_scalar(f"{row['phase']}/{name}", value, row.get("step", self.rows))
            self._writer.flush()

    def file(self, name: str) -> Path | None:
        """The path of a file of the run."""
        return None if self.folder is None else self.folder / name

    def _cut_metrics(self) -> None:
        """Drop rows that were written after the checkpoint: those steps are taken again."""
        assert self.folder is not None
        file = self.folder / "metrics.jsonl"
        if file.exists():
            lines = file.read_text().splitlines(keepends=True)
            if len(lines) > self.rows:
                write_whole(file, "".join(lines[: self.rows]))


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings of a run."""
    file = Path(folder) / "config.json"
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise FormatError(f"{str(folder)!r} is not a run: cannot read its config.json: {error.strerror}") from None
    except ValueError:
        raise FormatError(f"{str(file)!r} is damaged: it is not JSON") from None
    if not isinstance(found, dict):
        raise FormatError(f"{str(file)!r} is damaged: it does not hold settings")
    return found


def read_search(folder: str | Path) -> dict[str, Any]:
    """The settings of a search; an error for the folder of a training."""
    found = read_config(folder)
    if "recipe" in found:
        raise FormatError(f"{str(folder)!r} is a training, not a search: it has neither a policy nor shared weights")
    return found


def last_row(folder: str | Path, phase: str) -> dict[str, Any] | None:
    """The last row of a run's curves for a phase; None if there is none."""
    file = Path(folder) / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return next((row for row in reversed(rows) if row["phase"] == phase), None)


class Interrupted(NatppError):
    """The run was asked to stop, and did so after saving a checkpoint."""

    def __init__(self, number: int, folder: Path | None):
        kept = "nothing was kept" if folder is None else f"--resume goes on from {str(folder)!r}"
        super().__init__(f"stopped by {signal.Signals(number).name}; {kept}")
        self.status = 128 + number


class Stop:
    """Whether the run was asked to stop, by SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self.signal = 0


@contextmanager
def catching_signals() -> Iterator[Stop]:
    """Inside the block the first SIGINT or SIGTERM only sets a flag; a second SIGINT ends at once."""
    stop = Stop()

    def handle(number: int, _: object) -> None:
        if stop.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.signal = number

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _same(before: Any, now: Any, name: str = "") -> None:
    """Raise an error that names the first setting that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now} - set(MAY_CHANGE)):
            _same(before.get(key), now.get(key), key)
    elif before != now:
        was, is_now = (json.dumps(one)[:60] for one in (before, now))
        raise SettingError(
            f"the run was started with {name} {was}, not {is_now}: resume it with the settings it had, "
            "or choose another folder"
        )


def _make(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise NatppError(f"{str(folder)!r} is a file, expected a folder for the run")
    if folder.is_dir() and any(file.name[0] != "." for file in folder.iterdir()) and not _begun(folder):
        raise NatppError(f"the folder {str(folder)!r} holds other files: choose a new or empty folder for the run")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NatppError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None


def _begun(folder: Path) -> bool:
    """Whether a folder holds the start of a run: settings that natpp wrote."""
    try:
        return "natpp" in read_config(folder)["versions"]
    except (FormatError, KeyError, TypeError):
        return False


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise NatppError("TensorBoard is not installed: pip install 'natpp[tensorboard]'") from None
    return SummaryWriter(str(folder))
