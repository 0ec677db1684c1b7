"""The phases of a search as a preset has them: how weights are trained, scores predicted and the policy learned.

Preset `best`: train shared weights, score some architectures with them, fit a prediction on those scores, learn
the policy on the prediction. Preset `paper`: an epoch of weights and an epoch of the policy in turn, every reward
from one batch of validation images. With a scorer at hand there are no weights to train.
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
    """How the phases of a search go, with nothing left open."""

    alternate: bool = False
    """weights and policy in turn, epoch by epoch, rewards from one batch of images; else one after the other"""
    pool: Annotated[int, At(least=1)] = 2000
    """input architectures that are drawn to learn from"""
    evaluations: Annotated[int, At(least=2)] = 200
    """architectures to score, where scores are dear and nobody says how many"""
    final: Annotated[int, At(least=0)] = 20
    """most of the evaluations that go to final choices"""
    weights: WeightsConfig = WeightsConfig()
    learn: LearnConfig = LearnConfig()
    predict: PredictConfig = PredictConfig()


def _best(*, free: bool, network: str) -> Phases:
    """What measured best; learning on predictions over large graphs takes smaller steps, and fewer of them."""
    if free:
        return Phases(learn=best())
    if network == "nasbench201":
        learn = replace(best(), steps=1500)
        return Phases(pool=4000, evaluations=160, learn=learn, predict=PredictConfig(random_share=0.8, rounds=1))
    learn = replace(best(), inputs=32, samples=4, steps=400, learning_rate=3e-3, entropy=0.2)
    return Phases(learn=learn, predict=PredictConfig(random_share=0.6, rounds=3))


def _paper(*, free: bool, network: str) -> Phases:
    """The paper's settings: one architecture a step, weights and policy in turn for 200 epochs."""
    weights = WeightsConfig(architectures=1, batch=64, epochs=200, learning_rate=0.025, fair=False)
    return Phases(alternate=not free, weights=weights, learn=paper())


PRESETS = {"best": _best, "paper": _paper}


def phases(search: Search, *, free: bool, network: str = "cifar") -> Phases:
    """The preset with what is asked for otherwise, for scores that are free (a table's) or not."""
    found = PRESETS[search.preset](free=free, network=network)
    return replace(
        found,
        weights=replace(found.weights, **given(search, "epochs", "architectures", "batch", "learning_rate")),
        learn=replace(found.learn, **given(search, "steps")),
        predict=replace(found.predict, **given(search, "random_share", "caution")),
    )


def given(asked: Config, *names: str) -> dict[str, Any]:
    """Those of the named settings that are not left to the preset."""
    return {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
