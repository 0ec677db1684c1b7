"""Decisions are checked when they are made, and a plan is told by names and read back."""

import pytest

from natpp.core.decision import Decision, Option, changes_of, check_plan, plan_of
from natpp.errors import NatppError

EDGE = Decision("normal 0 → 2", "operation", (Option("conv_3x3"), Option("skip_connect"), Option("null", "connection")))
WIDTH = Decision("block width", "width", (Option(1.0), Option(0.75), Option(0.5)))


def test_a_plan_by_names_and_back() -> None:
    assert changes_of((EDGE, WIDTH), (0, 0)) == {}
    assert changes_of((EDGE, WIDTH), (1, 2)) == {"normal 0 → 2": "skip_connect", "block width": 0.5}
    for plan in ((0, 0), (1, 0), (0, 1), (1, 2)):
        assert plan_of((EDGE, WIDTH), changes_of((EDGE, WIDTH), plan)) == check_plan((EDGE, WIDTH), plan) == plan
    assert EDGE.allowed == (0, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Option("null", "rules"), "unknown reason 'rules'. Did you mean 'rule'?"),
        (lambda: Decision("edge", "operation", ()), "must be the original, and allowed"),
        (lambda: Decision("edge", "operation", (Option("null", "rule"),)), "must be the original, and allowed"),
        (lambda: Decision("edge", "operation", (Option("null"), Option("null", "rule"))), "lists an option twice"),
        (lambda: check_plan((EDGE,), (0, 0)), "picks 2 options, expected one for each of 1 decision"),
        (lambda: check_plan((EDGE,), (3,)), "has 3 options, but the plan picks 3"),
        (lambda: check_plan((EDGE,), (2,)), "cannot become 'null': forbidden by connection"),
        (lambda: plan_of((EDGE,), {"normal 0 → 2": "conv3x3"}), "Did you mean 'conv_3x3'?"),
        (lambda: plan_of((EDGE, WIDTH), {"block with": 0.5}), "Did you mean 'block width'?"),
        (lambda: plan_of((EDGE, EDGE), {}), "two decisions have the same name"),
    ],
)
def test_what_is_wrong_stops_at_the_door(make, words: str) -> None:
    with pytest.raises(NatppError) as caught:
        make()
    assert words in str(caught.value)
