"""Describe a layer by its class and constructor arguments, read from its attributes and checked by building it.

A layer that differs from the one built from them on the meta device is not described: restoring it needs the original.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from natpp.arch import modules as own
from natpp.decisions.term import FadeIn
from natpp.fx.modes import ByMode

UNREAD = ("self", "device", "dtype", "args", "kwargs")
RECURRENT: dict[str, Any] = {"input_size": inspect.Parameter.empty, "hidden_size": inspect.Parameter.empty}
RECURRENT |= {"num_layers": 1, "nonlinearity": "tanh", "bias": True, "batch_first": False, "dropout": 0.0}
RECURRENT |= {"bidirectional": False, "proj_size": 0}  # the arguments of recurrent layers with their defaults
STATE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training", "_is_full_backward_hook")
PASSING = ("_flat_weights", "_flat_weight_refs", "_natpp_leaf", "init_weights")  # derived attributes, or markers
HARMLESS = {"__init__", "__module__", "__doc__", "__qualname__", "__annotations__", "__annotate_func__", "__dict__"}
HARMLESS |= {"__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "__weakref__"}
ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu"}
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

Readers = dict[str, Callable[[Any], Any]]

TRANSFORMER: Readers = {
    "d_model": lambda layer: layer.self_attn.embed_dim,
    "nhead": lambda layer: layer.self_attn.num_heads,
    "dim_feedforward": lambda layer: layer.linear1.out_features,
    "dropout": lambda layer: layer.dropout.p,
    "activation": lambda layer: ACTIVATIONS.get(layer.activation, "relu"),
    "layer_norm_eps": lambda layer: layer.norm1.eps,
    "batch_first": lambda layer: layer.self_attn.batch_first,
    "bias": lambda layer: layer.linear1.bias is not None,
}
READERS: dict[type[nn.Module], Readers] = {
    nn.MultiheadAttention: {
        "bias": lambda layer: layer.in_proj_bias is not None,
        "add_bias_kv": lambda layer: layer.bias_k is not None,
    },
    nn.TransformerEncoderLayer: TRANSFORMER,
    nn.TransformerDecoderLayer: TRANSFORMER,
    nn.TransformerEncoder: {"encoder_layer": lambda layer: layer.layers[0]},
    nn.TransformerDecoder: {"decoder_layer": lambda layer: layer.layers[0]},
    own.FactorizedConv2d: {
        "channels_in": lambda layer: layer.conv_2.in_channels,
        "channels_out": lambda layer: layer.conv_2.out_channels + (layer.conv_1.out_channels if layer.conv_1 else 0),
    },
    ByMode: {"training": lambda layer: layer.in_training},
}
PLAIN_OF: dict[type[nn.Module], type[nn.Module]] = {
    own.AvgPool2d: nn.AvgPool2d,
    own.BatchNorm2d: nn.BatchNorm2d,
    own.Layers: nn.Sequential,
    own.MaxPool2d: nn.MaxPool2d,
}
OWN: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (FadeIn, ByMode, own.FactorizedConv2d)}
"""natpp's own layers that a rewritten module may contain; their source goes into its Python file"""


@dataclass(frozen=True)
class Layer:
    """How to build a layer: its class, arguments by name (which may be layers), and the parts of a container by name.

    `biased`: a factorized convolution with biases; saved files name that apart from its arguments.
    """

    kind: type[nn.Module]
    arguments: Mapping[str, Any]
    parts: Mapping[str, Layer]
    biased: bool = False

    @property
    def of_torch(self) -> bool:
        return getattr(nn, self.kind.__name__, None) is self.kind

    @property
    def known(self) -> bool:
        """Whether `restore` can build it by itself."""
        own_kind = self.of_torch or OWN.get(self.kind.__name__) is self.kind
        inner = [*self.parts.values(), *(value for value in self.arguments.values() if isinstance(value, Layer))]
        return own_kind and all(part.known for part in inner)

    def make(self) -> nn.Module:
        """A new layer with its own tensors."""
        if self.kind in CONTAINERS:
            container = self.kind()
            for name, part in self.parts.items():
                container.add_module(name, part.make())
            return container
        given = {name: value.make() if isinstance(value, Layer) else value for name, value in self.arguments.items()}
        return self.kind(**given, **({"bias": True} if self.biased else {}))


def describe(layer: nn.Module) -> Layer | None:
    """How to build the layer; None if it cannot be determined."""
    kind = _plain_kind(layer)
    if kind in CONTAINERS:
        parts = {name: describe(part) for name, part in layer.named_children()}
        whole = {name: part for name, part in parts.items() if part is not None}
        described = Layer(kind, {}, whole) if len(whole) == len(parts) else None
    else:
        arguments = _arguments(layer, kind)
        biased = kind is own.FactorizedConv2d and getattr(layer.conv_2, "bias", None) is not None
        described = None if arguments is None else Layer(kind, arguments, {}, biased)
    return described if described is not None and _makes(described, layer) else None


def required(kind: type[nn.Module]) -> tuple[str, ...]:
    """The names of the required arguments of a class."""
    if issubclass(kind, nn.RNNBase):
        return ("input_size", "hidden_size")
    parameters = inspect.signature(kind.__init__).parameters.values()
    return tuple(one.name for one in parameters if one.default is one.empty and one.name not in UNREAD)


def _plain_kind(layer: nn.Module) -> type[nn.Module]:
    """The class a layer behaves like: its base class in torch.nn if its own class only adds an `__init__`."""
    kind = type(layer)
    if kind in PLAIN_OF:
        return PLAIN_OF[kind]
    base = next((one for one in kind.__mro__ if getattr(nn, one.__name__, None) is one), nn.Module)
    added = [vars(one) for one in kind.__mro__[: kind.__mro__.index(base)]]
    inherits = base is not nn.Module and not any(set(names) & set(dir(base)) - HARMLESS for names in added)
    return base if inherits else kind


def _arguments(layer: nn.Module, kind: type[nn.Module]) -> dict[str, Any] | None:
    readers = READERS.get(kind, {})
    found: dict[str, Any] = {}
    trusted = getattr(nn, kind.__name__, None) is kind or OWN.get(kind.__name__) is kind
    parameters = inspect.signature(kind.__init__).parameters.values()
    if not trusted and any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return None
    for name, default in _asked(kind):
        if name == "bias" and not getattr(layer, "affine", getattr(layer, "elementwise_affine", True)):
            continue  # it has no scale and shift
        if name in readers:
            value = readers[name](layer)
        elif hasattr(layer, name):
            value = getattr(layer, name)
        elif default is inspect.Parameter.empty or not trusted:
            return None  # the default of a user's class could do anything, such as load weights
        else:
            continue
        if name == "bias" and (value is None or isinstance(value, Tensor)):
            value = value is not None
        if issubclass(kind, _ConvNd) and isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]  # given as a single number for all sides
        if isinstance(value, nn.Module):
            value = describe(value)
        if isinstance(value, Tensor) or (value is None and default is inspect.Parameter.empty):
            return None
        if default is inspect.Parameter.empty or type(value) is not type(default) or value != default:
            found[name] = value
    return found


def _asked(kind: type[nn.Module]) -> list[tuple[str, Any]]:
    """The arguments of a class with their defaults."""
    if issubclass(kind, nn.RNNBase):
        names = [name for name in RECURRENT if name != "nonlinearity" or kind is nn.RNN]
        return [(name, RECURRENT[name]) for name in names]
    parameters = inspect.signature(kind.__init__).parameters.values()
    return [(one.name, one.default) for one in parameters if one.name not in UNREAD and not one.name.startswith("_")]


def _makes(described: Layer, layer: nn.Module) -> bool:
    """Whether the description builds a layer like this one."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = described.make()
    except Exception:  # a user's class may raise anything on guessed arguments
        return False
    return _alike(made, layer)


def _alike(made: nn.Module, layer: nn.Module) -> bool:
    if type(made) not in (type(layer), _plain_kind(layer)) or _shapes(made) != _shapes(layer):
        return False
    known, held = _attributes(made), _attributes(layer)
    if type(made) is type(layer) and known.keys() != held.keys():
        return False
    if any(name not in held or not _equal(value, held[name]) for name, value in known.items()):
        return False
    if made._modules.keys() != layer._modules.keys():
        return False
    pairs = [(part, layer._modules[name]) for name, part in made._modules.items()]
    return all(_alike(one, two) if one is not None and two is not None else one is two for one, two in pairs)


def _shapes(layer: nn.Module) -> object:
    tensors = (*layer._parameters.items(), *layer._buffers.items())
    shapes = {name: None if tensor is None else tuple(tensor.shape) for name, tensor in tensors}
    return shapes, layer._parameters.keys(), layer._non_persistent_buffers_set


def _attributes(layer: nn.Module) -> dict[str, Any]:
    """Attributes of a layer other than tensors and submodules, including hooks."""
    return {name: value for name, value in vars(layer).items() if name not in STATE and name not in PASSING}


def _equal(first: Any, second: Any) -> bool:
    tensors = isinstance(first, Tensor) or isinstance(second, Tensor)
    return not tensors and (first is second or (type(first) is type(second) and bool(first == second)))
