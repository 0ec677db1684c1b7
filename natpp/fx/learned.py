"""What was learned on a module and its data, as values."""

from __future__ import annotations

from dataclasses import dataclass

from natpp.nets.policy import Policy


@dataclass(frozen=True)
class Scored:
    """A candidate with its score."""

    score: float
    """minus the validation loss"""
    ops: tuple[tuple[str, ...], ...]
    """per block, the operation of every term"""
    madds: float
    """multiply-adds as counted"""


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned on a module: all candidates with their scores, and a policy."""

    scored: list[Scored]
    """in the order in which they were scored"""
    best: int
    """the one that was chosen"""
    original: float
    """the score of the module as it is, by the same scorer, whether the budget allows it or not"""
    policy: Policy
    """tuned on this module"""
    scorer: str
    seconds: float

    def __str__(self) -> str:
        spent = f"{len(self.scored)} candidates by {self.scorer} in {self.seconds:.0f} s"
        return f"validation loss {-self.original:.4f} → {-self.scored[self.best].score:.4f} ({spent})"
