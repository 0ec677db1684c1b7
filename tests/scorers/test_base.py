"""Scorers: every registered promise, counted, limited, remembered."""

import numpy as np
import pytest

import natpp
from natpp.arch.cost import counts
from natpp.arch.graph import Architecture, Edge, Graph
from natpp.arch.networks import setting
from natpp.core.scores import Scores
from natpp.errors import NatppError
from natpp.scorers.base import LimitReached, Priced, Scorer
from natpp.testing import check_scorer


class Edges(Scorer):
    """Counts living edges, and how often it was asked."""

    asked = 0

    def _score(self, archs: list[Architecture]) -> Scores:
        self.asked += len(archs)
        return np.array([float(sum(sum(g.liveness().live) for _, g in arch.cells())) for arch in archs])


def test_the_promises_of_a_scorer() -> None:
    check_scorer(Edges, [natpp.sample(seed=seed) for seed in range(5)])


def test_what_computes_the_same_is_scored_once() -> None:
    live = Edge("conv_3x3", 0, 2), Edge("null", 1, 2)
    plain = Architecture(Graph(live, (2,)))
    swapped = Architecture(Graph(live[::-1], (2,)))
    with_dead = Architecture(Graph((*live, Edge("conv_5x5", 2, 3), Edge("null", 0, 3)), (2,)))
    scorer = Edges()
    assert scorer([plain, swapped, with_dead, plain]).tolist() == [1, 1, 1, 1]
    assert scorer.queries == scorer.asked == 1


def test_a_score_that_is_no_number_is_refused() -> None:
    class Broken(Scorer):
        def _score(self, archs: list[Architecture]) -> Scores:
            return np.full(len(archs), np.nan)

    with pytest.raises(NatppError, match="not a number"):
        Broken()([natpp.sample()])


def test_the_limit_holds_and_nothing_is_lost() -> None:
    archs = [natpp.sample(seed=seed) for seed in range(4)]
    scorer = Edges(limit=3)
    scorer(archs[:2])
    assert scorer.left == 1
    with pytest.raises(LimitReached, match="may score 3 candidates, has scored 2 and was asked for 2 more"):
        scorer(archs)
    assert scorer.queries == 2
    assert len(scorer([*archs[:3], archs[0]])) == 4
    assert scorer.left == 0
    assert issubclass(LimitReached, NatppError)


def test_scores_of_an_earlier_run_count_but_are_not_made_again() -> None:
    archs = [natpp.sample(seed=seed) for seed in range(5)]
    before = Edges()
    before(archs[:3])
    scorer = Edges(limit=4)
    scorer.recall(before.known)
    assert scorer.queries == 0
    assert np.array_equal(scorer(archs[:4]), Edges()(archs[:4]))
    assert (scorer.queries, scorer.asked) == (4, 1)
    with pytest.raises(LimitReached):
        scorer(archs)


def test_scores_come_in_parts_that_can_be_kept() -> None:
    scorer = Edges()
    scorer.together = 2
    told: list[int] = []
    scorer.scored = lambda: told.append(scorer.queries)
    scorer([natpp.sample(seed=seed) for seed in range(5)])
    assert told == [2, 4, 5]


def test_a_price_is_for_a_halving_of_cost() -> None:
    where = setting("cifar", channels=16, cells=5)
    archs = [natpp.load("darts"), natpp.load("natpp_darts")]
    plain, priced = Edges(), Priced(Edges(), where, {"madds": 2.0, "params": 0.5}, limit=2)
    found = [counts(arch, where) for arch in archs]
    expected = [
        score - 2 * np.log2(cost.live_madds) - 0.5 * np.log2(cost.live_params)
        for score, cost in zip(plain(archs), found, strict=True)
    ]
    assert np.allclose(priced(archs), expected)
    assert priced.left == 0
    check_scorer(lambda limit=None: Priced(Edges(), where, {"madds": 1.0}, limit), archs)
