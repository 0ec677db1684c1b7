"""Every registered method keeps the promises of a method."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from natpp import methods  # noqa: F401 (registers the methods)
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace
from natpp.methods.base import Method, picked
from natpp.methods.constant import Constant
from natpp.methods.learning import LearnConfig
from natpp.methods.policy import PolicyMethod
from natpp.nets.policy import PolicyConfig
from natpp.registry import METHODS, OPS
from natpp.scorers.base import Scores, Task
from natpp.subjects.many import Inputs
from natpp.testing import check_method
from tests.methods.test_learning import OPS5, RULE, SMALL, STRICT, number

QUICK = LearnConfig(steps=60, inputs=16, learning_rate=5e-3, policy=PolicyConfig(width=16))


def quick(name: str) -> Method:
    """A registered method that learns fast."""
    method = METHODS[name]
    return replace(method, learn=QUICK) if isinstance(method, PolicyMethod) else method


@pytest.mark.parametrize("task", [RULE, STRICT])
@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_keeps_its_promises(name: str, task: object) -> None:
    check_method(quick(name), Inputs(SMALL, task, OPS5), number)


def mean_reached(name: str) -> float:
    inputs = Inputs(SMALL, RULE, OPS5)
    generator = np.random.default_rng(0)
    method = quick(name).fit(inputs, number, generator)
    rows = method.one_shot(inputs, number, generator)
    return float(number([inputs.transformed(index, row) for index, row in enumerate(rows)]).mean())


def test_methods_that_look_at_scores_beat_those_that_do_not() -> None:
    blind = mean_reached("random")
    for name in ("nat++", "constant", "random-best-of-10", "evolution"):
        assert mean_reached(name) > blind + 0.5, name


def test_picking_takes_the_first_best() -> None:
    inputs = Inputs(SMALL[:2], RULE, OPS5)
    rows = [[np.array([0, 0, 0]), np.array([1, 1, 1]), np.array([1, 1, 1])], [np.array([0, 0, 0])]]
    chosen = picked(inputs, rows, number)
    assert chosen[0] is rows[0][1]
    assert chosen[1] is rows[1][0]


def test_a_map_for_every_kind_of_cell_serves_graphs_of_all_sizes() -> None:
    space = CellSpace((3, 4, 5))
    inputs = Inputs(space.draw(40, np.random.default_rng(0)), Task("nat++", setting("cifar"), strict=True), tuple(OPS))

    def pools(archs: Sequence[Architecture]) -> Scores:
        counted = [[op.count("pool") for op in graph.ops] for arch in archs for _, graph in arch.cells()]
        return -np.array([sum(one) + sum(other) for one, other in zip(counted[::2], counted[1::2], strict=True)], float)

    method = Constant(by_edge=False).fit(inputs, pools, np.random.default_rng(0))
    assert {kind for (kind, _), _ in method.map} == {"normal", "reduce"}
    assert len(method.map) == 2 * 13
    rows = method.one_shot(inputs, pools, np.random.default_rng(0))
    after = [inputs.transformed(index, row) for index, row in enumerate(rows)]
    assert pools(after).sum() > 0.2 * pools(inputs.archs).sum()  # most pools became something else
    going_on = Constant(by_edge=False, sweeps=0, map=dict(method.map))
    assert going_on.fit(inputs, pools, np.random.default_rng(0)).map == method.map
    check_method(Constant(by_edge=False), Inputs(SMALL, STRICT, OPS5), number)
