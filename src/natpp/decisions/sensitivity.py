"""What errors inside a module cost at its outputs: second moments of gradients, between the channels of a value."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node, map_arg
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from natpp.decisions.running import Run, joined
from natpp.nets.measure import evaluating

MOST, AT_ONCE = 512, 32  # inputs used, and most of them at a time
NOISE = 0.02  # noise in the gradients of class scores, so that certain inputs count, too
SHRUNK = 0.1  # share of the mean of the diagonal


class Sensitivity:
    """What errors cost, for the outputs of layers, of norms after them, and for sums with one of these.

    A matrix (channels, channels): an error e of the channels at a position costs e M e. For an output of class scores
    the cost is the change of the probabilities; for any other, the squared error relative to the output's deviation.
    """

    def __init__(self, original: fx.GraphModule, batches: Iterable[Any]):
        self.original, self.batches = original, batches

    def of(self, node: Node) -> Tensor | None:
        """The matrix of a node of the original; None for other values, and where there are no gradients."""
        return self._found.get(node)

    @functools.cached_property
    def _found(self) -> Mapping[Node, Tensor]:
        dims, sums = _dims(self.original), dict[Node, Tensor]()
        generator, count = torch.Generator().manual_seed(0), 0
        with evaluating(self.original), torch.enable_grad():
            for batch in joined(self.batches, AT_ONCE):
                if count >= MOST:
                    break
                try:
                    new = _moments(self.original, batch, dims, generator)
                except RuntimeError:  # torch cannot differentiate it: some change views in place
                    return {}
                for node, found in new.items():
                    sums[node] = sums[node] + found if node in sums else found
                count += max((len(one) for one in batch if isinstance(one, Tensor) and one.dim()), default=1)
        made = {node: total / count for node, total in sums.items()}
        return {node: _shrunk(one) for node, one in made.items() if one.isfinite().all() and one.diagonal().sum() > 0}


def _shrunk(moments: Tensor) -> Tensor:
    eye = torch.eye(len(moments), dtype=moments.dtype)
    return (1 - SHRUNK) * moments + SHRUNK * moments.diagonal().mean() * eye


def _dims(module: fx.GraphModule) -> dict[Node, int]:
    """The dimension of the channels, for the nodes that have a matrix."""
    found: dict[Node, int] = {}
    for node in module.graph.nodes:
        if node.op == "call_module":
            part = module.get_submodule(str(node.target))
            if isinstance(part, nn.Linear | nn.Conv2d):
                found[node] = -1 if isinstance(part, nn.Linear) else 1
            elif isinstance(part, _BatchNorm) and node.all_input_nodes[0] in found:
                found[node] = found[node.all_input_nodes[0]]
        elif is_sum(node):
            known = next((found[one] for one in node.all_input_nodes if one in found), None)
            found.update({} if known is None else {node: known})
    return found


def is_sum(node: Node) -> bool:
    """Whether a node adds two values."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    values = [one for one in node.args if isinstance(one, Node)]
    return node.op in ("call_function", "call_method") and name in ("add", "add_", "iadd") and len(values) == 2


def _moments(
    module: fx.GraphModule, batch: tuple[Any, ...], dims: Mapping[Node, int], generator: torch.Generator
) -> dict[Node, Tensor]:
    """Sums of second moments of gradients over the positions of a batch."""
    run, probes, outputs = Run(module, [batch]), dict[Node, Tensor](), list[Any]()
    for node in module.graph.nodes:
        if node.op == "output":
            map_arg(node.args, lambda one: outputs.append(run.values[one][0]))
        run.step(node)
        if node in dims:
            (made,) = run.values[node]
            if not made.requires_grad:  # its weights are frozen
                made = made.detach().requires_grad_()
                run.values[node] = [made]
            probes[node] = made
    noisy = [(one * _noise(one.detach(), generator)).sum() for one in tree_leaves(outputs) if _counts(one)]
    if not noisy or not probes:
        return {}
    slopes = torch.autograd.grad(torch.stack(noisy).sum(), list(probes.values()), allow_unused=True)
    return {node: _second(slope, dims[node]) for node, slope in zip(probes, slopes, strict=True) if slope is not None}


def _counts(output: Any) -> bool:
    return isinstance(output, Tensor) and output.is_floating_point() and output.requires_grad


def _noise(output: Tensor, generator: torch.Generator) -> Tensor:
    """Random weights of outputs, whose expected square is what an error costs."""
    drawn = torch.randn((2, *output.shape), generator=generator).to(output)
    if output.dim() != 2 or output.shape[1] == 1:
        return drawn[0] / output.std(correction=0).clamp(min=1e-12)
    root = output.softmax(dim=1).sqrt()
    return root * drawn[0] - root.square() * (root * drawn[0]).sum(dim=1, keepdim=True) + NOISE * drawn[1]


def _second(slope: Tensor, dim: int) -> Tensor:
    rows = slope.movedim(dim, -1).flatten(0, -2).float()
    return (rows.T @ rows).double().cpu()
