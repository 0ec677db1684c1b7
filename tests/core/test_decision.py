"""Decisions are checked when they are made."""

import pytest

from natpp.core.decision import Decision, Option
from natpp.errors import NatppError

EDGE = Decision("normal 0 → 2", "operation", (Option("conv_3x3"), Option("skip_connect"), Option("null", "connection")))


def test_a_plan_may_pick_what_is_not_masked() -> None:
    assert EDGE.allowed == (0, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Option("null", "rules"), "unknown reason 'rules'. Did you mean 'rule'?"),
        (lambda: Decision("edge", "operation", ()), "must be the original, and allowed"),
        (lambda: Decision("edge", "operation", (Option("null", "rule"),)), "must be the original, and allowed"),
        (lambda: Decision("edge", "operation", (Option("null"), Option("null", "rule"))), "lists an option twice"),
    ],
)
def test_what_is_wrong_stops_at_the_door(make, words: str) -> None:
    with pytest.raises(NatppError) as caught:
        make()
    assert words in str(caught.value)
