"""Learning: the estimate is the gradient, and a policy learns what there is to learn."""

import itertools

import numpy as np
import pytest
import torch

import natpp
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.core.scores import Scores
from natpp.errors import NatppError, SettingError
from natpp.methods.learning import LearnConfig, advantages, improvements, learn, paper
from natpp.nets.policy import Policy, PolicyConfig
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects

OPS5 = ("null", "skip_connect", "conv_1x1", "conv_3x3", "avg_pool_3x3")
RULE = Frame("nat++", setting("nasbench201", cells=1), strict=False)
STRICT = Frame("nat++", setting("nasbench201", cells=1), strict=True)
SMALL = [
    natpp.load(f"|{a}~0|+|{b}~0|{c}~1|")
    for a, b, c in itertools.product(["none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"], repeat=3)
]


def number(archs: list[Architecture]) -> Scores:
    """A score that depends on every living edge and on pairs of them."""
    values = {"null": 0.0, "skip_connect": 1.0, "conv_1x1": 2.0, "conv_3x3": -1.5, "avg_pool_3x3": 0.7}
    found = []
    for arch in archs:
        a, b, c = (values[op] for op, _ in itertools.chain(*arch.pruned().normal.inputs))
        found.append(a * b - 0.5 * c + 0.3 * a)
    return np.array(found)


def test_the_estimate_equals_the_exact_gradient() -> None:
    """Normalization off: over many batches, the mean estimate is the gradient of the enumerated expectation."""
    inputs = Subjects(cells_of([SMALL[-2]], RULE, OPS5))  # conv, conv and pooling
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(width=8), OPS5)
    parameters = list(policy.parameters())

    def flat(objective: torch.Tensor) -> torch.Tensor:
        grads = torch.autograd.grad(objective, parameters, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(parameters, grads, strict=True)
            ]
        )

    transitions = policy(inputs.batch([0]))
    every = torch.tensor(list(itertools.product(*(np.flatnonzero(row) for row in inputs.masks[0]))))
    gains, _ = improvements(inputs, [0], every, transitions, number)
    exact = flat((transitions.log_prob(every).exp() * gains).sum())

    config = LearnConfig(samples=8, normalize=False)
    generator = torch.Generator().manual_seed(0)
    estimates = []
    for _ in range(600):
        transitions = policy(inputs.batch([0]))
        choices = transitions.sample(config.samples, generator)
        gains, _ = improvements(inputs, [0], choices, transitions, number)
        estimates.append(flat((advantages(gains, config, 0.0) * transitions.log_prob(choices)).mean()))
    directions = torch.randn(len(exact), 20, generator=generator)
    seen = torch.stack(estimates) @ directions  # (batches, directions)
    error = (seen.mean(dim=0) - exact @ directions) / (seen.std(dim=0) / len(seen) ** 0.5)
    assert error.abs().max() < 4
    assert (exact @ directions).abs().max() > 5 * (seen.std(dim=0) / len(seen) ** 0.5).max()  # it can fail


@pytest.mark.parametrize("task", [RULE, STRICT])
def test_a_policy_learns_what_can_be_had(task: Frame) -> None:
    inputs = Subjects(cells_of(SMALL, task, OPS5))
    policy = learn(inputs, number, LearnConfig(steps=300, inputs=32, learning_rate=3e-3), np.random.default_rng(0))
    with torch.no_grad():
        transitions = policy(inputs.batch(range(len(inputs))))
    choices = transitions.greedy()[None]
    rows = inputs.rows(range(len(inputs)), choices.numpy(), transitions.probabilities(choices))
    reached = number([inputs.transformed(index, row) for index, _, row in rows])
    best = []
    for index, mask in enumerate(inputs.masks):
        options = itertools.product(*(np.flatnonzero(row) for row in mask))
        fitting = [np.array(row) for row in options if inputs.fits(index, np.array(row))]
        best.append(number([inputs.transformed(index, row) for row in fitting]).max())
    start = number(SMALL).mean()
    assert reached.mean() - start > 0.8 * (np.mean(best) - start)


def test_the_same_seed_gives_the_same_policy() -> None:
    config = LearnConfig(steps=5, inputs=4, policy=PolicyConfig(width=8))
    first, second, other = (
        learn(Subjects(cells_of(SMALL, RULE, OPS5)), number, config, np.random.default_rng(seed)).state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_papers_settings_run() -> None:
    from dataclasses import replace

    policy = learn(Subjects(cells_of(SMALL, RULE, OPS5)), number, replace(paper(), steps=20), np.random.default_rng(0))
    assert policy.config.form == "paper"


def test_the_moving_average_is_of_the_reward() -> None:
    """The released code feeds it the advantage, and it settles at half the mean reward."""
    config = LearnConfig(baseline="moving-average", normalize=False)
    gains = torch.tensor([[3.0, 5.0]])
    assert advantages(gains, config, 4.0).tolist() == [[-1, 1]]
    loo = advantages(torch.tensor([[1.0], [2.0], [6.0]]), LearnConfig(samples=3, normalize=False), 0.0)
    assert loo[:, 0].tolist() == [1 - 4, 2 - 3.5, 6 - 1.5]


def test_a_score_that_is_no_number_stops_learning() -> None:
    with pytest.raises(NatppError, match="learning step 0 is not a number"):
        learn(
            Subjects(cells_of(SMALL, RULE, OPS5)),
            lambda archs: np.full(len(archs), np.nan),
            LearnConfig(),
            np.random.default_rng(0),
        )


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="samples is 1, expected 2 or more"):
        LearnConfig(samples=1)
    with pytest.raises(SettingError, match="from 1 up"):
        LearnConfig(steps=0)
    with pytest.raises(SettingError, match="Did you mean 'leave-one-out'"):
        LearnConfig(baseline="leave-one")
    with pytest.raises(SettingError, match="unknown schedule"):
        LearnConfig(schedule="cos")
    with pytest.raises(SettingError, match="cannot be normalized"):
        LearnConfig(baseline="moving-average", inputs=1, samples=1)
    with pytest.raises(SettingError, match="learning_rate is -1, expected a number above 0"):
        LearnConfig(learning_rate=-1)
    with pytest.raises(SettingError, match="from 0 up"):
        LearnConfig(entropy=float("nan"))


def test_another_score_is_asked_anew() -> None:
    inputs = Subjects(cells_of(SMALL[:3], RULE, OPS5))
    rows = [inputs.before[index] for index in range(3)]
    first = inputs.scores(range(3), rows, number)
    assert (inputs.scores(range(3), rows, lambda archs: -number(archs)) == -first).all()
