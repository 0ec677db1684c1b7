"""The content of a rewritten module: layers, tensors and constants by path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from natpp.saved.describe import Layer, describe
from natpp.saved.values import UnwritableError
from natpp.saved.vocabulary import ATTRIBUTES, address_of, is_method, name_of

WEIGHTS = "weights.safetensors"
CONSTANTS = "constants.safetensors"
ARCHITECTURE = "architecture.json"
SOURCE = "model.py"
PATH = re.compile(r"[\w-]+(\.[\w-]+)*")


@dataclass(frozen=True)
class Content:
    """The content of a rewritten module, by path."""

    module: fx.GraphModule
    layers: Mapping[str, Layer | None]
    """None: a layer that cannot be described"""
    tensors: Mapping[str, Tensor]
    """parameters and buffers that do not belong to a described layer"""
    same: Mapping[str, str]
    """layers and tensors that are shared: second path → first path"""
    constants: Mapping[str, Tensor]
    """buffers that are not in the state dict"""
    example: Any

    @property
    def frozen(self) -> list[str]:
        """Parameters that do not require gradients."""
        return [name for name, tensor in self.module.named_parameters() if not tensor.requires_grad]

    @property
    def flipped(self) -> list[str]:
        """Parameters in channels-last memory format."""
        return [name for name, tensor in self.module.named_parameters() if _is_flipped(tensor)]

    @property
    def modes(self) -> dict[str, bool]:
        """Submodules whose training mode differs from the module's own."""
        own = self.module.training
        return {path: part.training for path, part in self.module.named_modules() if part.training != own}

    @property
    def given(self) -> list[str]:
        """Layers and functions that `restore` takes from the original module."""
        layers = [path for path, layer in self.layers.items() if layer is None or not layer.known]
        return [*layers, *dict.fromkeys(_foreign(self.module.graph))]


def content_of(module: fx.GraphModule, example: Any) -> Content:
    """The content of a module."""
    layers: dict[str, Layer | None] = {}
    tensors: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    seen: dict[int, str] = {}

    def walk(holder: nn.Module, prefix: str) -> None:
        held = (*holder._parameters.items(), *holder._buffers.items())
        tensors.update({prefix + name: tensor for name, tensor in held if tensor is not None})
        for name, part in holder._modules.items():
            path = prefix + name
            if part is None:
                continue
            if (known := seen.setdefault(id(part), path)) != path:
                same[path] = known
            elif type(part) is nn.Module:
                walk(part, f"{path}.")
            else:
                layers[path] = describe(part)

    walk(module, "")
    wrong = [path for path in (*layers, *tensors) if not PATH.fullmatch(path)]
    if wrong:
        raise UnwritableError(f"cannot save a submodule named {wrong[0]!r}: use only letters, digits and _ in names")
    same |= _same_tensors(module, same)
    kept = module.state_dict().keys()
    buffers = module.named_buffers(remove_duplicate=False)
    constants = {name: buffer for name, buffer in buffers if name not in kept}
    return Content(module, layers, tensors, same, constants, example)


def _same_tensors(module: nn.Module, parts: Mapping[str, str]) -> dict[str, str]:
    """Second names of shared tensors, except those inside shared submodules."""
    first: dict[int, str] = {}
    same = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            inside = any(name.startswith(f"{path}.") for path in parts)
            if not inside and (known := first.setdefault(id(tensor), name)) != name:
                same[name] = known
    return same


def _foreign(graph: fx.Graph) -> Iterator[str]:
    """Functions, methods and attributes of a graph that are not built into natpp."""
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node.target) is None:
            yield address_of(node.target)
        elif node.target is getattr and node.args[1] not in ATTRIBUTES:
            yield f".{node.args[1]}"
        elif node.op == "call_method" and not is_method(str(node.target)):
            yield f".{node.target}()"


def _is_flipped(tensor: Tensor) -> bool:
    last = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d if tensor.dim() == 5 else None
    return last is not None and tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()
