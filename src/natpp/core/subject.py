"""What can be optimized: a list of decisions, what plans cost, and what becomes of it under one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from natpp.core.blueprint import Blueprint
from natpp.core.decision import Decision, Plan


class Subject(Protocol):
    """An architecture in a network, or a traced module."""

    @property
    def name(self) -> str:
        """What a message calls it: architecture, module."""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What may be otherwise; the options say why some are not allowed."""

    @property
    def blueprint(self) -> Blueprint:
        """Its steps by these decisions."""

    @property
    def given(self) -> Any:
        """What is optimized, as it was given."""

    @property
    def places(self) -> Sequence[tuple[str, int]]:
        """The name of every place, and the number of the decision about it; blocks decided together share one."""

    def count(self, plans: Sequence[Plan]) -> None:
        """Cost many plans at once, so that `living` looks them up."""

    def living(self, plan: Plan) -> dict[str, float]:
        """The figures of the blueprint for what is alive."""

    def memory(self, plan: Plan) -> int:
        """Bytes of peak memory."""

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is allowed as a whole: connected, and no dearer than the subject where that is asked for."""

    def graph(self) -> Any:
        """What a policy sees."""

    def key(self, plan: Plan) -> Hashable:
        """What it computes under a plan: plans with equal keys are scored once."""

    def apply(self, plan: Plan) -> Any:
        """What becomes of it under a plan."""

    def told(self, plan: Plan, gone: Collection[str]) -> dict[str, Any]:
        """For JSON: `groups`, its cells or blocks before and after, with what every place may become at which cost.

        `gone` names places whose output is no longer used.
        """


class Candidate(NamedTuple):
    """A subject with a plan."""

    subject: Subject
    plan: Plan

    @property
    def key(self) -> Hashable:
        """What it computes."""
        return self.subject.key(self.plan)

    def build(self) -> Any:
        """What becomes of the subject."""
        return self.subject.apply(self.plan)
