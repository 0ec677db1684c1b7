"""What can be optimized: its decisions, the cost of a plan, and the result of applying one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from natpp.core.blueprint import Blueprint
from natpp.core.decision import Change, Decision, Plan

if TYPE_CHECKING:
    from natpp.core.measures import Cost

Preferences = Sequence[NDArray[np.float64]]  # per decision, per option
Row = NDArray[np.int64]  # a plan as columns: per decision, the number of its operation among all operations
Table = NDArray[np.float64]  # preferences as columns: (decisions, operations)


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

    @property
    def together(self) -> Sequence[Sequence[int]]:
        """The decisions in parts: those that are best decided jointly, such as those of a block."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about it."""

    # Costs.

    def count(self, rows: Sequence[Row]) -> None:
        """Compute the cost of many plans at once, so that `living` and `fits` can look them up."""

    def living(self, plan: Plan) -> dict[str, float]:
        """The figures of the blueprint for what is alive."""

    def tried(self, changes: Mapping[int, int]) -> Mapping[str, float] | None:
        """The same figures with some decisions changed, by option; None if that does not fit."""

    def memory(self, plan: Plan) -> int:
        """Bytes of peak memory."""

    def fits(self, plan: Plan) -> bool:
        """Whether a plan is allowed as a whole: connected, and under a strict budget at no higher cost."""

    def own_cost(self, *, latency: bool = False) -> Cost:
        """What it costs unchanged."""

    def made(self, plan: Plan, *, latency: bool = False) -> tuple[Any, Cost]:
        """The architecture or module under a plan, and what it costs."""

    # Plans that keep to the rule and the budget.

    def repaired(self, plan: Plan, worth: Sequence[float]) -> Plan:
        """The plan with its least worthy changes undone until it fits; a plan that fits is returned unchanged."""

    def within(self, plan: Plan, preferences: Preferences, limits: Mapping[str, float]) -> Plan:
        """The plan after further changes until it meets the limits."""

    def chosen(
        self, plan: Plan, table: Table, limits: Mapping[str, float], noise: np.random.Generator | None = None
    ) -> Plan:
        """A policy's answer within limits, given its log-probabilities and its answer without; `noise` samples."""

    def at_least_one(self, plan: Plan, table: Table) -> Plan:
        """A policy's answer; for a module, with at least one change if any is possible."""

    # Plans as rows, which policies and other methods work with.

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that the numbers in a row stand for."""

    @property
    def before(self) -> Row:
        """The row of the unchanged subject."""

    @property
    def mask(self) -> NDArray[np.bool_]:
        """What is allowed, (decisions, operations)."""

    @property
    def positions(self) -> tuple[tuple[str, int], ...]:
        """Per decision, the kind of its cell or block and its number there."""

    @property
    def alike(self) -> Hashable:
        """Equal for subjects in which a row has the same meaning."""

    def row(self, plan: Plan) -> Row:
        """A plan as a row."""

    def plan(self, row: Row) -> Plan:
        """A row as a plan."""

    def preferences(self, table: Table) -> Preferences:
        """Preferences per column, reordered per option."""

    # What it computes.

    @property
    def seen(self) -> int:
        """How many decisions a policy sees; they come first."""

    def extended(self, table: Table) -> Table:
        """A policy's log-probabilities, with rows for the decisions that it does not see."""

    def graphs(self) -> list[tuple[Any, NDArray[np.bool_]]]:
        """What a policy sees: encoded graphs, with what is allowed in each."""

    def key(self, plan: Plan) -> Hashable:
        """A key for what it computes under a plan: plans with equal keys are scored once."""

    def candidate(self, plan: Plan) -> Any:
        """What a scorer gets: an architecture, or a module's `Candidate`; both have a `key`."""

    def apply(self, plan: Plan) -> Any:
        """The architecture or module under a plan."""

    def changes(self, plan: Plan, chances: Sequence[Sequence[float]] | None = None) -> tuple[Change, ...]:
        """What a plan changes, with the probability of each change if those of all options are known."""

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
