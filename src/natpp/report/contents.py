"""What a page shows of a result or a search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from natpp.arch.cost import cost_of
from natpp.arch.formats import from_dict
from natpp.arch.groups import cell_groups
from natpp.arch.networks import Setting, setting
from natpp.arch.rules import changes as arch_changes
from natpp.core.result import FORMAT
from natpp.errors import FormatError, counted
from natpp.report import searches
from natpp.report.edges import Book
from natpp.report.groups import copied_form, group_cards, picture
from natpp.report.layers import layer_sections, total_row
from natpp.report.rows import change_rows, cost_rows, measured_rows, plain, setting_rows
from natpp.report.sources import SEARCH, trained_accuracies

Page = dict[str, Any]
Folders = Sequence[str | Path]
PYTHON = "This result was made in Python; the line above says the same."
SCORERS = {"short": "short trainings", "supernet": "a supernet"}


def page_of(source: Mapping[str, Any], trained: Folders = (), limit: int | None = None) -> Page:
    """All data for the template; `limit` is the maximum number of blocks to show."""
    make = {FORMAT: result_page, SEARCH: search_page}.get(str(source.get("format")))
    if make is None:
        raise FormatError("expected the output of result.to_dict(), or the folder of a search")
    usual: Page = {
        **{name: [] for name in ("measures", "measured", "groups", "changes", "curves", "seconds")},
        **{name: [] for name in ("candidates", "best", "missing", "notes", "copies", "layers")},
        "command_note": "",
        "example": "",
        "quality": "Accuracy",
        "drawings": {},
        "most_madds": 1,
        "total": {},
        "apart": False,
        "book": Book().data(),
    }
    return usual | make(source, trained, limit)


# A result.


def result_page(data: Mapping[str, Any], trained: Folders, limit: int | None) -> Page:
    """Of an architecture in a network, or of a module."""
    if trained and "before" not in data:
        raise FormatError("`trained` works for an architecture, not for a module: leave it out")
    book, settings, missing = Book(), data["settings"], []
    cards, changes, drawings = group_cards(data, book, limit)
    kept, count = {key: value for key, value in data.items() if key != "module"}, len(data["groups"])
    places = sum(len(group["decisions"]) for group in data["groups"])
    if not any("options" in place for group in data["groups"] for place in group["decisions"]):
        missing.append("how likely each transition was, and what was masked: the result does not say")
    if limit is not None:
        missing.append(
            f"of {count} blocks all but the first {limit}, and what the copied JSON says of blocks: the page would be "
            "too large. The result's own file has all of it"
        )
        changes = changes[: 5 * limit]
        del kept["groups"]
        kept.pop("layers", None)
    if data.get("subject") == "module" and "layers" not in data:
        missing.append("what became of each layer: the file is from a natpp that did not keep it. Optimize again")
    apart = bool(data.get("layers")) and any(place["before"] != place["after"] for place in data.get("elsewhere", ()))
    accuracy = [trained_accuracies(trained, data["before"], data["after"])] if trained else []
    learned, where, of_cells = data.get("learned"), settings.get("network"), "after" in data
    subject = repr(settings.get("name") or "…") if of_cells else "module"
    return {
        "title": str(settings.get("name") or f"An optimized {data.get('subject', 'architecture')}"),
        "lead": f"{counted(len(data['changes']), 'change')} at {counted(places, 'place')} in "
        f"{counted(count, 'cell' if of_cells else 'block')} by {_chosen_by(settings)} under the rule "
        f"{settings.get('rule', '–')} with the budget {plain(settings.get('budget', '–'))}."
        + (f" Costs are of what is alive in {_where_text(Setting(**where))}." if where else ""),
        "measures": cost_rows(data),
        "measured": measured_rows([*data.get("measured", ()), *accuracy]),
        "layers": layer_sections(data, limit and 10 * limit),
        "total": total_row(data),
        "groups": cards if any(card["changed"] or card["removed"] for card in cards) or not apart else [],
        "apart": apart,
        "most_madds": max((card["before"][1] for card in cards), default=0) or 1,
        "drawings": drawings,
        "changes": change_rows(changes),
        "curves": searches.learned_curves(learned) if learned else [],
        "seconds": searches.phase_rows(learned.get("phases") or {}) if learned else [],
        "book": book.data(),
        "copies": [_answer(data), {"label": "Copy JSON", "text": json.dumps(kept, separators=(",", ":"))}],
        "settings": setting_rows({**settings, "versions": data.get("versions", {})}),
        "command": _command(settings, subject),
        "command_note": "" if settings.get("command") else PYTHON,
        "notes": [str(note) for note in data.get("notes", ())],
        "missing": missing,
    }


def _answer(data: Mapping[str, Any]) -> dict[str, str]:
    """Text for the copy button: the architecture, or the changes of a module."""
    if "after" in data:
        text, form = copied_form(from_dict(data["after"]))
        return {"label": f"Copy {form}", "text": text}
    changes = (f"{one['name']}: {one['before']} → {one['after']}" for one in data["changes"])
    return {"label": "Copy changes", "text": "\n".join(changes)}


# A search.


def search_page(source: Mapping[str, Any], trained: Folders, limit: int | None) -> Page:
    config, arch = source["config"], source["config"].get("arch")
    alone = config.get("space") == "nasbench201" if arch is None else from_dict(arch).reduce is None
    where = setting("nasbench201" if alone else "cifar")
    missing = [] if source["ended"] else ["the end of the search: it has not ended. natpp search --resume continues it"]
    result = source["result"]
    if result is None and arch is not None and source["chosen"] is not None:
        result = _bare_result(config, source["chosen"], where)
    if result is not None:
        inner = result_page(result, trained, limit)
        names = ("measures", "measured", "groups", "most_madds", "drawings", "changes", "book", "copies")
        page: Page = {name: inner[name] for name in names}
        missing += inner["missing"]
        if "example" in result["settings"]:
            page["example"] = searches.example_text(source, result)
            page["measured"] = [row | {"what": f"{row['what']}, of the example"} for row in page["measured"]]
    elif trained:
        raise FormatError("trainings from scratch go with the search for one given architecture")
    else:
        page = {"copies": []}
        if source["ended"]:
            missing.append("an example of what the policy does: not in the run's files")
    charts, absent = searches.curves(source)
    rows = searches.candidates(source, where)
    if arch is None and rows:
        page["best"] = picture(rows[0]["arch"])
    for row in rows:
        row["text"], row["form"] = copied_form(row.pop("arch"))
    if arch is None:
        summary = {"config": config, "choices": searches.last(source["rows"], "choices")}
        best = [{"label": f"Copy best {row['form']}", "text": row["text"]} for row in rows[:1]] or page["copies"]
        page["copies"] = [*best, {"label": "Copy JSON", "text": json.dumps(summary, indent=1)}]
    scores = measured_rows(searches.measured(source))
    for what, found in (("curves", charts), ("best candidates over time", rows)):
        if not found:
            missing.append(f"{what}: not in the run's files")
    subject = "one given architecture" if arch is not None else f"the space {config.get('space')}"
    by = SCORERS.get(str(config.get("scorer")), str(config.get("scorer")))
    command = searches.search_command(config, source["folder"])
    if not command:
        missing.append("the command to repeat it: this run is from a version that did not save it")
    return {
        **page,
        "title": f"Search on {config['data']}" if config.get("data") else "Search",
        "lead": f"A policy for {subject}, learned from scores of {by} with the preset {config['preset']} under the "
        f"rule {config['rule']} with the budget {config.get('budget', '–')}. Costs are of what is alive in "
        f"{_where_text(where)}.",
        "quality": "Score and accuracy" if page.get("measured") else "Score" if scores else "Accuracy",
        "measured": [*scores, *page.get("measured", ())],
        "curves": charts,
        "seconds": searches.seconds(source["rows"]),
        "candidates": rows,
        "settings": setting_rows(searches.settings(config)),
        "command": command,
        "missing": [*missing, *absent],
    }


def _bare_result(config: Mapping[str, Any], chosen: Mapping[str, Any], where: Setting) -> dict[str, Any]:
    """The result of a search that did not keep one, or kept one of natpp 0.1."""
    before, after = from_dict(config["arch"]), from_dict(chosen)
    groups = cell_groups(before, after, where)
    for group in groups:
        for place in group["decisions"]:
            del place["costs"]
    return {
        "before": config["arch"],
        "after": chosen,
        "groups": groups,
        "changes": [vars(change) for change in arch_changes(before, after)],
        "cost_before": cost_of(before, where).to_dict(),
        "cost_after": cost_of(after, where).to_dict(),
        "settings": {"network": vars(where), "rule": config["rule"], "budget": config.get("budget", "–")},
    }


# Words.


def _command(settings: Mapping[str, Any], subject: str) -> str:
    """The command to repeat it; for a result made in Python, the call."""
    if settings.get("command"):
        return str(settings["command"])
    decisions = [f"{name}={settings[name]!r}" for name in ("rule", "keep", "share_blocks") if settings.get(name)]
    words = [subject, *(repr(settings.get(name, usual)) for name, usual in (("method", "auto"), ("budget", "strict")))]
    words += [] if subject != "module" else ["example_input=x"]
    words += [f"decisions=natpp.Decisions({', '.join(decisions)})"] if decisions else []
    given = {name: settings[name] for name in ("task", "scorer") if settings.get(name)}
    words += [f"{name}={'…' if value == 'given' else repr(value)}" for name, value in given.items()]
    words += [f"run=natpp.Run(seed={settings['seed']})"] if settings.get("seed") else []
    return f"natpp.optimize({', '.join(words)})"


def _chosen_by(settings: Mapping[str, Any]) -> str:
    """Who chose: a policy, or another method."""
    policy = settings.get("policy", None if "method" in settings else "that was given")
    return f"the method {settings['method']}" if policy is None else f"the policy {policy}"


def _where_text(where: Setting) -> str:
    parts = f"{counted(where.channels, 'channel')}, {counted(where.cells, 'cell')}"
    return f"the {where.network} network with {parts} and images of {where.size} × {where.size}"
