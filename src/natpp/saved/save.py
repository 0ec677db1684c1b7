"""Save a rewritten module to a folder: weights, architecture, and a Python file that builds it without natpp.

`constants.safetensors` holds the buffers that are not in the state dict. Custom layers and functions are saved by name
only; restoring them needs the original module.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, fx, nn

from natpp.core.result import Result
from natpp.errors import NatppError, SettingError
from natpp.files import whole_folder
from natpp.saved.content import ARCHITECTURE, CONSTANTS, SOURCE, WEIGHTS, Content, content_of
from natpp.saved.describe import CONTAINERS, Layer
from natpp.saved.source import module_source
from natpp.saved.values import UnwritableError, encode
from natpp.saved.vocabulary import address_of, name_of
from natpp.subjects.module import Module

LOG = logging.getLogger("natpp")


def save_result(result: Result, folder: str | Path) -> Path:
    """Write the result for a module to a folder atomically; returns the folder."""
    if not isinstance(result.subject, Module):
        raise SettingError(f"cannot save a {type(result.after).__name__}: expected the module that natpp made")
    return save_module(result.after, result.subject.traced.example, result.to_dict(), folder)


def save_module(module: nn.Module, example: Any, told: Mapping[str, Any], folder: str | Path) -> Path:
    """Write a module that natpp made, with what its result records, to a folder atomically; returns the folder."""
    if not isinstance(module, fx.GraphModule):
        raise SettingError(f"cannot save a {type(module).__name__}: expected the module that natpp made")
    content = content_of(module, example)
    try:
        source, missing = module_source(content), None
    except UnwritableError as error:
        source, missing = None, str(error)
    data = {**told, "missing": missing, "module": content_data(content)}
    with whole_folder(folder, ARCHITECTURE, (WEIGHTS, CONSTANTS, ARCHITECTURE, SOURCE)) as fresh:
        _write_tensors(fresh / WEIGHTS, module.state_dict())
        if content.constants:
            _write_tensors(fresh / CONSTANTS, content.constants)
        (fresh / ARCHITECTURE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        if source is not None:
            (fresh / SOURCE).write_text(source, encoding="utf-8")
        for file in fresh.iterdir():
            file.chmod((fresh / ARCHITECTURE).stat().st_mode)  # safetensors makes files readable for their owner only
    if missing is not None:
        how = "Restore it with natpp.restore(folder, module=original)"
        LOG.warning("%s: %s was not written: %s. %s", folder, SOURCE, missing, how)
    elif content.given:
        parts = ", ".join(content.given[:3])
        LOG.warning("%s: %s are custom: restore with natpp.restore(folder, module=original)", folder, parts)
    return Path(folder)


def content_data(content: Content) -> dict[str, Any]:
    """The content of a module as JSON data."""
    module = content.module
    return {
        "name": type(module).__name__,
        "training": module.training,
        "modes": content.modes,
        "frozen": content.frozen,
        "channels_last": content.flipped,
        "same": dict(content.same),
        "given": content.given,
        "example": _form(content.example),
        "layers": {
            path: _layer_data(layer)
            if layer and layer.known
            else {"given": address_of(type(module.get_submodule(path)))}
            for path, layer in content.layers.items()
        },
        "tensors": {path: _tensor_data(content, path, tensor) for path, tensor in content.tensors.items()},
        "graph": [_node_data(node) for node in module.graph.nodes],
    }


def _layer_data(layer: Layer) -> dict[str, Any]:
    home = "torch.nn" if layer.of_torch else "natpp"
    data: dict[str, Any] = {"class": f"{home}.{layer.kind.__name__}"}
    if layer.kind in CONTAINERS:
        return data | {"parts": {name: _layer_data(part) for name, part in layer.parts.items()}}
    data["arguments"] = {
        name: {"layer": _layer_data(value)} if isinstance(value, Layer) else encode(value)
        for name, value in layer.arguments.items()
    }
    return data | ({"biased": True} if layer.biased else {})


def _tensor_data(content: Content, path: str, tensor: Tensor) -> dict[str, Any]:
    kind = "parameter" if isinstance(tensor, nn.Parameter) else "constant" if path in content.constants else "buffer"
    return {"kind": kind, "shape": list(tensor.shape)}


def _node_data(node: fx.Node) -> dict[str, Any]:
    target = node.target
    if node.op == "call_function":
        target = name_of(target) or address_of(target)
    return {
        "name": node.name,
        "op": node.op,
        "target": str(target),
        "args": [encode(value) for value in node.args],
        "kwargs": {name: encode(value) for name, value in node.kwargs.items()},
    }


def _form(example: Any) -> Any:
    """The structure of an example input as JSON data, without its values."""
    if isinstance(example, Tensor):
        return {"tensor": list(example.shape), "dtype": str(example.dtype).removeprefix("torch.")}
    if type(example) is dict:
        return {"dict": [[encode(key), _form(value)] for key, value in example.items()]}
    if type(example) is tuple:
        return {"tuple": [_form(value) for value in example]}
    return [_form(value) for value in example] if type(example) is list else encode(example)


def _write_tensors(file: Path, tensors: Mapping[str, Any]) -> None:
    written: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise UnwritableError(f"cannot save {name} of the state dict: it is a {kind}, expected a tensor")
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in taken or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        taken.add(storage.data_ptr())
        written[name] = plain
    try:
        save_file(written, file)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise NatppError(f"the weights cannot be written as safetensors: {error}") from error
