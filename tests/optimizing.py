"""Modules optimized by a policy, and learned on data: what several tests call."""

from typing import Any

from torch import nn

import natpp
from natpp.arch.decisions import Decisions
from natpp.core.budget import Budget
from natpp.core.result import Result
from natpp.fx.trace import trace
from natpp.methods.candidates import View
from natpp.methods.policy import PolicyMethod
from natpp.methods.tuned import Tuned
from natpp.nets.policy import Policy
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module


def by_policy(
    module: nn.Module,
    example: Any,
    policy: Policy,
    *,
    mode: str = "greedy",
    seed: int = 0,
    budget: Any = "strict",
    **decisions: Any,
) -> Result:
    """A policy's answer for a module."""
    method = PolicyMethod(learned=policy, mode=mode)
    asked = {"decisions": Decisions(**decisions), "run": natpp.Run(seed=seed)}
    return natpp.optimize(module, method, budget, example_input=example, **asked)


def view(module: nn.Module, example: Any, budget: Any = "strict", *, share_blocks: bool | None = None) -> View:
    """A module as the shipped policy sees it, block by block under limits."""
    method = Tuned().ready("nat++")
    wanted = Budget.of(budget)
    decisions = Decisions(
        columns=method.ops or (), share_blocks=not wanted.limits if share_blocks is None else share_blocks
    )
    return View(Subjects([Module(trace(module, example), decisions)], wanted), method.learned)
