"""What is promised for every hand-crafted network: nothing changed is nothing changed, a change costs no more."""

import copy
from pathlib import Path

import pytest
import torch
from test_module_blocks import plain
from torch import Tensor, nn

import natpp
from natpp.decisions.adopt import adopt
from natpp.decisions.edits import block_edits
from natpp.fx.blocks import Block, find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.trace import trace
from natpp.fx.traced import Traced
from natpp.registry import MODELS
from natpp.zoo import Model, network
from tests.fx.promises import assert_alike, assert_same, deployed_is_the_same, outputs, written_module

LARGE = ("vgg16_imagenet", "lresnet34e_ir")  # of so many weights that copies of them take seconds
CUT = ("vgg16_imagenet", "resnet18", "resnet50", "mobilenetv2_imagenet")
FAMILIES = {
    "vgg_block": ("vgg16", "vgg16_imagenet"),
    "resnet_block": ("resnet20", "resnet56", "resnet18"),
    "mobilenetv2_block": ("mobilenetv2", "mobilenetv2_imagenet"),
}


def example(model: Model, count: int = 1) -> Tensor:
    """Images that a network takes, smaller than its own where a mean over all pixels allows it."""
    sides = model.input_shape[1:] if model.embeds else (min(64, side) for side in model.input_shape[1:])
    return torch.randn(count, model.input_shape[0], *sides, generator=torch.Generator().manual_seed(0))


def built(name: str) -> nn.Module:
    """A network whose batch norms have statistics of their own."""
    torch.manual_seed(0)
    module = network(name)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return module.eval()


def marked_slow(names: object, slow: tuple[str, ...]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


@pytest.mark.parametrize("name", marked_slow(MODELS, LARGE))
def test_every_network(name: str, tmp_path: Path) -> None:
    module, x = built(name), example(MODELS[name])
    state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    given = outputs(module, x)
    result = natpp.optimize(module, budget="strict", example_input=x)
    same = rewrite(result.subject.traced)
    assert_same(outputs(same, x), given)  # nothing changed
    assert same.state_dict().keys() == state.keys()
    del same
    assert result.changes
    before, after = result.cost_before, result.cost_after
    assert after.params <= before.params
    assert after.madds <= before.madds
    found = outputs(result.module, x)
    assert_alike(found, given)
    replaced = {change.name for change in result.changes}
    kept = 0
    for key, tensor in result.module.state_dict().items():
        if key in state and not any(key.startswith(f"{path}.") for path in replaced):
            assert torch.equal(tensor, state[key]), key
            kept += 1
    assert kept
    assert all(torch.equal(tensor, state[key]) for key, tensor in module.state_dict().items())
    folder = result.save(tmp_path / "saved")
    restored = natpp.restore(folder)
    assert_same(outputs(restored, x), found)
    del restored
    assert_same(outputs(written_module(folder).load(), x), found)


@pytest.mark.parametrize("name", CUT)
def test_imagenet_networks_are_cut_to_six_tenths(name: str) -> None:
    with torch.device("meta"):
        module, x = network(name), torch.randn(1, *MODELS[name].input_shape)
    result = natpp.optimize(module, example_input=x, budget={"madds": 0.6})
    assert result.cost_before.madds == MODELS[name].madds
    assert result.cost_after.madds <= 0.6 * result.cost_before.madds
    assert result.cost_after.params <= result.cost_before.params


@pytest.mark.parametrize("name", marked_slow(CUT, ("vgg16_imagenet", "resnet50", "mobilenetv2_imagenet")))
def test_what_is_cut_at_imagenet_size_computes(name: str) -> None:
    module, x = built(name), torch.randn(1, *MODELS[name].input_shape, generator=torch.Generator().manual_seed(0))
    result = natpp.optimize(module, example_input=x, budget={"madds": 0.6})
    assert natpp.cost(result.module, example_input=x).madds == result.cost_after.madds
    assert_alike(outputs(result.module, x), outputs(module, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "mobilenetv2", *CUT])
def test_results_are_deployed(name: str) -> None:
    x = example(MODELS[name])
    deployed_is_the_same(natpp.optimize(built(name), budget="strict", example_input=x).module, x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "shufflenet"])
def test_results_are_compiled_to_machine_code(name: str) -> None:
    x = example(MODELS[name], 2)
    deployed_is_the_same(natpp.optimize(built(name), budget="strict", example_input=x).module, x, backend="inductor")


def blocks_on_meta(name: str) -> tuple[Traced, list[Block]]:
    with torch.device("meta"):
        traced = trace(network(name).eval(), torch.empty(1, *MODELS[name].input_shape))
    return traced, find_blocks(traced)


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in FAMILIES.items() for name in names])
def test_blocks_are_the_published_ones(family: str, name: str) -> None:
    published = natpp.load(family)
    _, blocks = blocks_on_meta(name)
    inner = [block for block in blocks if len(block.items) > 2 and _residual_or_chain(block)]
    assert len(inner) >= 5
    for block in inner:
        graph = published.graph(block.kind)
        if family == "mobilenetv2_block" and block.kind == "normal" and block.ops[-2] == "null":
            graph = published.graph("reduce")  # the width changes, so there is no shortcut
        assert plain(block.graph) == plain(graph), block.name


def _residual_or_chain(block: Block) -> bool:
    return sum(op.startswith(("conv", "sep")) for op in block.ops) > 1


@pytest.mark.parametrize("method", ["nat", "natpp"])
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("vgg_block", "vgg16"),
        ("resnet_block", "resnet20"),
        ("resnet_block", "resnet18"),
        ("mobilenetv2_block", "mobilenetv2"),
    ],
)
def test_published_results_are_applied(family: str, name: str, method: str) -> None:
    module, x = built(name), example(MODELS[name])
    traced = trace(module, x)
    blocks = find_blocks(traced)
    ops = adopt(blocks, natpp.load(family), natpp.load(f"{method}_{family}"))
    changed = sum(new != block.ops for new, block in zip(ops, blocks, strict=True))
    assert changed >= 4
    made = rewrite(traced, block_edits(blocks, ops))
    assert_alike(outputs(made, x), outputs(module, x))
    trained = copy.deepcopy(made).train()
    trained(torch.cat([x, x])).sum().backward()
    assert all(parameter.grad is not None for parameter in trained.parameters())
