"""The weights that a replacement inherits from the convolution it replaces.

A smaller kernel takes the centre of the larger one, and a larger one has zeros around it. A separable convolution
takes, for every input channel, the best rank-one factors of the dense kernel. A pooling followed by a pointwise
convolution takes the kernel summed over its taps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import Node
from torch.nn import functional

from natpp.arch.layers import FACTORIZED, Form
from natpp.arch.modules import FactorizedConv2d
from natpp.errors import SettingError
from natpp.fx.sites import Site
from natpp.fx.traced import value

Forms = tuple[Form, ...]


def fill(site: Site, made: Forms, modules: list[nn.Module], parts: Mapping[str, Any]) -> None:
    """Give every convolution its weights."""
    if made[-1].kind in ("max", "avg"):
        return
    if site.form.kind != "conv":  # a pooling has no weights: start from the identity
        seen = value(site.source)
        ones = torch.eye(site.place.channels_in, device=seen.device, dtype=seen.dtype)[:, :, None, None]
        _fill_kernel(made, modules, ones, None, nn.Parameter(ones))
        return
    weight, bias = weights(site.main[0], parts)
    if not weight.is_meta and not weight.isfinite().all():
        raise SettingError(
            f"the weights of {site.name} are not all finite, so a replacement cannot inherit them. Check its weights, "
            "or name it in keep"
        )
    if site.pointwise is not None:
        second, bias = weights(site.main[1], parts)
        depthwise = _resized(weight.detach(), made[0].kernel)
        if made[0].kind == "conv" and len(made) == 2:
            _set(modules[0], depthwise, None, weight)
            _set(modules[1], second.detach(), bias, second)
        else:
            mixed = second.detach() * weight.detach().sum(dim=(2, 3))[:, 0, None, None]
            _fill_kernel(made, modules, mixed, bias, second)
    elif site.form.depthwise:
        if made[0].depthwise:
            _set(modules[0], _resized(weight.detach(), made[0].kernel), bias, weight)
        else:  # every output channel reads only its own input channel
            dense = torch.diag_embed(weight.detach()[:, 0].permute(1, 2, 0)).permute(2, 3, 0, 1)
            _fill_kernel(made, modules, dense, bias, weight)
    else:
        kernel = weight.detach()
        if made[0].kind == FACTORIZED:  # all others have the site's groups
            kernel = _dense(kernel, site.form.groups)
        _fill_kernel(made, modules, kernel, bias, weight)


def _dense(weight: Tensor, groups: int) -> Tensor:
    """The kernel (out, in, k, k) of a convolution in groups: zeros between them."""
    dense = weight.new_zeros(weight.shape[0], groups * weight.shape[1], *weight.shape[2:])
    for number, (rows, kernel) in enumerate(zip(dense.chunk(groups), weight.chunk(groups), strict=True)):
        rows.chunk(groups, 1)[number].copy_(kernel)
    return dense


def _fill_kernel(made: Forms, modules: list[nn.Module], dense: Tensor, bias: Tensor | None, like: Tensor) -> None:
    """Weights from a kernel (out, in, k, k), or (out, in / groups, k, k) if the replacement has the same groups."""
    first = made[0]
    if first.kind == FACTORIZED:
        module = modules[0]
        assert isinstance(module, FactorizedConv2d)
        centre, half = dense.shape[2] // 2, first.channels_out // 2
        shifted = min(centre + 1, dense.shape[2] - 1)
        halves = (module.conv_1, slice(0, half), centre), (module.conv_2, slice(half, None), shifted)
        for conv, channels, tap in halves:
            if conv is not None:
                part = None if bias is None else bias.detach()[channels]
                _set(conv, dense[channels, :, tap : tap + 1, tap : tap + 1], part, like, bias)
    elif first.kind in ("max", "avg"):
        _set(modules[1], dense.sum(dim=(2, 3), keepdim=True), bias, like)
    elif len(made) == 2:
        depthwise, pointwise = rank_one(_resized(dense, first.kernel), made[1].groups)
        _set(modules[0], depthwise, None, like)
        _set(modules[1], pointwise, bias, like)
    else:
        _set(modules[0], _resized(dense, first.kernel), bias, like)


def rank_one(dense: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """The separable kernel nearest to a dense one (out, in, k, k): depthwise (in, 1, k, k), pointwise (out, in, 1, 1).

    For every input channel the kernel is a matrix (out, k²); its first singular vectors are the best factors, here
    from the small Gram matrix (k², k²). In groups, dense and pointwise have only the channels of a group as `in`.
    """

    def turned(x: Tensor) -> Tensor:
        """The first two dimensions of every group, swapped."""
        return torch.unflatten(x, 0, (groups, -1)).transpose(1, 2).flatten(0, 1)

    matrices = turned(dense.double().flatten(2))  # (in, out / groups, k²)
    _, vectors = torch.linalg.eigh(matrices.transpose(1, 2) @ matrices)
    taps = vectors[:, :, -1]  # (in, k²)
    mixed = (matrices @ taps[:, :, None])[:, :, 0]  # (in, out / groups)
    scale = mixed.norm(dim=1, keepdim=True).sqrt()
    safe = scale.clamp_min(torch.finfo(torch.float64).tiny)
    side = dense.shape[2]
    depthwise = (taps * scale).reshape(-1, 1, side, side)
    pointwise = turned(mixed / safe)[:, :, None, None]
    return depthwise.to(dense.dtype), pointwise.to(dense.dtype)


def weights(node: Node, parts: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a convolution's node."""
    if node.op == "call_module":
        module = parts[str(node.target)]
        return module.weight, module.bias
    weight = node.kwargs["weight"] if "weight" in node.kwargs else node.args[1]
    bias = node.kwargs.get("bias", node.args[2] if len(node.args) > 2 else None)
    assert isinstance(weight, Node)
    return parts[str(weight.target)], parts[str(bias.target)] if isinstance(bias, Node) else None


def _resized(weight: Tensor, kernel: int) -> Tensor:
    """The centre of a kernel, or the kernel padded with zeros, which computes the same."""
    before = -((weight.shape[2] - kernel) // 2)
    after = kernel - weight.shape[2] - before
    return functional.pad(weight, (before, after, before, after))


def _set(module: nn.Module, weight: Tensor, bias: Tensor | None, like: Tensor, bias_like: Tensor | None = None) -> None:
    """Give a convolution a copy of these weights, with the memory format and `requires_grad` of another's."""
    flipped = like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
    layout = torch.channels_last if flipped else torch.contiguous_format
    copied = weight.detach().to(like.dtype).clone(memory_format=layout)
    module.weight = nn.Parameter(copied, requires_grad=like.requires_grad)
    if bias is not None:
        given = bias if bias_like is None else bias_like
        module.bias = nn.Parameter(bias.detach().clone(), requires_grad=given.requires_grad)
