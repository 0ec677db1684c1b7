"""The candidates for one module within its limits: what a policy prefers, and how they are drawn and repaired."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from natpp.core.budget import BudgetError
from natpp.core.decision import Plan
from natpp.core.measures import COUNTED, figures_of
from natpp.core.scores import Scores
from natpp.core.subject import Candidate, Row, Table
from natpp.methods.policy import table_of
from natpp.nets.policy import Policy
from natpp.scorers.features import Features
from natpp.subjects.many import Subjects
from natpp.subjects.module import Key, Module
from natpp.subjects.module_budget import Descent
from natpp.subjects.rows import perturbed

TEMPERATURE = 3.0  # of the policy at first: flatter, since it was learned elsewhere


class View:
    """A module, its limits, and what a policy prefers before it is tuned."""

    def __init__(self, subjects: Subjects, policy: Policy | None):
        assert policy is not None
        self.module: Module = cast("Module", subjects.subjects[0])
        self.policy, self.limits = policy, subjects.limits(0)
        self.cost = self.module.own_cost(latency=subjects.timed)
        self.subjects, self.table = subjects, table_of(self.policy, subjects)

    @functools.cached_property
    def greedy(self) -> Plan:
        """The policy's answer without limits."""
        row = np.where(self.module.mask, self.table, -np.inf).argmax(axis=1)
        return self.module.at_least_one(self.repaired(self.module.plan(row)), self.table)

    def within(self, table: Table) -> Plan:
        """The most preferred plan within the limits."""
        return self.module.chosen(self.greedy, table, self.limits)

    def repaired(self, plan: Plan) -> Plan:
        """The plan after undoing the changes that the policy finds least likely, until it is connected."""
        return self.module.repaired(plan, self.table[np.arange(len(plan)), self.module.row(plan)].tolist())


class Candidates:
    """The candidates for a module within its limits, and how they are drawn."""

    def __init__(self, view: View, limits: Mapping[str, float]):
        self.view, self.module, self.before, self.limits = view, view.module, view.cost, limits
        self.counted = all(name in COUNTED for name in self.limits)

    def drawn(self, table: Table) -> Plan:
        """The most preferred candidate within the limits."""
        if not self.limits:
            return self.view.repaired(self.module.plan(table.argmax(axis=1)))
        if self.counted:
            descent = self._descent((0,) * len(self.module.decisions), table)
            if not descent.over() or (descent.count_down() and not descent.over()):
                return descent.plan
        try:
            return self.view.within(table)
        except BudgetError:  # with these preferences no further change saves anything
            return self.view.within(self.view.table)

    def repaired(self, plan: Plan, table: Table) -> Plan:
        """A plan made connected and, where costs are counted, brought within the limits by further changes."""
        descent = self._descent(self.view.repaired(plan), table)
        if descent.over():
            descent.count_down()
        return descent.plan

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is connected and keeps the limits that are counted."""
        return self.module.fits(plan) and not self._descent(plan, self.view.table).over()

    def allowed(self, plan: Plan) -> bool:
        """Whether a plan that fits also keeps limits that have to be measured."""
        if self.counted or not self.fits(plan):
            return self.fits(plan)
        _, cost = self.module.built(plan, self.module.copied, latency="latency" in self.limits)
        found = figures_of(cost)
        return all(found[name] <= limit for name, limit in self.limits.items())

    def mutated(self, plan: Plan, table: Table, generator: np.random.Generator) -> Plan:
        """A plan with some decisions drawn again, brought within the limits."""
        noisy, changed = perturbed(table, generator, TEMPERATURE), list(plan)
        free = [number for number, allowed in enumerate(self.module.allowed) if len(allowed) > 1]
        for place in generator.choice(len(free), size=min(1 + generator.poisson(1.0), len(free)), replace=False):
            number = free[int(place)]
            others = [option for option in self.module.allowed[number] if option != changed[number]]
            changed[number] = int(generator.choice(others))
        return self.repaired(tuple(changed), noisy)

    def features(self, key: Key) -> Features:
        """Features for a prediction: the operation at each site, and the count of each operation."""
        found: Features = {}
        for place, (block, ops) in enumerate(zip(self.module.blocks, key, strict=False)):
            for index, (op, own) in enumerate(zip(ops, block.ops, strict=True)):
                if op != own:
                    found["at", str(place), str(index), op] = 1.0
                    found["became", own, op] = found.get(("became", own, op), 0.0) + 1.0
                    found["changes",] = found.get(("changes",), 0.0) + 1.0
        return found

    def madds(self, plan: Plan) -> float:
        """Multiply-adds."""
        return float(self.module.living(plan)["madds"])

    def _descent(self, plan: Plan, table: Table) -> Descent:
        return Descent(self.module, plan, self.before, self.limits, self.module.preferences(table))


class Tuning(Subjects):
    """The module as the one subject that a policy learns for; candidates are repaired by the preferences so far."""

    def __init__(self, candidates: Candidates):
        super().__init__([candidates.module])
        self.candidates, self.table = candidates, candidates.view.table

    def repaired(self, index: int, row: Row, worth: NDArray[np.float64]) -> Row:
        """The row within the limits."""
        plan = self.candidates.module.plan(row)
        found = self.candidates.repaired(plan, self.table)
        return row if found == plan else self.candidates.module.row(found)


def by_keys(score: Callable[[Sequence[Any]], Scores]) -> Callable[[Sequence[Candidate]], Scores]:
    """A score of candidates, from a score of their keys."""
    return lambda candidates: score([one.key for one in candidates])
