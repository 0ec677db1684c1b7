"""Layers fitted in closed form: what can be restored is, nothing gets worse, and odd modules are left alone."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import natpp
from natpp.arch.decisions import Decisions
from natpp.decisions import lowrank
from natpp.decisions.lowrank import Form
from natpp.decisions.moments import Moments, separated, solved
from natpp.decisions.refit import Refit, refit
from natpp.decisions.sensitivity import Sensitivity
from natpp.errors import NatppError
from natpp.fx.rewrite import rewrite
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
    result = natpp.optimize(module, "nat++", 0.7, example_input=X, task=task)
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
        (
            [{"x": X}],
            "does not run on batch 0|cannot be fitted on inputs given by name|needs inputs that are single tensors",
        ),
    ],
)
@pytest.mark.parametrize("method", ["nat++", "auto"])
def test_wrong_inputs_are_one_line(batches: list[Any], said: str, method: str) -> None:
    task = natpp.Task.inputs(batches)
    with pytest.raises(NatppError, match=said) as found:
        natpp.optimize(SMALL["resnet"](), method, 0.7, example_input=X, task=task)
    assert "\n" not in str(found.value)


def test_the_same_inputs_give_the_same_weights() -> None:
    module = warmed(SMALL["vgg"](), X).eval()
    first, second, other = (
        natpp.optimize(module, "nat++", 0.7, example_input=X, task=natpp.Task.inputs(inputs(seed=seed))).module
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
    cross = moments.with_outputs(moments.picked([wanted]))
    kernels, pointwise = torch.randn(6, 1, 3, 3), teacher[1].weight.detach() + 0.3 * torch.randn(9, 6, 1, 1)

    def wrong(kernels: Tensor, pointwise: Tensor, bias: Tensor) -> float:
        made = functional.conv2d(x, kernels.float(), padding=1, groups=6)
        made = functional.conv2d(made, pointwise.float()[:, :, None, None], bias.float())
        return float((made - wanted).square().mean() / wanted.var())

    with torch.no_grad():
        alone = functional.conv2d(x, kernels, padding=1, groups=6)
        second = Moments(teacher[1], [alone])
        assert wrong(kernels, *solved(second, second.with_outputs(second.picked([wanted])), 1e-9)) > 0.1
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
    keep = natpp.Decisions(keep=last)
    result = natpp.optimize(module, "nat++", 0.8, example_input=X, decisions=keep, task=task)
    assert any("fitted to what the original computes" in note for note in result.notes)
    own, made = module.state_dict(), result.module.state_dict()
    names = [name for name in made if any(name.startswith(f"{path}.") for path in last)]
    assert names
    assert all(torch.equal(made[name], own[name]) for name in names)


def test_a_layer_inside_an_unchanged_container_is_not_taken_for_a_new_one() -> None:
    _, made, original = pair(nn.Sequential(natpp.leaf(nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 3))), nn.Flatten()))
    assert refit(made, original, inputs()) == []


def rank(module: nn.Module, forms: dict[str, Form]) -> tuple[Any, Any]:
    """The module as natpp writes it, and once more with chains in place of some layers."""
    traced = trace(warmed(module, X).eval(), X)

    def put(layer: Any, form: Form) -> Any:
        def swap(draft: Any, node: Any, find: Any) -> Any:
            source = find(node.all_input_nodes[0])
            return draft.call(str(node.target), str(form), lambda: lowrank.chain(layer, form), source, node)

        return swap

    swaps = {
        node: put(traced.parts[str(node.target)], forms[str(node.target)])
        for node in traced.graph.nodes
        if str(node.target) in forms
    }
    return rewrite(traced, (), swaps), rewrite(traced)


FORMS = {"0": Form("tucker", (3, 4)), "3": Form("spatial", (6,)), "7": Form("channel", (3,))}


@pytest.mark.parametrize("path", FORMS)
def test_a_chain_is_fitted_as_one(path: str) -> None:
    """If the lost weight had this rank, the chain that stands for it computes it again."""
    torch.manual_seed(0)
    module = chain()
    layer = module.get_submodule(path)
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(lowrank.composed(lowrank.factors(layer.weight.double(), FORMS[path])))
    made, original = rank(module, {path: FORMS[path]})
    assert error(made, original) < 1e-9
    for part in made.get_submodule(path):
        part.weight.data.normal_()
    fitted = refit(made, original, inputs(), Refit(ridge=1e-8, rounds=0))
    assert [one.name for one in fitted] == [path] or fitted[0].kept
    assert fitted[0].after < 1e-4 < fitted[0].before
    assert error(made, original) < 1e-3


def test_fitted_chains_are_nearer_and_what_errors_cost_helps() -> None:
    torch.manual_seed(0)
    module = SMALL["resnet"]()
    convs = [
        name for name, part in module.named_modules() if isinstance(part, nn.Conv2d) and part.kernel_size == (3, 3)
    ]
    weights = {name: module.get_parameter(f"{name}.weight") for name in convs[1:]}
    forms = {name: Form("channel", (max(1, len(weight) // 3),)) for name, weight in weights.items()}
    errors = []
    for config in (None, Refit(metric=False), Refit()):
        made, original = rank(copy.deepcopy(module), forms)
        if config is not None:
            assert {one.name for one in refit(made, original, inputs(), config)} >= set(forms)
        errors.append(error(made, original))
    assert errors[0] > 1.5 * errors[1] > 1.5 * errors[2]


@pytest.mark.parametrize("frozen", [True, False])
def test_sensitivity_is_what_an_error_costs(frozen: bool) -> None:
    """For squared errors of a linear head it is known: the head's own squares, shrunk a little."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1), nn.Unflatten(0, (-1, 1)))
    module.requires_grad_(not frozen)
    graph = rewrite(trace(warmed(module, X).eval(), X))
    nodes = {str(node.target): node for node in graph.graph.nodes}
    found = Sensitivity(graph, [torch.randn(2048, 3, 2, 2)])
    head = module[2].weight.detach().double().flatten(1)
    exact = head.T @ head
    shrunk = 0.9 * exact + 0.1 * exact.diagonal().mean() * torch.eye(6, dtype=torch.double)
    for path in ("1", "0"):
        matrix = found.of(nodes[path])
        assert matrix is not None
        if path == "1":
            assert torch.allclose(matrix / matrix.trace(), shrunk / shrunk.trace(), atol=0.02)
    assert found.of(nodes["3"]) is None
    assert all(one.grad is None for one in graph.parameters())


def test_scores_of_classes_cost_what_moves_their_probabilities() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 3), nn.Flatten())
    graph = rewrite(trace(module.eval(), torch.randn(2, 5)))
    x = torch.randn(512, 5)
    node = next(node for node in graph.graph.nodes if node.op == "call_module")
    matrix = Sensitivity(graph, [x]).of(node)
    assert matrix is not None
    p = module(x).softmax(dim=1).detach().double()
    exact = (p.mean(dim=0).diag() - p.T @ p / len(p)) + 0.02**2 * torch.eye(3)
    exact = 0.9 * exact + 0.1 * exact.diagonal().mean() * torch.eye(3, dtype=torch.double)
    assert torch.allclose(matrix, exact, atol=0.03)


class InPlace(nn.Module):
    """What torch runs but cannot differentiate: it changes a value that the gradient needs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sigmoid().mul_(2)


def test_without_gradients_errors_cost_the_same_everywhere() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), natpp.leaf(InPlace()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    made, original = rank(nn.Sequential(*layers), {"0": Form("channel", (3,))})
    first = next(node for node in original.graph.nodes if node.target == "0")
    assert Sensitivity(original, inputs(1)).of(first) is None
    assert "0" in {one.name for one in refit(made, original, inputs())}
