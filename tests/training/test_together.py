"""Short trainings side by side: they take the steps of torch's optimizer, keep apart, and share the memory."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.data.batches import Batches
from natpp.data.images import Images
from natpp.data.loader import Loaded
from natpp.errors import SettingError
from natpp.runs.fabric import make_fabric
from natpp.scorers.short import in_half
from natpp.training import together
from natpp.training.branch import Branch, norms
from natpp.training.losses import cross_entropy
from natpp.training.outcome import Outcome
from natpp.training.recipe import ShortConfig
from natpp.training.step import learning_rates
from natpp.training.together import Trial, final_accuracies, train_together

CPU = torch.device("cpu")
QUICK = ShortConfig(batch=16, steps=6, together=3, validation_batch=8)


def trained(
    images: Any, config: ShortConfig = QUICK, count: int = 1, device: torch.device = CPU, **more: Any
) -> list[Outcome]:
    return train_together([resnet] * count, [5 + n for n in range(count)], Trial(images, config, device, **more))


class Block(nn.Module):
    """A plain residual block."""

    def __init__(self, channels: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), Block(4), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def test_a_plain_resnet_learns_by_the_steps_of_torch(stripes: Batches) -> None:
    """One flat vector of weights takes the steps that torch's own optimizer takes."""
    config = replace(QUICK, steps=40, learning_rate=0.05, weight_decay=1e-2)
    (outcome,) = trained(stripes, config, seed=1)
    torch.manual_seed(5)
    network = resnet()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2, nesterov=True)
    feed = Trial(stripes, config, CPU, seed=1).feed()
    for step in range(config.steps):
        images, labels = feed.batch(step)
        optimizer.param_groups[0]["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * step / config.steps))
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():  # batch statistics
        parts = zip(stripes.validation.tensor_split(3), stripes.validation_labels.tensor_split(3), strict=True)
        total = sum(nn.functional.cross_entropy(network(x), y, reduction="sum").item() for x, y in parts)
    assert outcome.loss == pytest.approx(total / len(stripes.validation), rel=1e-3)
    assert outcome.value == -outcome.loss
    assert outcome.accuracy > 90
    assert outcome.curve[0] > outcome.curve[-1]
    assert len(outcome.curve) == 20


def test_images_kept_on_the_host_give_the_same(stripes: Batches) -> None:
    kept = Batches(stripes._images, held=False)
    assert (stripes.held, kept.held) == (True, False)
    for augment in (False, True):
        config = replace(QUICK, augment=augment)
        one, other = (trained(images, config)[0] for images in (stripes, kept))
        assert (one.value, one.curve) == (other.value, other.curve)


@pytest.mark.gpu
def test_on_a_gpu_a_graph_reads_images_that_are_fetched(stripes: Batches) -> None:
    device = torch.device("cuda")
    config = replace(QUICK, steps=60, learning_rate=0.05, augment=True)
    held, kept = (Batches(stripes._images, device, held=held) for held in (True, False))
    one, other = (trained(images, config, 2, device) for images in (held, kept))
    for first, second in zip(one, other, strict=True):
        assert first.loss == pytest.approx(second.loss, abs=0.05)  # as far as bf16 and atomics allow
        assert first.curve == pytest.approx(second.curve, abs=0.1)


def test_one_that_diverges_spoils_no_other(stripes: Batches) -> None:
    def broken() -> nn.Module:
        network = resnet()
        next(network.parameters()).data.fill_(float("nan"))
        return network

    fine, wrong, too = train_together([resnet, broken, resnet], [1, 1, 1], Trial(stripes, QUICK, CPU))
    assert fine.value is not None
    assert (fine.value, fine.curve) == (too.value, too.curve)
    assert wrong.value is None
    assert wrong.reason is not None
    assert "not a number" in wrong.reason


def test_one_that_is_too_large_by_itself_does_not_make_groups_small(
    stripes: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sizes = together._trained, []

    def large() -> nn.Module:
        return resnet()

    def small(builds: Sequence[Any], *rest: Any) -> Any:
        sizes.append(len(builds))
        if large in builds:
            raise torch.OutOfMemoryError
        return plain(builds, *rest)

    monkeypatch.setattr(together, "_trained", small)
    said: list[str] = []
    heard: list[tuple[int, Outcome]] = []
    builds = [resnet, large, *[resnet] * 6]
    trial = Trial(stripes, QUICK, CPU, say=said.append)
    found = train_together(builds, [1] * 8, trial, done=lambda place, one: heard.append((place, one)))
    assert [one.value is None for one in found] == [False, True, *[False] * 6]
    assert sizes == [8, 4, 2, 1, 1, 6]
    assert [line.split()[0] for line in said] == ["8", "4", "2"]
    assert heard == list(enumerate(found))


@pytest.mark.parametrize("half", [False, True])
def test_weights_begin_where_kernels_may_read_many_bytes_at_once(half: bool) -> None:
    def odd() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(180, 2))

    branch = Branch(odd, 1, QUICK, CPU, half=half)
    assert [parameter.numel() for parameter in branch.parameters] == [135, 5, 360, 2, 5, 5]
    assert [parameter.data_ptr() % 16 for parameter in branch.parameters] == [0] * 6
    assert len(branch.weights) == 136 + 8 + 360 + 8 + 8 + 8


@pytest.mark.gpu
def test_on_a_gpu_full_precision_computes_as_a_cpu_does(stripes: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    config = replace(QUICK, steps=20, learning_rate=0.05)
    device = torch.device("cuda")
    there = Batches(stripes._images, device)
    (here,) = trained(stripes, config, tested=True)
    full, half = (trained(there, config, 1, device, half=half, tested=True)[0] for half in (False, True))
    assert full.curve == pytest.approx(here.curve, abs=2e-3)  # sums in another order, over twenty steps
    assert full.loss == pytest.approx(here.loss, abs=2e-3)
    assert here.test_accuracy is not None
    assert full.test_accuracy == pytest.approx(here.test_accuracy, abs=5)
    assert half.curve != full.curve
    for precision, asked in (("auto", True), ("bf16", True), ("32", False)):
        assert in_half(make_fabric("cuda", precision)) is asked
    with pytest.raises(SettingError, match="use --precision bf16, or 32"):
        natpp.search("digits", run=natpp.Run(device="cuda", precision="16"))


@pytest.mark.parametrize(
    "settings",
    [
        *({"batch": 1}, {"steps": 0}, {"together": 0}, {"learning_rate": 0.0}, {"weight_decay": -1.0}),
        *({"warm_up": -0.1}, {"warm_up": 1.0}, {"fitting": -0.1}, {"fitting": 1.1}),
    ],
)
def test_bad_schedules_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        ShortConfig(**settings)


def test_a_learning_rate_rises_and_falls() -> None:
    rates = learning_rates(0.4, 20, warm_up=0.25).tolist()
    assert rates[:6] == pytest.approx([0.08, 0.16, 0.24, 0.32, 0.4, 0.4])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.01
    falling = learning_rates(0.4, 20).tolist()
    assert falling == pytest.approx([0.2 * (1 + math.cos(math.pi * step / 20)) for step in range(20)])


def test_what_was_fitted_may_count_in_the_score(stripes: Batches) -> None:
    values = {}
    for fitting in (0.0, 0.25, 1.0):
        (found,) = trained(stripes, replace(QUICK, steps=40, fitting=fitting))
        values[fitting] = found.value
        assert found.loss == pytest.approx(-values[0.0])
    assert found.curve[-1] == pytest.approx(-values[1.0], abs=1e-4)
    assert values[0.25] == pytest.approx(0.75 * values[0.0] + 0.25 * values[1.0])
    assert values[1.0] != values[0.0]


def test_test_images_are_judged_with_mean_statistics_of_training_images(stripes: Batches) -> None:
    """As torch does with a batch norm that takes the mean of all batches it has seen."""
    images = Batches(with_noise(stripes), validation=0)
    config = replace(QUICK, validation_batch=20)
    branches = [Branch(resnet, seed, config, CPU) for seed in (1, 2, 3)]
    found = final_accuracies(branches, Trial(images, config, CPU), captured=False)
    right = []
    for seed, branch in zip((1, 2, 3), branches, strict=True):
        torch.manual_seed(seed)
        network = resnet()
        for norm in norms(network):
            norm.momentum = None
        with torch.no_grad():
            for start in range(0, 80, 20):
                network(images.take(np.arange(start, start + 20))[0])
            network.eval()
            hits = sum((network(some).argmax(dim=1) == y).sum().item() for some, y in images.test_batches(90))
        right.append(100 * hits / 90)
        for one, other in zip(norms(branch.module), norms(network), strict=True):
            torch.testing.assert_close((one.running_mean, one.running_var), (other.running_mean, other.running_var))
    assert found == pytest.approx(right)
    assert len(set(found)) > 1


def with_noise(images: Batches) -> Images:
    """The same with 90 test images of noise, whose labels nobody can know: so networks differ in how many are right."""
    chance = np.random.default_rng(5)
    labels = chance.integers(2, size=90)
    return replace(images._images, test=chance.integers(256, size=(90, 3, 8, 8)).astype(np.uint8), test_labels=labels)


@pytest.mark.gpu
def test_on_a_gpu_test_images_are_judged_side_by_side(stripes: Batches) -> None:
    """Replays of a graph give what the same steps give without one, also for a last batch that is smaller."""
    device = torch.device("cuda")
    images = Batches(with_noise(stripes), device, validation=0)
    config = replace(QUICK, validation_batch=20)
    found, means = [], []
    for captured in (True, False):
        branches = [Branch(resnet, seed, config, device) for seed in range(6)]
        found.append(final_accuracies(branches, Trial(images, config, device), captured=captured))
        means.append([norm.running_mean for branch in branches for norm in norms(branch.module)])
    torch.testing.assert_close(*means, rtol=0.02, atol=0.02)  # as far as bf16 allows
    assert found[0] == pytest.approx(found[1], abs=5)  # four of ninety, by roundings
    assert len(set(found[0])) > 1


def test_batches_of_a_loader_are_trained_on_with_any_loss(stripes: Batches) -> None:
    batches = [stripes.take(np.arange(8) + 8 * place) for place in range(4)]
    kept = Loaded.of(batches, [(stripes.validation, stripes.validation_labels)], 6)
    losses = cross_entropy, lambda output, labels: nn.functional.cross_entropy(output, labels)
    one, other = (trained(kept, loss=loss)[0] for loss in losses)
    assert one.value == other.value
    assert one.accuracy is not None
    with pytest.raises(SettingError, match="leave out tested"):
        Trial(kept, QUICK, CPU, tested=True)
    with pytest.raises(SettingError, match="leave out tested"):
        Trial(stripes, QUICK, CPU, loss=cross_entropy, tested=True)
