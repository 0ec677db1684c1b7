"""The outcome of a short training."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """The outcome of a short training."""

    value: float | None
    """the score: minus the validation loss, or minus a mean of it and the training loss; None if there is none"""
    accuracy: float | None = None
    """per cent of the validation images"""
    loss: float | None = None
    """mean over the validation images"""
    seconds: float = 0.0
    """seconds: its share of the time of its group"""
    reason: str | None = None
    """why it has no score"""
    curve: tuple[float, ...] = field(default=(), repr=False)
    """training loss along the way"""
    test_accuracy: float | None = None
    """per cent of the test images, measured once after the training, if that was asked for"""
