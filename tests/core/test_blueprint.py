"""Blueprints: what is alive, costs of one plan and of many, and memory, worked out by hand and by brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natpp.core.blueprint import Blueprint, Step
from natpp.errors import GraphError

EDGE = {(0,): (5, 50), (1,): (0, 0), (2,): None}  # an operation, a skip, nothing


def residual(**output: object) -> Blueprint:
    """A stem, two edges that are added up, and a head that reads the sum."""
    return Blueprint(
        (
            Step("image"),
            Step("stem", (0,), {(): (3, 30)}, fixed=True),
            Step("left", (1,), EDGE, by=(0,)),
            Step("right", (1,), EDGE, by=(1,)),
            Step("sum", (2, 3), join="sum", **output),
            Step("head", (4,), {(): (2, 2)}, fixed=True),
        )
    )


def test_only_what_is_alive_costs() -> None:
    network = residual()
    assert network.cost((0, 0)) == ((15, 132), (15, 132), True)
    assert network.cost((0, 2)) == ((10, 82), (10, 82), True)
    assert network.cost((1, 1)) == ((5, 32), (5, 32), True)
    assert network.cost((2, 2)) is None
    assert network.spent((2, 2)) == ((5, 32), (5, 32), False)  # stem and head stand


def test_what_nobody_reads_is_dead_and_what_reads_it_too() -> None:
    image, head = Step("image"), Step("head", (1,), {(): (2, 2)})
    unread = Blueprint((image, Step("conv", (0,), {(): (5, 50)}), Step("dead", (1,), {(): (7, 70)}), head))
    assert unread.cost(()) == ((14, 122), (7, 52), True)
    # A step that needs all of its inputs dies with one of them, and what it alone reads dies with it.
    both = Blueprint((image, Step("a", (0,), EDGE, by=(0,)), Step("b", (0,), EDGE, by=(1,)), Step("add", (1, 2))))
    assert both.cost((0, 2)) is None
    assert both.spent((0, 2)).living == (0, 0)


def test_what_must_stay() -> None:
    image = Step("image")
    learned = Step("learned", (0,), {(): (4, 40)}, keep="alive")
    edge, other = Step("edge", (1,), EDGE, by=(0,)), Step("other", (0,), EDGE, by=(1,))
    network = Blueprint((image, learned, edge, other, Step("sum", (2, 3), join="sum")))
    assert network.cost((1, 2)) is not None
    assert network.cost((2, 0)) is None  # connected, but what was learned has no way out
    assert residual(keep="reached").cost((2, 0)) is not None
    block = Step("block", (0,), EDGE, by=(0,), keep="reached")
    network = Blueprint((image, block, Step("edge", (1,), EDGE, by=(1,)), Step("sum", (0, 2), join="sum")))
    assert network.cost((2, 0)) is None  # what is read must carry something
    assert network.cost((2, 2)) == ((0, 0), (0, 0), True)  # unread, it may go
    assert network.cost((0, 2)) == ((5, 50), (0, 0), True)
    total, connected = network.costs(np.array([[0, 0], [2, 0], [2, 2]]))
    assert connected.tolist() == [True, False, True]
    assert total[[0, 2]].tolist() == [list(network.cost((0, 0)).living), [0, 0]]


def test_prices_by_several_decisions_and_of_other_figures() -> None:
    prices = {(op, width): (op * 10 + width, 1, 0.5 * width) for op, width in product(range(3), range(2))}
    prices[2, 0] = prices[2, 1] = None
    network = Blueprint((Step("image"), Step("conv", (0,), prices, by=(1, 0))), ("params", "madds", "ms"))
    plans = np.array(list(product(range(2), range(3))))
    total, connected = network.costs(plans)
    for plan, row, whole in zip(plans.tolist(), total.tolist(), connected, strict=True):
        found = network.cost(tuple(plan))
        assert (found is not None) == whole == (plan[1] < 2)
        assert network.spent(tuple(plan)).living == tuple(row)


def test_figures_too_large_for_numpy_are_exact() -> None:
    large = 2**62 + 1
    network = Blueprint(tuple(Step(f"{n}", (n - 1,) if n else (), {(): (large, 1)}) for n in range(3)))
    assert network.cost(()) == ((3 * large, 3), (3 * large, 3), True)
    assert network.costs(np.zeros((2, 0), dtype=np.int64))[0].tolist() == [[3 * large, 3]] * 2


@st.composite
def networks(draw: st.DrawFn) -> Blueprint:
    """Random steps with every join, under three decisions of three options."""
    steps = [Step("image"), Step("other image")]
    for number in range(2, 2 + draw(st.integers(1, 9))):
        by = tuple(draw(st.lists(st.integers(0, 2), max_size=2, unique=True)))
        price = st.none() | st.tuples(st.integers(0, 9), st.integers(0, 99))
        prices = {key: draw(price) for key in product(range(3), repeat=len(by))}
        reads = tuple(draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=3, unique=True)))
        join, fixed = draw(st.sampled_from(["all", "sum", "concat"])), draw(st.booleans())
        steps.append(Step(f"{number}", reads, prices, by, join, fixed, draw(st.sampled_from(["", "reached", "alive"]))))
    return Blueprint(tuple(steps))


@given(networks())
def test_many_plans_cost_what_each_costs_alone(network: Blueprint) -> None:
    plans = np.array(list(product(range(3), repeat=3)))
    total, connected = network.costs(plans)
    for plan, row, whole in zip(plans.tolist(), total.tolist(), connected.tolist(), strict=True):
        alone = network.cost(tuple(plan))
        assert (alone is not None) == whole
        assert network.spent(tuple(plan)).living == tuple(row)


@given(networks(), st.tuples(*[st.integers(0, 2)] * 3))
def test_alive_is_what_lies_on_a_way_from_the_input_to_the_output(network: Blueprint, plan: tuple[int, ...]) -> None:
    """By brute force: the steps that something reaches, and of these all that the last one reads over and over.

    A step that must be reached if it is read is taken for reached.
    """
    steps, reached = network.steps, set[int]()
    given = {number for number, step in enumerate(steps) if step.keep == "reached"}
    for number, step in enumerate(steps):
        enough = any if step.join != "all" else all
        passes = step.prices[tuple(plan[one] for one in step.by)] is not None
        if passes and (not step.reads or enough(read in reached | given for read in step.reads)):
            reached.add(number)
    alive, waiting = set[int](), [len(steps) - 1]
    while waiting:
        number = waiting.pop()
        if number in reached | given and number not in alive:
            alive.add(number)
            waiting += steps[number].reads
    flow = network.flow(plan)
    assert {number for number, bit in enumerate(flow.reached) if bit} == reached
    assert {number for number, bit in enumerate(flow.alive) if bit} == alive


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((), "at least one step"),
        ((Step("a", (0,)),), "reads only what is made before it"),
        ((Step("a"), Step("b", (-1,))), "reads only what is made before it"),
        ((Step("a"), Step("b", (0,), until=0)), "expected itself or later"),
        ((Step("a", prices={(): (1, 2, 3)}),), "option numbers to params, madds"),
        ((Step("a", prices={(0,): (1, 2)}),), "must map 0 option numbers"),
    ],
)
def test_wrong_blueprints_are_refused(steps: tuple[Step, ...], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        Blueprint(steps)
