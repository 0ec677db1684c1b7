"""What a report is made of, read from disk: a search's folder, a result as JSON, the folder of a saved module.

Nothing here needs torch, and nothing that is read is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from natpp.arch.formats import from_dict
from natpp.core.result import FORMAT, VERSION
from natpp.errors import FormatError, SettingError, shortened

SEARCH, OLD_MODULE = "natpp search", "natpp module"
LARGEST = 1 << 28  # bytes of a file that is read


def read_source(given: str | Path) -> dict[str, Any]:
    """The result, module or search that a file or folder holds; its key `format` says which."""
    path = Path(given)
    if path.is_dir():
        if (path / "config.json").is_file():
            return read_search(path)
        if (path / "architecture.json").is_file():
            return _known(read_json(path / "architecture.json"), path)
        raise FormatError(
            f"{str(path)!r} is neither a search's folder (it has no config.json) nor that of a saved module "
            "(it has no architecture.json)"
        )
    return _known(read_json(path), path)


def read_json(path: Path) -> Any:
    """A file of JSON."""
    try:
        if path.stat().st_size > LARGEST:
            raise FormatError(f"{str(path)!r} is too large for a result")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FormatError(f"cannot read {shortened(str(path))}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise FormatError(
            f"{str(path)!r} is no JSON. Expected a search's folder, a saved module's folder, or the file that "
            "natpp optimize wrote"
        ) from None


def _known(data: Any, path: Path) -> dict[str, Any]:
    """The result in a file; one of an earlier natpp is answered with what to do."""
    if isinstance(data, dict):
        if isinstance(data.get("result"), dict):
            data = data["result"]
        if data.get("format") == FORMAT and data.get("version") == VERSION:
            return dict(data)
        if is_older(data):
            raise FormatError(
                f"{str(path)!r} is a result of natpp 0.1, which this natpp does not show: optimize again"
                + (f" with {asked}" if (asked := _command_of(data)) else ", or install natpp 0.1 for its report")
            )
        if data.get("format") == FORMAT:
            raise FormatError(
                f"{str(path)!r} is of version {data.get('version')!r}, this natpp reads version {VERSION}: it was "
                "written by a newer natpp, so install that"
            )
        if "normal" in data:
            raise FormatError(
                f"{str(path)!r} is an architecture and does not say what it came from: natpp show draws it, "
                "natpp optimize … --out writes one that says so"
            )
    raise FormatError(f"{str(path)!r} holds no result of natpp optimize and no search")


def is_older(data: Mapping[str, Any]) -> bool:
    """Whether a result is of natpp 0.1: of version 1, or of the time before results named their format."""
    if data.get("format") in (FORMAT, OLD_MODULE):
        return data.get("version") == 1
    return "format" not in data and {"before", "after", "cost_before", "cost_after"} <= data.keys()


def _command_of(data: Mapping[str, Any]) -> str:
    settings = data.get("settings")
    found = data.get("command") or (settings.get("command") if isinstance(settings, dict) else None)
    return shortened(str(found)) if found else ""


def read_search(folder: Path) -> dict[str, Any]:
    """All that a search's folder tells, as far as the search came."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise FormatError(f"{str(folder / 'config.json')!r} is damaged: it holds no settings")
    if "recipe" in config:
        raise FormatError(
            f"{str(folder)!r} is the folder of a training: give it beside a result, natpp report RESULT --trained "
            f"{folder}"
        )
    if "preset" not in config or "rule" not in config:
        raise FormatError(f"{str(folder)!r} is no search of natpp: its config.json says nothing of one")
    result = folder / "result.json"
    chosen = folder / "architecture.json"
    return {
        "format": SEARCH,
        "folder": str(folder),
        "config": config,
        "rows": _lines(folder / "metrics.jsonl"),
        "scores": _lines(folder / "scores.jsonl"),
        "result": _kept(result),
        "chosen": read_json(chosen) if chosen.is_file() else None,
        "ended": (folder / "policy.safetensors").is_file(),
    }


def _kept(file: Path) -> dict[str, Any] | None:
    """The result that a search kept; None without one, or where it is of natpp 0.1: the rest is shown all the same."""
    if not file.is_file():
        return None
    data = read_json(file)
    return None if isinstance(data, dict) and is_older(data) else _known(data, file)


def _lines(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; one that a crash cut short is left out."""
    found = []
    if not file.is_file():
        return []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def trained_accuracies(
    folders: Sequence[str | Path], before: dict[str, Any], after: dict[str, Any]
) -> dict[str, Any] | None:
    """What trainings from scratch say of two architectures: mean test accuracies with their spread over seeds."""
    if not folders:
        return None
    wanted = {side: from_dict(arch).essence() for side, arch in (("before", before), ("after", after))}
    found: dict[str, list[float]] = {"before": [], "after": []}
    ways = set()
    for folder in folders:
        file = Path(folder) / "result.json"
        row = read_json(file)
        if not isinstance(row, dict) or not {"test_accuracy", "architecture", "recipe"} <= row.keys():
            raise FormatError(f"{str(folder)!r} is no training of natpp: its result.json has no accuracy")
        arch = from_dict(row["architecture"]).essence()
        sides = [side for side, one in wanted.items() if one == arch]
        if not sides:
            raise SettingError(f"{str(folder)!r} trained another architecture than the two of this result")
        for side in sides:
            found[side].append(float(row["test_accuracy"]))
        ways.add((str(row.get("data")), json.dumps([row["recipe"], row.get("network")], sort_keys=True)))
        name, epochs = row.get("name") or "a recipe of its own", row["recipe"].get("epochs")
    if len(ways) > 1:
        raise SettingError("the trainings differ in data, recipe or network, so their accuracies cannot be compared")
    measured: dict[str, Any] = {
        "what": "test accuracy, %",
        "how": f"trained from scratch on {ways.pop()[0]} by {name}, {epochs} epochs; test images read once at the end",
        "spread": "standard deviation over seeds: " + ", ".join(f"{len(own)} {side}" for side, own in found.items()),
    }
    for side, own in found.items():
        measured[side] = fmean(own) if own else None
        measured[f"{side}_spread"] = stdev(own) if len(own) > 1 else None
    return measured
