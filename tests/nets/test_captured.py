"""Steps as CUDA graphs: on a GPU they do what the same steps do one kernel after another."""

import numpy as np
import pytest
import torch

import natpp
from natpp.arch.layout import setting
from natpp.arch.space import nasbench201_space
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.evaluate import loop
from natpp.evaluate.recipe import Recipe
from natpp.evaluate.scratch import Training, make_batches
from natpp.improve import learn
from natpp.improve.learn import WeightsConfig
from natpp.improve.shared import SharedWeights
from natpp.nets.captured import captures, changing_state
from natpp.runs import make_fabric


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
        batches = make_batches(images(), recipe, fabric.device)
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
        monkeypatch.setattr(learn, "captures", lambda fabric, captured=captured: captured)
        config = WeightsConfig(architectures=10, batch=8, epochs=3)
        shared = SharedWeights(nasbench201_space(), where, Batches(images(), fabric.device), config, fabric, seed=0)
        assert shared.weights.capturing == captured
        for _ in range(3):
            shared.step()
        found.append(shared.weights.supernet.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-2, atol=1e-3)
