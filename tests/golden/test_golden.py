"""What natpp answers is what it answered when `kept.json` was written; `record.py` says how that is done."""

import json

import pytest

from tests.golden.record import KEPT, KEPT_FILE, answer, differences, kept_form

RECORD = json.loads(KEPT_FILE.read_text(encoding="utf-8"))
TOLERANCE = 1e-4  # of figures: their last digits differ between processors


def test_everything_that_is_kept_is_recorded() -> None:
    assert set(RECORD) == KEPT


@pytest.mark.parametrize("name", RECORD)
def test_the_answer_is_the_same(name: str) -> None:
    assert not list(differences(RECORD[name], kept_form(answer(name)), tolerance=TOLERANCE))
