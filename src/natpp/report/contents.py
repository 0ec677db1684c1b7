"""What stands on a page: of an architecture of cells, of a module, of a search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from natpp.arch.cost import cost_of
from natpp.arch.formats import from_dict
from natpp.arch.networks import Setting, setting
from natpp.errors import FormatError
from natpp.report import searches
from natpp.report.cells import cell_figures, copied_form, picture
from natpp.report.edges import Book
from natpp.report.modules import block_figures
from natpp.report.rows import change_rows, cost_rows, counted, measured_rows, plain, setting_rows, turn
from natpp.report.sources import MODULE, RESULT, SEARCH, trained_accuracies

Page = dict[str, Any]
Folders = Sequence[str | Path]
PYTHON = "This result was made in Python; the line above says the same."
ASKED = (
    *("policy", "rule", "mode", "seed", "budget", "samples", "keep", "share_blocks"),
    *("train", "val", "scorer", "evaluations", "minutes", "train_steps", "learning_rate"),
)
SCORERS = {"short": "short trainings", "supernet": "a supernet"}


def page_of(source: Mapping[str, Any], trained: Folders = (), limit: int | None = None) -> Page:
    """All that the template shows; `limit` is how many blocks of a module, where they are too many."""
    make = {RESULT: cells_page, MODULE: module_page, SEARCH: search_page}.get(str(source.get("format")))
    if make is None:
        raise FormatError("expected what result.to_dict() gives, or the folder of a search")
    usual: Page = {
        **{name: [] for name in ("measures", "measured", "figures", "blocks", "changes", "curves", "seconds")},
        **{name: [] for name in ("candidates", "best", "missing", "notes", "copies")},
        "command_note": "",
        "example": "",
        "quality": "Accuracy",
        "drawings": {},
        "book": Book().data(),
    }
    return usual | make(source, trained, limit)


# An architecture of cells.


def cells_page(data: Mapping[str, Any], trained: Folders, limit: int | None) -> Page:
    missing = []
    after = from_dict(data["after"])
    if isinstance(data.get("network"), Mapping):
        where = Setting(**data["network"])
    else:
        where = setting("cifar" if after.reduce is not None else "nasbench201")
        missing.append(f"the network that costs were counted in: places are those of {_where_text(where)}")
    book = Book()
    figures, changes = cell_figures(data, where, book)
    if not data.get("probabilities"):
        missing.append("how likely each transition was, and what was masked: the result does not say")
    accuracy = trained_accuracies(trained, data["before"], data["after"])
    text, form = copied_form(after)
    changed = sum(edge["before"] != edge["after"] for edge in book.edges)
    free = sum(not edge.fixed for _, graph in after.cells() for edge in graph.edges)
    asked = f"by the policy {data.get('policy', 'that was given')} under the rule {data.get('rule', '–')}"
    return {
        "title": str(data.get("name") or "An architecture"),
        "lead": f"{counted(changed, 'edge')} of {free} changed {asked} with the budget "
        f"{plain(data.get('budget', '–'))}. Costs are of what is alive in {_where_text(where)}.",
        "measures": cost_rows(data, "live_"),
        "measured": measured_rows([*data.get("measured", ()), *([] if accuracy is None else [accuracy])]),
        "figures": figures,
        "changes": change_rows(changes),
        "book": book.data(),
        "copies": [
            {"label": f"Copy {form}", "text": text},
            {"label": "Copy JSON", "text": json.dumps(data, indent=1)},
        ],
        "settings": setting_rows(data),
        "command": _command(data, repr(data.get("name") or "…")),
        "command_note": "" if data.get("command") else PYTHON,
        "missing": missing,
    }


# A module.


def module_page(data: Mapping[str, Any], trained: Folders, limit: int | None) -> Page:
    if trained:
        raise FormatError("trainings from scratch go with an architecture, not with a module")
    book, missing = Book(), []
    blocks, changes, drawings = block_figures(data, book, limit)
    if not data.get("probabilities"):
        missing.append("how likely each transition was, and what was masked: it was saved before that was kept")
    if blocks and not any("costs" in term for block in data["blocks"] for term in block["terms"]):
        missing.append("the cost at every place: it was saved before that was kept")
    kept = {key: value for key, value in data.items() if key != "module"}
    if limit is not None:
        missing.append(
            f"of {len(data['blocks'])} blocks all but the first {limit}, and what the copied JSON says of blocks: the "
            "page would be too large. The result's own file has all of it"
        )
        changes = changes[: 5 * limit]
        kept = {key: value for key, value in kept.items() if key not in ("probabilities", "masked", "blocks")}
    most = max((block["before"][1] for block in blocks), default=0) or 1
    for block in blocks:
        block["widths"] = [100 * block[side][1] / most for side in ("before", "after")]
        block["madds"] = turn(block["before"][1], block["after"][1])
    settings, learned = data.get("settings", {}), data.get("learned")
    asked = f"by the policy {settings.get('policy', 'that was given')} under the rule {settings.get('rule', '–')}"
    return {
        "title": str(settings.get("name") or "A module"),
        "lead": f"{counted(len(data['changes']), 'operation')} changed in {len(data['blocks'])} blocks {asked} with "
        f"the budget {plain(settings.get('budget', '–'))}.",
        "measures": cost_rows(data),
        "measured": measured_rows(data.get("measured", ())),
        "blocks": blocks,
        "drawings": drawings,
        "changes": change_rows(changes),
        "curves": [] if not learned else searches.learned_curves(learned),
        "seconds": [] if not learned else searches.phase_rows(learned.get("phases") or {}),
        "book": book.data(),
        "copies": [
            {
                "label": "Copy changes",
                "text": "\n".join(f"{one['name']}: {one['before']} → {one['after']}" for one in data["changes"]),
            },
            {"label": "Copy JSON", "text": json.dumps(kept, separators=(",", ":"))},
        ],
        "settings": setting_rows({**settings, **_learning(settings), "versions": data.get("versions", {})}),
        "command": _command({**settings, **_learning_asked(settings)}, "module, example_input=x"),
        "command_note": "" if settings.get("command") else PYTHON,
        "notes": [str(note) for note in data.get("notes", ())],
        "missing": missing,
    }


def _learning(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How it was learned, under a name of its own: what was learned is shown elsewhere."""
    return {"learning": settings["learned"]} if isinstance(settings.get("learned"), Mapping) else {}


def _learning_asked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a call has to say to learn in the same way."""
    if not _learning(settings):
        return {}
    config, schedule = settings["learned"], settings.get("schedule") or {}
    asked = {name: config.get(name) for name in ("scorer", "evaluations", "minutes")}
    asked |= {"train_steps": schedule.get("steps"), "learning_rate": schedule.get("learning_rate")}
    if asked["minutes"] is not None:
        del asked["evaluations"]  # one of the two is said
    return {"train": "given", "val": "given"} | asked


# A search.


def search_page(source: Mapping[str, Any], trained: Folders, limit: int | None) -> Page:
    config, arch = source["config"], source["config"].get("arch")
    alone = config.get("space") == "nasbench201" if arch is None else from_dict(arch).reduce is None
    where = setting("nasbench201" if alone else "cifar")
    missing = [] if source["ended"] else ["the end of the search: it has not ended. natpp search --resume goes on"]
    result = source["result"]
    if result is None and arch is not None and source["chosen"] is not None:
        result = _bare_result(config, source["chosen"], where)
    if result is not None:
        inner = cells_page(result, trained, limit)
        names = ("measures", "measured", "figures", "changes", "book", "copies")
        page: Page = {name: inner[name] for name in names}
        missing += inner["missing"]
        if "example" in result:
            page["example"] = searches.example_text(source, result)
            page["measured"] = [row | {"what": f"{row['what']}, of the example"} for row in page["measured"]]
    elif trained:
        raise FormatError("trainings from scratch go with the search for one given architecture")
    else:
        page = {"copies": []}
        if source["ended"]:
            missing.append("an example of what the policy does: the run's files have none")
    charts, absent = searches.curves(source)
    rows = searches.candidates(source, where)
    if arch is None and rows:
        text, form = copied_form(rows[0]["arch"])
        page["copies"] = [{"label": f"Copy best {form}", "text": text}]
        page["best"] = picture(rows[0]["arch"])
    if arch is None:
        summary = {"config": config, "choices": searches.last(source["rows"], "choices")}
        page["copies"].append({"label": "Copy JSON", "text": json.dumps(summary, indent=1)})
    for row in rows:
        row["copy"], row["form"] = copied_form(row.pop("arch"))
    scores = measured_rows(searches.measured(source))
    spent = searches.seconds(source["rows"])
    for what, found in (("curves", charts), ("best candidates over time", rows)):
        if not found:
            missing.append(f"{what}: the run's files do not tell")
    subject = "one given architecture" if arch is not None else f"the space {config.get('space')}"
    by = SCORERS.get(str(config.get("scorer")), str(config.get("scorer")))
    command = searches.search_command(config, source["folder"])
    if not command:
        missing.append("the command that makes it again: this run was made before it was kept")
    return {
        **page,
        "title": f"Search on {config['data']}" if config.get("data") else "Search",
        "lead": f"A policy for {subject}, learned from scores of {by} with the preset {config['preset']} under the "
        f"rule {config['rule']} with the budget {config.get('budget', '–')}. Costs are of what is alive in "
        f"{_where_text(where)}.",
        "quality": "Score and accuracy" if page.get("measured") else "Score" if scores else "Accuracy",
        "measured": [*scores, *page.get("measured", ())],
        "curves": charts,
        "seconds": spent,
        "candidates": rows,
        "settings": setting_rows(searches.settings(config)),
        "command": command,
        "missing": [*missing, *absent],
    }


def _bare_result(config: Mapping[str, Any], chosen: Mapping[str, Any], where: Setting) -> dict[str, Any]:
    """The result of a search that did not keep one."""
    graphs = {"before": config["arch"], "after": chosen}
    costs = {f"cost_{side}": cost_of(from_dict(arch), where).to_dict() for side, arch in graphs.items()}
    return {**graphs, **costs, "network": vars(where), "rule": config["rule"], "budget": config.get("budget", "–")}


# Words.


def _command(settings: Mapping[str, Any], subject: str) -> str:
    """The command that makes it again; for what was made in Python, the call."""
    if settings.get("command"):
        return str(settings["command"])
    given = {name: settings[name] for name in ASKED if settings.get(name) not in (None, [])}
    words = (f"{name}={'…' if value == 'given' else repr(value)}" for name, value in given.items())
    return f"natpp.optimize({', '.join([subject, *words])})"


def _where_text(where: Setting) -> str:
    return (
        f"the {where.network} network with {where.channels} channels, {where.cells} cells and images of "
        f"{where.size} × {where.size}"
    )
