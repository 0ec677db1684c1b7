"""Learning, Algorithm 1 of the paper: shared weights from random architectures, a policy from scores.

Weights (lines 3 to 8): m architectures drawn uniformly, null included, each on its own training images; one
step down the gradient of their mean loss. Policy (lines 9 to 14), Eq. (4): m inputs, n transformations sampled
for each and scored; one step up the gradient of the expected improvement over the input, with λ times the
entropy to keep looking. `runs.search` says what comes when: both in turn, or first the one and then the other.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from natpp.arch.formats import to_json
from natpp.arch.graph import Architecture
from natpp.config import At, Config
from natpp.errors import NatppError, SettingError
from natpp.nets.captured import Captured, captures, changing_state
from natpp.nets.policy import GraphBatch, Policy, PolicyConfig, Transitions
from natpp.nets.routes import Dealt
from natpp.nets.supernet import Drawn, Supernet
from natpp.scorers.base import Score, Scores
from natpp.subjects.many import Inputs, Row

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class LearnConfig(Config):
    """How a policy learns. The defaults are what measured best on NAS-Bench-201."""

    inputs: Annotated[int, At(least=1)] = 64
    """m: input architectures a step"""
    samples: Annotated[int, At(least=1)] = 8
    """n: transformations sampled for each"""
    steps: Annotated[int, At(least=1)] = 3000
    """gradient steps"""
    learning_rate: Annotated[float, At(above=0)] = 1e-3
    """of Adam"""
    schedule: Literal["cosine", "constant"] = "cosine"
    """of the learning rate; a cosine falls to zero"""
    entropy: Annotated[float, At(least=0)] = 0.5
    """λ: weight of the entropy, in units of the normalized advantage where that is on"""
    entropy_end: Annotated[float, At(least=0)] = 0.0
    """λ at the last step; it changes linearly"""
    baseline: Literal["leave-one-out", "moving-average"] = "leave-one-out"
    """what a score is compared with: the other samples of the same input, or a running mean of improvements"""
    normalize: bool = True
    """divide advantages by their standard deviation in the step"""
    reward_scale: float = 1.0
    """what scores are multiplied by; matters only without normalization"""
    over_budget: Annotated[float, At(least=0)] = 0.2
    """what a transformation that had to be repaired loses, in standard deviations of the step's improvements"""
    policy: PolicyConfig = PolicyConfig()
    """shape of the policy"""

    def check(self) -> None:
        if self.baseline == "leave-one-out" and self.samples < 2:
            raise SettingError("a leave-one-out baseline needs at least 2 samples an input")
        if self.normalize and self.inputs * self.samples < 2:
            raise SettingError("advantages of one sample a step cannot be normalized")


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


@dataclass(frozen=True)
class WeightsConfig:
    """How shared weights are trained."""

    architectures: int = 13
    """m: architectures a step, each with its own images"""
    batch: int = 16
    """images of each"""
    epochs: int = 40
    """times that all training images are gone through"""
    learning_rate: float = 0.1
    """of SGD with momentum 0.9, falling to zero along a cosine"""
    weight_decay: float = 3e-4
    """of SGD"""
    clip: float = 5.0
    """largest norm of a gradient"""
    fair: bool = True
    """deal operations out, so that each is trained as often as any other on its edge"""

    def __post_init__(self) -> None:
        if min(self.architectures, self.epochs) < 1:
            raise SettingError("architectures and epochs are whole numbers from 1 up")
        if self.batch < 2:
            raise SettingError(f"batch is {self.batch}, but batch statistics need at least 2 images")
        if not self.learning_rate > 0 or not self.weight_decay >= 0 or not self.clip > 0:
            raise SettingError("the learning rate and clip are above 0, the weight decay from 0 up")


class Weights:
    """A supernet while its weights are trained, on the device and in the precision of a fabric.

    On a GPU a step is one captured CUDA graph as long as its shapes stay the same.
    """

    def __init__(self, supernet: Supernet, config: WeightsConfig, fabric: Fabric):
        self.config = config
        self.fabric = fabric
        self.supernet = supernet
        graph = supernet.space.one_graph(np.random.default_rng(0))
        self.capturing = captures(fabric) and config.fair and Dealt.suits(graph, config.architectures)
        self._rate = torch.tensor(config.learning_rate, device=fabric.device) if self.capturing else None
        optimizer = torch.optim.SGD(
            supernet.parameters(),
            lr=config.learning_rate if self._rate is None else self._rate,
            momentum=0.9,
            weight_decay=config.weight_decay,
            fused=self.capturing,
        )
        self.module, self.optimizer = fabric.setup(supernet, optimizer)
        self.steps = 0  # taken so far
        self._dealt: Dealt | None = None
        self._captured: Captured | None = None

    def step(self, archs: Sequence[Architecture], images: Tensor, labels: Tensor, done: float) -> Tensor:
        """One gradient step; `done` is the share of training that is over. The loss of each architecture, unchecked.

        Images are (batch, architectures, 3, height, width), labels (batch, architectures).
        """
        rate = self.config.learning_rate * 0.5 * (1 + float(np.cos(np.pi * done)))
        if self._rate is not None:
            self._rate.fill_(rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate if self._rate is None else self._rate
        if self.capturing:
            losses = self._replayed(archs, images, labels)
        else:
            losses = self._updated(Drawn(archs), images, labels)
        self.steps += 1
        return losses

    def check(self, archs: Sequence[Architecture], losses: Tensor) -> float:
        """The mean loss of a step; an error where one is not a number."""
        for arch, loss in zip(archs, losses.tolist(), strict=True):
            if not np.isfinite(loss):
                raise NatppError(
                    f"the loss in step {self.steps - 1} is not a number, with the architecture {to_json(arch)}. "
                    "A lower learning rate may help"
                )
        return losses.mean().item()

    def _updated(self, archs: Drawn | Dealt, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.module(images, archs)
        losses = functional.cross_entropy(logits.movedim(2, 1), labels, reduction="none").mean(dim=0)
        self.optimizer.zero_grad()
        self.fabric.backward(losses.mean())
        self.fabric.clip_gradients(self.module, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return losses.detach()

    def _replayed(self, archs: Sequence[Architecture], images: Tensor, labels: Tensor) -> Tensor:
        if self._dealt is None or not self._dealt.set(archs):
            self._captured = None  # before there is another: both would have memory
            self._dealt = Dealt(archs, self.supernet.where, self.fabric.device)
        if self._captured is None:
            step = functools.partial(self._updated, self._dealt)
            changing = changing_state(self.supernet, self.optimizer)
            self._captured = Captured(step, (images, labels), changing, self.fabric.device, blind=id(self))
        losses = self._captured(images, labels)
        assert losses is not None
        return losses.clone()

    def state(self) -> dict[str, Any]:
        """All there is to know of it, as tensors and plain values."""
        return {
            "supernet": self.supernet.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.supernet.load_state_dict(state["supernet"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        self._captured = None  # it knows the momentum of before


class Improvable(Protocol):
    """What a policy can learn from: inputs, rows of operations for them, and scores of rows."""

    @property
    def encoded(self) -> Sequence[Any]:
        """Per input, something with its own row, `ops`."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> GraphBatch: ...

    def rows(
        self, indices: Sequence[int], choices: NDArray[np.int64], probabilities: NDArray[np.float64]
    ) -> list[tuple[int, Row, Row]]: ...

    def scores(self, indices: Sequence[int], rows: Sequence[Row], score: Any) -> Scores: ...


class Learner:
    """A policy while it learns: all that a checkpoint has to keep is in its state."""

    def __init__(self, ops: Sequence[str], config: LearnConfig, seed: int, policy: Policy | None = None):
        """It starts from fresh weights, or from a copy of a policy."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = Policy(config.policy, ops) if policy is None else copy.deepcopy(policy)
        self.config = config
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.learning_rate)
        self.steps = 0  # taken so far
        self.running_mean = 0.0  # of the improvement itself

    def step(
        self, inputs: Improvable, score: Any, generator: np.random.Generator, sampling: torch.Generator
    ) -> tuple[float, float]:
        """One gradient step; the mean improvement of what was sampled, and the mean entropy."""
        config = self.config
        done = self.steps / config.steps
        if config.schedule == "cosine":
            self.optimizer.param_groups[0]["lr"] = config.learning_rate * 0.5 * (1 + float(np.cos(np.pi * done)))
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
    inputs: Improvable, chosen: Sequence[int], choices: Tensor, transitions: Transitions, score: Any
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
