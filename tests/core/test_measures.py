"""Measures of cost: what they say of a plan is what is measured."""

import pytest

from natpp.registry import MEASURES
from natpp.testing import check_measure


@pytest.mark.parametrize("name", list(MEASURES))
def test_every_measure_keeps_its_promises(name: str) -> None:
    check_measure(name)
