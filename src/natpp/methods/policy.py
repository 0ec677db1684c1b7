"""NAT and NAT++: a policy learned by policy gradient, one forward pass for an answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from natpp.methods.learning import LearnConfig, learn
from natpp.nets.policy import Policy, Transitions
from natpp.registry import METHODS
from natpp.scorers.base import Score
from natpp.subjects.cells import Row
from natpp.subjects.many import Inputs


@dataclass
class PolicyMethod:
    """A policy: the most likely transition of every edge, or samples."""

    rule: str | None
    config: LearnConfig
    policy: Policy | None = None
    asks: bool = True

    def fit(self, inputs: Inputs, score: Score, generator: np.random.Generator) -> None:
        """Learn the policy."""
        self.policy = learn(inputs, score, self.config, generator)

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


METHODS.add("nat++", lambda config: PolicyMethod("nat++", config))
METHODS.add("nat", lambda config: PolicyMethod("nat", config))
