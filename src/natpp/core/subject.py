"""What can be optimized: its decisions, the cost of a plan, and the result of applying one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from natpp.core.blueprint import Blueprint
from natpp.core.decision import Change, Decision, Plan


class Subject(Protocol):
    """An architecture in a network, or a traced module."""

    @property
    def name(self) -> str:
        """Its name in messages: architecture, module."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Its decisions; an option that is not allowed says why."""

    @property
    def blueprint(self) -> Blueprint:
        """Its steps, priced by these decisions."""

    @property
    def given(self) -> Any:
        """What is optimized, as it was given."""

    @property
    def places(self) -> Sequence[tuple[str, int]]:
        """The name of every place, and the number of the decision about it; blocks decided together share one."""

    def count(self, plans: Sequence[Plan]) -> None:
        """Compute the cost of many plans at once, so that `living` can look them up."""

    def living(self, plan: Plan) -> dict[str, float]:
        """The figures of the blueprint for what is alive."""

    def memory(self, plan: Plan) -> int:
        """Bytes of peak memory."""

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is allowed as a whole: connected, and under a strict budget at no higher cost."""

    def graph(self) -> Any:
        """What a policy sees."""

    def key(self, plan: Plan) -> Hashable:
        """A key for what it computes under a plan: plans with equal keys are scored once."""

    def apply(self, plan: Plan) -> Any:
        """The architecture or module under a plan."""

    def told(self, plan: Plan, changes: Sequence[Change]) -> dict[str, Any]:
        """For JSON: `groups`, its cells or blocks before and after, with the options of every place and their costs."""


class Candidate(NamedTuple):
    """A subject with a plan."""

    subject: Subject
    plan: Plan

    @property
    def key(self) -> Hashable:
        """What it computes."""
        return self.subject.key(self.plan)

    def build(self) -> Any:
        """The subject under the plan."""
        return self.subject.apply(self.plan)
