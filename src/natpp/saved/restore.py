"""Restore a saved module from its folder as data, without executing anything in it.

Custom layers and functions are taken from the original module, which the user passes in.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, fx, nn

from natpp.core.result import FORMAT, VERSION
from natpp.errors import FormatError, NatppError, SettingError, shortened
from natpp.fx.narrow import narrowed
from natpp.fx.trace import trace
from natpp.fx.traced import copied
from natpp.saved.content import ARCHITECTURE, CONSTANTS, PATH, WEIGHTS
from natpp.saved.describe import CONTAINERS, OWN, Layer
from natpp.saved.trained import MODULE, NETWORK, SAVED, restore_trained
from natpp.saved.values import decode
from natpp.saved.vocabulary import ATTRIBUTES, address_of, function_named, is_method, name_of

OLDER = {"natpp module": 1}  # formats of natpp 0.1, whose modules are still read
KINDS = ("placeholder", "get_attr", "call_module", "call_function", "call_method", "output")
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, SyntaxError)


def restore_module(folder: str | Path, original: nn.Module | None = None) -> nn.Module:
    """The module saved in a folder, or trained in a run, on the CPU.

    `original` is the module that was optimized, or an equal one; needed if the result has custom layers or functions.
    """
    if original is not None and not isinstance(original, nn.Module):
        raise SettingError(
            f"module is {shortened(str(original))}, expected the original torch.nn.Module; leave it out unless the "
            "module has custom parts"
        )
    path = home_of(folder)
    if not (path / ARCHITECTURE).exists() and any((path / name).is_file() for name in (NETWORK, MODULE)):
        return restore_trained(path, original)
    data = read_architecture(path)["module"]
    missing = data.get("given")
    if missing and original is None:
        raise SettingError(
            f"{str(folder)!r} has custom parts ({', '.join(map(str, missing[:3]))}): pass the original model to "
            "restore them, natpp.restore(folder, module=original)"
        )
    foreign = _Foreign(original, example_of(data["example"])) if missing and original is not None else _Foreign()
    weights = _tensors(path / WEIGHTS)
    constants = _tensors(path / CONSTANTS) if (path / CONSTANTS).exists() else {}
    try:
        module = _built(data, foreign, weights)
        _fill(module, data, weights, constants)
    except NatppError:
        raise
    except DAMAGE as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FormatError(
            f"{str(folder)!r} is damaged, from another version, or needs another original: {reason}"
        ) from error
    return module


def home_of(folder: str | Path) -> Path:
    """The folder of a saved module: the given one, or the one inside the run of a fine-tuned result."""
    inner = Path(folder) / SAVED
    return inner if (inner / ARCHITECTURE).is_file() else Path(folder)


def read_saved(folder: str | Path) -> dict[str, Any] | None:
    """What a saved result records; None for a training that did not start from a result."""
    home = home_of(folder)
    return read_architecture(home) if (home / ARCHITECTURE).is_file() else None


def read_architecture(folder: str | Path) -> dict[str, Any]:
    """The contents of a saved result's `architecture.json`."""
    file = Path(folder) / ARCHITECTURE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise FormatError(f"{str(folder)!r} is not the folder of a saved module: it has no {ARCHITECTURE}") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{str(file)!r} is not valid JSON: the folder is damaged") from None
    known = {FORMAT: VERSION, **OLDER}
    if not isinstance(data, dict) or data.get("format") not in known or not isinstance(data.get("module"), dict):
        raise FormatError(f"{str(file)!r} is not a saved module of natpp")
    if data.get("version") != known[data["format"]]:
        raise FormatError(f"{str(file)!r} has version {data.get('version')!r}, but this natpp reads version {VERSION}")
    return data


class _Foreign:
    """Custom layers and functions, taken from the original module."""

    def __init__(self, original: nn.Module | None = None, example: Any = None):
        self.parts: Mapping[str, Any] = {}
        self.functions: dict[str, Any] = {}
        self.words: set[str] = set()  # names of methods and attributes
        if original is None:
            return
        traced = trace(original, example)
        self.parts = traced.parts
        for node in traced.graph.nodes:
            if node.op == "call_function":
                self.functions[address_of(node.target)] = node.target
            if node.op == "call_method":
                self.words.add(str(node.target))
            elif node.target is getattr:
                self.words.add(str(node.args[1]))
            fx.node.map_aggregate((node.args, node.kwargs), self._class)

    def _class(self, value: Any) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            self.functions[address_of(type(value))] = type(value)
        return value

    def layer(self, path: str, address: str, weights: Mapping[str, Tensor]) -> nn.Module:
        """The original's layer, with as many channels as the saved one has."""
        found = self.parts.get(path)
        if not isinstance(found, nn.Module) or address_of(type(found)) != address:
            raise SettingError(f"the original has no submodule {path} of type {address.partition(':')[2] or address}")
        made: nn.Module = copied({path: found})[path]
        sides = [
            (name, dim, np.arange(size))
            for name, tensor in (*made.named_parameters(), *made.named_buffers())
            for dim, size in enumerate(weights.get(f"{path}.{name}", tensor).shape[: tensor.dim()])
            if size < tensor.shape[dim]
        ]
        return narrowed(made, sides) if sides else made

    def function(self, name: str) -> Any:
        found = function_named(name) or self.functions.get(name)
        if found is None:
            raise FormatError(f"{name!r} is not a function of natpp or of the original module")
        return found

    def made(self, address: str) -> Any:
        if address not in self.functions:
            raise FormatError(f"{address!r} is not a class of the original module")
        return self.functions[address]

    def check(self, node: Mapping[str, Any]) -> None:
        """Reject methods and attributes that are not on the allow-list."""
        if node["op"] == "call_method" and not is_method(node["target"]) and node["target"] not in self.words:
            raise FormatError(f"{node['target']!r} is not a method that a saved module may call")
        if node["target"] == name_of(getattr):
            word = node["args"][1]
            if not isinstance(word, str) or (word not in ATTRIBUTES and word not in self.words):
                raise FormatError(f"{word!r} is not an attribute that a saved module may read")


def _built(data: Mapping[str, Any], foreign: _Foreign, weights: Mapping[str, Tensor]) -> fx.GraphModule:
    """The module without its weights, whose shapes custom layers take."""
    root = nn.Module()
    with torch.device("meta"):
        for path, layer in data["layers"].items():
            custom = "given" in layer
            _put(root, path, foreign.layer(path, layer["given"], weights) if custom else _layer(layer).make())
        for path, one in data["tensors"].items():
            tensor = (
                nn.Parameter(torch.empty(one["shape"])) if one["kind"] == "parameter" else torch.empty(one["shape"])
            )
            _put(root, path, tensor, persistent=one["kind"] != "constant")
    modules = {path for path, _ in root.named_modules()}
    shared = {path: first for path, first in data["same"].items() if first in modules}
    for path, first in shared.items():
        _put(root, path, root.get_submodule(first))
    name = data["name"]
    if not _is_word(name):
        raise FormatError(f"{name!r} is not a valid module name")
    graph = _graph(data["graph"], foreign)
    module = fx.GraphModule(root, graph, class_name=name)
    graph.lint()
    for path, first in shared.items():  # a graph calls a shared submodule by any of its names
        module.add_submodule(first, root.get_submodule(first))
        module.add_submodule(path, root.get_submodule(first))
    for path, part in root.named_modules():
        if type(part) is nn.Module:
            same = module.get_submodule(path)  # shared parameters are listed under their first name
            same._modules.update({name: same._modules.pop(name) for name in part._modules if name in same._modules})
            same._non_persistent_buffers_set |= part._non_persistent_buffers_set  # keep constants as constants
    return module


def _layer(data: Mapping[str, Any]) -> Layer:
    home, _, name = data["class"].rpartition(".")
    kind = OWN.get(name) if home == "natpp" else getattr(nn, name, None) if home == "torch.nn" else None
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise FormatError(f"{data['class']!r} is not a layer that natpp knows")
    if kind in CONTAINERS:
        return Layer(kind, {}, {name: _layer(part) for name, part in data["parts"].items()})
    arguments = {
        name: _layer(value["layer"]) if isinstance(value, dict) and "layer" in value else _constant(value)
        for name, value in data["arguments"].items()
    }
    return Layer(kind, arguments, {}, bool(data.get("biased")))


def _graph(rows: list[dict[str, Any]], foreign: _Foreign) -> fx.Graph:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for row in rows:
        kind, target = row["op"], row["target"]
        if kind not in KINDS or not isinstance(target, str) or not isinstance(row["name"], str):
            raise FormatError(f"{kind!r} is not a kind of graph node that natpp knows")
        if kind in ("get_attr", "call_module") and not PATH.fullmatch(target):
            raise FormatError(f"{target!r} is not the path of a submodule or tensor")
        if kind in ("placeholder", "output") and not _is_word(target.removeprefix("*").removeprefix("*")):
            raise FormatError(f"{target!r} is not a valid argument name")
        foreign.check(row)
        args = tuple(decode(value, nodes.__getitem__, foreign.made) for value in row["args"])
        kwargs = {name: decode(value, nodes.__getitem__, foreign.made) for name, value in row["kwargs"].items()}
        if not all(_is_word(name) for name in kwargs):
            raise FormatError(f"{list(kwargs)} are not valid argument names")
        if kind == "output":
            graph.output(args[0])
            continue
        called = foreign.function(target) if kind == "call_function" else target
        nodes[row["name"]] = graph.create_node(kind, called, args, kwargs, name=row["name"])
    return graph


def _fill(
    module: fx.GraphModule, data: Mapping[str, Any], weights: dict[str, Tensor], constants: dict[str, Tensor]
) -> None:
    """Set the module's tensors, and what the state dict does not contain."""
    module.load_state_dict(weights, strict=True, assign=True)
    for path, tensor in constants.items():
        holder, name = _holder(module, path)
        if name not in holder._buffers:
            raise FormatError(f"the module has no buffer {path}")
        holder._buffers[name] = tensor
    modules = {path for path, _ in module.named_modules(remove_duplicate=False)}
    for path, first in data["same"].items():
        if first not in modules:
            holder, name = _holder(module, path)
            source, source_name = _holder(module, first)
            setattr(holder, name, getattr(source, source_name))
    frozen, flipped = set(data["frozen"]), set(data["channels_last"])
    for name, parameter in module.named_parameters():
        if name in flipped:
            layout = torch.channels_last if parameter.dim() == 4 else torch.channels_last_3d
            parameter.data = parameter.data.contiguous(memory_format=layout)
        parameter.requires_grad_(name not in frozen)
    left = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]
    if left:
        raise FormatError(f"the folder has no values for {left[0]}")
    module.train(bool(data["training"]))
    for path, training in data["modes"].items():
        module.get_submodule(path).training = bool(training)


def _put(root: nn.Module, path: str, part: Any, *, persistent: bool = True) -> None:
    """Register a layer or tensor at a path, adding plain modules on the way."""
    if not PATH.fullmatch(path):
        raise FormatError(f"{path!r} is not the path of a submodule or tensor")
    *above, last = path.split(".")
    for name in above:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    if isinstance(part, nn.Module):
        root.add_module(last, part)
    elif isinstance(part, nn.Parameter):
        root.register_parameter(last, part)
    else:
        root.register_buffer(last, part, persistent=persistent)


def _holder(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    above, _, name = path.rpartition(".")
    return module.get_submodule(above), name


def _is_word(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _constant(data: Any) -> Any:
    def none(name: str) -> Any:
        raise FormatError(f"{name!r} cannot be an argument of a layer")

    return decode(data, none, none)


def example_of(data: Any) -> Any:
    """A zero example input of the saved structure."""
    match data:
        case {"tensor": [*shape], "dtype": str(dtype)}:
            return torch.zeros(shape, dtype=getattr(torch, dtype))
        case {"dict": [*pairs]}:
            return {_constant(key): example_of(value) for key, value in pairs}
        case {"tuple": [*parts]}:
            return tuple(example_of(part) for part in parts)
        case [*parts]:
            return [example_of(part) for part in parts]
    return _constant(data)


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise FormatError(f"cannot read {str(file)!r}: {error}") from None
    return {name: tensor.clone() for name, tensor in found.items()}  # aligned, or sums would be rounded differently
