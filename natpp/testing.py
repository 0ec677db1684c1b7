"""The promises that extensions keep: call these on a new operation or rule, as natpp does on its own.

Each raises AssertionError with what was broken.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from natpp.arch.layers import halved
from natpp.arch.ops import Place
from natpp.arch.transitions import allowed
from natpp.registry import OPS

PLACES = tuple(
    Place(channels_in, channels_out, stride, size)
    for channels_in, channels_out in ((4, 4), (5, 5), (3, 6))
    for stride in (1, 2)
    for size in ((8, 8), (7, 5), (1, 1))
)


def check_op(name: str) -> None:
    """An operation builds at every place, keeps the shape it promises, and costs exactly what it says."""
    op = OPS[name]
    assert op.name == name, f"{name} is registered under another name than its own, {op.name}"
    for place in PLACES:
        module = op.build(place).eval()
        images = torch.randn(2, place.channels_in, *place.size, requires_grad=True)
        before = images.detach().clone()
        with FlopCounterMode(display=False) as counter:
            out = module(images)
        expected = (2, place.channels_out, *halved(place.size, (place.stride, place.stride)))
        assert out.shape == expected, f"{name} gives {tuple(out.shape)} at {place}, expected {expected}"
        assert torch.equal(images, before), f"{name} changes its input"
        params, madds = op.cost(place)
        counted = sum(parameter.numel() for parameter in module.parameters())
        assert counted == params, f"{name} has {counted} parameters at {place} and says {params}"
        flops = counter.get_total_flops()
        assert flops == 2 * 2 * madds, f"{name} does {flops // 4} multiply-adds at {place} and says {madds}"
        if out.requires_grad:
            out.square().sum().backward()
            grads = [parameter.grad for parameter in module.parameters()]
            assert all(grad is not None and grad.isfinite().all() for grad in grads), f"{name} has no finite gradient"


def check_rule(name: str) -> None:
    """A rule lets every operation stay, leads to no extra one, and never makes an extra one dearer."""
    names = tuple(OPS)
    for place in PLACES:
        table = allowed(name, place)
        assert table.shape == (len(names), len(names))
        for row, source in enumerate(names):
            assert table[row, row], f"{name} does not let {source} stay"
            for column, target in enumerate(names):
                if row == column or not table[row, column]:
                    continue
                assert not OPS[target].extra, f"{name} leads from {source} to the extra operation {target}"
                if OPS[source].extra:
                    pairs = zip(OPS[target].cost(place), OPS[source].cost(place), strict=True)
                    assert all(after <= before for after, before in pairs), f"{source} → {target} costs more at {place}"
