"""Which channels can go: the errors are those of refitted layers, and what others make up for goes first."""

import pytest
import torch
from torch import Tensor

from natpp.decisions.elimination import Reader, obs_order


def reader(channels: int, taps: int, outputs: int, seed: int = 0, extra: int = 0) -> Reader:
    generator = torch.Generator().manual_seed(seed)
    size = channels * taps + extra
    mixed = torch.randn(size, size, dtype=torch.double, generator=generator)
    weight = torch.randn(outputs, size, dtype=torch.double, generator=generator)
    metric = torch.randn(outputs, outputs, dtype=torch.double, generator=generator)
    rows = torch.arange(channels * taps).reshape(channels, taps) + extra
    return Reader(mixed @ mixed.T / size, weight, metric @ metric.T, rows)


def refitted(one: Reader, gone: list[int]) -> float:
    """The error of a reader without some channels, all other weights refitted."""
    stays = torch.ones(len(one.second), dtype=torch.bool)
    stays[one.rows[gone].flatten()] = False
    weight = torch.zeros_like(one.weight)
    weight[:, stays] = torch.linalg.solve(one.second[stays][:, stays], one.second[stays] @ one.weight.T).T
    wrong = one.weight - weight
    return float((wrong @ one.second @ wrong.T * one.metric).sum())


@pytest.mark.parametrize("extra", [0, 3])
def test_errors_are_those_of_refitted_readers(extra: int) -> None:
    readers = [reader(10, 4, 6, 0, extra), reader(10, 1, 3, 1)]
    order, errors = obs_order(readers)
    assert sorted(order) == list(range(10))
    for count in range(1, 11):
        exact = sum(refitted(one, order[:count]) for one in readers)
        assert float(errors[count - 1]) == pytest.approx(exact, rel=1e-3)
        if count > 1:
            assert errors[count - 1] >= errors[count - 2]
    first = [sum(refitted(one, [channel]) for one in readers) for channel in range(10)]
    assert order[0] == min(range(10), key=first.__getitem__)


def test_a_copy_goes_first_and_costs_nothing() -> None:
    one = reader(8, 1, 5)
    mixed = torch.eye(8, dtype=torch.double)
    mixed[5] = mixed[2]
    order, errors = obs_order([one._replace(second=mixed @ one.second @ mixed.T)])
    assert order[0] in (2, 5)
    assert errors[0] < 1e-3 * errors[1]


def test_of_many_channels_several_go_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = reader(32, 2, 6)
    exact = obs_order([one])
    monkeypatch.setattr("natpp.decisions.elimination.STEPS", 8)
    order, errors = obs_order([one])

    def area(errors: Tensor) -> float:
        return float(errors.sum())

    assert sorted(order) == list(range(32))
    assert float(errors[15]) == pytest.approx(refitted(one, order[:16]), rel=1e-3)
    assert area(exact[1]) < area(errors) < 1.2 * area(exact[1])
