"""The report of a search: curves, time spent, best candidates over time, command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from natpp.arch.cost import cost_of
from natpp.arch.formats import from_dict
from natpp.arch.networks import Setting
from natpp.errors import counted
from natpp.report.charts import Series, chart, cost_text, number

PHASES = {
    "weights": "training the supernet",
    "scores": "scoring architectures",
    "chosen": "predicting scores and choosing what to score",
    "policy": "learning the policy",
}
SCORES = {"short": "minus the loss after a short training", "supernet": "accuracy in the supernet, %"}
Rows = Sequence[Mapping[str, Any]]


def of_phase(rows: Rows, phase: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row.get("phase") == phase]


def last(rows: Rows, phase: str) -> Mapping[str, Any] | None:
    """The last row of a phase."""
    return next(reversed(of_phase(rows, phase)), None)


def score_name(config: Mapping[str, Any]) -> str:
    """What the score of a search measures."""
    known = SCORES.get(str(config.get("scorer")), f"score by {config.get('scorer')}")
    return f"{known}, minus a price on cost" if config.get("price") else known


def figure(title: str, series: Sequence[Series], across: str, note: str = "") -> dict[str, Any]:
    """A chart with its title, legend and note."""
    named = [one for one in series if one.name and one.points]
    return {"title": title, "svg": chart(series, across, title), "note": note, "series": named}


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a search, flattened by one level."""
    apart = ("arch", "command", "settings", "short", "trained")
    found = {key: value for key, value in config.items() if key not in apart}
    for name in ("trained", "short"):
        found |= {f"{name}: {key}": value for key, value in (config.get(name) or {}).items()}
    for name, value in (config.get("settings") or {}).items():
        if isinstance(value, Mapping):
            found |= {f"{name}: {key}": one for key, one in value.items()}
        else:
            found[f"preset: {name}"] = value
    return found


def curves(source: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The charts of a search, and a list of those that its files have no data for."""
    rows, config = source["rows"], source["config"]
    found: list[dict[str, Any]] = []
    missing = []

    def add(title: str, series: Sequence[Series], across: str, note: str = "") -> None:
        if any(one.points for one in series):
            found.append(figure(title, series, across, note))

    weights = of_phase(rows, "weights")
    add("loss of the supernet", [Series(_line(weights, "epoch", "loss"))], "epochs")
    accuracy = _line(weights, "epoch", "accuracy")
    note = "mean of eight random architectures on the validation set"
    add("accuracy of the supernet, %", [Series(accuracy)], "epochs", note)
    if weights and not accuracy:
        missing.append("the supernet's accuracy after every epoch: not recorded by the version that made this run")
    scored = of_phase(rows, "scores")
    kept = [] if config.get("price") else list(enumerate(source["scores"], start=1))
    each = [(step, row["value"]) for step, row in kept if row.get("value") is not None]
    series = [
        Series(each, "faint", "each", dots=True),
        Series(_line(scored, "step", "mean"), "second", "mean so far"),
        Series(_line(scored, "step", "best"), "first", "best so far"),
    ]
    add("score", series, "architectures scored", score_name(config))
    rounds = of_phase(rows, "predictions")
    if points := _pairs(rounds):
        chosen = _pairs([row for row in rounds if row["round"] != "final"])
        final = _pairs([row for row in rounds if row["round"] == "final"])
        series = [Series(chosen, "first", "rounds", dots=True), Series(final, "second", "final", dots=True)]
        found.append(_predicted_figure(series, points))
    elif scored and config.get("scorer") == "short":
        why = "not recorded by the version that made this run, or the run had no rounds"
        missing.append(f"scored against predicted values: {why}")
    learned = of_phase(rows, "policy")
    add("reward: improvement over the input", [Series(_line(learned, "step", "improvement"))], "steps of the policy")
    add("entropy of the policy", [Series(_line(learned, "step", "entropy"))], "steps of the policy")
    return found, missing


def learned_curves(learned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The charts of a policy learned on a module."""
    scores = [float(score) for score in learned["scores"]]
    places, own = range(1, len(scores) + 1), float(learned["original"])
    series = [
        Series([(1, own), (len(scores), own)], "second", "the module as it is"),
        Series(list(zip(places, scores, strict=True)), "faint", "each", dots=True),
        Series(list(zip(places, accumulate(scores, max), strict=True)), "first", "best so far"),
    ]
    note = f"minus the validation loss, by {learned['scorer']}, {learned['seconds']:.0f} s in all"
    found = [figure("score of candidates", series, "candidates scored", note)]
    expected = learned.get("expected") or []
    points = [(value, score) for value, score in zip(expected, scores, strict=False) if value is not None]
    if points:
        found.append(_predicted_figure([Series(points, dots=True)], points))
    steps = list(enumerate(learned.get("policy") or [], start=1))
    titles = ("reward: improvement over the module", "entropy of the policy") if steps else ()
    for place, title in enumerate(titles):
        line = Series([(step, row[place]) for step, row in steps])
        found.append(figure(title, [line], "steps of the policy"))
    return found


def _predicted_figure(series: Sequence[Series], points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    rank = spearman(points)
    told = "each predicted before it was scored"
    told = told if rank is None else f"rank correlation {signed(rank)} over {len(points)}; {told}"
    return figure("scored against predicted", series, "predicted, in standard deviations", told)


def seconds(rows: Rows) -> list[dict[str, Any]]:
    """Time spent per phase: each row accounts for the time since the previous one."""
    spent: dict[str, float] = {}
    before = 0.0
    for row in rows:
        now = row.get("seconds")
        if not isinstance(now, int | float):
            continue
        before = before if now >= before else 0.0  # a resumed run starts counting at zero
        name = PHASES.get(str(row.get("phase")))
        if name is not None:
            spent[name] = spent.get(name, 0.0) + now - before
        before = now
    return phase_rows(spent)


def phase_rows(spent: Mapping[str, float]) -> list[dict[str, Any]]:
    """Seconds per phase as rows with bar widths."""
    most = max(spent.values(), default=0.0) or 1
    return [{"name": name, "seconds": f"{value:,.1f}", "width": 100 * value / most} for name, value in spent.items()]


def candidates(source: Mapping[str, Any], where: Setting) -> list[dict[str, Any]]:
    """Every candidate that was the best so far, latest first."""
    scores = [row for row in of_phase(source["rows"], "scores") if "candidate" in row]
    found = [(row["step"], row.get("seconds"), row["best"], row["candidate"]) for row in scores]
    if not found and not source["config"].get("price"):
        best = float("-inf")
        for index, row in enumerate(source["scores"]):
            if isinstance(row.get("value"), int | float) and row["value"] > best and isinstance(row.get("arch"), dict):
                best = row["value"]
                found.append((index + 1, None, best, row["arch"]))
    rows = []
    for step, at, score, data in reversed(found):
        cost = cost_of(arch := from_dict(data), where)
        costs = {"params": cost_text(cost.live_params), "madds": cost_text(cost.live_madds)}
        after = "–" if at is None else f"{at:,.0f}"
        rows.append({"arch": arch, "step": step, "seconds": after, "score": number(score), **costs})
    return rows


def measured(source: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The mean score of the inputs, and of the policy's answers to them."""
    choices = last(source["rows"], "choices")
    if choices is None:
        return []
    examples = last(source["rows"], "examples")
    inputs = "the input" if choices["inputs"] == 1 else f"{choices['inputs']} inputs"
    row = {
        "what": f"score: {score_name(source['config'])}",
        "before": choices["before"],
        "after": choices["after"],
        "how": f"of {inputs} and the policy's answer to {'it' if choices['inputs'] == 1 else 'them'}; not predicted",
    }
    if examples is not None and len(examples["before"]) > 1:
        spreads = {f"{side}_spread": stdev(examples[side]) for side in ("before", "after")}
        row |= {**spreads, "spread": f"standard deviation over {len(examples['before'])} inputs"}
    return [row]


def example_text(source: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Which of the inputs the example is, and its scores."""
    before, after = result["settings"]["example"]
    tried = last(source["rows"], "examples")
    of = "" if tried is None else f" of {counted(len(tried['before']), 'input')}"
    return f"the one{of} with the largest gain, score {number(before)} → {number(after)}"


def search_command(config: Mapping[str, Any], folder: str) -> str:
    """The command that repeats a run; empty for runs of natpp 0.1, which did not save it."""
    again = f"{folder.rstrip('/')}-again"
    return f"{config['command']} --out {shlex.quote(again)}" if config.get("command") else ""


def signed(value: float) -> str:
    """A number with two digits and a typographic minus; never a negative zero."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def spearman(points: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation; None if one of the two variables is constant."""
    ranks = [_ranks(column) for column in zip(*points, strict=True)]
    return None if any(np.ptp(one) == 0 for one in ranks) else float(np.asarray(np.corrcoef(ranks))[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks starting at 1; ties share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


def _pairs(rounds: Rows) -> list[tuple[float, float]]:
    return [pair for row in rounds for pair in zip(row["predicted"], row["scored"], strict=True)]


def _line(rows: Rows, across: str, up: str) -> list[tuple[float, float]]:
    return [(row[across], row[up]) for row in rows if row.get(up) is not None and row.get(across) is not None]
