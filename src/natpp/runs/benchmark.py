"""Settings of a benchmark: which methods are compared on a table of trained networks, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from natpp.config import Among, At, Config
from natpp.errors import SettingError
from natpp.registry import RULES


@dataclass(frozen=True)
class Benchmark(Config):
    """What is compared, and how.

    Examples:
        >>> natpp.Benchmark.parse("methods=nat++,constant,seeds=1").methods
        ('nat++', 'constant')
    """

    reward: str = "val_200"
    """column that methods see"""
    score: str = "test_200"
    """column that methods are evaluated on"""
    methods: tuple[str, ...] = ("nat++", "nat", "constant", "random", "random-best-of-10", "evolution")
    """methods to compare"""
    preset: Literal["best", "paper"] = "best"
    """how policies learn: best or paper"""
    rule: Annotated[str, Among(RULES)] = "nat++"
    """rule for methods that do not have their own"""
    strict: bool = False
    """forbid answers with more live parameters or multiply-adds than the input"""
    evaluations: Annotated[int | None, At(least=2)] = None
    """maximum number of distinct architectures to look up the reward of; the others are predicted"""
    holdout: Annotated[int, At(least=1)] = 2000
    """number of held-out inputs to evaluate on"""
    split_seed: Annotated[int, At(least=0)] = 0
    """seed of the split"""
    seeds: Annotated[int, At(least=1)] = 3
    """number of runs, with seeds 0, 1, …"""

    def check(self) -> None:
        if len(set(self.methods)) < len(self.methods):
            raise SettingError(f"methods lists a method twice: {', '.join(self.methods)}")
