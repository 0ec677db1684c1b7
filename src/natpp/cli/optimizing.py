"""`natpp optimize`: make an architecture or a model better."""

from __future__ import annotations

import json as jsons
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from natpp import verbs
from natpp.arch.decisions import Decisions
from natpp.arch.where import Where
from natpp.cli.flags import Flag, Group
from natpp.cli.output import COMMAND, print_json, remark, say, shown_progress
from natpp.cli.subjects import (
    LONGEST_NAME,
    MODEL,
    TEXT,
    is_module,
    keep_other_files,
    load_architecture,
    make_module,
    refuse_other,
)
from natpp.config import Config, Form
from natpp.core.budget import Budget, BudgetError
from natpp.errors import SettingError
from natpp.report.page import check_target
from natpp.run import Run


@dataclass(frozen=True)
class Main(Config):
    """By which method, within which budget, on which data."""

    method: Annotated[str, Form("NAME:KEY=VALUE,…")] = "auto"
    """nat++, nat, random, evolution:scores=20, tuned:evaluations=32 (models only), …; nat++:policy=RUN for your own
    policy, nat++:mode=best-of to choose by a scorer; auto: the policy that ships, or for a model with a task, tuned"""
    budget: Annotated[str | None, Form("strict|rule|madds=0.6,…")] = None
    """needed for a model; strict (default for an architecture): living parameters and MAdds do not rise; rule: what the
    rule allows; or limits on params, madds, memory (bytes) or latency (ms), as in madds=0.6: a fraction up to 1 of the
    current cost, or an absolute number"""
    task: Annotated[str | None, Form("TASK")] = None
    """data to train on: digits, cifar10:root=data, imagenet:root=DIR, a folder of images; for a model also images
    without classes, to calibrate: photos/, photos:normalize=imagenet"""
    scorer: Annotated[str | None, Form("NAME:KEY=VALUE,…|RUN|TABLE")] = None
    """for methods that choose by scores: short (trainings on the task), supernet (models only), a run's folder (its
    supernet), a table of trained networks"""
    input: Annotated[str | None, Form("1,3,224,224")] = None
    """for a model: the shape of its input; separate several with semicolons"""
    measure_latency: bool = False
    """measure the time of a forward pass before and after"""


def optimize(
    subject: Annotated[
        str, Flag(f"an architecture: {TEXT}; or a model: {MODEL}", "ARCH|NETWORK|FILE.py:FUNCTION", positional=True)
    ],
    *,
    main: Main = Main(),
    decisions: Decisions = Decisions(),
    where: Where = Where(),
    run: Annotated[Run, Group(("out", "resume", "precision", "tensorboard"))] = Run(),
    out: Annotated[
        str | None,
        Flag(
            "file to write the better architecture to, as JSON; for a model, a folder for its weights, architecture "
            "and Python file",
            "FILE|DIR",
            short="-o",
        ),
    ] = None,
    report: Annotated[str | None, Flag("HTML page to write, with graphs, reasons and costs", "FILE")] = None,
    json: bool = False,
) -> None:
    """Make an architecture or a model better, and list the changes and the costs before and after."""
    if report is not None:
        check_target(report)
        if out is not None and Path(out).resolve() == Path(report).resolve():
            raise SettingError(f"--out and --report are both {out!r}: one would overwrite the other")
    if is_module(subject):
        others = replace(where, classes=None).to_flags()
        refuse_other(others, "can only be given with an architecture, not with a model")
        if main.budget is None:
            raise SettingError("a model needs a budget, such as half of its multiply-adds: --budget madds=0.5")
        given, example = make_module(subject, main.input, classes=where.classes, seed=run.seed)
    else:
        given, example = load_architecture(subject), None
        others = [] if main.input is None else ["--input"]
        refuse_other(others, "can only be given with a model, not with an architecture")
        decisions = replace(decisions, setting=where.setting("cifar" if given.reduce is not None else "nasbench201"))
        keep_other_files(out)
    wanted = replace(Budget.of(main.budget or "strict"), timed=main.measure_latency)
    with shown_progress() as watch:
        try:
            found = verbs.optimize(
                given,
                main.method,
                wanted,
                example_input=example,
                decisions=decisions,
                task=main.task,
                scorer=main.scorer,
                run=replace(run, watch=watch, say=say),
            )
        except BudgetError as unmet:
            raise SettingError(f"{unmet.said} {_hint(unmet, wanted)}") from unmet
    name = subject if len(subject) <= LONGEST_NAME and "\n" not in subject else "an architecture"
    found = replace(found, settings=found.settings | {"name": name, "command": COMMAND.get()})
    if report is not None:
        found.report(report)
    if out is not None:
        found.save(out)
    if json:
        print_json(found.to_dict())
        return
    print(found)
    if report is not None:
        print(f"report: {report}")
    if main.method == "auto" and "policy" in found.settings:
        remark(
            f"changed by the policy {found.settings['policy']}, named after what it was trained on; natpp search "
            "learns one on your images"
        )
    if out is not None and is_module(subject):
        saved = jsons.loads(Path(out, "architecture.json").read_text(encoding="utf-8"))
        more = ", module=original" if saved["module"]["given"] else ""
        print(f"written to {out}; natpp.restore({out!r}{more}) gives the module")


def _hint(unmet: BudgetError, wanted: Budget) -> str:
    """The flag for a budget that the nearest result meets."""
    shares = {name: math.ceil(share * 1000) / 1000 for name, share in unmet.shares.items()}
    limits = ",".join(f"{name}={limit:g}" for name, limit in {**wanted.limits, **shares}.items())
    return f"The nearest result meets --budget {limits}"
