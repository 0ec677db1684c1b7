"""A traced module's decisions: what each may be, how likely, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from natpp.arch.graph import NULL, SKIP
from natpp.arch.rules import Mask
from natpp.decisions.operation import cost as site_cost
from natpp.decisions.operation import forms
from natpp.errors import SettingError
from natpp.fx.aliasing import way_out
from natpp.fx.blocks import Block, grouped, shape
from natpp.fx.rewrite import node_shape
from natpp.fx.traced import Traced, batch_of, value
from natpp.nets.policy import Encoded, GraphBatch, Policy, Transitions, collate, encode_cells
from natpp.registry import OPS, RULES
from natpp.subjects.module_result import SiteChange

Row = NDArray[np.int64]  # one operation for every term of a group's blocks
Table = NDArray[np.float64]  # (terms, ops) of a group
MOST_KNOWN = 1 << 18  # rows whose cost is remembered
MOST_NEXT = 1 << 14  # rows whose changes are remembered


class _Alike(NamedTuple):
    """Blocks of a group whose shortcuts fit at the same terms, and which must read the same nodes."""

    block: Block
    fits: tuple[bool, ...]  # per term, whether a shortcut can be put in there
    needs: tuple[bool, ...]  # per node, whether something must go on reading it
    costs: NDArray[np.float64]  # (terms, ops, 3): parameters, multiply-adds, bytes made, of all of them together


class Problem:
    """A traced module's decisions: what each may be, how likely, and what it costs."""

    def __init__(
        self, traced: Traced, blocks: list[Block], policy: Policy, rule: str, *, strict: bool = True, share: bool = True
    ):
        self.traced, self.blocks = traced, blocks
        self.ops = policy.ops
        self.rule, self.strict = rule, strict
        self.batch = batch_of(traced.example)
        self.site_nodes = {node for block in blocks for item in block.items for node in item.nodes}
        self.way_out = way_out(traced.graph, self.site_nodes, traced.parts)
        self.shared = share
        self.groups = grouped(blocks, share=share)
        self.first = [blocks[group[0]] for group in self.groups]
        self.fits = [_shortcut_fits(block) for block in blocks]
        names = [_known(block.ops, self.ops) for block in self.first]
        self.before: list[Row] = [np.array([self.ops.index(name) for name in row], dtype=np.int64) for row in names]
        self.why: list[list[dict[str, str]]] = []
        self._known: dict[tuple[int, bytes], tuple[NDArray[np.float64], bool, list[set[int]]]] = {}
        self._next: dict[tuple[int, bytes], list[tuple[Row, NDArray[np.float64]]]] = {}
        self.masks: list[Mask] = [self._mask(number) for number in range(len(self.groups))]
        self.member: dict[int, tuple[int, int]] = {}  # per block its group, and of which kind in it
        self.alike = [self._alike(number) for number in range(len(self.groups))]
        self.last, self.behind = self._order()
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

    def connected(self, number: int, row: Row) -> bool:
        """Whether every output of the group's blocks still gets something, and what must be read is."""
        return self._looked_up(number, row)[1]

    def cost(self, number: int, row: Row) -> NDArray[np.float64]:
        """Parameters, multiply-adds and bytes made of what is alive in a group's blocks."""
        return self._looked_up(number, row)[0]

    def reads(self, number: int, row: Row) -> list[set[int]]:
        """Which of their two inputs the blocks of a group read, for each kind of them."""
        return self._looked_up(number, row)[2]

    def gone(self, rows: Sequence[Row]) -> set[int]:
        """Groups of which no block is left, since nothing reads what they give."""
        alive, waiting = set[int](), list(self.last)
        while waiting:
            index = waiting.pop()
            if index not in alive:
                alive.add(index)
                number, kind = self.member[index]
                for source in self.reads(number, rows[number])[kind]:
                    waiting += self.behind[index][source]
        return {number for number, group in enumerate(self.groups) if alive.isdisjoint(group)}

    def _looked_up(self, number: int, row: Row) -> tuple[NDArray[np.float64], bool, list[set[int]]]:
        """Cost and connection of a row, and the inputs that are read, which is asked for again and again."""
        key = number, row.tobytes()
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            total, connected, inputs = np.zeros(3), True, list[set[int]]()
            for one in self.alike[number]:
                live, whole = one.block.alive(self.member_ops(number, row, one.block, one.fits))
                total += one.costs[np.flatnonzero(live), row[live]].sum(axis=0)
                read = {term.source for (_, term), alive in zip(one.block.terms, live, strict=True) if alive}
                connected &= whole and all(source in read for source, needed in enumerate(one.needs) if needed)
                inputs.append(read & {0, 1})
            self._known[key] = total, connected, inputs
        return self._known[key]

    def one_further(self, number: int, row: Row) -> list[tuple[Row, NDArray[np.float64]]]:
        """The rows that one further decision leads to, with their cost.

        One that would cut an output off comes with the return of a term that was dropped.
        """
        key = number, row.tobytes()
        if key not in self._next:
            if len(self._next) >= MOST_NEXT:
                self._next.clear()
            before, null = self.before[number], self.ops.index(NULL)
            dropped = np.flatnonzero((row == null) & (before != null))
            found: list[Row] = []
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
            self._next[key] = [(one, self.cost(number, one)) for one in found]
        return self._next[key]

    def _alike(self, number: int) -> list[_Alike]:
        found: dict[tuple[bool, ...], _Alike] = {}
        for index in self.groups[number]:
            block = self.blocks[index]
            fits = self.fits[index]
            costs = np.zeros((len(fits), len(self.ops), 3))
            for row, (_, term) in enumerate(block.terms):
                if (site := term.site) is None:
                    continue
                current = self.before[number][row]
                for column in np.flatnonzero(self.masks[number][row]):
                    op = site.op if column == current else self.ops[column]
                    if op == NULL:
                        continue
                    params, madds = site_cost(site, op, self.batch, self.traced.parts)
                    made = value(site.output)
                    size = made.numel() * made.element_size() if forms(site, op) else 0
                    costs[row, column] = params, madds, size
            needs = self._needs(block)
            key = (block.inputs[0] is None, *fits, *needs)
            total = found[key].costs + costs if key in found else costs
            found[key] = _Alike(block, fits, needs, total)
            self.member[index] = number, list(found).index(key)
        return list(found.values())

    def _order(self) -> tuple[set[int], list[tuple[set[int], set[int]]]]:
        """The blocks that lead to the output with no other between, and per block those that lead so to its inputs."""
        owner = {node: index for index, block in enumerate(self.blocks) for item in block.items for node in item.nodes}
        before: dict[fx.Node | None, set[int]] = {None: set()}
        for node in self.traced.graph.nodes:
            read = (before[one] for one in node.all_input_nodes)
            before[node] = {owner[node]} if node in owner else set().union(*read)
        last = set().union(*(before[node] for node in self.traced.graph.nodes if node.op == "output"))
        behind = [(before[block.inputs[0]], before[block.inputs[1]]) for block in self.blocks]
        return last, [(one - {index}, other - {index}) for index, (one, other) in enumerate(behind)]

    def _needs(self, block: Block) -> tuple[bool, ...]:
        """Per node of a block, whether something of it must go on reading it: what was learned goes out that way."""
        own = {node for item in block.items for node in item.nodes}
        live, _ = block.alive(block.ops)
        read = {term.source for (_, term), alive in zip(block.terms, live, strict=True) if alive}
        given = [*block.inputs, *(None if node.item is None else node.item.output for node in block.nodes)]
        ways = [None if one is None else self.way_out.get(one) for one in given]
        return tuple(number in read and way in own for number, way in enumerate(ways))

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
