"""The settings of a search: one value shared by verbs, flags, a run's config.json and reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from natpp.config import Among, At, Config, Form
from natpp.registry import RULES
from natpp.runs.scoring import Short
from natpp.scorers.base import PRICED

Price = Mapping[Annotated[str, Among(PRICED)], Annotated[float, At(least=0)]]  # in points of the score
SHARED = ("batch", "learning_rate", "together", "channels", "cells", "store")  # settings of a search and of its scorer


@dataclass(frozen=True)
class Search(Config):
    """How a policy is searched for. None (auto) picks what suits the preset and the data.

    Examples:
        >>> from natpp.runs.search import Search
        >>> Search(evaluations=160, price={"madds": 2.0}).to_text()
        'evaluations=160,price=madds:2.0'
    """

    nodes: tuple[Annotated[int, At(least=1)], ...] = (4, 5)
    """nodes of the cells, separated by commas"""
    extras: bool = False
    """also draw operations beyond the paper's thirteen"""
    rule: Annotated[str, Among(RULES)] = "nat++"
    """nat, nat++ or cost"""
    preset: Literal["best", "paper"] = "best"
    """best: score a few, predict the others, then learn the policy; paper: supernet and policy in turn, as published"""
    reward: str = "val_200"
    """column of the table to use as the score"""
    evaluations: Annotated[int | None, At(least=2)] = None
    """maximum number of architectures to score, the others are predicted; auto: 200 if they are trained (100 on
    small images), no limit with a table"""
    minutes: Annotated[float | None, At(above=0)] = None
    """time limit: as many architectures as fit are scored, at most `evaluations`; the rest is for the policy"""
    random_share: Annotated[float | None, At(above=0, most=1)] = None
    """share of the scored architectures drawn at random; the others are chosen by the scores so far"""
    store: Annotated[str | Path | None, Form("FILE")] = None
    """file to save and reuse scores of short trainings in; by default RUN/scores.jsonl"""
    price: Annotated[Price | None, Form("madds=X,params=Y")] = None
    """score points you would trade for halving live multiply-adds (or parameters)"""
    caution: Annotated[float | None, At(least=0)] = None
    """standard deviations subtracted from a predicted improvement: with 1 most good architectures stay as they are"""
    train_steps: Annotated[int | None, At(least=1)] = None
    """gradient steps of a short training"""
    together: Annotated[int | None, At(least=1)] = None
    """short trainings side by side on a GPU"""
    epochs: Annotated[int | None, At(least=1)] = None
    """epochs of the supernet (paper: of both)"""
    architectures: Annotated[int | None, At(least=1)] = None
    """architectures per step of the supernet, over all processes"""
    batch: Annotated[int | None, At(least=2)] = None
    """images per step for each architecture"""
    learning_rate: Annotated[float | None, At(above=0)] = None
    """learning rate of the trained networks at the start"""
    steps: Annotated[int | None, At(least=1)] = None
    """gradient steps of the policy (paper: follows from epochs)"""
    channels: Annotated[int | None, At(least=1)] = None
    """channels of the first cells of the trained networks"""
    cells: Annotated[int | None, At(least=1)] = None
    """cells of the trained networks (nasbench201: per stage)"""

    @property
    def short(self) -> Short:
        """The settings of the short trainings of this search."""
        return Short(steps=self.train_steps, **{name: getattr(self, name) for name in SHARED})

    def by(self, short: Short) -> Search:
        """The same search with these short trainings."""
        return replace(self, train_steps=short.steps, **{name: getattr(short, name) for name in SHARED})
