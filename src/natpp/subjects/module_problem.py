"""A traced module's decisions: what each may be, how likely, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from natpp.arch.graph import NULL, SKIP
from natpp.arch.rules import Mask
from natpp.core.decision import Plan
from natpp.core.tally import Tally
from natpp.decisions.operation import cost as site_cost
from natpp.decisions.operation import forms
from natpp.errors import SettingError
from natpp.fx.blocks import Block, grouped, shape
from natpp.fx.rewrite import node_shape
from natpp.fx.traced import Traced, batch_of, value
from natpp.nets.policy import Encoded, GraphBatch, Policy, Transitions, collate, encode_cells
from natpp.registry import OPS, RULES
from natpp.subjects.module_blueprint import Choice, module_blueprint
from natpp.subjects.module_result import SiteChange

Row = NDArray[np.int64]  # one operation for every term of a group's blocks
Table = NDArray[np.float64]  # (terms, ops) of a group
MOST_KNOWN = 1 << 18  # rows whose cost is remembered
MOST_NEXT = 1 << 14  # rows whose changes are remembered


class Problem:
    """A traced module's decisions: what each may be, how likely, and what it costs."""

    def __init__(
        self, traced: Traced, blocks: list[Block], policy: Policy, rule: str, *, strict: bool = True, share: bool = True
    ):
        self.traced, self.blocks = traced, blocks
        self.ops = policy.ops
        self.rule, self.strict = rule, strict
        self.batch = batch_of(traced.example)
        self.shared = share
        self.groups = grouped(blocks, share=share)
        self.first = [blocks[group[0]] for group in self.groups]
        self.fits = [_shortcut_fits(block) for block in blocks]
        names = [_known(block.ops, self.ops) for block in self.first]
        self.before: list[Row] = [np.array([self.ops.index(name) for name in row], dtype=np.int64) for row in names]
        self.why: list[list[dict[str, str]]] = []
        self.masks: list[Mask] = [self._mask(number) for number in range(len(self.groups))]
        self.columns = [  # per decision of a group the column of each of its options, the first one what is there
            [
                np.array([now, *(one for one in np.flatnonzero(row) if one != now)])
                for now, row in zip(*pair, strict=True)
            ]
            for pair in zip(self.before, self.masks, strict=True)
        ]
        self.option_of = [
            [{column: option for option, column in enumerate(row.tolist())} for row in columns]
            for columns in self.columns
        ]
        self.offsets = np.cumsum([0, *map(len, self.before)]).tolist()
        self.owner = [number for number, row in enumerate(self.before) for _ in row]  # per decision its group
        self.blueprint = module_blueprint(traced, blocks, self._choices())
        self.tally = Tally(self.blueprint)  # of the module as it is
        self._connected: dict[tuple[int, bytes], bool] = {}
        self._next: dict[tuple[int, bytes], list[Row]] = {}
        for number, mask in enumerate(self.masks):
            self._keep_connected(number, mask)
        encoded: list[Encoded] = [
            encode_cells([(block.kind, block.with_ops(row))], self.ops)
            for block, row in zip(self.first, names, strict=True)
        ]
        self.log_probs: list[Table] = []
        if encoded:
            self.graph: GraphBatch = collate(encoded, self.masks)
            self.transitions, self.log_probs = self.asked(policy)

    def asked(self, policy: Policy) -> tuple[Transitions, list[Table]]:
        """What a policy says of all decisions, and its log-probabilities group by group."""
        with torch.no_grad():
            transitions: Transitions = policy(self.graph)
        return transitions, self.split(transitions.log_probs.double().numpy())

    def split(self, decisions: NDArray[Any]) -> list[NDArray[Any]]:
        """Something for every decision, group by group."""
        return np.split(decisions, np.cumsum([len(row) for row in self.before])[:-1])

    # What may be.

    def _mask(self, number: int) -> Mask:
        """(terms, ops) of a group: what is allowed for all its blocks; a shortcut, where it fits somewhere."""
        members = [self.blocks[index] for index in self.groups[number]]
        mask = np.zeros((len(self.before[number]), len(self.ops)), dtype=bool)
        reasons: list[dict[str, str]] = [{} for _ in mask]
        for row, current in enumerate(self.before[number]):
            for column, op in enumerate(self.ops):
                if column == current:
                    mask[row, column] = True
                    continue
                found = [self._forbidden(block, row, op) for block in members]
                added = members[0].ops[row] == NULL
                reason = min(found, key=bool) if added else next((why for why in found if why), "")
                mask[row, column] = not reason
                if reason:
                    reasons[row][op] = reason
        self.why.append(reasons)
        return mask

    def _forbidden(self, block: Block, index: int, op: str) -> str:
        """Why an operation may not stand there: rule, shape or budget; empty where it may."""
        target, term = block.terms[index]
        if op not in OPS or OPS[op].extra:
            return "rule"
        site = term.site
        if term.op == NULL:
            if op != SKIP:
                return "rule"
            older = block.inputs[term.source]
            return "" if older is not None and _fits(block, target, term.source) else "shape"
        if op == NULL:
            return ""
        if site is None or term.op == SKIP:
            return "rule"
        if not RULES[self.rule](OPS[term.op], OPS[op], site.place):
            return "rule"
        made = forms(site, op)
        if made == forms(site, site.op) or (op == SKIP and made and site.form.kernel == 1):
            return "shape"  # it is one already
        if self.strict:
            old, new = (site_cost(site, name, self.batch, self.traced.parts) for name in (site.op, op))
            if new[0] > old[0] or new[1] > old[1]:
                return "budget"
        return ""

    def _keep_connected(self, number: int, mask: Mask) -> None:
        """Forbid what by itself would cut an output off."""
        for row, column in zip(*np.nonzero(mask), strict=True):
            changed = self.before[number].copy()
            changed[row] = column
            if not self.connected(number, changed):
                mask[row, column] = False
                self.why[number][row][self.ops[column]] = "connection"

    # What a row means.

    def member_ops(self, number: int, row: Row, block: Block, fits: Sequence[bool]) -> tuple[str, ...]:
        """The operations of one block: what is not changed keeps its own, a shortcut stands where it fits."""
        return tuple(
            own if new == old or (own == NULL and not fit) else self.ops[new]
            for own, old, new, fit in zip(block.ops, self.before[number].tolist(), row.tolist(), fits, strict=True)
        )

    def block_ops(self, rows: Sequence[Row]) -> list[tuple[str, ...]]:
        """The operations of every block."""
        found: list[tuple[str, ...]] = [()] * len(self.blocks)
        for number, (group, row) in enumerate(zip(self.groups, rows, strict=True)):
            for index in group:
                block = self.blocks[index]
                found[index] = self.member_ops(number, row, block, self.fits[index])
        return found

    def _choices(self) -> list[list[Choice]]:
        """Per block and term, the decision and what each of its options means there."""
        found: list[list[Choice]] = [[] for _ in self.blocks]
        for number, group in enumerate(self.groups):
            for index in group:
                for row, (own, fits) in enumerate(zip(self.blocks[index].ops, self.fits[index], strict=True)):
                    _, *others = self.columns[number][row]
                    ops = [own if own == NULL and not fits else self.ops[column] for column in others]
                    found[index].append(Choice(self.offsets[number] + row, (own, *ops)))
        return found

    # What is connected, and what it costs.

    def options(self, number: int, row: Row) -> dict[int, int]:
        """A row of a group as options of its decisions."""
        numbers = self.option_of[number]
        return dict(
            enumerate([one[column] for one, column in zip(numbers, row.tolist(), strict=True)], self.offsets[number])
        )

    def plan(self, rows: Sequence[Row]) -> Plan:
        """The options of all decisions."""
        return tuple(option for number, row in enumerate(rows) for option in self.options(number, row).values())

    def connected(self, number: int, row: Row) -> bool:
        """Whether every output of the group's blocks still gets something, and what must be read is."""
        key = number, row.tobytes()
        if key not in self._connected:
            if len(self._connected) >= MOST_KNOWN:
                self._connected.clear()
            self.tally.change(self.options(number, row))
            self._connected[key] = not self.tally.missing
            self.tally.change(self.options(number, self.before[number]))
        return self._connected[key]

    def one_further(self, number: int, row: Row) -> list[Row]:
        """The rows that one further decision leads to.

        One that would cut an output off comes with the return of a term that was dropped.
        """
        key = number, row.tobytes()
        if key not in self._next:
            if len(self._next) >= MOST_NEXT:
                self._next.clear()
            before, null = self.before[number], self.ops.index(NULL)
            dropped = np.flatnonzero((row == null) & (before != null))
            found = self._next[key] = []
            for index, column in zip(*np.nonzero(self.masks[number]), strict=True):
                if column == row[index]:
                    continue
                changed = row.copy()
                changed[index] = column
                if self.connected(number, changed):
                    found.append(changed)
                    continue
                for other in dropped:
                    again = changed.copy()
                    again[other] = before[other]
                    if other != index and self.connected(number, again):
                        found.append(again)
        return self._next[key]

    # The policy's answer.

    def answer(self, mode: str = "greedy", seed: int = 0) -> list[Row]:
        """The most likely transitions, or drawn ones; connected, and at least one of them a change."""
        if not self.groups:
            return []
        if mode == "greedy":
            drawn = self.transitions.greedy()
        else:
            drawn = self.transitions.sample(1, torch.Generator().manual_seed(seed))[0]
        rows = [self.repaired(number, row) for number, row in enumerate(self.split(drawn.numpy()))]
        if mode == "greedy" and not self.changes(rows):
            rows = self._one_change(rows)
        return rows

    def preferences(self, mode: str = "greedy", seed: int = 0) -> list[Table]:
        """What a descent prefers: the log-probabilities, or with Gumbel noise, which draws from them."""
        return self.log_probs if mode == "greedy" else perturbed(self.log_probs, np.random.default_rng(seed))

    def repaired(self, number: int, row: Row) -> Row:
        """The row with its least likely changes taken back until every output gets something; harmless ones return."""
        if self.connected(number, row):
            return row
        before, drawn, row = self.before[number], row, row.copy()
        changed = np.flatnonzero(row != before)[::-1]
        likely = self.log_probs[number][changed, row[changed]]
        order = changed[np.argsort(likely, kind="stable")].tolist()
        undone: list[int] = []
        while not self.connected(number, row):
            undone.append(order[len(undone)])
            row[undone[-1]] = before[undone[-1]]
        for index in reversed(undone[:-1]):
            row[index] = drawn[index]
            if not self.connected(number, row):
                row[index] = before[index]
        return row

    def _one_change(self, rows: list[Row]) -> list[Row]:
        """The most likely single change; a change of an operation before a shortcut."""
        best: tuple[bool, float, int, int, int] | None = None
        for number, mask in enumerate(self.masks):
            for index, column in zip(*np.nonzero(mask), strict=True):
                if column == self.before[number][index]:
                    continue
                site = self.first[number].terms[index][1].site is not None
                key = (site, float(self.log_probs[number][index, column]), -number, -int(index), -int(column))
                best = key if best is None or key > best else best
        if best is None:
            return rows
        rows = [row.copy() for row in rows]
        rows[-best[2]][-best[3]] = -best[4]
        return rows

    def log_prob(self, rows: Sequence[Row]) -> float:
        """Log-probability of the decisions."""
        return float(
            sum(table[np.arange(len(row)), row].sum() for table, row in zip(self.log_probs, rows, strict=True))
        )

    # What a person is told.

    def changes(self, rows: Sequence[Row]) -> list[SiteChange]:
        """What differs, block by block, and what went with it."""
        found = []
        owner = {index: number for number, group in enumerate(self.groups) for index in group}
        for index, (block, ops) in enumerate(zip(self.blocks, self.block_ops(rows), strict=True)):
            if ops == block.ops:
                continue
            live, _ = block.alive(ops)
            number = owner[index]
            for place, (_, term) in enumerate(block.terms):
                before, after = term.op, ops[place]
                if before == after and not (term.site is not None and not live[place]):
                    continue
                gone = before == after or (not live[place] and after != NULL)
                if gone and before == NULL:
                    continue
                likely = 1.0 if gone else float(np.exp(self.log_probs[number][place, rows[number][place]]))
                found.append(SiteChange(block.edge_name(place), before, NULL if gone else after, likely))
        return found

    def probabilities(self) -> dict[str, dict[str, float]]:
        """Per decision of every block, the operations that could be chosen."""
        found = {}
        for number, group in enumerate(self.groups):
            for index in group:
                for place in range(len(self.before[number])):
                    allowed = np.flatnonzero(self.masks[number][place])
                    table = {self.ops[op]: float(np.exp(self.log_probs[number][place, op])) for op in allowed}
                    found[self.blocks[index].edge_name(place)] = table
        return found

    def masked(self) -> dict[str, dict[str, str]]:
        """Per decision of every block, the operations that could not be chosen, and why."""
        return {
            self.blocks[index].edge_name(place): dict(reasons)
            for number, group in enumerate(self.groups)
            for index in group
            for place, reasons in enumerate(self.why[number])
        }


def perturbed(tables: Sequence[Table], generator: np.random.Generator, temperature: float = 1.0) -> list[Table]:
    """Preferences with Gumbel noise: the most preferred of each is a draw from their softmax."""
    return [table / temperature + generator.gumbel(size=table.shape) for table in tables]


def _known(ops: Sequence[str], known: Sequence[str]) -> list[str]:
    """Operations by names that a policy knows: of another kernel where it does not know one."""
    found = []
    for op in ops:
        if op in known:
            found.append(op)
            continue
        kind = op.rsplit("_", 1)[0]
        near = [name for name in known if name.rsplit("_", 1)[0] == kind]
        if not near:
            raise SettingError(
                f"the policy does not know the operation {op}, nor one like it: it was learned for another space"
            )
        found.append(min(near, key=lambda name: abs(OPS[name].kernel - OPS[op].kernel)))
    return found


def _fits(block: Block, target: int, source: int) -> bool:
    """Whether a skip can join two nodes as they are, from what is there before the block begins."""
    given = block.inputs[source] if source < 2 else None
    if given is None or not isinstance(value(given), Tensor):
        return False
    begins = min(node for item in block.items for node in item.nodes)
    return given < begins and shape(given) == node_shape(block, target)


def _shortcut_fits(block: Block) -> tuple[bool, ...]:
    """Per term, whether it is empty and a shortcut can be put in."""
    return tuple(term.op == NULL and _fits(block, target, term.source) for target, term in block.terms)
