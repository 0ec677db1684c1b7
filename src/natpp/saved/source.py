"""Write a rewritten module as a Python file that needs torch and safetensors, but not natpp.

Layers are listed under their names in the state dict. The forward reads like handwritten code: once a value has been
read for the last time, its variable name is reused.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Any

from torch import Tensor, nn
from torch.fx.node import Node

from natpp.fx.tracer import INFIX
from natpp.saved.content import CONSTANTS, WEIGHTS, Content
from natpp.saved.describe import CONTAINERS, OWN, Layer, required
from natpp.saved.values import UnwritableError, text
from natpp.saved.vocabulary import address_of, is_importable, name_of

NAMES = ("x", "y", "z", "u", "v", "w")  # names of values; then x1, x2, …
SHORT = 60  # maximum characters of a list on one line
RESERVED = {
    *(
        "torch",
        "nn",
        "F",
        "math",
        "operator",
        "copy",
        "self",
        "Tensor",
        "Path",
        "Any",
        "OrderedDict",
        "HERE",
        "original",
    ),
    *("load", "load_file", "Part", "slice", "float", "getattr", "len", "range", *OWN),
}

PART = '''
class Part(nn.Module):
    """A container of layers and tensors: `part[0]` is the one named "0"."""

    def __getitem__(self, name: Any) -> Any:
        return getattr(self, str(name))

    def _put(self, path: str, part: Any, persistent: bool = True) -> None:
        """Register a layer, parameter or buffer at a path."""
        first, _, rest = path.partition(".")
        if rest:
            if not hasattr(self, first):
                self.add_module(first, Part())
            self[first]._put(rest, part, persistent)
        elif isinstance(part, nn.Module):
            self.add_module(first, part)
        elif isinstance(part, nn.Parameter):
            self.register_parameter(first, part)
        else:
            self.register_buffer(first, part, persistent=persistent)
'''
STANDARD = {
    "copy.": "import copy",
    "math.": "import math",
    "operator.": "import operator",
    "OrderedDict(": "from collections import OrderedDict",
    "Path": "from pathlib import Path",
    "Any": "from typing import Any",
}


def module_source(content: Content) -> str:
    """The source of the file; raises an error if a function cannot be imported from another program."""
    return _Source(content).written()


class _Source:
    def __init__(self, content: Content):
        self.content, self.module = content, content.module
        self.imports: dict[str, str] = {}  # address → name in the file
        self.own: set[type[nn.Module]] = set()
        self.names = _Names([])
        self.original = False  # whether parts are taken from the original model
        self.name = type(self.module).__name__
        if self.name in RESERVED:
            self.name += "_"

    def written(self) -> str:
        layers, forward = self._layers(), self._forward()
        given = "original: nn.Module" if self.original else ""
        lines = [
            *(f"class {self.name}(Part):", f"    def __init__(self{', ' if given else ''}{given}) -> None:"),
            *("        super().__init__()", *layers, "", *forward, "", ""),
            *self._load(given),
        ]
        own = [f"\n{inspect.getsource(kind)}" for kind in OWN.values() if kind in self.own]
        body = "\n".join(["\n".join((PART, *own)), "", *lines, ""])
        return "\n".join([*self._head(body), body])

    # The file.

    def _head(self, body: str) -> Iterator[str]:
        given = "original" if self.original else ""
        yield f'"""{self.name}, rewritten by natpp as plain torch. The weights are in {WEIGHTS}, next to this file.'
        yield ""
        yield f"    net = load({given})"
        if self.original:
            yield ""
            yield "`original` is the model that was optimized, or an equal one: custom layers are taken from it."
        yield '"""'
        yield ""
        yield "from __future__ import annotations"
        yield ""
        yield from (line for word, line in STANDARD.items() if word in body)
        yield from ("", "import torch", "from safetensors.torch import load_file")
        yield f"from torch import {'Tensor, ' if 'Tensor' in body else ''}nn"
        if "F." in body:
            yield "from torch.nn import functional as F"
        for address, name in self.imports.items():
            home, _, there = address.partition(":")
            yield f"from {home} import {there}" + (f" as {name}" if name != there else "")
        yield from ("", "HERE = Path(__file__).parent", "")

    def _load(self, given: str) -> Iterator[str]:
        content = self.content
        arguments = f"{given}, folder: str | Path = HERE" if given else "folder: str | Path = HERE"
        yield f"def load({arguments}) -> {self.name}:"
        yield '    """Build the module and load its weights."""'
        yield f"    net = {self.name}({'original' if given else ''})"
        yield f'    weights = load_file(Path(folder) / "{WEIGHTS}")'
        yield "    net.load_state_dict({name: tensor.clone() for name, tensor in weights.items()}, assign=True)"
        tied = [pair for pair in content.same.items() if not self._is_layer(pair[1])]
        for path, first in tied:
            yield f"    {self._place('net', path)} = {self._place('net', first)}"
        if content.flipped:
            yield "    net.to(memory_format=torch.channels_last)"
        for path in content.frozen:
            yield f"    {self._place('net', path)}.requires_grad_(False)"
        yield f"    net.train({self.module.training})"
        for path, training in content.modes.items():
            yield f"    {self._place('net', path)}.training = {training}"
        yield "    return net"

    # Layers.

    def _layers(self) -> list[str]:
        content = self.content
        lines = []
        if content.constants:
            lines.append(f'        constants = load_file(HERE / "{CONSTANTS}")')
        for path, layer in content.layers.items():
            lines.append(self._assigned(path, self._layer(path, layer)))
        for path, tensor in content.tensors.items():
            if path not in content.constants:
                lines.append(self._assigned(path, _zeros(tensor)))
        for path in content.constants:
            made = f'constants["{path}"].clone()'
            own = f'self._put("{path}", {made}, persistent=False)'
            of_a_layer = f"{self._place('self', path)} = {made}"
            lines.append(f"        {own if path in content.tensors else of_a_layer}")
        for path, first in content.same.items():
            if self._is_layer(first):
                lines.append(self._assigned(path, self._place("self", first)))
        return lines

    def _assigned(self, path: str, made: str) -> str:
        if path.isidentifier() and not keyword.iskeyword(path) and not made.startswith("torch.zeros"):
            return f"        self.{path} = {made}"
        return f'        self._put("{path}", {made})'

    def _layer(self, path: str, layer: Layer | None) -> str:
        if layer is not None and (layer.known or self._importable(layer)):
            return self._made(layer)
        self.original = True
        return f'copy.deepcopy(original.get_submodule("{path}"))'

    def _importable(self, layer: Layer) -> bool:
        inner = [*layer.parts.values(), *(value for value in layer.arguments.values() if isinstance(value, Layer))]
        own = layer.of_torch or layer.kind in OWN.values() or is_importable(layer.kind)
        return own and all(self._importable(part) for part in inner)

    def _made(self, layer: Layer) -> str:
        kind = layer.kind
        if kind in OWN.values():
            self.own.add(kind)
        name = f"nn.{kind.__name__}" if layer.of_torch else kind.__name__
        if not layer.of_torch and kind not in self.own:
            name = self._imported(kind)
        if kind in CONTAINERS:
            return f"{name}({self._parts(layer)})"
        must = required(kind)
        given: list[str] = []
        for argument, value in layer.arguments.items():
            shown = self._made(value) if isinstance(value, Layer) else self._text(value)
            given.append(shown if argument in must and len(given) == must.index(argument) else f"{argument}={shown}")
        if layer.biased:
            given.append("bias=True")
        return f"{name}({', '.join(given)})"

    def _parts(self, layer: Layer) -> str:
        parts = {name: self._made(part) for name, part in layer.parts.items()}
        numbered = [str(number) for number in range(len(parts))]
        if layer.kind is nn.Sequential and list(parts) == numbered:
            return ", ".join(parts.values())
        if layer.kind is nn.ModuleList:
            return f"[{', '.join(parts.values())}]"
        if layer.kind is nn.Sequential and all(name.isidentifier() and not keyword.iskeyword(name) for name in parts):
            named = [f"{name}={part}" for name, part in parts.items()]
            short = f"OrderedDict({', '.join(named)})"
            inner = "".join(f"            {part},\n" for part in named)
            return short if len(short) < SHORT else f"OrderedDict(\n{inner}        )"
        shown = ", ".join(f'"{name}": {part}' for name, part in parts.items())
        return f"{{{shown}}}" if layer.kind is nn.ModuleDict else f"OrderedDict({{{shown}}})"

    # The forward.

    def _forward(self) -> list[str]:
        nodes = list(self.module.graph.nodes)
        last = {read: index for index, node in enumerate(nodes) for read in node.all_input_nodes}
        given = [node for node in nodes if node.op == "placeholder"]
        defaults = [f"={self._text(node.args[0])}" if node.args else "" for node in given]
        arguments = [f"{node.target}{default}" for node, default in zip(given, defaults, strict=True)]
        lines = [f"    def forward({', '.join(['self', *arguments])}):"]
        names = self.names = _Names(given)
        owner = ""
        for index, node in enumerate(nodes):
            if node.op == "placeholder":
                continue
            if node.op == "output":
                lines.append(f"        return {self._text(node.args[0])}")
                continue
            if node.op == "call_module":
                above = str(node.target).rpartition(".")[0]
                if above != owner and above:
                    lines.append(f"        # {above}")
                owner = above
            shown = self._call(node)
            dying = [read for read in node.all_input_nodes if last[read] == index and names.of[read].isidentifier()]
            if _stays(node):
                names.of[node] = shown
                continue
            names.free += [names.of[read] for read in dying]
            lines.append(f"        {names.take(node, dying)} = {shown}" if node.users else f"        {shown}")
        return lines

    def _call(self, node: Node) -> str:
        if node.op == "get_attr":
            return self._place("self", str(node.target))
        args = [self._text(value) for value in node.args]
        kwargs = [f"{name}={self._text(value)}" for name, value in node.kwargs.items()]
        if node.op == "call_module":
            return f"{self._place('self', str(node.target))}({', '.join([*args, *kwargs])})"
        if node.op == "call_method":
            return f"{args[0]}.{node.target}({', '.join([*args[1:], *kwargs])})"
        return self._function(node, args, kwargs)

    def _function(self, node: Node, args: list[str], kwargs: list[str]) -> str:
        name = name_of(node.target) or self._imported(node.target)
        home, _, short = name.rpartition(".")
        if home == "operator" and not kwargs:
            if short in INFIX:
                return " ".join((f"({args[0]})" if args[0].startswith("-") else args[0], INFIX[short], args[1]))
            if short == "getitem":
                return f"{args[0]}[{self._index(node.args[1])}]"
            if short == "setitem":
                return f"{args[0]}[{self._index(node.args[1])}] = {args[2]}"
        if node.target is getattr:
            return f"{args[0]}.{node.args[1]}"
        shown = f"F.{short}" if home == "torch.nn.functional" else short if home == "builtins" else name
        return f"{shown}({', '.join([*args, *kwargs])})"

    def _index(self, key: Any) -> str:
        if isinstance(key, tuple) and key:
            parts = [self._text(one) if isinstance(one, tuple) else self._index(one) for one in key]
            return ", ".join(parts) + ("," if len(key) == 1 else "")
        if isinstance(key, slice):
            ends = (key.start, key.stop, key.step)
            start, stop, step = ("" if end is None else self._text(end) for end in ends)
            return f"{start}:{stop}" + (f":{step}" if step else "")
        return self._text(key)

    # Words.

    def _text(self, value: Any) -> str:
        return text(value, self.names.of.__getitem__, self._imported)

    def _imported(self, given: Any) -> str:
        """The name in the file of a function or class of the user."""
        if not is_importable(given):
            whose = f"{getattr(given, '__qualname__', given)} of {getattr(given, '__module__', None)}"
            why = "cannot be imported by another program: move it to a module that can be imported"
            raise UnwritableError(f"{whose} {why}")
        address = address_of(given)
        name = address.partition(":")[2]
        while name in RESERVED or name in [other for known, other in self.imports.items() if known != address]:
            name += "_"
        return self.imports.setdefault(address, name)

    def _is_layer(self, path: str) -> bool:
        return path in self.content.layers or any(one.startswith(f"{path}.") for one in self.content.layers)

    @staticmethod
    def _place(root: str, path: str) -> str:
        for name in path.split("."):
            root += f".{name}" if name.isidentifier() and not keyword.iskeyword(name) else _item(name)
        return root


class _Names:
    """Variable names of values; a name is free again once its value has been read for the last time."""

    def __init__(self, placeholders: Sequence[Node]):
        self.of = {node: str(node.target).lstrip("*") for node in placeholders}
        self.free: list[str] = []
        if taken := RESERVED.intersection(self.of.values()):
            name = next(name for name in self.of.values() if name in taken)
            raise UnwritableError(
                f"the forward has an argument named {name}, which the generated file uses itself: rename it"
            )
        given = set(self.of.values())
        numbered = (f"x{number}" for number in count(1))
        self.fresh = (name for name in chain(NAMES, numbered) if name not in given)

    def take(self, node: Node, dying: list[Node]) -> str:
        name = self.of[dying[0]] if dying else min(self.free, key=lambda name: (len(name), name), default="")
        if name:
            self.free.remove(name)
        self.of[node] = name or next(self.fresh)
        return self.of[node]


def _stays(node: Node) -> bool:
    """Whether a value is written inline where it is read: weights, and constants by mode."""
    return node.op == "get_attr" or (node.op == "call_module" and not node.all_input_nodes and len(node.users) == 1)


def _item(name: str) -> str:
    return f"[{int(name)}]" if name.isdigit() and str(int(name)) == name else f'["{name}"]'


def _zeros(tensor: Tensor) -> str:
    shape = ", ".join(str(side) for side in tensor.shape) or "()"
    dtype = "" if str(tensor.dtype) == "torch.float32" else f", dtype={tensor.dtype}"
    made = f"torch.zeros({shape}{dtype})"
    if not isinstance(tensor, nn.Parameter):
        return made
    return f"nn.Parameter({made})" if tensor.is_floating_point() else f"nn.Parameter({made}, requires_grad=False)"
