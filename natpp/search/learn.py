"""Learning a policy: the gradient of the expected improvement, Eq. (4) and lines 9 to 14 of Algorithm 1.

In every step m input architectures are drawn, n transformations sampled for each, scored, and the
policy moved towards those that did better than the baseline, with λ times the entropy to keep looking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from natpp.errors import NatppError, SettingError, did_you_mean
from natpp.nets.policy import Policy, PolicyConfig, Transitions
from natpp.search.inputs import Inputs
from natpp.search.scorer import Score


@dataclass(frozen=True)
class LearnConfig:
    """How a policy learns. The defaults are what measured best on NAS-Bench-201."""

    inputs: int = 64
    """m: input architectures a step"""
    samples: int = 8
    """n: transformations sampled for each"""
    steps: int = 3000
    """gradient steps"""
    learning_rate: float = 1e-3
    """of Adam"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """of the learning rate; a cosine falls to zero"""
    entropy: float = 0.5
    """λ: weight of the entropy, in units of the normalized advantage where that is on"""
    entropy_end: float = 0.0
    """λ at the last step; it changes linearly"""
    baseline: Literal["leave-one-out", "moving-average"] = "leave-one-out"
    """what a score is compared with: the other samples of the same input, or a running mean of improvements"""
    normalize: bool = True
    """divide advantages by their standard deviation in the step"""
    reward_scale: float = 1.0
    """what scores are multiplied by; matters only without normalization"""
    over_budget: float = 0.2
    """what a transformation that had to be repaired loses, in standard deviations of the step's improvements"""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """shape of the policy"""

    def __post_init__(self) -> None:
        if self.inputs < 1 or self.samples < 1 or self.steps < 1:
            raise SettingError("inputs, samples and steps are whole numbers from 1 up")
        for name, value, known in (
            ("baseline", self.baseline, ("leave-one-out", "moving-average")),
            ("schedule", self.schedule, ("cosine", "constant")),
        ):
            if value not in known:
                raise SettingError(f"unknown {name} {value!r}. {did_you_mean(value, known)}")
        if self.baseline == "leave-one-out" and self.samples < 2:
            raise SettingError("a leave-one-out baseline needs at least 2 samples an input")
        if self.normalize and self.inputs * self.samples < 2:
            raise SettingError("advantages of one sample a step cannot be normalized")
        if not self.learning_rate > 0 or not min(self.entropy, self.entropy_end, self.over_budget) >= 0:
            raise SettingError("the learning rate is above 0; entropy weights and over_budget are from 0 up")


def best() -> LearnConfig:
    """What measured best."""
    return LearnConfig()


def paper() -> LearnConfig:
    """The settings of the paper: one input and one sample a step, a moving average, λ = 0.003, its GCN.

    Its rewards are accuracies from 0 to 1, ours per cent.
    """
    return LearnConfig(
        reward_scale=0.01,
        inputs=1,
        samples=1,
        steps=20_000,
        learning_rate=3e-4,
        schedule="constant",
        entropy=0.003,
        entropy_end=0.003,
        baseline="moving-average",
        normalize=False,
        over_budget=0.0,
        policy=PolicyConfig(form="paper"),
    )


PRESETS: dict[str, Callable[[], LearnConfig]] = {"best": best, "paper": paper}


class Learner:
    """A policy while it learns: all that a checkpoint has to keep is in its state."""

    def __init__(self, ops: Sequence[str], config: LearnConfig, seed: int):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = Policy(config.policy, ops)
        self.config = config
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)
        self.steps = 0  # taken so far
        self.running_mean = 0.0  # of the improvement itself

    def step(
        self, inputs: Inputs, score: Score, generator: np.random.Generator, sampling: torch.Generator
    ) -> tuple[float, float]:
        """One gradient step; the mean improvement of what was sampled, and the mean entropy."""
        config = self.config
        done = self.steps / config.steps
        if config.schedule == "cosine":
            self.optimizer.param_groups[0]["lr"] = config.learning_rate * 0.5 * (1 + np.cos(np.pi * done))
        chosen = generator.integers(len(inputs), size=config.inputs).tolist()
        transitions = self.policy(inputs.batch(chosen))
        choices = transitions.sample(config.samples, sampling)  # (n, edges)
        found, repaired = improvements(inputs, chosen, choices, transitions, score)  # (n, m)
        if not found.isfinite().all():
            raise NatppError(f"a score in step {self.steps} of learning is not a number")
        improvement = found - config.over_budget * found.std(correction=0) * repaired
        improvement = config.reward_scale * improvement
        mean = improvement.mean().item()
        self.running_mean = 0.95 * self.running_mean + 0.05 * mean if self.steps else mean
        advantage = advantages(improvement, config, self.running_mean)
        entropy_weight = config.entropy + (config.entropy_end - config.entropy) * done
        gain, entropy = (advantage * transitions.log_prob(choices)).mean(), transitions.entropy().mean()
        objective = gain + entropy_weight * entropy
        self.optimizer.zero_grad()
        (-objective).backward()
        self.optimizer.step()
        self.steps += 1
        return found.mean().item(), entropy.item()

    def state(self) -> dict[str, Any]:
        """All there is to know of it, as tensors and plain values."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "running_mean": self.running_mean,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.running_mean = state["steps"], state["running_mean"]


def learn(inputs: Inputs, score: Score, config: LearnConfig, generator: np.random.Generator) -> Policy:
    """A policy that improves architectures like these inputs, as far as the scores tell."""
    learner = Learner(inputs.ops, config, int(generator.integers(2**31)))
    sampling = torch.Generator().manual_seed(int(generator.integers(2**31)))
    while learner.steps < config.steps:
        learner.step(inputs, score, generator, sampling)
    return learner.policy.eval()


def advantages(improvement: Tensor, config: LearnConfig, running_mean: float) -> Tensor:
    """How much better a sample (samples, inputs) did than its baseline."""
    if config.baseline == "leave-one-out":
        baseline = (improvement.sum(dim=0) - improvement) / (config.samples - 1)
    else:
        baseline = torch.full_like(improvement, running_mean)
    advantage = improvement - baseline
    return advantage / (advantage.std(correction=0) + 1e-8) if config.normalize else advantage


def improvements(
    inputs: Inputs, chosen: Sequence[int], choices: Tensor, transitions: Transitions, score: Score
) -> tuple[Tensor, Tensor]:
    """R(α|β) = R(α) - R(β) of sampled transformations within the budget, and which had to be repaired for it.

    Both are (samples, inputs).
    """
    rows = inputs.rows(chosen, choices.numpy(), transitions.probabilities(choices))
    before = [inputs.encoded[index].ops for index in chosen]
    indices = [index for index, _, _ in rows]
    found = inputs.scores([*indices, *chosen], [*(now for _, _, now in rows), *before], score)
    reached, base = found[: len(rows)].reshape(len(chosen), -1), found[len(rows) :]
    repaired = np.array([now is not drawn for _, drawn, now in rows], dtype=np.float32).reshape(len(chosen), -1)
    improvement = (reached - base[:, None]).astype(np.float32)
    return torch.from_numpy(improvement.T.copy()), torch.from_numpy(repaired.T.copy())
