"""Other ways to compress a trained network: channel pruning by Torch-Pruning, and low rank by the SVD of weights."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import natpp
from natpp.zoo.networks.resnet import BasicBlock

EACH, TOGETHER = SCOPES = ("each layer alike", "all layers ranked together")
IMPORTANCES: dict[str, Callable[[Any], Any]] = {  # by torch_pruning.importance
    "L1": lambda known: known.GroupMagnitudeImportance(p=1, group_reduction="first"),
    "FPGM": lambda known: known.FPGMImportance(),
    "Taylor": lambda known: known.GroupTaylorImportance(),
    "group norm": lambda known: known.GroupMagnitudeImportance(p=2),
    "random": lambda known: known.RandomImportance(),
}
HALVINGS = 14  # of an interval that holds a share to look for


def madds(module: nn.Module, example: Tensor) -> float:
    """Multiply-adds for an example input."""
    return natpp.cost(module, example_input=example).madds


def pruned(
    network: nn.Module, example: Tensor, share: float, name: str, scope: str, batches: list[Tensor]
) -> nn.Module:
    """A copy of a network whose channels inside of its blocks are pruned to a share of the multiply-adds.

    Torch-Pruning cannot follow the zoo's shortcuts without weights, which pad channels with zeros, so the residual
    stream keeps its width; in networks of inverted residuals it keeps it, too. Gradients for the Taylor expansion are
    of the cross-entropy with the original's own predictions on the batches.
    """
    wanted = share * madds(network, example)
    gradients = _gradients(network, batches) if name == "Taylor" else {}
    inner = inside_blocks(network)

    def cut(part: float) -> nn.Module:
        """A copy that keeps this part of the channels, of each layer or of all."""
        import torch_pruning

        made = copy.deepcopy(network)
        for path, parameter in made.named_parameters():
            parameter.grad = gradients.get(path)
        layers = dict(made.named_modules())
        ignored = [
            part
            for path, part in layers.items()
            if path not in inner and isinstance(part, nn.Conv2d | nn.Linear) and not depthwise(part)
        ]
        sizes = {layers[path]: layers[path].out_channels for path in inner}
        kept = staggered(part, list(sizes.values()))  # half a channel more, as Torch-Pruning rounds down
        each = {
            layer: max(0.0, 1 - (left + 0.5) / size) for (layer, size), left in zip(sizes.items(), kept, strict=True)
        }
        own = IMPORTANCES[name](torch_pruning.importance)

        def importance(group: Any) -> Any:
            """The importance of channels that go together, seen from the layer that makes them."""
            makes = next(dependency.target.module for dependency, _ in group if dependency.target.module in sizes)
            remove = torch_pruning.prune_conv_out_channels
            return own(pruner.DG.get_pruning_group(makes, remove, list(range(makes.out_channels))))

        pruner = torch_pruning.pruner.BasePruner(
            made,
            example,
            importance=importance,
            global_pruning=scope == TOGETHER,
            pruning_ratio=1 - part,
            pruning_ratio_dict={} if scope == TOGETHER else each,
            ignored_layers=ignored,
        )
        pruner.step()
        made.zero_grad(set_to_none=True)
        return made

    return _largest(cut, lambda made: madds(made, example) <= wanted)


def inside_blocks(network: nn.Module) -> list[str]:
    """The paths of layers whose outputs stay in a block: first in a basic one, or read by a depthwise convolution."""
    convolutions = [(path, part) for path, part in network.named_modules() if isinstance(part, nn.Conv2d)]
    return [
        *(f"{path}.conv1" for path, part in network.named_modules() if isinstance(part, BasicBlock)),
        *(path for (path, _), (_, after) in itertools.pairwise(convolutions) if depthwise(after)),
    ]


def depthwise(layer: nn.Module) -> bool:
    """Whether a layer is a convolution of each channel alone, which goes with the layer it reads."""
    return isinstance(layer, nn.Conv2d) and 1 < layer.groups == layer.in_channels


def staggered(part: float, sizes: list[int]) -> list[int]:
    """A part of each size, at least 1, rounded up in some and down in others so that their sum grows evenly."""
    return [min(size, max(1, int(part * size + number / len(sizes)))) for number, size in enumerate(sizes)]


def _gradients(network: nn.Module, batches: list[Tensor]) -> dict[str, Tensor]:
    """Gradients of the cross-entropy with the network's own predictions, by parameter."""
    learner = copy.deepcopy(network).eval()
    for batch in batches:
        logits = learner(batch)
        F.cross_entropy(logits, logits.argmax(1), reduction="sum").backward()
    return {path: one.grad for path, one in learner.named_parameters() if one.grad is not None}


def _largest(make: Callable[[float], nn.Module], fits: Callable[[nn.Module], bool]) -> nn.Module:
    """What is made of the largest number from 0 to 1 that fits."""
    low, high, best = 0.0, 1.0, None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        made = make(middle)
        if fits(made):
            low, best = middle, made
        else:
            high = middle
    if best is None:
        raise natpp.NatppError("even one channel in each layer is above the budget")
    return best


def low_rank(network: nn.Module, example: Tensor, share: float) -> nn.Module:
    """A copy in which every convolution is split into one of fewer channels and a 1x1 convolution, by SVD.

    Every convolution keeps the same share of its multiply-adds.
    """
    wanted = share * madds(network, example)

    def made(part: float) -> nn.Module:
        found = copy.deepcopy(network)
        layers = {path: layer for path, layer in found.named_modules() if isinstance(layer, nn.Conv2d)}
        alike = [one.out_channels * _inside(one) // (one.out_channels + _inside(one)) for one in layers.values()]
        for (path, layer), rank in zip(layers.items(), staggered(part, alike), strict=True):
            parent, _, name = path.rpartition(".")
            setattr(found.get_submodule(parent), name, split(layer, rank))
        return found

    return _largest(made, lambda found: madds(found, example) <= wanted)


def _inside(layer: nn.Conv2d) -> int:
    """The inputs of an output of a convolution without groups."""
    return layer.weight[0].numel()


def split(layer: nn.Conv2d, rank: int) -> nn.Sequential:
    """Two convolutions with the best approximation of a layer's weights at a rank."""
    weight = layer.weight.detach()
    left, values, right = torch.linalg.svd(weight.flatten(1), full_matrices=False)
    root = values[:rank].sqrt()
    first = nn.Conv2d(
        layer.in_channels, rank, layer.kernel_size, layer.stride, layer.padding, layer.dilation, bias=False
    )
    second = nn.Conv2d(rank, layer.out_channels, 1, bias=layer.bias is not None)
    with torch.no_grad():
        first.weight.copy_((root[:, None] * right[:rank]).view_as(first.weight))
        second.weight.copy_((left[:, :rank] * root).view_as(second.weight))
        if layer.bias is not None:
            second.bias.copy_(layer.bias)
    return nn.Sequential(first, second).to(weight.device)
