"""Sampling: uniform, repeatable, the same one at a time and by the thousand."""

import numpy as np
import pytest

import natpp
from natpp.api import samples
from natpp.arch.ops import PAPER_OPS, Place
from natpp.arch.space import sample_batch
from natpp.arch.transitions import allowed
from natpp.errors import NatppError


def test_a_seed_gives_one_architecture() -> None:
    assert natpp.sample(seed=3) == natpp.sample(seed=3) != natpp.sample(seed=4)
    assert samples(20, seed=3)[:5] == samples(5, seed=3)
    assert samples(1, seed=3) == [natpp.sample(seed=3)]
    assert natpp.sample(nodes=7).normal.concat == tuple(range(2, 9))


def test_the_draw_is_uniform() -> None:
    batch = sample_batch(40_000, nodes=4, generator=np.random.default_rng(0))
    shares = np.bincount(batch.ops.ravel(), minlength=13) / batch.ops.size
    assert np.abs(shares - 1 / 13).max() < 0.003  # null included
    for edge in range(8):
        earlier = 2 + edge // 2
        shares = np.bincount(batch.sources[:, :, edge].ravel()) / (2 * len(batch))
        assert len(shares) == earlier
        assert np.abs(shares - 1 / earlier).max() < 0.01
    both = batch.sources[:, 0, 0] == batch.sources[:, 0, 1]
    assert abs(both.mean() - 0.5) < 0.02  # with repetition


def test_masks_of_a_batch_are_those_of_its_architectures() -> None:
    batch = sample_batch(50, nodes=5, generator=np.random.default_rng(1))
    for rule in ("nat", "nat++", "cost"):
        found = batch.masks(rule, channels=16)
        assert found.shape == (50, 2, 10, 13)
        for index in range(50):
            arch = batch[index]
            for cell, (kind, graph) in enumerate(arch.cells()):
                for edge, row in zip(graph.edges, found[index, cell], strict=True):
                    stride = 2 if kind == "reduce" and edge.source < 2 else 1
                    expected = allowed(rule, Place(16, 16, stride), PAPER_OPS)[PAPER_OPS.index(edge.op)]
                    assert (row == expected).all()


@pytest.mark.parametrize("options", [{"nodes": 0}, {"nodes": 1.5}, {"seed": -1}, {"seed": "a"}])
def test_bad_draws_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(NatppError, match="expected a whole number"):
        natpp.sample(**options)


def test_more_than_fits_is_refused() -> None:
    with pytest.raises(NatppError, match="draw fewer"):
        natpp.sample(nodes=10**14)
