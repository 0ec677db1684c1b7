"""Plans as rows: per decision, the number of its operation in a policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from natpp.core.decision import Plan
from natpp.core.subject import Preferences, Row, Table
from natpp.errors import SettingError
from natpp.registry import OPS


class Rows:
    """What cells and modules share."""

    numbers: tuple[tuple[int, ...], ...]
    """per decision, the column of each option, the original's first: an operation's number in `ops`, or its own"""

    @property
    def together(self) -> Sequence[Sequence[int]]:
        """The decisions in parts that are decided jointly: each alone."""
        return [[number] for number in range(len(self.numbers))]

    def row(self, plan: Plan) -> Row:
        """The column of every decision's option."""
        return np.array([numbers[one] for numbers, one in zip(self.numbers, plan, strict=True)], dtype=np.int64)

    def plan(self, row: Row) -> Plan:
        """The inverse of `row`; decisions that the row leaves out stay as they are."""
        found = [numbers.index(op) for numbers, op in zip(self.numbers, row.tolist(), strict=False)]
        return (*found, *[0] * (len(self.numbers) - len(found)))

    def preferences(self, table: Table) -> Preferences:
        """Preferences of a policy, (decisions, ops), reordered per option."""
        return [row[list(numbers)] for row, numbers in zip(table, self.numbers, strict=True)]


def options_of(before: Iterable[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Per decision, the numbers of all operations with its own first."""
    return tuple((own, *range(own), *range(own + 1, count)) for own in before)


def perturbed(table: Table, chance: np.random.Generator, temperature: float = 1.0) -> Table:
    """Preferences with Gumbel noise: the argmax of each row is a sample from its softmax."""
    return table / temperature + chance.gumbel(size=table.shape)


def known(ops: Sequence[str], names: Sequence[str]) -> list[str]:
    """Operations by names that a policy knows; for an unknown kernel size, the nearest known one."""
    found = []
    for op in ops:
        if op in names:
            found.append(op)
            continue
        kind = op.rsplit("_", 1)[0]
        near = [name for name in names if name.rsplit("_", 1)[0] == kind]
        if not near:
            raise SettingError(
                f"the policy does not know the operation {op} or one like it: use a policy of a space that has it"
            )
        found.append(min(near, key=lambda name: abs(OPS[name].kernel - OPS[op].kernel)))
    return found
