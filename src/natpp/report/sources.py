"""Read the source of a report: a search folder, a JSON result, or the folder of a saved module.

This needs no torch, and nothing that is read is executed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from natpp.arch.formats import from_dict
from natpp.core.result import FORMAT, VERSION
from natpp.errors import FormatError, SettingError, counted, shortened

SEARCH, OLD_MODULE = "natpp search", "natpp module"
LARGEST = 1 << 28  # maximum bytes of a file


def read_source(given: str | Path) -> dict[str, Any]:
    """The result, module or search in a file or folder; its key `format` says which."""
    path = Path(given)
    if path.is_dir():
        if (path / "config.json").is_file():
            return read_search(path)
        if (path / "architecture.json").is_file():
            return _known(read_json(path / "architecture.json"), path)
        raise FormatError(
            f"{str(path)!r} is not a search folder (it has no config.json) or the folder of a saved module "
            "(it has no architecture.json)"
        )
    return _known(read_json(path), path)


def read_json(path: Path) -> Any:
    """The contents of a JSON file."""
    try:
        if path.stat().st_size > LARGEST:
            raise FormatError(f"{str(path)!r} is too large for a result")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"cannot read {shortened(str(path))}: {error.strerror}") from None
    except (ValueError, RecursionError):
        expected = "Expected a search folder, the folder of a saved module, or the file that natpp optimize wrote"
        raise FormatError(f"{str(path)!r} is not valid JSON. {expected}") from None


def _known(data: Any, path: Path) -> dict[str, Any]:
    """The result in a file; one of an earlier natpp is answered with what to do."""
    if isinstance(data, dict):
        if isinstance(data.get("result"), dict):
            data = data["result"]
        if data.get("format") == FORMAT and data.get("version") == VERSION:
            return dict(data)
        if is_older(data):
            raise FormatError(
                f"{str(path)!r} was written by natpp 0.1, whose results this natpp cannot show: optimize again"
                + (f" with {asked}" if (asked := _command_of(data)) else ", or install natpp 0.1 for its report")
            )
        if data.get("format") == FORMAT:
            raise FormatError(
                f"{str(path)!r} has version {data.get('version')!r}, but this natpp reads version {VERSION}: "
                "update natpp to read it"
            )
        if "normal" in data:
            raise FormatError(
                f"{str(path)!r} is an architecture without the result it came from: natpp show draws it, "
                "natpp optimize … --out writes a full result"
            )
    raise FormatError(f"{str(path)!r} is not a result of natpp optimize or a search")


def is_older(data: Mapping[str, Any]) -> bool:
    """Whether a result was written by natpp 0.1: it has version 1, or no format at all."""
    if data.get("format") in (FORMAT, OLD_MODULE):
        return data.get("version") == 1
    return "format" not in data and {"before", "after", "cost_before", "cost_after"} <= data.keys()


def _command_of(data: Mapping[str, Any]) -> str:
    settings = data.get("settings")
    found = data.get("command") or (settings.get("command") if isinstance(settings, dict) else None)
    return shortened(str(found)) if found else ""


def read_search(folder: Path) -> dict[str, Any]:
    """All data of a search folder; the search may still be unfinished."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise FormatError(f"{str(folder / 'config.json')!r} is damaged: expected a JSON object of settings")
    if "recipe" in config:
        raise FormatError(
            f"{str(folder)!r} is a training folder: pass it together with a result, natpp report RESULT --trained "
            f"{folder}"
        )
    if "preset" not in config or "rule" not in config:
        raise FormatError(f"{str(folder)!r} is not a natpp search: its config.json has no preset or rule")
    chosen = folder / "architecture.json"
    return {
        "format": SEARCH,
        "folder": str(folder),
        "config": config,
        "rows": _lines(folder / "metrics.jsonl"),
        "scores": _lines(folder / "scores.jsonl"),
        "result": _kept(folder / "result.json"),
        "chosen": read_json(chosen) if chosen.is_file() else None,
        "ended": (folder / "policy.safetensors").is_file(),
    }


def _kept(file: Path) -> dict[str, Any] | None:
    """The result of a search; None if there is none or natpp 0.1 wrote it, so that the rest is still shown."""
    if not file.is_file():
        return None
    data = read_json(file)
    return None if isinstance(data, dict) and is_older(data) else _known(data, file)


def _lines(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSON lines file, except a last row truncated by a crash."""
    found = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [row for row in found if isinstance(row, dict)]


def trained_accuracies(folders: Sequence[str | Path], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Mean test accuracies of two architectures trained from scratch, with their spread over seeds."""
    wanted = {side: from_dict(arch).essence() for side, arch in (("before", before), ("after", after))}
    found: dict[str, list[float]] = {"before": [], "after": []}
    ways = set()
    for folder in folders:
        file = Path(folder) / "result.json"
        row = read_json(file)
        if not isinstance(row, dict) or not {"test_accuracy", "architecture", "recipe"} <= row.keys():
            raise FormatError(f"{str(folder)!r} is not a training folder of natpp: its result.json has no accuracy")
        arch = from_dict(row["architecture"]).essence()
        sides = [side for side, one in wanted.items() if one == arch]
        if not sides:
            raise SettingError(f"{str(folder)!r} trained a different architecture than the two of this result")
        for side in sides:
            found[side].append(float(row["test_accuracy"]))
        ways.add((str(row.get("data")), json.dumps([row["recipe"], row.get("network")], sort_keys=True)))
        name, epochs = row.get("name") or "a recipe of its own", row["recipe"].get("epochs")
    if len(ways) > 1:
        raise SettingError("the training runs differ in data, recipe or network: their accuracies cannot be compared")
    return {
        "what": "test accuracy, %",
        "how": f"trained from scratch on {ways.pop()[0]} by {name}, {counted(epochs, 'epoch')}; "
        "test images read once at the end",
        "spread": "standard deviation over seeds: " + ", ".join(f"{len(own)} {side}" for side, own in found.items()),
        **{side: fmean(own) if own else None for side, own in found.items()},
        **{f"{side}_spread": stdev(own) if len(own) > 1 else None for side, own in found.items()},
    }
