"""Rows of compressed networks: kept one by one as JSON lines, and shown as tables."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.lib.settings import write_results
from natpp.files import write_whole

ROWS = "rows.jsonl"
NOTE = (
    "The images set aside, on which learning rates are chosen, were in the training set of the given networks: they "
    "rank candidates, but say nothing about accuracy. Accuracies are in per cent, on all 10,000 test images: mean and "
    'standard deviation over seeds. "labels": the search itself trained on labels. The time is a share of the '
    "original's in onnxruntime (batch 1, one thread)."
)
Row = dict[str, Any]


def read_rows(runs: Path) -> list[Row]:
    """All whole rows in a folder of runs, in order; a line that was cut short is left out."""
    file, found = runs / ROWS, dict[str, Row]()
    for line in file.read_bytes().split(b"\n") if file.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["name"]] = row
    return list(found.values())


def write_row(runs: Path, row: Row) -> None:
    """Append a row in one write, on a line of its own, so that several processes can share the file."""
    handle = os.open(runs / ROWS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(handle).st_size
        cut = size and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, b"\n" * bool(cut) + json.dumps(row).encode() + b"\n")
    finally:
        os.close(handle)


def publish(out: Path, plan: Any, rows: list[Row], note: str) -> None:
    """Print the tables, and write them as Markdown beside all rows as JSON."""
    text = markdown(rows, note)
    write_results(out, {"plan": asdict(plan), "rows": rows})
    write_whole(out.with_suffix(".md"), text + "\n")
    print(text)


def markdown(rows: Iterable[Row], note: str) -> str:
    """The tables of all rows, after a note about the images."""
    rows = list(rows)
    given = {row["network"]: row["test_accuracy"] for row in rows if row["method"] == "original"}
    parts = [note]
    for key in sorted({(row["network"], -row["share"]) for row in rows if row["method"] != "original"}):
        network, share = key[0], -key[1]
        some = [row for row in rows if (row["network"], row["share"]) == (network, share)]
        before = f" ({given[network]:.2f} as given)" if network in given else ""
        parts += [f"## {network} at {share} of its multiply-adds{before}"]
        parts += [compared(some, given.get(network)), decided(some)]
    return "\n\n".join(part for part in parts if part)


def compared(rows: list[Row], given: float | None = None) -> str:
    """A line for each method: its costs, its seconds and its accuracy after every number of epochs.

    Where nothing is fine-tuned, the accuracy stands beside the points lost from the given one.
    """
    rows = [row for row in rows if not row.get("decides")]
    epochs = sorted({row["epochs"] for row in rows})
    tuned = epochs != [0]
    ends = [*(f"{one} epochs" for one in epochs), "rates"] if tuned else ["accuracy", "points lost"]
    head = ["method", "by", "MAdds", "params", "time", "search, s", *ends]
    lines: list[tuple[float, list[str]]] = []
    for method, labels in dict.fromkeys((row["method"], row["labels"]) for row in rows):
        own = [row for row in rows if (row["method"], row["labels"]) == (method, labels)]
        said = f"{method}, labels" if labels else method
        done = [row for row in own if "refused" not in row]
        if not done:
            lines.append((0.0, [said, *["–"] * (len(head) - 2), own[0]["refused"]]))
            continue
        times = [row["time"]["ratio"] for row in done if row["time"]]
        scores = [[row["test_accuracy"] for row in done if row["epochs"] == one] for one in epochs]
        rates = ", ".join(f"{rate:g}" for rate in sorted({row["rate"] for row in done if "rate" in row}))
        lost = spread([given - one for one in scores[0]], 2) if given is not None else ""
        cells = [
            f"**{said}**" if method == "auto" else said,
            "natpp's row" if method == "auto" else done[0]["by"],
            *(spread([row[name] for row in done], 3) for name in ("madds", "params")),
            spread(times, 2),
            spread([row["search_seconds"] for row in done], 1),
            *(spread(one, 2) for one in scores),
            rates if tuned else lost,
        ]
        lines.append((max((statistics.fmean(one) for one in scores[::-1] if one), default=0.0), cells))
    lines.sort(key=lambda line: -line[0])
    return table(head, [cells for _, cells in lines])


def decided(rows: list[Row]) -> str:
    """What decides after training: accuracy set aside at every rate, and on the test images at the best one."""
    rows = [row for row in rows if row.get("decides") and "refused" not in row]
    if not rows:
        return ""
    rates = sorted({rate for row in rows for rate in row["rates"]}, key=float)
    head = ["shape, start, teacher", *(f"rate {float(rate):g}, set aside" for rate in rates), "test, best rate"]
    cells = [
        [row["method"], *(f"{row['rates'][rate]:.2f}" for rate in rates), f"{row['test_accuracy']:.2f}"] for row in rows
    ]
    return f"What decides after training ({rows[0]['epochs']} epochs):\n\n{table(head, cells)}"


def spread(values: list[float], digits: int) -> str:
    """A mean, with the standard deviation where there are several; nothing without values."""
    if not values:
        return ""
    own = f"{statistics.fmean(values):.{digits}f}"
    return own if len(values) < 2 else f"{own} ± {statistics.stdev(values):.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
