"""Grouped and dilated convolutions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from natpp.decisions.operation import build, cost, forms
from natpp.fx.sites import Site, find_items
from natpp.fx.trace import trace
from natpp.fx.traced import Traced
from tests.fx.promises import keeps_promises


def test_grouped_and_dilated_are_sites() -> None:
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU()),
        *(nn.Conv2d(8, 12, 1, groups=4), nn.BatchNorm2d(12)),
        *(nn.Conv2d(12, 8, 5, 2, padding=2, groups=2), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Conv2d(8, 8, 1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.BatchNorm2d(8)),
        nn.Conv2d(8, 8, 1, groups=8),  # one number for every channel
        *(nn.Conv2d(8, 4, 7, padding=3), nn.Conv2d(4, 4, 3, stride=3), nn.Conv2d(4, 4, 3)),
    )
    traced = keeps_promises(module, torch.randn(2, 3, 32, 32))
    ops = {item.name: item.op for item in find_items(traced) if isinstance(item, Site)}
    dense = {"0": "conv_3x3", "2": "conv_3x3", "4": "conv_1x1", "6": "conv_5x5", "8": "conv_3x3"}
    assert ops == dense | {"10": "dil_conv_3x3", "13": "sep_conv_5x5"}


def site_of(conv: nn.Conv2d, size: int) -> tuple[Site, Traced]:
    traced = trace(nn.Sequential(conv), torch.zeros(1, conv.in_channels, size, size))
    (site,) = find_items(traced)
    assert isinstance(site, Site)
    return site, traced


@given(
    op=st.sampled_from(["conv_1x1", "conv_3x3", "sep_conv_3x3", "dil_conv_3x3", "sep_conv_5x5", "max_pool_3x3"]),
    groups=st.integers(2, 4),
    wide=st.integers(1, 3),
    narrow=st.integers(1, 3),
    kernel=st.sampled_from([3, 5]),
    stride=st.sampled_from([1, 2]),
    biased=st.booleans(),
)
def test_a_replacement_is_that_of_every_group(
    op: str, groups: int, wide: int, narrow: int, kernel: int, stride: int, biased: bool
) -> None:
    """What takes the place of a convolution in groups does to each of them what it does to one alone."""
    conv = nn.Conv2d(groups * wide, groups * narrow, kernel, stride, kernel // 2, groups=groups, bias=biased)
    site, traced = site_of(conv, 6)
    if site.form.depthwise or op == site.op or int(op[-1]) > kernel:
        return
    x = torch.randn(2, groups * wide, 6, 6)
    parts = []
    for number, part in enumerate(x.chunk(groups, 1)):
        alone = nn.Conv2d(wide, narrow, kernel, stride, kernel // 2, bias=biased)
        with torch.no_grad():
            alone.weight.copy_(conv.weight.chunk(groups)[number])
            if conv.bias is not None and alone.bias is not None:
                alone.bias.copy_(conv.bias.chunk(groups)[number])
        one, own = site_of(alone, 6)
        parts.append(build(one, op, own.parts)(part))
    made = build(site, op, traced.parts)
    torch.testing.assert_close(made(x), torch.cat(parts, 1), rtol=1e-4, atol=1e-5)
    assert sum(parameter.numel() for parameter in made.parameters()) == cost(site, op, 1, traced.parts)[0]


@pytest.mark.parametrize("groups", [2, 4])
def test_a_skip_that_halves_is_dense_and_takes_the_taps_of_its_groups(groups: int) -> None:
    conv = nn.Conv2d(8, 12, 3, 2, 1, groups=groups)
    site, traced = site_of(conv, 8)
    dense = nn.Conv2d(8, 12, 3, 2, 1)
    with torch.no_grad():
        dense.weight.zero_()
        for number, kernel in enumerate(conv.weight.chunk(groups)):
            dense.weight.chunk(groups)[number].chunk(groups, 1)[number].copy_(kernel)
        assert conv.bias is not None
        assert dense.bias is not None
        dense.bias.copy_(conv.bias)
    one, own = site_of(dense, 8)
    x = torch.randn(2, 8, 8, 8)
    torch.testing.assert_close(conv(x), dense(x))
    expected = build(one, "skip_connect", own.parts)(x)
    torch.testing.assert_close(build(site, "skip_connect", traced.parts)(x), expected)


def test_a_skip_where_the_shape_stays_is_nothing() -> None:
    site, _ = site_of(nn.Conv2d(8, 8, 3, padding=1, groups=2), 6)
    assert forms(site, "skip_connect") == ()
