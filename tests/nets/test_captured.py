"""Steps as CUDA graphs: on a GPU they do what the same steps do one kernel after another."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import natpp
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.arch.space import CellSpace, nasbench201_space
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.nets.captured import Step, captures, changing_state
from natpp.runs.fabric import make_fabric
from natpp.scorers import supernet
from natpp.scorers.supernet import SharedWeights, WeightsConfig
from natpp.training import loop
from natpp.training.recipe import Recipe
from natpp.training.scratch import Training
from natpp.training.task import Task


@pytest.fixture(autouse=True)
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def images() -> Images:
    generator = np.random.default_rng(0)
    pixels = generator.integers(256, size=(400, 3, 16, 16), dtype=np.uint8)
    labels = generator.integers(10, size=400)
    return Images("noise", 10, pixels[:300], labels[:300], pixels[300:], labels[300:])


def test_nothing_is_captured_without_a_gpu() -> None:
    assert not captures(make_fabric("cpu"))


def test_momentum_starts_at_zero() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    changing = changing_state(module, optimizer)
    assert len(changing) == 4 + 3 + 4
    assert all((optimizer.state[one]["momentum_buffer"] == 0).all() for one in module.parameters())


@pytest.mark.gpu
def test_a_captured_training_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropped paths, an average of weights, and a checkpoint in the middle."""
    recipe = Recipe(epochs=2, batch=32, learning_rate=0.05, channels=8, cells=3, drop_path=0.5, cutout=0, ema=0.5)
    fabric = make_fabric("cuda", "32")
    found = []
    for captured in (True, False):
        monkeypatch.setattr(loop, "captures", lambda fabric, captured=captured: captured)
        batches = Task(images()).batches(fabric.device, recipe, validation=0)
        training = Training(natpp.load("darts"), batches, recipe, fabric)
        losses = []
        for step in range(6):
            if step == 3:
                state = training.state()
                training = Training(natpp.load("darts"), batches, recipe, fabric, seed=0)
                training.restore(state)
            training.step()
            losses.append(training.look()["loss"])
        assert training.average is not None
        found.append((losses, training.network.state_dict(), training.average.network.state_dict()))
    (losses, network, average), (others, *rest) = found
    assert losses == pytest.approx(others, rel=1e-3)
    for one, other in zip((network, average), rest, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
def test_a_captured_supernet_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = make_fabric("cuda", "32")
    where = setting("nasbench201", channels=8, cells=1, size=16)
    found = []
    for captured in (True, False):
        monkeypatch.setattr(supernet, "captures", lambda fabric, captured=captured: captured)
        config = WeightsConfig(architectures=10, batch=8, epochs=3)
        weights = SharedWeights(nasbench201_space(), where, Batches(images(), fabric.device), config, fabric, seed=0)
        assert weights.weights.capturing == captured
        if captured:
            drawn = [weights._drawn(step) for step in range(3)]
        monkeypatch.setattr(weights, "_drawn", drawn.__getitem__)
        before = copy.deepcopy(weights.weights.supernet.state_dict())
        for _ in range(3):
            weights.step()
        found.append(weights.weights.supernet.state_dict())
    moved, apart = (
        torch.cat([(one[name] - found[0][name]).flatten() for name in before]).norm() for one in (before, found[1])
    )
    assert apart < 0.05 * moved  # sums are added up in another order; a step left out is a third of it


class Uncaptured:
    """Stands in for a captured step: takes it as it is, and counts how often there was one."""

    made = 0

    def __init__(self, step: Step, arguments: Sequence[Tensor], *_: object, **__: object):
        type(self).made += 1
        self.step = step

    def __call__(self, *arguments: Tensor) -> Tensor | None:
        return self.step(*arguments)


CELLS = CellSpace((2, 3), ("skip_connect", "conv_1x1", "sep_conv_3x3", "avg_pool_3x3"))  # all of them live


def cells_trained(device: str, captured: bool, drawn: list[list[Architecture]], patch: pytest.MonkeyPatch) -> Any:
    """A supernet after nine steps, two for each graph, on what it drew if it was captured, else on what is given."""
    patch.setattr(supernet, "captures", lambda _: captured)
    patch.setattr(supernet, "GRAPHS", 4)
    patch.setattr(supernet, "IMAGES_AT_ONCE", 6)
    fabric = make_fabric(device, "32")
    config = WeightsConfig(architectures=5, batch=5, epochs=1)
    where = setting("cifar", channels=4, cells=3, size=16)
    weights = SharedWeights(CELLS, where, Batches(images(), fabric.device), config, fabric, seed=0)
    if captured:
        drawn += [weights._drawn(step) for step in range(weights.total)]
    patch.setattr(weights, "_drawn", drawn.__getitem__)
    for _ in range(weights.total):
        weights.step()
    return weights


def test_a_supernet_of_cells_keeps_a_graph_for_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such steps change the weights as those do that route every architecture by itself."""
    monkeypatch.setattr(Uncaptured, "made", 0)
    monkeypatch.setattr(supernet, "Captured", Uncaptured)
    drawn: list[list[Architecture]] = []
    dealt, alone = (cells_trained("cpu", captured, drawn, monkeypatch) for captured in (True, False))
    graphs = [{tuple((e.source, e.target) for e in arch.normal.edges) for arch in archs} for archs in drawn]
    assert all(len(some) == 1 for some in graphs)
    assert len(graphs) == 9
    assert all(graphs[step] == graphs[step + 1] for step in (0, 2, 4, 6))
    assert drawn[0] != drawn[1]
    assert Uncaptured.made == 5
    for name, value in dealt.weights.supernet.state_dict().items():
        torch.testing.assert_close(value, alone.weights.supernet.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
def test_a_captured_supernet_of_cells_takes_the_same_steps_and_scores_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several graphs, each with a capture of its own."""
    drawn: list[list[Architecture]] = []
    some = CELLS.draw(20, np.random.default_rng(0))
    found = []
    for captured in (True, False):
        weights = cells_trained("cuda", captured, drawn, monkeypatch)
        found.append((weights.weights.supernet.state_dict(), weights.scorer()(some)))
    (weights, scores), (others, their_scores) = found
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-2, atol=1e-3)
    assert np.abs(scores - their_scores).max() <= 10  # per cent of 30 images: three that are near the edge
