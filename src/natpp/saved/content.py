"""What a rewritten module is made of: layers, tensors and constants by path."""

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
    """What a rewritten module is made of, by path."""

    module: fx.GraphModule
    layers: Mapping[str, Layer | None]
    """None: one that cannot be described"""
    tensors: Mapping[str, Tensor]
    """parameters and buffers that stand by themselves"""
    same: Mapping[str, str]
    """layers and tensors that are another one too"""
    constants: Mapping[str, Tensor]
    """buffers that are not in the state dict"""
    example: Any

    @property
    def frozen(self) -> list[str]:
        """Parameters that do not learn."""
        return [name for name, tensor in self.module.named_parameters() if not tensor.requires_grad]

    @property
    def flipped(self) -> list[str]:
        """Parameters that are channels-last in memory."""
        return [name for name, tensor in self.module.named_parameters() if is_flipped(tensor)]

    @property
    def modes(self) -> dict[str, bool]:
        """Parts that are in another mode than the module itself: whether they train."""
        own = self.module.training
        return {path: part.training for path, part in self.module.named_modules() if part.training != own}

    @property
    def given(self) -> list[str]:
        """Layers and functions that `restore` needs the original module for."""
        layers = [path for path, layer in self.layers.items() if layer is None or not layer.known]
        return [*layers, *dict.fromkeys(_foreign(self.module.graph))]


def content_of(module: fx.GraphModule, example: Any) -> Content:
    """What a module is made of."""
    layers: dict[str, Layer | None] = {}
    tensors: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    seen: dict[int, str] = {}

    def walk(holder: nn.Module, prefix: str) -> None:
        for name, tensor in (*holder._parameters.items(), *holder._buffers.items()):
            if tensor is not None:
                tensors[prefix + name] = tensor
        for name, part in holder._modules.items():
            path = prefix + name
            if part is None:
                continue
            if id(part) in seen:
                same[path] = seen[id(part)]
                continue
            seen[id(part)] = path
            if type(part) is nn.Module:
                walk(part, f"{path}.")
            else:
                layers[path] = describe(part)

    walk(module, "")
    wrong = [path for path in (*layers, *tensors) if not PATH.fullmatch(path)]
    if wrong:
        raise UnwritableError(f"a part is named {wrong[0]!r}: names of letters, digits and _ can be written")
    same |= _same_tensors(module, same)
    kept = module.state_dict().keys()
    buffers = module.named_buffers(remove_duplicate=False)
    constants = {name: buffer for name, buffer in buffers if name not in kept}
    return Content(module, layers, tensors, same, constants, example)


def _same_tensors(module: nn.Module, parts: Mapping[str, str]) -> dict[str, str]:
    """Tensors under a second name, those of parts that have two names left out."""
    first: dict[int, str] = {}
    same = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if any(name.startswith(f"{path}.") for path in parts):
                continue
            known = first.setdefault(id(tensor), name)
            if known != name:
                same[name] = known
    return same


def _foreign(graph: fx.Graph) -> Iterator[str]:
    """Functions, methods and attributes that natpp does not know by itself."""
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node.target) is None:
            yield address_of(node.target)
        elif node.target is getattr and node.args[1] not in ATTRIBUTES:
            yield f".{node.args[1]}"
        elif node.op == "call_method" and not is_method(str(node.target)):
            yield f".{node.target}()"


def is_flipped(tensor: Tensor) -> bool:
    last = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d if tensor.dim() == 5 else None
    return last is not None and tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()
