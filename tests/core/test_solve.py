"""Plans brought within a budget, by hand and by brute force over all plans of small subjects."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from natpp.core.decision import Plan
from natpp.core.solve import descend, preferred, repair, settle, with_option

COSTS = np.array([[9, 4, 1], [7, 7, 2], [5, 3, 0]])  # per decision and option
ALLOWED = [range(3)] * 3


def cost(plan: Plan) -> int:
    return int(COSTS[np.arange(3), list(plan)].sum())


def test_the_least_worthy_change_goes_first_and_harmless_ones_come_back() -> None:
    # Anything but the change of decision 1 is harmless; worth says that 0 goes first, then 1.
    assert repair((1, 1, 1), (0, 0, 0), [0.1, 0.5, 0.9], lambda plan: plan[1] == 0) == (1, 0, 1)
    plan = (1, 0, 2)
    assert repair(plan, (0, 0, 0), [0.1, 0.2, 0.3], lambda _: True) is plan
    seen: list[Plan] = []
    repair((1, 1, 1), (0, 0, 0), [1.0, 1.0, 1.0], lambda plan: bool(seen.append(plan)) or sum(plan) < 2)
    assert seen[1:3] == [(1, 1, 0), (1, 0, 0)]  # worth the same: the last goes first


@given(st.tuples(*[st.integers(0, 2)] * 3), st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 26))
def test_a_repaired_plan_fits_and_only_takes_changes_back(plan: Plan, worth: list[float], kept: int) -> None:
    fitting = {(0, 0, 0), *list(product(range(3), repeat=3))[kept:]}
    found = repair(plan, (0, 0, 0), worth, fitting.__contains__)
    assert found in fitting
    assert all(new in (old, 0) for new, old in zip(found, plan, strict=True))
    assert found == plan or plan not in fitting


def test_a_descent_takes_the_cheapest_move_until_it_is_done_or_stuck() -> None:
    def moves(plan: Plan) -> list[Plan]:
        return [with_option(plan, one, option) for one in range(3) for option in range(3) if option != plan[one]]

    def price(plan: Plan, other: Plan) -> float | None:
        saved = cost(plan) - cost(other)
        return 1 / saved if saved > 0 else None

    assert descend((0, 0, 0), moves, price, lambda plan: cost(plan) <= 13) == (2, 0, 0)
    assert descend((0, 0, 0), moves, price, lambda plan: False) == (2, 2, 2)
    assert descend((0, 0, 0), moves, lambda *_: 1, lambda plan: plan != (0, 0, 0)) == (1, 0, 0)  # ties: the first


@given(st.integers(0, 1000), st.integers(3, 21))
def test_a_settled_plan_has_no_change_in_vain_and_none_that_could_be_milder(seed: int, limit: int) -> None:
    preferences = [np.array(row) for row in np.random.default_rng(seed).random((3, 3))]

    def fits(plan: Plan) -> bool:
        return cost(plan) <= limit

    found = settle((2, 2, 2), (0, 0, 0), preferences, ALLOWED, fits)
    assert fits(found)
    for one in range(3):
        for option in range(3):
            better = option == 0 or preferences[one][option] > preferences[one][found[one]]
            assert not (found[one] and option != found[one] and better and fits(with_option(found, one, option)))


def test_preferred_options_come_in_order() -> None:
    assert preferred(np.array([0.1, 0.4, 0.2, 0.4, 0.9]), [0, 1, 2, 3], 0) == [1, 3, 2]
