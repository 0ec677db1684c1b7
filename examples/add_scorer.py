"""A new scorer: any function from an architecture to a number. Every method can use it."""

import numpy as np

import natpp
from natpp.arch.graph import Architecture
from natpp.scorers.base import Scorer
from natpp.testing import check_scorer


class Varied(Scorer):
    """Prefers few multiply-adds and many different operations. Put your own measurement here."""

    def _score(self, archs: list[Architecture]) -> np.ndarray:
        return np.array([self.value(arch) for arch in archs])

    def value(self, arch: Architecture) -> float:
        kinds = len(set(arch.normal.ops) | set(arch.reduce.ops))
        return kinds - natpp.cost(arch).live_madds / 1e9


check_scorer(Varied, [natpp.sample(seed=seed) for seed in range(4)])  # stable, counted, within its limit

config = natpp.Search(evaluations=12, steps=20)  # the others are predicted
policy = natpp.search(config=config, on="darts", scorer=Varied())
result = natpp.optimize("darts", policy)
print(f"{Varied().value(result.before):.2f} → {Varied().value(result.after):.2f}")
