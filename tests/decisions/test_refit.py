"""Layers fitted in closed form: what can be restored is, nothing gets worse, and odd modules are left alone."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import natpp
from natpp.arch.decisions import Decisions
from natpp.decisions.moments import Moments, separated, solved
from natpp.decisions.refit import Refit, refit
from natpp.errors import NatppError
from natpp.fx.trace import trace
from natpp.subjects.module import Module
from tests.fx.fx_models import SMALL
from tests.fx.promises import warmed

X = torch.randn(2, 3, 16, 16)


def inputs(count: int = 6, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(64, 3, 16, 16, generator=generator) for _ in range(count)]


def pair(module: nn.Module, **decisions: Any) -> tuple[Module, Any, Any]:
    """A module as a subject, and two copies of it as natpp writes them."""
    torch.manual_seed(0)
    subject = Module(trace(warmed(module, X).eval(), X), Decisions(**decisions))
    start = (0,) * len(subject.decisions)
    return subject, subject.rewritten(start), subject.rewritten(start)


def error(made: nn.Module, module: nn.Module, seed: int = 7) -> float:
    """Squared error of the outputs on other inputs, relative to the outputs' variance."""
    (x,) = inputs(1, seed)
    with torch.no_grad():
        wanted = module.eval()(x)
        return float((made.eval()(x) - wanted).square().mean() / wanted.var())


def chain(**options: Any) -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, stride=2, padding=2, dilation=2, **options), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("path", ["0", "3", "7"])
def test_what_was_lost_is_restored(path: str, bias: bool, groups: int) -> None:
    """A layer whose weights are lost is one that a fit can restore exactly, whatever follows it."""
    _, made, original = pair(chain(groups=groups, bias=bias))
    layer = made.get_submodule(path)
    torch.nn.init.normal_(layer.weight)
    fitted = refit(made, original, inputs(), Refit(ridge=1e-8, rounds=0))
    assert fitted[0].name == path
    assert fitted[0].kept
    assert fitted[0].after < 1e-6 < fitted[0].before
    assert torch.allclose(layer.weight, original.get_submodule(path).weight, atol=1e-2)
    assert error(made, original) < 1e-4


def test_what_did_not_change_keeps_its_bits() -> None:
    _, made, original = pair(chain())
    assert refit(made, original, inputs()) == []
    torch.nn.init.normal_(made.get_submodule("3").weight)
    names = [one.name for one in refit(made, original, inputs())]
    assert names == ["3", "7"]  # what comes before is left alone
    assert torch.equal(made.get_submodule("0").weight, original.get_submodule("0").weight)


@pytest.mark.parametrize("name", ["resnet", "bottleneck", "vgg", "mobilenet", "shuffle"])
def test_a_fit_brings_outputs_nearer(name: str) -> None:
    module = warmed(SMALL[name](), X).eval()
    task = natpp.Task.inputs(inputs())
    plain = natpp.optimize(module, budget=0.7, example_input=X)
    result = natpp.optimize(module, budget=0.7, example_input=X, task=task)
    assert result.plan == plain.plan
    assert result.cost_after.madds == plain.cost_after.madds
    assert error(result.module, module) < 0.9 * error(plain.module, module)
    assert any("fitted to what the original computes on 384 inputs" in note for note in result.notes)
    assert not result.module.training


def test_every_fit_that_is_kept_lowers_the_error_set_aside() -> None:
    subject, _, original = pair(SMALL["resnet"]())
    plan = tuple(one.allowed[-1] if number % 3 == 0 else 0 for number, one in enumerate(subject.decisions))
    made = subject.rewritten(subject.repaired(plan, [0.0] * len(plan)))
    for one in refit(made, original, inputs()):
        assert one.kept == (one.after <= one.before)
    noise = [torch.full((8, 3, 16, 16), 1e-3)]  # nothing can be learned from the same image eight times
    weights = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    found = refit(made, original, noise)
    if not any(one.kept for one in found):
        assert all(torch.equal(tensor, weights[name]) for name, tensor in made.state_dict().items())


class Shared(nn.Module):
    """A layer that is called twice, and one whose output changes in place after it was added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        y = self.twice(functional.relu(self.twice(x)))
        out = self.last(y)
        out += x
        return out.relu_().mean((2, 3))


def test_a_layer_that_is_called_twice_keeps_its_weights() -> None:
    _, made, original = pair(Shared())
    torch.nn.init.normal_(made.get_submodule("stem").weight)
    twice = made.get_submodule("twice").weight.clone()
    assert [one.name for one in refit(made, original, inputs())] == ["stem", "last"]
    assert torch.equal(made.get_submodule("twice").weight, twice)
    assert error(made, original) < 1e-3


def test_a_lost_branch_is_made_up_for_by_the_layer_before_the_sum() -> None:
    """At a sum the target is the original's sum less what the shortcut gives now."""
    _, made, original = pair(Shared())
    torch.nn.init.zeros_(made.get_submodule("stem").weight[:2])
    torch.nn.init.zeros_(made.get_submodule("last").weight)
    found = {one.name: one for one in refit(made, original, inputs())}
    assert found["last"].after < found["last"].before


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([], "there are no inputs"),
        ([X, X * float("nan")], "batch 1 of the inputs has NaN or infinite values"),
        ([torch.randn(2, 4, 16, 16)], "does not run on batch 0 of the inputs: .* Give inputs like the example"),
        ([{"x": X}], "does not run on batch 0|layers cannot be fitted on inputs given by name"),
    ],
)
def test_wrong_inputs_are_one_line(batches: list[Any], said: str) -> None:
    task = natpp.Task.inputs(batches)
    with pytest.raises(NatppError, match=said) as found:
        natpp.optimize(SMALL["resnet"](), budget=0.7, example_input=X, task=task)
    assert "\n" not in str(found.value)


def test_the_same_inputs_give_the_same_weights() -> None:
    module = warmed(SMALL["vgg"](), X).eval()
    first, second, other = (
        natpp.optimize(module, budget=0.7, example_input=X, task=natpp.Task.inputs(inputs(seed=seed))).module
        for seed in (0, 0, 1)
    )
    states = [one.state_dict() for one in (first, second, other)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    assert any(not torch.equal(tensor, states[2][name]) for name, tensor in states[0].items())


def test_a_separable_convolution_is_fitted_as_one() -> None:
    """Its two layers are fitted in turn: what a separable convolution can compute, it computes again."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), nn.Conv2d(6, 9, 1))
    x = torch.randn(256, 6, 8, 8)
    with torch.no_grad():
        wanted = teacher(x)
    moments = Moments(teacher[0], [x], mixed=True)
    cross = moments.with_outputs(iter([wanted]))
    kernels, pointwise = torch.randn(6, 1, 3, 3), teacher[1].weight.detach() + 0.3 * torch.randn(9, 6, 1, 1)

    def wrong(kernels: Tensor, pointwise: Tensor, bias: Tensor) -> float:
        made = functional.conv2d(x, kernels.float(), padding=1, groups=6)
        made = functional.conv2d(made, pointwise.float()[:, :, None, None], bias.float())
        return float((made - wanted).square().mean() / wanted.var())

    with torch.no_grad():
        alone = functional.conv2d(x, kernels, padding=1, groups=6)
        second = Moments(teacher[1], [alone])
        assert wrong(kernels, *solved(second, second.with_outputs(iter([wanted])), 1e-9)) > 0.1
        assert wrong(*separated(moments, cross, kernels, pointwise, 1e-9)) < 1e-6


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "vgg"])
def test_narrower_layers_are_fitted_to_the_channels_that_they_still_have(name: str) -> None:
    module = warmed(SMALL[name](), X).eval()
    asked = {"example_input": X, "decisions": natpp.Decisions(kinds=("width",))}
    plain = natpp.optimize(module, "nat++", 0.6, **asked)
    assert {change.kind for change in plain.changes} == {"width"}
    result = natpp.optimize(module, "nat++", 0.6, task=natpp.Task.inputs(inputs()), **asked)
    assert result.plan == plain.plan
    assert error(result.module, module) < 0.9 * error(plain.module, module)
    states = plain.module.state_dict()
    assert all(tensor.shape == states[key].shape for key, tensor in result.module.state_dict().items())


@pytest.mark.gpu
def test_on_a_gpu_the_fit_is_that_of_a_cpu() -> None:
    module = warmed(SMALL["resnet"](), X).eval()
    made = []
    for device in ("cpu", "cuda"):
        task = natpp.Task.inputs([one.to(device) for one in inputs()])
        moved = copy.deepcopy(module).to(device)
        made.append(natpp.optimize(moved, "knapsack", 0.6, example_input=X.to(device), task=task).module.cpu())
    assert error(made[1], module) < 2 * error(made[0], module) + 1e-3


def test_parts_that_are_kept_keep_their_weights() -> None:
    module = warmed(SMALL["resnet"](), X).eval()
    last = [name for name, part in module.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)][-2:]
    task = natpp.Task.inputs(inputs())
    result = natpp.optimize(module, budget=0.8, example_input=X, decisions=natpp.Decisions(keep=last), task=task)
    assert any("fitted to what the original computes" in note for note in result.notes)
    own, made = module.state_dict(), result.module.state_dict()
    names = [name for name in made if any(name.startswith(f"{path}.") for path in last)]
    assert names
    assert all(torch.equal(made[name], own[name]) for name in names)


def test_a_layer_inside_an_unchanged_container_is_not_taken_for_a_new_one() -> None:
    _, made, original = pair(nn.Sequential(natpp.leaf(nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 3))), nn.Flatten()))
    assert refit(made, original, inputs()) == []
