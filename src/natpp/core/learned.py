"""What was learned on a module and its data, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from natpp.errors import counted

if TYPE_CHECKING:
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
    """the score of the unchanged module by the same scorer, whether or not it meets the budget"""
    policy: Policy | None
    """tuned on this module, if one was"""
    scorer: str
    seconds: float
    expected: list[float | None] = field(default_factory=list)
    """per candidate, the score predicted before it was scored; None for those drawn at random"""
    policy_curve: list[tuple[float, float]] = field(default_factory=list)
    """per step, the policy's improvement over the unchanged module, and its entropy"""
    phases: dict[str, float] = field(default_factory=dict)
    """seconds spent on capture, training and evaluation for the scores, on prediction and on learning"""
    finals: dict[int, float] = field(default_factory=dict)
    """scores of the best candidates after a longer fine-tuning, which picks the final one"""

    @property
    def measured(self) -> dict[str, Any]:
        """The loss before and after, and how it was measured."""
        ways = {"short": "after a short fine-tuning with inherited weights", "supernet": "in a supernet of the module"}
        best = f"the best of {counted(len(self.scored), 'candidate')}, scored once each"
        if self.finals:
            best += f"; the {len(self.finals)} best of them were fine-tuned again for longer"
        return {
            "what": "validation loss",
            "before": -self.original,
            "after": -self.scored[self.best].score,
            "how": f"{ways.get(self.scorer, self.scorer)}; {best}",
        }

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all scores, in the order in which they were made."""
        return {
            "scores": [one.score for one in self.scored],
            "madds": [one.madds for one in self.scored],
            "best": self.best,
            "original": self.original,
            "scorer": self.scorer,
            "seconds": self.seconds,
            "expected": self.expected,
            "policy": [list(row) for row in self.policy_curve],
            "phases": self.phases,
            "finals": [[index, score] for index, score in self.finals.items()],
        }

    def __str__(self) -> str:
        spent = f"{counted(len(self.scored), 'candidate')} by {self.scorer} in {self.seconds:.0f} s"
        return f"validation loss {-self.original:.4f} → {-self.scored[self.best].score:.4f} ({spent})"
