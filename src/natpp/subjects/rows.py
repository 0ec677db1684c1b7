"""Plans as rows: per decision, the number of its operation in a policy."""

from __future__ import annotations

import numpy as np

from natpp.core.decision import Plan
from natpp.core.subject import Preferences, Row, Table


class Rows:
    """What cells and modules share."""

    numbers: tuple[tuple[int, ...], ...]
    """per decision, the operation of each option as its number in `ops`; the original comes first"""

    def row(self, plan: Plan) -> Row:
        """The operation of every decision, as its number in `ops`."""
        return np.array([numbers[one] for numbers, one in zip(self.numbers, plan, strict=True)], dtype=np.int64)

    def plan(self, row: Row) -> Plan:
        """The inverse of `row`."""
        return tuple([numbers.index(op) for numbers, op in zip(self.numbers, row.tolist(), strict=True)])

    def preferences(self, table: Table) -> Preferences:
        """Preferences of a policy, (decisions, ops), reordered per option."""
        return [row[list(numbers)] for row, numbers in zip(table, self.numbers, strict=True)]


def options_of(before: Row, count: int) -> tuple[tuple[int, ...], ...]:
    """Per decision, the numbers of all operations with its own first."""
    return tuple((own, *range(own), *range(own + 1, count)) for own in before.tolist())
