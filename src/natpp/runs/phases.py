"""The phases of a search by preset: how weights are trained, scores predicted and the policy learned.

Preset `best`: train shared weights, score some architectures with them, fit a prediction on those scores, learn
the policy on the prediction. Preset `paper`: an epoch of weights and an epoch of the policy in turn, every reward
from one batch of validation images. With an existing scorer no weights are trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from natpp.config import At, Config
from natpp.methods.learning import LearnConfig, best, paper
from natpp.runs.search import Search
from natpp.scorers.predicted import PredictConfig
from natpp.scorers.supernet import WeightsConfig


@dataclass(frozen=True)
class Phases(Config):
    """The settings of all phases of a search, with defaults filled in."""

    alternate: bool = False
    """weights and policy in turn, epoch by epoch, rewards from one batch of images; else one after the other"""
    pool: Annotated[int, At(least=1)] = 2000
    """number of input architectures drawn to learn from"""
    evaluations: Annotated[int, At(least=2)] = 200
    """architectures to score, if scores are expensive and no number is given"""
    final: Annotated[int, At(least=0)] = 20
    """maximum number of evaluations for final choices"""
    weights: WeightsConfig = WeightsConfig()
    learn: LearnConfig = LearnConfig()
    predict: PredictConfig = PredictConfig()


def _best(*, free: bool, network: str) -> Phases:
    """The settings that measured best; learning on predictions over large graphs takes fewer and smaller steps."""
    if free:
        return Phases(learn=best())
    if network == "nasbench201":
        learn = replace(best(), steps=1500)
        return Phases(pool=4000, evaluations=160, learn=learn, predict=PredictConfig(random_share=0.8, rounds=1))
    learn = replace(best(), inputs=32, samples=4, steps=400, learning_rate=3e-3, entropy=0.2)
    return Phases(learn=learn, predict=PredictConfig(random_share=0.6, rounds=3))


def _paper(*, free: bool, network: str) -> Phases:
    """The paper's settings: one architecture per step, weights and policy in turn for 200 epochs."""
    weights = WeightsConfig(architectures=1, batch=64, epochs=200, learning_rate=0.025, fair=False)
    return Phases(alternate=not free, weights=weights, learn=paper())


PRESETS = {"best": _best, "paper": _paper}


def phases(search: Search, *, free: bool, network: str = "cifar") -> Phases:
    """The preset with the user's settings, for scores that are free (a table's) or not."""
    found = PRESETS[search.preset](free=free, network=network)
    return replace(
        found,
        weights=replace(found.weights, **given(search, "epochs", "architectures", "batch", "learning_rate")),
        learn=replace(found.learn, **given(search, "steps")),
        predict=replace(found.predict, **given(search, "random_share", "caution")),
    )


def given(asked: Config, *names: str) -> dict[str, Any]:
    """The named settings that are not left to the preset."""
    return {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
