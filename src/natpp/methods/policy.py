"""NAT and NAT++: a policy learned by policy gradient, one forward pass for an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch

from natpp.config import Among, Config, Plain
from natpp.methods.learning import LearnConfig, learn
from natpp.nets.policy import Policy, Transitions
from natpp.registry import METHODS, RULES
from natpp.scorers.base import Score
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs


@dataclass(frozen=True)
class PolicyMethod(Config):
    """A policy: the most likely transition of every edge, or samples."""

    rule: Annotated[str, Among(RULES)] | None = None
    """rule that it is named for"""
    learn: LearnConfig = LearnConfig()
    """how it learns"""
    policy: Annotated[Policy | None, Plain] = None
    """the policy, once it is learned"""
    asks: ClassVar[bool] = True

    def fit(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> PolicyMethod:
        """Learn the policy."""
        return replace(self, policy=learn(inputs, score, self.learn, generator))

    def one_shot(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> list[Row]:
        """The most likely transformation; no score is asked for."""
        transitions = self._transitions(inputs)
        choices = transitions.greedy()[None]
        rows = inputs.rows(range(len(inputs)), choices.numpy(), transitions.probabilities(choices))
        return [row for _, _, row in rows]

    def candidates(self, inputs: Inputs, count: int, generator: np.random.Generator) -> list[list[Row]]:
        """Transformations sampled from the policy."""
        transitions = self._transitions(inputs)
        choices = transitions.sample(count, torch.Generator().manual_seed(int(generator.integers(2**31))))
        rows = [row for *_, row in inputs.rows(range(len(inputs)), choices.numpy(), transitions.probabilities(choices))]
        return [rows[start : start + count] for start in range(0, len(rows), count)]

    def _transitions(self, inputs: Inputs) -> Transitions:
        assert self.policy is not None
        with torch.no_grad():
            found: Transitions = self.policy(inputs.batch(range(len(inputs))))
        return found


METHODS.add("nat++", PolicyMethod("nat++"))
METHODS.add("nat", PolicyMethod("nat"))
