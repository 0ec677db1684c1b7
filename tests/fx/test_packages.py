"""Models of other packages, which are not dependencies: each test is skipped where its package is not installed."""

import pytest
import torch
from torch import nn

import natpp

X = torch.randn(1, 3, 224, 224)


def share(module: nn.Module, budget: float, **decisions: object) -> float:
    """The multiply-adds of a result, as a share of the module's."""
    asked = natpp.Decisions(**decisions)
    result = natpp.optimize(module, budget=budget, decisions=asked, example_input=X)
    return result.cost_after.madds / result.cost_before.madds


def test_mobilenet_v2_with_a_kept_stem() -> None:
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    assert share(models.mobilenet_v2(weights=None).eval(), 0.5, keep=["features.0.0"]) <= 0.5


@pytest.mark.parametrize("budget", [0.8, 0.5])
def test_efficientnet_lite0_as_its_package_writes_it(budget: float) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet_lite_pytorch is not installed")
    assert share(package.EfficientNet.from_name("efficientnet-lite0").eval(), budget) <= budget


def test_yolov8n_fresh_and_after_a_forward_pass() -> None:
    tasks = pytest.importorskip("ultralytics.nn.tasks", reason="ultralytics is not installed")
    fresh, ran = (tasks.DetectionModel("yolov8n.yaml", verbose=False).eval() for _ in range(2))
    with torch.no_grad():
        ran(X)
    shares = [share(module, 0.5) for module in (fresh, ran)]
    assert shares[0] == shares[1] <= 0.5
