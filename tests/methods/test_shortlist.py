"""The knapsack's best plans, fine-tuned side by side: within a budget, corrected by what was measured, in time."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.core.result import Result
from natpp.methods.shortlist import RATES, corrected
from natpp.scorers.short import ShortTunings
from tests.fx.fx_models import BasicBlock

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    """A convolution, a residual block and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = BasicBlock(8, 8, 1)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block(torch.relu(self.stem(x))).mean((2, 3)))


@functools.cache
def data() -> list[tuple[Tensor, Tensor]]:
    """Batches of noise with three classes."""
    chance = torch.Generator().manual_seed(1)
    return [(torch.randn(32, 3, 8, 8, generator=chance), torch.randint(3, (32,), generator=chance)) for _ in range(6)]


def optimized(method: str = "tuned:evaluations=4,finalists=2,longer=2", **given: Any) -> Result:
    torch.manual_seed(0)
    return natpp.optimize(
        Small(),
        method,
        given.pop("budget", {"madds": 0.6}),
        example_input=X,
        task=natpp.Task(data(), data()[:2]),
        scorer=given.pop("scorer", "short:steps=2"),
        **given,
    )


def test_the_best_plan_is_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[tuple[float | None, int, int]] = []
    plain = ShortTunings.trained

    def seen(scorer: ShortTunings, builds: Any, rate: float | None, longer: int = 1) -> list[float]:
        rates.append((rate, longer, len(builds)))
        return plain(scorer, builds, rate, longer)

    monkeypatch.setattr(ShortTunings, "trained", seen)
    result = optimized()
    found = result.learned
    assert found is not None
    assert [rate for rate, _, _ in rates[:3]] == list(RATES)
    assert {rate for rate, _, _ in rates[3:]} == {result.settings["schedule"]["learning_rate"]}
    assert sum(count for _, longer, count in rates[3:] if longer == 1) == len(found.scored) + 1  # and the original
    assert [count for _, longer, count in rates if longer == 2] == [2]
    assert found.best == max(found.finals, key=found.finals.__getitem__)
    assert result.cost_after.madds <= 0.6 * result.cost_before.madds
    assert len(found.scored) <= 4
    assert "scored once each" in found.measured["how"]
    kinds = {change.kind for change in result.changes}
    assert kinds & {"width", "rank"}


def test_a_given_rate_is_taken_and_one_seed_gives_one_answer() -> None:
    first, second = (optimized(scorer="short:steps=2,learning_rate=0.01") for _ in range(2))
    assert first.settings["schedule"]["learning_rate"] == 0.01
    assert first.plan == second.plan
    assert first.learned is not None
    assert second.learned is not None
    assert [one.score for one in first.learned.scored] == [one.score for one in second.learned.scored]


def test_no_plan_is_tuned_after_the_time_is_up() -> None:
    found = optimized("tuned:minutes=0.0001").learned
    assert found is not None
    assert len(found.scored) == 1
    assert not found.finals


def test_auto_says_what_it_chose() -> None:
    inputs = [images for images, _ in data()]
    some = (
        (natpp.Task(data(), data()[:2]), "auto chose tuned: the task has targets"),
        (natpp.Task.inputs(inputs), "auto chose knapsack: the task has inputs without targets"),
    )
    for task, why in some:
        result = natpp.optimize(
            Small(), budget=0.6, example_input=X, task=task, scorer="short:steps=1" if task.targets else None
        )
        assert why in result.notes
    plain = natpp.optimize(Small(), budget=0.6, example_input=X)
    assert not any("auto" in note for note in plain.notes)  # the default policy needs no data


def test_measured_losses_correct_predicted_ones() -> None:
    predicted = [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
    plans = [(1, 0), (0, 1), (2, 0), (0, 2)]
    same = corrected(predicted, plans, [1.0, 1.0, 2.0, 2.0])
    assert np.allclose(same, predicted)
    moved = corrected(predicted, plans, [2.0, 1.0, 3.0, 2.0])  # changes of the first part lose one more
    assert all(moved[0][item] > moved[1][item] for item in (1, 2))
    assert moved[0][0] == moved[1][0] == 0
    scaled = corrected(predicted, plans, [11.0, 11.0, 12.0, 12.0])  # a constant changes nothing
    assert np.allclose(scaled, predicted)
