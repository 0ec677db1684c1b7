"""An optimization: subject, method, budget and data put together, and the result with its reasons."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from natpp import decisions as _kinds
from natpp import methods as _methods
from natpp.arch.decisions import Decisions
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.arch.where import as_setting
from natpp.core.budget import Budget, BudgetError
from natpp.core.measures import COUNTED
from natpp.core.result import Result
from natpp.core.subject import Subject
from natpp.data.named import Data
from natpp.decisions.stages import refit_in_stages
from natpp.errors import NatppError, SettingError, counted, shortened
from natpp.fx.sites import kept_paths
from natpp.fx.trace import trace
from natpp.fx.traced import batch_of
from natpp.methods.answer import result_of
from natpp.methods.base import Answer, Method
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import Policy
from natpp.policies import names
from natpp.registry import KINDS, METHODS, SCORERS
from natpp.run import Run
from natpp.runs.scoring import Scoring, Wanted, scorer_for
from natpp.runs.tasks import make_task, without_classes
from natpp.scorers.base import Scorer
from natpp.subjects.cells import Cells, Frame
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.training.recalibrate import check_inputs, recalibrate
from natpp.training.task import Task

AUTO = "auto"
FEWEST_INPUTS, MOST_INPUTS = 256, 2048  # that layers are fitted on, as memory allows
MEMORY = 1 << 31  # bytes of values held while they are fitted


def run_optimize(
    given: Architecture | nn.Module,
    method: Method | Policy | str | Path,
    budget: Budget | None,
    *,
    example_input: Any = None,
    decisions: Decisions = Decisions(),
    task: Task | Data = Data(),
    scorer: Scorer | Scoring | Callable[..., Any] | str | Path | None = None,
    run: Run = Run(),
    name: str = "",
) -> Result:
    """The method's answer for an architecture or a module, within rule and budget, and why."""
    if budget is None:
        if isinstance(given, nn.Module):
            raise SettingError(
                "a module needs a budget, such as half of its multiply-adds: natpp.optimize(model, budget=0.5, "
                "example_input=x)"
            )
        budget = Budget()
    task = without_classes(task, example_input, run.say)
    has_data = isinstance(task, Task) or task.data is not None
    targets = has_data and not (isinstance(task, Task) and not task.targets)
    single = isinstance(example_input, torch.Tensor)
    counted = any(name in COUNTED for name in budget.limits)
    chosen, why = as_method(
        method, module=isinstance(given, nn.Module), targets=targets, inputs=has_data and single and counted
    )
    rule = decisions.rule or chosen.rule or "nat++"
    chosen = chosen.ready(rule)
    usual = chosen.usual_scorer
    everything = chosen.takes_all(budget, usual if scorer is None else _said(scorer), single)
    kinds = decisions.kinds or (tuple(KINDS) if everything else ())
    asked = replace(decisions, rule=rule, kinds=kinds, columns=chosen.ops or (), strict=budget.strict)
    subject = subject_of(given, example_input, asked, budget)
    if (refused := chosen.refuses.get(subject.name)) is not None:
        raise SettingError(refused)
    subjects, score = Subjects([subject], budget), None
    if chosen.needs_scores:
        if scorer is None and not (targets or (has_data and usual == "fidelity")):
            raise SettingError(
                f"{name_of(method)} chooses by scores: give a scorer, or a task to train on, such as "
                "task='cifar10:root=data'"
            )
        where = subject.frame.where.network if isinstance(subject, Cells) else ""
        wanted = Wanted(where, task, run, subjects, longest=chosen.longest)
        score = scorer_for(usual if scorer is None else scorer, wanted)
    elif scorer is not None or (has_data and isinstance(subject, Cells)):
        said = f"{name_of(method)} ({why.removeprefix('auto chose ').partition(':')[0]})" if why else name_of(method)
        raise SettingError(f"{said} does not use a {'task' if scorer is None else 'scorer'}: leave it out")

    def finished(subject: Subject, answer: Answer) -> Result:
        data = task.name if isinstance(task, Task) else task.text
        settings = {
            "method": name_of(method),
            **asked_of(subject, asked, budget),
            "seed": run.seed,
            **answer.settings,
            **({} if data is None else {"task": data}),
            **({} if scorer is None else {"scorer": _said(scorer)}),
            "name": name,
        }
        found = result_of(subject, answer, budget, settings)
        found = replace(found, notes=(*found.notes, why)) if why else found
        if has_data and isinstance(subject, Module) and found.changes:
            calibration = make_task(task, Wanted("", task, run).fabric).calibration
            found = fitted(found, subject, calibration(subject.device, MOST_INPUTS))
        return found

    try:
        return finished(subject, chosen.answer(subjects, score, run))
    except BudgetError as unmet:
        nearest = unmet
    if isinstance(subject, Module) and not decisions.kinds and not chosen.needs_scores:
        found = _in_reserve(subject, chosen, budget, run, nearest)
        if not isinstance(found, BudgetError):
            return finished(*found)
        nearest = found
    nearest.make = lambda subject, plan: finished(subject, Answer(plan))
    raise nearest


def fitted(found: Result, module: Module, batches: Iterable[Any]) -> Result:
    """A result whose changed layers are fitted to what the original computes on some inputs.

    If no layer could be fitted, the batch norm statistics are recomputed.
    """
    count, size, inputs = 0, 0, list[Any]()
    for batch in batches:
        inputs.append(batch)
        count += batch_of(batch)
        size += sum(one.nbytes for one in tree_leaves(batch) if isinstance(one, Tensor))
        if count >= MOST_INPUTS or (count >= FEWEST_INPUTS and size >= MEMORY):
            break
    check_inputs(module.given, inputs)
    original, kept_whole = module.rewritten((0,) * len(module.decisions)), kept_paths(module.given, module.ask.keep)
    layers, counts = refit_in_stages(found.module, original, inputs, MEMORY, FEWEST_INPUTS, kept=kept_whole)
    kept = sum(one.kept for one in layers)
    if not kept:
        recalibrate(found.module, inputs)
        return found
    said = counted(counts[-1], "input") if counts[0] == counts[-1] else f"{counts[0]} to {counted(counts[-1], 'input')}"
    note = f"{counted(kept, 'layer')} fitted to what the original computes on {said}"
    return replace(found, notes=(*found.notes, note))


def _in_reserve(
    subject: Module, chosen: Method, budget: Budget, run: Run, unmet: BudgetError
) -> tuple[Module, Answer] | BudgetError:
    """The answer where the usual decisions cannot meet the budget: from the reserve kinds alone, then from all.

    If these cannot meet it, either: the error with the nearest result.
    """
    usual = subject.ask.kinds
    reserve = tuple(name for name, kind in KINDS.items() if getattr(kind, "used", "") == "needed")
    for kinds in (reserve, usual + reserve) if reserve else ():
        other = Module(subject.traced, replace(subject.ask, kinds=kinds))
        try:
            return other, chosen.answer(Subjects([other], budget), None, run)
        except BudgetError as error:
            unmet = min(unmet, error, key=operator.attrgetter("above"))
    return unmet


def as_method(given: Method | Policy | str | Path, *, module: bool, targets: bool, inputs: bool) -> tuple[Method, str]:
    """A method from its name, a policy, or a policy's file or run; where data made `auto` choose another, also why."""
    if isinstance(given, Policy):
        return PolicyMethod(learned=given), ""
    if isinstance(given, Path):
        return PolicyMethod(policy=given), ""
    if given == AUTO:
        if not module or not (targets or inputs):
            return PolicyMethod(), ""
        name, why = ("tuned", "targets") if targets else ("knapsack", "inputs without targets")
        return METHODS[name], f"auto chose {name}: the task has {why}"
    if isinstance(given, str) and (given in names() or os.path.exists(given)):
        return PolicyMethod(policy=given), ""
    return METHODS.given(given), ""


def _said(scorer: object) -> str:
    """A scorer in words."""
    if isinstance(scorer, Scoring):
        return SCORERS.text_of(scorer)
    return str(scorer) if isinstance(scorer, str | Path) else "given"


def name_of(method: Method | Policy | str | Path) -> str:
    """A method in words."""
    if isinstance(method, str):
        return method
    if isinstance(method, Policy | Path):
        return "policy"
    return METHODS.text_of(method)


def subject_of(given: object, example_input: Any, asked: Decisions, budget: Budget) -> Subject:
    """What is optimized: an architecture in a network, or a traced module."""
    if isinstance(given, Architecture):
        if example_input is not None or asked.keep or asked.share_blocks is not None:
            raise SettingError(
                "example_input, keep and share_blocks can only be given with a module, not with an architecture"
            )
        asked = asked.full()
        if "operation" not in asked.kinds:
            raise SettingError(f"an architecture only has decisions of kind operation, not {', '.join(asked.kinds)}")
        usual = setting("cifar" if given.reduce is not None else "nasbench201")
        where = usual if asked.setting is None else as_setting(asked.setting)
        return Cells(given, Frame(str(asked.rule), where, asked.strict, asked.ops), asked.columns)
    if not isinstance(given, nn.Module):
        raise NatppError(f"expected an architecture or a torch.nn.Module, not {shortened(repr(given))}")
    if asked.setting is not None:
        raise SettingError("a setting can only be given with an architecture, not with a module")
    if example_input is None:
        raise SettingError("a module needs an example input: natpp.optimize(model, budget=0.5, example_input=x)")
    share = not budget.limits if asked.share_blocks is None else asked.share_blocks
    return Module(trace(given, example_input), replace(asked, share_blocks=share))


def asked_of(subject: Subject, asked: Decisions, budget: Budget) -> dict[str, Any]:
    """The part of the request that a result keeps."""
    found: dict[str, Any] = {"rule": asked.rule, "budget": budget.said}
    if isinstance(subject, Cells):
        return found | {"network": asdict(subject.frame.where)}
    assert isinstance(subject, Module)
    keep = [part if isinstance(part, str) else part.__name__ for part in subject.ask.keep]
    return found | {"share_blocks": subject.ask.share_blocks, "keep": keep}


del _kinds, _methods
