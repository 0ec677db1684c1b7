"""Rewriting: what is inherited, what stays to the bit, what is kept of a module's ways."""

import copy

import pytest
import torch
from torch import Tensor, nn

import natpp
from natpp.decisions.edits import block_edits
from natpp.decisions.inherit import rank_one
from natpp.decisions.operation import build, cost, forms
from natpp.decisions.term import FadeIn
from natpp.errors import GraphError
from natpp.fx.blocks import Block, find_blocks
from natpp.fx.rewrite import rewrite
from natpp.fx.sites import Site, find_items
from natpp.fx.trace import trace
from natpp.fx.traced import Traced
from natpp.nets.measure import module_cost
from natpp.registry import OPS, RULES
from natpp.training.recalibrate import recalibrate
from tests.fx.fx_models import SMALL
from tests.fx.promises import no_change_is_no_change, warmed

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def traced_small(name: str) -> tuple[nn.Module, Traced, list[Block]]:
    module = warmed(SMALL[name](), X)
    traced = trace(module, X)
    return module, traced, find_blocks(traced)


def with_one(blocks: list[Block], name: str, op: str) -> list[list[str]]:
    """The blocks' own operations, but for one site or shortcut."""
    rows = [list(block.ops) for block in blocks]
    hits = 0
    for row, block in zip(rows, blocks, strict=True):
        for index in range(len(row)):
            if block.edge_name(index) == name:
                row[index], hits = op, hits + 1
    assert hits == 1
    return rows


@pytest.mark.parametrize("name", SMALL)
def test_no_change_is_no_change(name: str) -> None:
    module, traced, blocks = traced_small(name)
    no_change_is_no_change(module, X)
    same = rewrite(traced, block_edits(blocks, [block.ops for block in blocks]))
    assert torch.equal(same(X), module(X))


@pytest.mark.parametrize("name", SMALL)
def test_every_single_change_costs_what_was_counted(name: str) -> None:
    module, traced, blocks = traced_small(name)
    before, expected, seen = module_cost(module, X), module(X), set()
    for block in blocks:
        for _, term in block.terms:
            site = term.site
            if site is None or term.op == "skip_connect" or (site.form, site.pointwise, site.place) in seen:
                continue
            seen.add((site.form, site.pointwise, site.place))  # one of those that are alike
            for op in OPS:
                allowed = any(rule(OPS[term.op], OPS[op], site.place) for rule in RULES.values())
                if op in ("null", term.op) or OPS[op].extra or not allowed:
                    continue
                made = rewrite(traced, block_edits(blocks, with_one(blocks, site.name, op)))
                after = module_cost(made, X)
                old, new = (cost(site, which, 2, traced.parts) for which in (site.op, op))
                assert before.params - after.params == old[0] - new[0]
                assert before.madds - after.madds == old[1] - new[1]
                assert made(X).shape == expected.shape
                kept = {key: tensor for key, tensor in made.state_dict().items() if not key.startswith(f"{site.name}.")}
                state = module.state_dict()
                assert all(torch.equal(tensor, state[key]) for key, tensor in kept.items())


def test_a_replaced_operation_keeps_its_name_norm_and_activation() -> None:
    _, traced, blocks = traced_small("resnet")
    made = rewrite(traced, block_edits(blocks, with_one(blocks, "layer1.0.conv1", "sep_conv_3x3")))
    assert [name for name, _ in made.layer1.get_submodule("0.conv1").named_children()] == ["depthwise", "pointwise"]
    called = [node.target for node in made.graph.nodes if node.op == "call_module"]
    start = called.index("layer1.0.conv1")
    assert called[start : start + 3] == ["layer1.0.conv1", "layer1.0.bn1", "layer1.0.relu"]


def site_of(module: nn.Module, x: Tensor) -> tuple[Site, Traced]:
    traced = trace(module, x)
    (site,) = (item for item in find_items(traced) if isinstance(item, Site))
    return site, traced


def test_a_smaller_kernel_is_the_centre() -> None:
    conv = nn.Conv2d(4, 6, 5, padding=2)
    site, traced = site_of(nn.Sequential(conv), torch.randn(1, 4, 8, 8))
    made = build(site, "conv_3x3", traced.parts)
    assert torch.equal(made.weight, conv.weight[:, :, 1:4, 1:4])
    assert torch.equal(made.bias, conv.bias)
    depthwise = nn.Conv2d(4, 4, 5, padding=2, groups=4)
    site, traced = site_of(nn.Sequential(depthwise), torch.randn(1, 4, 8, 8))
    made = build(site, "dil_conv_3x3", traced.parts)
    assert torch.equal(made.weight, depthwise.weight[:, :, 1:4, 1:4])
    assert made.dilation == (2, 2)


@pytest.mark.parametrize(
    ("conv", "op"),
    [
        (nn.Conv2d(4, 6, 1), "conv_3x3"),
        (nn.Conv2d(4, 6, 3, padding=1), "conv_5x5"),
        (nn.Conv2d(4, 6, 1), "sep_conv_5x5"),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), "sep_conv_5x5"),
        (nn.Conv2d(4, 6, 3, padding=1, stride=2), "conv_5x5"),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), "conv_5x5"),
    ],
)
def test_a_larger_kernel_has_zeros_around_and_computes_the_same(conv: nn.Conv2d, op: str) -> None:
    x = torch.randn(2, 4, 9, 9)
    site, traced = site_of(nn.Sequential(conv), x)
    assert torch.allclose(build(site, op, traced.parts)(x), conv(x), atol=1e-5)


@pytest.mark.parametrize("budget", ["strict", "rule"])
def test_a_rule_that_lets_kernels_grow_makes_modules_that_cost_no_more(budget: str) -> None:
    module = natpp.zoo.network("vgg16", classes=10).eval()
    result = natpp.optimize(
        module, budget=budget, example_input=torch.randn(1, 3, 32, 32), decisions=natpp.Decisions("cost")
    )
    assert any((one.before[-3:], one.after[-3:]) == ("3x3", "5x5") for one in result.changes)
    assert result.cost_after.madds <= result.cost_before.madds
    assert result.cost_after.params <= result.cost_before.params
    for name, part in result.module.named_modules():
        if isinstance(part, nn.Conv2d):
            assert tuple(part.weight.shape[2:]) == part.kernel_size, name


def test_a_separable_kernel_comes_out_exactly() -> None:
    depthwise, pointwise = torch.randn(5, 1, 3, 3), torch.randn(7, 5, 1, 1)
    conv = nn.Conv2d(5, 7, 3, 2, 1)
    with torch.no_grad():
        conv.weight.copy_(pointwise * depthwise[:, 0])
    x = torch.randn(2, 5, 9, 9)
    site, traced = site_of(nn.Sequential(conv), x)
    assert torch.allclose(build(site, "sep_conv_3x3", traced.parts)(x), conv(x), atol=1e-5)


def test_rank_one_factors_are_the_best() -> None:
    dense = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    depthwise, pointwise = rank_one(dense)
    for channel in range(4):
        matrix = dense[:, channel].flatten(1)
        singular = torch.linalg.svdvals(matrix)
        rest = matrix - pointwise[:, channel].flatten(1) @ depthwise[channel].flatten(1)
        assert torch.allclose(rest.norm(), singular[1:].norm(), atol=1e-5)
    assert not torch.stack([part.norm() for part in rank_one(torch.zeros(2, 3, 3, 3))]).isnan().any()


def test_a_factorized_skip_takes_the_taps_it_reads() -> None:
    conv = nn.Conv2d(4, 6, 3, 2, 1, bias=False)
    with torch.no_grad():
        conv.weight[:3].zero_()
        conv.weight[:3, :, 1, 1] = torch.randn(3, 4)  # only the centre
        conv.weight[3:].zero_()
        conv.weight[3:, :, 2, 2] = torch.randn(3, 4)  # only one pixel further
    x = torch.randn(1, 4, 8, 8)
    site, traced = site_of(nn.Sequential(conv), x)
    assert torch.allclose(build(site, "skip_connect", traced.parts)(x), conv(x), atol=1e-6)


def test_a_pooling_that_changes_the_channels_sums_the_taps() -> None:
    conv = nn.Conv2d(4, 6, 3, padding=1)
    flat = torch.randn(1, 4, 1, 1).expand(1, 4, 8, 8)  # on a flat image both are the same but for the border
    site, traced = site_of(nn.Sequential(conv), flat)
    made = build(site, "avg_pool_3x3", traced.parts)
    assert torch.allclose(made(flat)[:, :, 1:-1, 1:-1], conv(flat)[:, :, 1:-1, 1:-1], atol=1e-5)


def test_a_separable_pair_is_one_site() -> None:
    pair = nn.Sequential(nn.Conv2d(4, 4, 5, padding=2, groups=4, bias=False), nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6))
    x = torch.randn(1, 4, 8, 8)
    site, traced = site_of(pair, x)
    assert (site.op, len(site.main), len(site.after)) == ("sep_conv_5x5", 2, 1)
    made = build(site, "sep_conv_3x3", traced.parts)
    assert torch.equal(made.pointwise.weight, pair[1].weight)
    assert torch.equal(made.depthwise.weight, pair[0].weight[:, :, 1:4, 1:4])
    assert len(forms(site, "skip_connect")) == 1


def test_a_new_shortcut_starts_at_nothing_and_comes_in() -> None:
    module, traced, blocks = traced_small("resnet")
    made = rewrite(traced, block_edits(blocks, with_one(blocks, "layer1.1 [0 → 3]", "skip_connect")))
    assert torch.equal(made(X), module(X))
    assert sum(p.numel() for p in made.parameters()) == sum(p.numel() for p in module.parameters())
    gate = made.get_submodule("layer1.1.shortcut_0_3")
    assert isinstance(gate, FadeIn)
    assert not dict(gate.named_parameters())
    made.train()
    made(X).sum().backward()
    made(X)
    made(X).sum().backward()  # two passes before one backward are fine
    assert 0.02 < gate.share < 0.04
    for _ in range(1000):
        gate(X)
    assert gate.share > 0.999


def test_a_dropped_branch_leaves_nothing_behind() -> None:
    module, traced, blocks = traced_small("resnet")
    made = rewrite(traced, block_edits(blocks, with_one(blocks, "layer1.1 [4 → 5]", "null")))
    assert not any(key.startswith("layer1.1.") for key in made.state_dict())
    without = copy.deepcopy(module)
    without.layer1[1] = nn.ReLU()
    assert torch.equal(made(X), without(X))


def test_an_output_that_nothing_reaches_is_refused() -> None:
    _, traced, blocks = traced_small("vgg")
    with pytest.raises(GraphError, match="nothing reaches"):
        rewrite(traced, block_edits(blocks, with_one(blocks, "features.0", "null")))


def test_what_works_in_place_does_not_hit_a_skip() -> None:
    """conv2 becomes a skip: `out += identity` and the ReLU behind it must not write into what others read."""
    module, traced, blocks = traced_small("resnet")
    rows = with_one(blocks, "layer1.0.conv1", "skip_connect")
    rows[1] = [op if op != "conv_3x3" else "skip_connect" for op in rows[1]]
    rows[2][blocks[2].ops.index("null")] = "skip_connect"  # and the next block reads it again
    made = rewrite(traced, block_edits(blocks, rows))
    gate = next(part for part in made.modules() if isinstance(part, FadeIn))
    gate.share.fill_(1.0)

    def expected(x: Tensor) -> Tensor:
        stem = module.relu(module.bn1(module.conv1(x)))
        first = torch.relu(stem + stem)
        entry = first + stem
        block = module.layer1[1]
        inner = torch.relu(block.bn1(block.conv1(entry)))
        second = torch.relu(block.bn2(block.conv2(inner)) + entry)
        rest = module.layer2(module.layer1[2](second))
        return module.fc(torch.flatten(module.avgpool(rest), 1))

    assert torch.allclose(made(X), expected(X), atol=1e-6)


def test_dtype_memory_format_and_requires_grad_are_kept() -> None:
    module = warmed(SMALL["resnet"](), X).double().to(memory_format=torch.channels_last)
    for parameter in module.layer1.parameters():
        parameter.requires_grad_(False)
    traced = trace(module, X.double())
    blocks = find_blocks(traced)
    for op in ("sep_conv_3x3", "conv_1x1", "avg_pool_3x3"):
        made = rewrite(traced, block_edits(blocks, with_one(blocks, "layer1.0.conv1", op)))
        new = dict(made.get_submodule("layer1.0.conv1").named_parameters())
        assert all(p.dtype == torch.float64 and not p.requires_grad for p in new.values())
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in new.values())
        flags = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        assert all(p.requires_grad == flags.get(name, False) for name, p in made.named_parameters())
    meta = copy.deepcopy(module).to("meta")
    traced = trace(meta, X.double().to("meta"))
    blocks = find_blocks(traced)
    made = rewrite(traced, block_edits(blocks, with_one(blocks, "layer1.0.conv1", "conv_1x1")))
    assert all(p.device.type == "meta" for p in made.parameters())


def test_statistics_are_recomputed() -> None:
    module = warmed(SMALL["resnet"](), X)
    batches = [torch.randn(8, 3, 16, 16) * 3 for _ in range(3)]
    recalibrate(module, batches)
    assert not module.training
    assert module.bn1.momentum == 0.1
    with torch.no_grad():
        means = [module.conv1(batch).mean((0, 2, 3)) for batch in batches]
    assert torch.allclose(module.bn1.running_mean, torch.stack(means).mean(0), atol=1e-5)
