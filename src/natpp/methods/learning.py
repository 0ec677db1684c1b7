"""Learning a policy by policy gradient: Algorithm 1 of the paper, lines 9 to 14, and Eq. (4).

A step draws m inputs, samples n transformations of each and scores them. It follows the gradient of the expected
improvement over the input, plus λ times the entropy, which keeps the policy exploring. The shared weights that scores
may come from (lines 3 to 8) are in `scorers.supernet`; `runs.search` decides when each is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from natpp.config import At, Config
from natpp.core.scores import Gain, Score
from natpp.errors import NatppError, SettingError
from natpp.nets.policy import Policy, PolicyConfig, Transitions
from natpp.subjects.many import Subjects
from natpp.training.step import cosine


@dataclass(frozen=True)
class LearnConfig(Config):
    """How a policy learns; the defaults measured best on NAS-Bench-201."""

    inputs: Annotated[int, At(least=1)] = 64
    """m: input architectures per step"""
    samples: Annotated[int, At(least=1)] = 8
    """n: transformations sampled for each"""
    steps: Annotated[int, At(least=1)] = 3000
    """gradient steps"""
    learning_rate: Annotated[float, At(above=0)] = 1e-3
    """of Adam"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """of the learning rate; the cosine ends at zero"""
    entropy: Annotated[float, At(least=0)] = 0.5
    """λ: weight of the entropy, relative to the normalized advantage if `normalize` is on"""
    entropy_end: Annotated[float, At(least=0)] = 0.0
    """λ at the last step; it changes linearly"""
    baseline: Literal["leave-one-out", "moving-average"] = "leave-one-out"
    """what an improvement is compared with: the other samples of the same input, or a running mean"""
    normalize: bool = True
    """divide advantages by their standard deviation within the step"""
    reward_scale: float = 1.0
    """factor on improvements; only matters without `normalize`"""
    over_budget: Annotated[float, At(least=0)] = 0.2
    """penalty for a sample that had to be repaired, in standard deviations of the step's improvements"""
    policy: PolicyConfig = PolicyConfig()
    """shape of the policy network"""

    def check(self) -> None:
        if self.baseline == "leave-one-out" and self.samples < 2:
            raise SettingError(
                "a leave-one-out baseline compares the samples of an input: samples is 1, expected 2 or more"
            )
        if self.normalize and self.inputs * self.samples < 2:
            raise SettingError(
                "one sample per step cannot be normalized: use normalize=False, or more inputs or samples"
            )


def best() -> LearnConfig:
    """The settings that measured best."""
    return LearnConfig()


def paper() -> LearnConfig:
    """The settings of the paper: one input and one sample a step, a moving average, λ = 0.003, its GCN.

    Its rewards are accuracies from 0 to 1; ours are in per cent, hence the scale.
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
    """A policy under training; `state` holds all that a checkpoint needs."""

    def __init__(self, ops: Sequence[str], config: LearnConfig, seed: int, policy: Policy | None = None):
        """Start from fresh weights, or from a copy of a policy."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = Policy(config.policy, ops) if policy is None else copy.deepcopy(policy)
        self.config = config
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)
        self.steps = 0  # taken so far
        self.running_mean = 0.0  # of improvements

    def step(
        self, subjects: Subjects, score: Score | Gain, generator: np.random.Generator, sampling: torch.Generator
    ) -> tuple[float, float]:
        """Take a gradient step; return the mean improvement of the samples and the mean entropy."""
        config = self.config
        done = self.steps / config.steps
        if config.schedule == "cosine":
            self.optimizer.param_groups[0]["lr"] = config.learning_rate * cosine(done)
        chosen = generator.integers(len(subjects), size=config.inputs).tolist()
        transitions = self.policy(subjects.batch(chosen))
        choices = transitions.sample(config.samples, sampling)  # (n, edges)
        found, repaired = improvements(subjects, chosen, choices, transitions, score)  # (n, m)
        if not found.isfinite().all():
            raise NatppError(f"a score in learning step {self.steps} is not a number")
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
        """Everything a checkpoint needs, as tensors and plain values."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "running_mean": self.running_mean,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.running_mean = state["steps"], state["running_mean"]


def learn(subjects: Subjects, score: Score, config: LearnConfig, generator: np.random.Generator) -> Policy:
    """A policy trained to improve subjects like these by these scores."""
    learner = Learner(subjects.ops, config, int(generator.integers(2**31)))
    sampling = torch.Generator().manual_seed(int(generator.integers(2**31)))
    while learner.steps < config.steps:
        learner.step(subjects, score, generator, sampling)
    return learner.policy.eval()


def advantages(improvement: Tensor, config: LearnConfig, running_mean: float) -> Tensor:
    """How much better each sample (samples, inputs) is than its baseline."""
    if config.baseline == "leave-one-out":
        baseline = (improvement.sum(dim=0) - improvement) / (config.samples - 1)
    else:
        baseline = torch.full_like(improvement, running_mean)
    advantage = improvement - baseline
    return advantage / (advantage.std(correction=0) + 1e-8) if config.normalize else advantage


def improvements(
    subjects: Subjects, chosen: Sequence[int], choices: Tensor, transitions: Transitions, score: Score | Gain
) -> tuple[Tensor, Tensor]:
    """R(α|β) = R(α) - R(β) of sampled transformations within the budget, and which of them had to be repaired.

    Both are (samples, inputs).
    """
    rows = subjects.rows(chosen, choices.numpy(), transitions.probabilities(choices))
    before = [subjects.before[index] for index in chosen]
    indices = [index for index, _, _ in rows]
    found = subjects.scores([*indices, *chosen], [*(now for _, _, now in rows), *before], score)
    reached, base = found[: len(rows)].reshape(len(chosen), -1), found[len(rows) :]
    repaired = np.array([now is not drawn for _, drawn, now in rows], dtype=np.float32).reshape(len(chosen), -1)
    improvement = (reached - base[:, None]).astype(np.float32)
    return torch.from_numpy(improvement.T.copy()), torch.from_numpy(repaired.T.copy())
