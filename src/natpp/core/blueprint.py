"""A network and all its variants, as a value: what is alive in it and what it costs, without building anything.

A step makes one value from earlier ones; the last step makes the output. A plan picks an option for every decision, and
the options of the decisions that shape a step give its price. A step is reached if it depends on the input, and alive
if the output also depends on it. Only steps that are alive cost anything.

Liveness is computed for many plans at once: a set of plans is one integer, with one bit per plan.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from natpp.core.decision import Plan
from natpp.errors import GraphError

Join = Literal["all", "sum", "concat"]
Price = tuple[Any, ...]  # one number per figure of the blueprint: an integer if it is counted
Room = tuple[int, int]  # bytes of the value, and peak bytes while it is computed, not counting its inputs
Plans = NDArray[np.int64]  # (plans, decisions)
FREE: Mapping[Plan, Price | None] = MappingProxyType({(): ()})
EXACT = 2**63  # NumPy's int64 stays below this


class Step(NamedTuple):
    """One value of a network: its inputs, how they are joined, and its price per option of the decisions `by`."""

    name: str
    reads: tuple[int, ...] = ()
    prices: Mapping[Plan, Price | None] = FREE
    """keyed by one option per decision in `by`; empty: it is free; None: with these options nothing passes"""
    by: tuple[int, ...] = ()
    """numbers of decisions"""
    join: Join = "all"
    """all: every input is needed; sum and concat: one is enough, and the others count as zeros"""
    fixed: bool = False
    """it is built, and its price counts, even if it is not alive: stems and heads"""
    keep: Literal["", "reached", "alive"] = ""
    """reached: it must be if anything reads it; alive: it must be under every plan. Otherwise a plan has no cost"""
    room: Mapping[Plan, Room] | None = None
    """keyed by the same options as the price; a value of 0 bytes is its input tensor itself"""
    silent: Room = (0, 0)
    """the room of a fixed step that nothing reaches"""
    until: int | None = None
    """number of the step whose end frees its inputs; None: its own"""
    idle: bool = False
    """its output is unused: it is built if all its inputs are alive, and keeps nothing alive itself"""


class Spent(NamedTuple):
    """What one plan costs, in the order of the blueprint's figures."""

    listed: Price
    """of every step, alive or not"""
    living: Price
    """of the steps that are alive or fixed, which are the ones that get built"""
    connected: bool
    """the output depends on the input, and every step that must stay is alive"""


class Flow(NamedTuple):
    """Per step, the plans in which it is reached and those in which it is alive; then the plans that are connected."""

    reached: list[int]
    alive: list[int]
    connected: int


def reached_and_alive(
    reads: Sequence[Sequence[int]],
    joins: Sequence[Join],
    passing: Sequence[int],
    read: Mapping[int, int],
    given: Mapping[int, int] = MappingProxyType({}),
) -> tuple[list[int], list[int]]:
    """Per step, the plans in which the input reaches it, and those in which it is also alive.

    `passing` has the plans in which a step passes its input on, `read` those in which something outside reads it, and
    `given` those in which its readers count it as reached.
    """
    reached: list[int] = []
    onward: list[int] = []  # as readers see it
    for number, (sources, join, plans) in enumerate(zip(reads, joins, passing, strict=True)):
        if plans and join == "all":
            for source in sources:
                plans &= onward[source]
        elif plans:
            plans &= functools.reduce(operator.or_, [onward[source] for source in sources], 0)
        reached.append(plans)
        onward.append(given.get(number, plans))
    alive = [read.get(number, 0) for number in range(len(reached))]
    for number in range(len(reached) - 1, -1, -1):
        if plans := alive[number]:
            alive[number] = plans = plans & onward[number]
            for source in reads[number]:
                alive[source] |= plans
    return reached, alive


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The steps of a network in the order in which they run; the last one makes its output.

    Examples:
        >>> from natpp.core.blueprint import Blueprint, Step
        >>> image, head = Step("image"), Step("head", (1,), {(): (10, 10)}, fixed=True)
        >>> conv = Step("conv", (0,), {(0,): (9, 900), (1,): (0, 0), (2,): None}, by=(0,))
        >>> network = Blueprint((image, conv, head))
        >>> network.cost((0,)).living, network.cost((1,)).living, network.cost((2,))
        ((19, 910), (10, 10), None)
    """

    steps: tuple[Step, ...]
    figures: tuple[str, ...] = ("params", "madds")
    """the entries of a price; they add up over steps"""

    def __post_init__(self) -> None:
        if not self.steps:
            raise GraphError("a blueprint needs at least one step")
        for number, step in enumerate(self.steps):
            if step.reads and not 0 <= min(step.reads) <= max(step.reads) < number:
                raise GraphError(f"step {step.name!r} reads {step.reads}, but a step reads only what is made before it")
            if step.until is not None and not number <= step.until < len(self.steps):
                raise GraphError(f"step {step.name!r} holds its inputs until {step.until}, expected itself or later")
        for by, prices, (number, *_) in self._priced:
            sizes = {(len(key), len(price or self.figures)) for key, price in prices.items()}
            if sizes != {(len(by), len(self.figures))}:
                step, figures = self.steps[number], ", ".join(self.figures)
                raise GraphError(f"the prices of step {step.name!r} must map {len(by)} option numbers to {figures}")

    # What is alive.

    def flow(self, plans: Plans | Plan) -> Flow:
        """The steps on a path from the input to the output: under many plans, or under one (bit 0)."""
        everyone, picked = _sets(plans)
        gates, numbers = self._gates
        passing = []
        for by, closed in gates:
            stopped = 0
            for key in closed:
                stopped |= functools.reduce(operator.and_, map(picked, by, key), everyone)
            passing.append(everyone & ~stopped)
        passing = [passing[number] for number in numbers]
        last, given = {len(passing) - 1: everyone}, dict.fromkeys(self.given, everyone)
        reached, alive = reached_and_alive(*self._wiring, passing, last, given)
        for number in self.idle:
            read_by_it = (alive[read] for read in self.steps[number].reads)
            alive[number] = functools.reduce(operator.and_, read_by_it, reached[number])
        connected = reached[-1]
        for number, keep in self._kept:
            connected &= alive[number] if keep == "alive" else reached[number] | ~alive[number]
        return Flow(reached, alive, connected)

    # What it costs.

    def cost(self, plan: Plan) -> Spent | None:
        """The exact cost of a plan; None if it is not connected, or a step that must stay is dead."""
        spent = self.spent(plan)
        return spent if spent.connected else None

    def spent(self, plan: Plan) -> Spent:
        """The cost of a plan, connected or not."""
        flow = self.flow(plan)
        built = [alive or fixed for alive, fixed in zip(flow.alive, self._fixed, strict=True)]
        listed, living = [0] * len(self.figures), [0] * len(self.figures)
        for by, prices, numbers in self._priced:
            if price := prices[tuple([plan[one] for one in by])]:
                count = sum([built[number] for number in numbers])
                for place, figure in enumerate(price):
                    listed[place] += figure * len(numbers)
                    living[place] += figure * count
        return Spent(tuple(listed), tuple(living), bool(flow.connected))

    def costs(self, plans: Plans) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The living cost of many plans, (plans, figures), and which of them are connected."""
        flow, count = self.flow(plans), len(plans)
        alive = _bits([*flow.alive, flow.connected], count)
        alive[:-1][self._fixed] = 1
        total = np.zeros((count, len(self.figures)), dtype=self._dtype)
        for by, table, numbers in self._tables:
            built = alive[numbers].sum(axis=0, dtype=np.int64)[:, None]  # how many of these steps
            total += built * table[tuple(plans[:, decision] for decision in by)]
        return total, alive[-1].astype(bool)

    # The same for all plans.

    @functools.cached_property
    def closing(self) -> set[tuple[int, int]]:
        """Decisions and the option under which a step passes nothing on."""
        return {(by[0], key[0]) for by, closed in self._gates[0] if len(by) == 1 for key in closed}

    @functools.cached_property
    def idle(self) -> list[int]:
        """The steps whose output is unused."""
        return [number for number, step in enumerate(self.steps) if step.idle]

    @functools.cached_property
    def given(self) -> set[int]:
        """The steps that must be reached if anything reads them; their readers count them as reached."""
        return {number for number, keep in self._kept if keep == "reached"}

    @functools.cached_property
    def readers(self) -> list[list[int]]:
        """Per step, the steps that read it."""
        found: list[list[int]] = [[] for _ in self.steps]
        for number, step in enumerate(self.steps):
            for read in step.reads:
                found[read].append(number)
        return found

    @functools.cached_property
    def shaped(self) -> dict[int, list[int]]:
        """Per decision, the steps that it shapes."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            for decision in step.by:
                found.setdefault(decision, []).append(number)
        return found

    @functools.cached_property
    def _wiring(self) -> tuple[list[tuple[int, ...]], list[Join]]:
        return [step.reads for step in self.steps], [step.join for step in self.steps]

    @functools.cached_property
    def _gates(self) -> tuple[list[tuple[tuple[int, ...], list[Plan]]], list[int]]:
        """Decisions with the options at which nothing passes, each once, and per step which of these hold for it."""
        numbers: dict[tuple[tuple[int, ...], int], int] = {}
        found = [numbers.setdefault((step.by, id(step.prices)), len(numbers)) for step in self.steps]
        prices = {id(step.prices): step.prices for step in self.steps}
        gates = [(by, [key for key, price in prices[one].items() if price is None]) for by, one in numbers]
        return gates, found

    @functools.cached_property
    def _kept(self) -> list[tuple[int, str]]:
        return [(number, step.keep) for number, step in enumerate(self.steps) if step.keep]

    @functools.cached_property
    def _fixed(self) -> list[bool]:
        return [step.fixed for step in self.steps]

    @functools.cached_property
    def _priced(self) -> list[tuple[tuple[int, ...], Mapping[Plan, Price | None], list[int]]]:
        """Steps that share a price table: the decisions that index it, the table, the steps."""
        groups: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for number, step in enumerate(self.steps):
            if step.prices is not FREE:
                groups.setdefault((step.by, id(step.prices)), []).append(number)
        return [(by, self.steps[numbers[0]].prices, numbers) for (by, _), numbers in groups.items()]

    @functools.cached_property
    def _tables(self) -> list[tuple[tuple[int, ...], NDArray[Any], list[int]]]:
        """The same with prices as arrays, (options of each decision, figures)."""
        found = []
        for by, prices, numbers in self._priced:
            shape = [1 + max(key[axis] for key in prices) for axis in range(len(by))]
            table = np.zeros((*shape, len(self.figures)), dtype=self._dtype)
            for key, price in prices.items():
                table[key] = price or 0
            found.append((by, table, numbers))
        return found

    @functools.cached_property
    def _dtype(self) -> Any:
        """Integers if all figures are counted: Python's own if int64 could overflow."""
        largest = 0
        for _, prices, numbers in self._priced:
            figures = [figure for price in prices.values() for figure in price or ()]
            if not all(isinstance(figure, int) for figure in figures):
                return np.float64
            largest += len(numbers) * max(figures, default=0)
        return object if largest >= EXACT else np.int64


def _sets(plans: Plans | Plan) -> tuple[int, Callable[[int, int], int]]:
    """All plans as a set of bits, and which of them pick an option of a decision."""
    if isinstance(plans, tuple):
        return 1, lambda decision, option: int(plans[decision] == option)

    @functools.cache
    def picked(decision: int, option: int) -> int:
        bits = np.packbits(plans[:, decision] == option, bitorder="little")
        return int.from_bytes(bits.tobytes(), "little")

    return (1 << len(plans)) - 1, picked


def _bits(sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Sets of plans as (sets, plans), 1 if the plan is in the set."""
    width = -(-count // 8)
    packed = np.frombuffer(b"".join(one.to_bytes(width, "little") for one in sets), dtype=np.uint8)
    return np.unpackbits(packed.reshape(len(sets), width), axis=1, count=count, bitorder="little")
