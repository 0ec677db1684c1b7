"""The exact program beside brute force over all plans of small problems."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natpp.core.program import Items, Problem, Solution, solved
from natpp.errors import NatppError

UNITS = 1, 10**7, 10**12


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to five parts of up to four items, with joint tables, bans and limits that some plan just meets, or nearly."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    parts, measures = len(sizes), draw(st.integers(1, 3))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    unit, noise = draw(st.sampled_from(UNITS)), draw(st.sampled_from([0, 3]))
    whole = draw(st.booleans())

    def costs(*shape: int) -> np.ndarray:
        found = chance.integers(-9, 4, (*shape, measures)) * unit + chance.integers(0, 1 + noise, (*shape, measures))
        return found if whole else found / 3

    joint = {}
    for _ in range(draw(st.integers(0, 3)) if parts > 1 else 0):
        some = tuple(sorted(chance.choice(parts, min(parts, int(chance.integers(2, 4))), replace=False).tolist()))
        joint[some] = costs(*(sizes[part] for part in some)) * (chance.random() < 0.9)
    places = [(part, item) for part, size in enumerate(sizes) for item in range(size)]
    pairs = [(one, other) for one in places for other in places if one[0] != other[0]]
    banned = [pairs[number] for number in chance.integers(0, len(pairs), draw(st.integers(0, 5)))] if pairs else []
    harms = [np.round(chance.exponential(size=size) - 0.1, draw(st.sampled_from([1, 9]))) for size in sizes]
    problem = Problem(harms, [costs(size) for size in sizes], np.zeros(measures), joint, banned)
    plan = tuple(int(chance.integers(size)) for size in sizes)
    limits = problem.cost(plan) - draw(st.sampled_from([0, 0, 1, 5 * unit]))
    return Problem(harms, problem.costs, limits, joint, banned)


def distance(one: Items, other: Items) -> int:
    return sum(mine != its for mine, its in zip(one, other, strict=True))


def allowed(problem: Problem) -> list[Items]:
    """All plans within the limits, the best first."""
    plans = product(*(range(len(harm)) for harm in problem.harms))
    return sorted(filter(problem.allows, plans), key=problem.harm)


@given(problems(), st.integers(1, 4), st.integers(1, 3))
def test_plans_are_the_best_that_brute_force_finds(problem: Problem, count: int, apart: int) -> None:
    found = solved(problem, count, apart=apart, gap=0.0)
    assert found == solved(problem, count, apart=apart, gap=0.0)
    assert all(problem.allows(one.items) and one.harm == problem.harm(one.items) for one in found)
    left, before = allowed(problem), list[Solution]()
    for one in found:  # among plans that lose the same, any may come first
        assert one.harm == pytest.approx(problem.harm(left[0]), rel=1e-6, abs=1e-9)
        assert all(distance(one.items, other.items) >= apart for other in before)
        left = [plan for plan in left if distance(plan, one.items) >= apart]
        before.append(one)
    assert len(found) == count or not left


@given(problems())
def test_a_plan_is_within_the_gap(problem: Problem) -> None:
    found, plans = solved(problem, gap=0.1), allowed(problem)
    assert len(found) == bool(plans)
    for one in found:
        assert one.harm <= problem.harm(plans[0]) + 0.1 * abs(one.harm) + 1e-9


@pytest.mark.parametrize("more", [60, 110, 130])
def test_a_limit_is_met_to_the_unit(more: int) -> None:
    """At 1e12, one unit is far below the tolerance of the solver."""
    chance = np.random.default_rng(0)
    costs = [-(10**12 + chance.integers(0, 40, (6, 1))) for _ in range(4)]
    problem = Problem([chance.random(6) for _ in range(4)], costs, np.array([-4 * 10**12 - more]))
    (found,) = solved(problem, gap=0.0)
    assert found.proved
    assert found.items == allowed(problem)[0]


def test_limits_hold_where_the_solver_cannot_tell() -> None:
    """With items that cost nothing beside those of 1e12, HiGHS finds plans that break the limit; all are refused."""
    chance = np.random.default_rng(2)
    costs = [-np.append(0, 10**12 + chance.integers(0, 40, 6))[:, None] for _ in range(4)]
    problem = Problem([np.append(0, 1 + chance.random(6)) for _ in range(4)], costs, np.array([-4 * 10**12 - 130]))
    (found,) = solved(problem, gap=0.0)
    assert found.items in allowed(problem)


def test_nothing_fits() -> None:
    one = Problem([np.array([0.0, 1.0])], [np.array([[0], [-4]])], np.array([-5]))
    assert solved(one, 3) == []
    nothing = Problem([np.array([0.0, 1.0])], [np.zeros((2, 1))], np.array([-1]))
    assert solved(nothing) == []
    both = Problem([np.arange(2.0)] * 2, [np.array([[0], [-4]])] * 2, np.array([-8]), banned=[((0, 1), (1, 1))])
    assert solved(both) == []


def test_what_items_cost_together_decides() -> None:
    """Two halved widths: the weights between them are a quarter, not none."""
    harms, costs = [np.array([0.0, 1.0, 3.0])] * 2, [np.array([[0], [-50], [-75]])] * 2
    kept = np.array([1.0, 0.5, 0.25])
    joint = 100 * np.outer(1 - kept, 1 - kept)[..., None]
    (found,) = solved(Problem(harms, costs, np.array([-80]), {(0, 1): joint}))
    assert (sorted(found.items), found.harm, found.proved) == ([1, 2], 4.0, True)
    assert solved(Problem(harms, costs, np.array([-80])))[0].harm == 2.0


def hard() -> Problem:
    """Thirty parts whose costs must be within 5 of a half of all, in each of four measures."""
    chance = np.random.default_rng(0)
    costs = chance.integers(0, 100, (30, 2, 4))
    half = costs.sum((0, 1)) // 2
    both = np.concatenate([costs, -costs], axis=2)
    return Problem(list(chance.random((30, 2))), list(both), np.concatenate([half, -half]) + 5)


def test_a_limit_that_was_hit_is_reported() -> None:
    few, many = solved(hard(), nodes=1, gap=0.0), solved(hard(), gap=0.0)
    assert [one.proved for one in (*few, *many)] == [False, True]
    assert few[0].harm >= many[0].harm
    assert few == solved(hard(), nodes=1, gap=0.0)
    with pytest.raises(NatppError, match=r"no plan within the limits was found in 3000 nodes and 0\.0 s"):
        solved(hard(), seconds=0.0)
