"""A new kind of decision: a linear layer becomes two smaller ones, the best of a given rank by its singular values."""

import torch
from torch import nn

import natpp
from natpp.decisions.layer import LayerKind
from natpp.registry import KINDS
from natpp.testing import check_decision


class Svd(LayerKind):
    def options(self, layer):
        """The ranks that a layer may get; those that cost more than the layer are masked."""
        return (32, 16, 8, 4) if type(layer) is nn.Linear else ()

    def build(self, layer, rank):
        u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
        made = nn.Sequential(nn.Linear(len(v.T), rank, bias=False), nn.Linear(rank, len(u)))
        made[0].weight = nn.Parameter((s[:rank, None] * v[:rank]).contiguous())
        made[1].weight = nn.Parameter(u[:, :rank].contiguous())
        made[1].bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        return made


KINDS.add("svd", Svd())
check_decision("svd")  # exact costs, identical outputs without changes, results that can be saved

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
print(natpp.optimize(model, example_input=torch.randn(1, 1, 28, 28), budget={"params": 0.2}))
