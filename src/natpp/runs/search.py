"""What a search is asked for: one value, which verbs, flags, a run's config.json and reports share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from natpp.config import Among, At, Config, Form
from natpp.registry import RULES
from natpp.scorers.base import PRICED

Price = Mapping[Annotated[str, Among(PRICED)], Annotated[float, At(least=0)]]  # in points of the score
SHARED = ("batch", "learning_rate", "together", "channels", "cells", "store")  # settings of a search and of its scorer


@dataclass(frozen=True)
class Search(Config):
    """How a policy is searched for. None (auto) stands for what suits the preset and the data.

    Examples:
        >>> from natpp.runs.search import Search
        >>> Search(evaluations=160, price={"madds": 2.0}).to_text()
        'evaluations=160,price=madds:2.0'
    """

    nodes: tuple[Annotated[int, At(least=1)], ...] = (4, 5)
    """nodes of the cells, with commas between"""
    extras: bool = False
    """draw operations beyond the paper's thirteen too"""
    rule: Annotated[str, Among(RULES)] = "nat++"
    """nat, nat++ or cost"""
    preset: Literal["best", "paper"] = "best"
    """best: score a few, predict the others, then learn the policy; paper: supernet and policy in turn, as published"""
    reward: str = "val_200"
    """column of the table that is the score"""
    evaluations: Annotated[int | None, At(least=2)] = None
    """maximum number of architectures to score, the others are predicted; auto: 200 where they are trained (100 on
    small images), no limit with a table"""
    minutes: Annotated[float | None, At(above=0)] = None
    """time for the search: it scores as many as fit, at most `evaluations`, and learns the policy in what is left"""
    random_share: Annotated[float | None, At(above=0, most=1)] = None
    """share of the scored architectures that are drawn at random; the others are chosen by the scores so far"""
    store: Annotated[str | Path | None, Form("FILE")] = None
    """file that short trainings' scores are kept in and taken from; by default RUN/scores.jsonl"""
    price: Annotated[Price | None, Form("madds=X,params=Y")] = None
    """score points you would trade for halving live multiply-adds (or parameters)"""
    caution: Annotated[float | None, At(least=0)] = None
    """standard deviations that a predicted improvement loses: 1 leaves most of what is good already alone"""
    train_steps: Annotated[int | None, At(least=1)] = None
    """gradient steps of a short training"""
    together: Annotated[int | None, At(least=1)] = None
    """short trainings side by side on a GPU"""
    epochs: Annotated[int | None, At(least=1)] = None
    """epochs of the supernet (paper: of both)"""
    architectures: Annotated[int | None, At(least=1)] = None
    """architectures a step of the supernet, over all processes"""
    batch: Annotated[int | None, At(least=2)] = None
    """images a step, of each"""
    learning_rate: Annotated[float | None, At(above=0)] = None
    """of the networks that are trained, at first"""
    steps: Annotated[int | None, At(least=1)] = None
    """gradient steps of the policy (paper: follows from epochs)"""
    channels: Annotated[int | None, At(least=1)] = None
    """channels of the first cells of the networks that are trained"""
    cells: Annotated[int | None, At(least=1)] = None
    """their cells (nasbench201: a stage)"""

    @property
    def short(self) -> Short:
        """The short trainings of such a search."""
        return Short(steps=self.train_steps, **{name: getattr(self, name) for name in SHARED})

    def by(self, short: Short) -> Search:
        """The same search by such short trainings."""
        return replace(self, train_steps=short.steps, **{name: getattr(short, name) for name in SHARED})


@dataclass(frozen=True)
class Short(Config):
    """Short real trainings as a scorer. None (auto) stands for what suits the images.

    Examples:
        >>> natpp.Short.parse("steps=200,store=scores.jsonl").steps
        200
    """

    steps: Annotated[int | None, At(least=1)] = None
    """gradient steps of a training"""
    batch: Annotated[int | None, At(least=2)] = None
    """images a step"""
    learning_rate: Annotated[float | None, At(above=0)] = None
    """of SGD, at its highest"""
    together: Annotated[int | None, At(least=1)] = None
    """trainings side by side on a GPU"""
    channels: Annotated[int | None, At(least=1)] = None
    """channels of the first cells of the networks that are trained"""
    cells: Annotated[int | None, At(least=1)] = None
    """their cells (nasbench201: a stage)"""
    store: Annotated[str | Path | None, Form("FILE")] = None
    """file that scores are kept in and taken from"""
