"""A module as a graph with real shapes, in one symbolic pass: nothing is computed but shapes.

`torch.fx` follows the module's forward with stand-ins for its inputs; each stand-in carries a fake tensor of
the example's shape, so that code which asks for shapes (`if x.shape[1] == 3`, `for part in x.chunk(2)`) gets
its answer. A submodule that cannot be followed stays whole: it becomes a leaf, and the notes say so. The pass
is made in eval mode and, in lockstep, in training mode; a value that differs between the two (the `training`
of a functional dropout) becomes a `ByMode`, so that `train()` and `eval()` mean what they meant. A module given in
eval mode that goes another way in training mode (auxiliary heads) is what it is in eval mode, and the notes say so.
Where the module's own forward cannot be followed, `torch.export` is the second way (`export.py`).
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import inspect
import logging
import operator
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.node import Node
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from natpp.errors import NatppError, SettingError, is_the_users, line_in, line_of
from natpp.fx.leaf import is_leaf
from natpp.fx.vocabulary import INFIX

VALUE = "natpp_value"  # the key of a node's fake value in its meta
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
NOISY = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")  # they log what is raised anyway
FACTORIES = ("zeros", "ones", "empty", "full", "arange", "linspace", "eye", "rand", "randn", "randint", "randperm")
LIMITS = ("finfo", "iinfo")  # of the type of a value
DRAWS = "it draws random numbers, which would become constants"
CONSTANTS = (bool, int, float, str, type(None))
SIZES = ("shape", "size", "numel", "nelement", "ndim", "dim", "ndimension")  # what a tensor is asked for its sizes by


class TraceError(NatppError):
    """A module whose forward cannot be followed."""


class _Unregistered(TraceError):
    """A layer with weights that its module does not know of."""


class _OwnGradient(TraceError):
    """A function with a gradient of its own, which a graph would lose."""


@dataclass(frozen=True)
class Traced:
    """A module's forward as a graph; the module itself is not changed and not copied."""

    module: nn.Module
    graph: fx.Graph
    """every node's meta has its fake value"""
    parts: Mapping[str, Any]
    """the modules, parameters and buffers that the graph names"""
    example: Any
    notes: tuple[str, ...] = ()
    """what could not be looked into, and why"""


def copied(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of modules, parameters and buffers that share with each other what they shared before."""
    kept = [held for part in parts.values() if isinstance(part, nn.Module) for held in _kept_tensors(part)]
    known: dict[int, Any] = {id(held): held.detach().clone() for held in kept}  # torch does not copy them
    with torch.no_grad():  # else parameters of modules compiled by torch.jit are none any more
        copies: dict[str, Any] = copy.deepcopy(dict(parts), known)
    for path, part in parts.items():
        if isinstance(part, nn.Module):
            for old, new in zip(part.parameters(), copies[path].parameters(), strict=True):
                new.requires_grad_(old.requires_grad)
    return copies


def _kept_tensors(module: nn.Module) -> Iterator[Tensor]:
    """What modules keep of a pass with gradients, such as the weight of a weight norm."""
    for part in module.modules():
        yield from (held for held in vars(part).values() if isinstance(held, Tensor) and not held.is_leaf)


def value(node: Node) -> Any:
    """The fake value of a node: a tensor without data, or a plain value."""
    return node.meta.get(VALUE)


def batch_of(example: Any) -> int:
    """The size of the batch that an example input is."""
    tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    return int(tensors[0].shape[0]) if tensors else 1


class ByMode(nn.Module):
    """A constant that is one thing in training mode and another in eval mode."""

    def __init__(self, training: Any, otherwise: Any):
        super().__init__()
        self.in_training = training
        self.otherwise = otherwise

    def forward(self) -> Any:
        return self.in_training if self.training else self.otherwise


def trace(module: nn.Module, example_input: Any) -> Traced:
    """The graph of a module on inputs like the example: a tensor, a tuple of arguments or a dict of named ones."""
    _check_module(module)
    arguments = _bound(module, example_input)
    with _quiet():
        return _traced(module, example_input, arguments)


def _traced(module: nn.Module, example_input: Any, arguments: inspect.BoundArguments) -> Traced:
    leaves = _Leaves()
    by_name, left_out = isinstance(example_input, dict), ""  # left out: what only training does
    kept_for_training: _Stopped | None = None
    watched = False  # whether every step looks for random numbers drawn, which takes time
    while True:
        chance = _chance()
        differences: list[tuple[Node, Any, Any, Any]] = []
        try:
            with _mode(module, training=False):
                tracer = _Tracer(arguments, leaves, by_name=by_name, watched=watched)
                graph, extra = _followed(module, tracer)
            if not left_out:
                with _mode(module, training=True):
                    twin = _Tracer(arguments, leaves, list(graph.nodes), by_name=by_name, watched=watched)
                    differences = _compared(module, twin)
            if watched or chance == _chance():
                break
            watched = True  # once more, to see who drew
        except _Stopped as stopped:
            if not watched and chance != _chance():
                watched = True
                continue
            only_there = stopped.other_way and module.get_submodule(stopped.path) not in {module, *tracer.visited}
            if not only_there and leaves.add(stopped, module):
                kept_for_training = kept_for_training or (stopped if stopped.other_way else None)
                continue
            if stopped.other_way and not module.training:
                left_out = stopped.where
                break
            if kept_for_training is not None and not module.training and not left_out:
                leaves, left_out = _Leaves(), kept_for_training.where  # whole it does not go either
                continue
            _check_runs(module, example_input)
            if isinstance(stopped.__cause__, _OwnGradient):
                raise _refused(module, stopped) from stopped
            if isinstance(stopped.__cause__, _Unregistered):
                raise TraceError(
                    f"{type(module).__name__} calls a {stopped.__cause__} that is not registered: torch neither trains "
                    "nor saves it. Keep it as an attribute, or in an nn.ModuleList or nn.ModuleDict"
                ) from stopped
            return _second_way(module, example_input, stopped)
    if left_out:
        leaves.notes.append(f"in training mode {left_out} makes it go another way: the result does not")
    extra |= _by_mode(graph, differences)
    parts = {
        node.target: extra[node.target] if node.target in extra else _get(module, node.target)
        for node in graph.nodes
        if node.op in ("call_module", "get_attr")
    }
    unread = [] if left_out else _unread(module, parts)
    return Traced(module, graph, parts, example_input, (*leaves.notes, *unread))


def _unread(module: nn.Module, parts: Mapping[str, Any]) -> list[str]:
    """A note that names the parameters which the forward does not read, if there are any."""
    read = {id(part) for part in parts.values() if isinstance(part, Tensor)}
    read |= {id(held) for part in parts.values() if isinstance(part, nn.Module) for held in part.parameters()}
    found = [name for name, parameter in module.named_parameters() if id(parameter) not in read]
    if not found:
        return []
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return [f"{', '.join(found[:3])}{more}: not read by the forward in eval mode, and left out of the result"]


class _Stopped(Exception):
    """Tracing stopped inside a module."""

    def __init__(self, path: str, kind: type[nn.Module] | None, reason: str, line: str = ""):
        super().__init__(reason)
        self.path, self.kind, self.reason, self.line = path, kind, reason, line
        self.other_way = False  # in training mode only

    @property
    def where(self) -> str:
        return f"its part {self.path}" if self.path else "its own forward"


class _Leaves:
    """Modules that stay whole because their forward cannot be followed."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.kinds: set[type[nn.Module]] = set()
        self.notes: list[str] = []

    def add(self, stopped: _Stopped, root: nn.Module) -> bool:
        """Make the place where tracing stopped a leaf; False where that is the module itself, or one already."""
        if not stopped.path or stopped.kind is None or self.has(stopped.path, stopped.kind):
            return False
        if issubclass(stopped.kind, CONTAINERS) or stopped.kind is type(root):
            self.paths.add(stopped.path)
        else:
            self.kinds.add(stopped.kind)
        self.notes.append(f"{stopped.path} ({stopped.kind.__name__}) is kept whole: {stopped.reason}")
        return True

    def has(self, path: str, kind: type) -> bool:
        return path in self.paths or kind in self.kinds

    def note(self, said: str) -> None:
        if said not in self.notes:
            self.notes.append(said)

    def note_hooks(self, path: str) -> None:
        self.note(f"{path} has hooks: what they compute is part of the result, what else they do is not")


class _Tracer(fx.Tracer):
    """Follows a forward, with the value of every node beside it."""

    proxy_buffer_attributes = True  # what is computed of buffers alone is computed at every call, and is no constant

    def __init__(
        self,
        arguments: inspect.BoundArguments,
        leaves: _Leaves,
        reference: list[Node] | None = None,
        *,
        by_name: bool = False,
        watched: bool = False,
    ):
        super().__init__()
        self.arguments = arguments
        self.by_name = by_name  # whether the example names its arguments
        self.leaves = leaves
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.quiet = False  # while shapes are computed, and afterwards, nothing is recorded
        self.reference = reference  # the same forward in eval mode
        self.differences: list[tuple[Node, Callable[[Node, Any], None], Any, Any]] = []
        self.made = 0
        self.visited: set[nn.Module] = set()
        self.fixed: set[Node] = set()
        self.grad, self.autocasts = torch.is_grad_enabled(), _autocasts()
        self.watched = watched
        self.chance = _chance()

    # What is looked into.

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        kind = type(m)
        if is_leaf(m) or self.leaves.has(module_qualified_name, kind):
            return True
        if isinstance(m, torch.jit.ScriptModule):
            self.leaves.note(f"{module_qualified_name} is kept whole: it is compiled by torch.jit")
            return True
        if isinstance(m, CONTAINERS):
            return False
        home = getattr(kind.forward, "__module__", "") or ""
        return home.startswith(("torch.nn.", "torch.ao.nn."))

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self.quiet:
            return forward(*args, **kwargs)
        self._check_context()
        self._check_chance()
        self.visited.add(m)
        try:
            path = self.path_of_module(m)
        except NameError:
            if any(True for _ in m.parameters()):
                raise _Unregistered(type(m).__name__) from None
            raise
        if _has_hooks(m) and not self.is_leaf_module(m, path):
            self.leaves.note_hooks(path)

        def to_its_end(*args: Any, **kwargs: Any) -> Any:
            found = forward(*args, **kwargs)
            self._check_chance()
            return found

        return super().call_module(m, to_its_end, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        return attr_val if self.quiet else super().getattr(attr, attr_val, parameter_proxy_cache)

    # The module's arguments.

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        own = vars(self.root).get("forward")  # a forward that was put on this very module
        plain = getattr(root_fn, "_torchdynamo_orig_callable", root_fn)
        function = plain if own is None else lambda _, *args, **kwargs: own(*args, **kwargs)
        given = self.arguments.arguments
        positional: list[Any] = [self.root]
        named: dict[str, Any] = {}
        parameters = self.arguments.signature.parameters
        any_number = any(given.get(name) for name, one in parameters.items() if one.kind is one.VAR_POSITIONAL)
        by_name = self.by_name
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                proxy: Any = self._placeholder(f"*{name}", given.get(name, ()))
                positional += [proxy[i] for i in range(len(given.get(name, ())))]
            elif parameter.kind is parameter.VAR_KEYWORD:
                proxy = self._placeholder(f"**{name}", given.get(name, {}))
                named |= {key: proxy[key] for key in given.get(name, {})}
            else:
                default = () if parameter.default is parameter.empty else (parameter.default,)
                proxy = self._placeholder(name, given[name], default)
                constant = isinstance(given[name], CONSTANTS)
                passed = self._fixed(proxy, name, given[name]) if constant else proxy
                if constant and given[name] is parameter.default and not any_number:
                    by_name = True  # left out, as the caller does: what wraps a forward may look at what it is given
                elif parameter.kind is parameter.KEYWORD_ONLY or (
                    by_name and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                ):
                    named[name] = passed
                else:
                    positional.append(passed)

        def call(*args: Any) -> Any:
            if _has_hooks(self.root):
                self.leaves.note_hooks(type(self.root).__name__)
                return self.root._call_impl(*args[1:], **named)  # type: ignore[no-untyped-call]
            return function(*args, **named)

        return call, positional

    def _placeholder(self, target: str, given: Any, default: tuple[Any, ...] = ()) -> fx.Proxy:
        self._given = given
        proxy: fx.Proxy = self.create_proxy("placeholder", target, default, {})
        return proxy

    def _fixed(self, proxy: fx.Proxy, name: str, given: Any) -> Any:
        """A plain argument is what the example gives: the result takes no other."""
        same = operator.is_ if given is None or isinstance(given, bool) else operator.eq
        held = self.create_proxy("call_function", same, (proxy, given), {})
        message = f"{name} was {given!r} when this module was traced: give the same, or trace it with another"
        self.create_proxy("call_function", torch._assert, (held, message), {})
        return given

    # What is recorded.

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None
    ) -> Node:
        if kind not in ("call_module", "output"):
            self._check_context()
        self._check_chance()
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        if self.reference is None:
            node.meta[VALUE] = None if kind == "output" else self._evaluated(node)
        else:
            self._compare(node)
        self.made += 1
        return node

    def create_proxy(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A stand-in; where the value is None, None itself, so that a forward which asks `is None` is answered."""
        proxy = super().create_proxy(kind, target, *args, **kwargs)
        nothing = kind.startswith("call_") and proxy.node.meta.get(VALUE) is None
        return None if nothing else proxy

    def _check_chance(self) -> None:
        """Stop where random numbers of Python or NumPy were drawn: torch does not see them."""
        if self.watched and self.chance != _chance():
            raise TraceError(DRAWS)

    def _check_context(self) -> None:
        """A graph does not keep what a forward switches for some of its lines: precision, gradients."""
        if _autocasts() != self.autocasts:
            raise TraceError("it switches torch.autocast, which a graph does not keep")
        if torch.is_grad_enabled() != self.grad:
            self.leaves.note("its forward switches gradients off or on for some parts: the result leaves that to you")

    def _evaluated(self, node: Node) -> Any:
        """The fake value of a node."""
        self.quiet = True
        try:
            if node.op == "placeholder":
                return tree_map(self._to_fake, self._given)
            if node.op == "get_attr":
                return self._to_fake(_get(self.root, str(node.target)))
            read: Any = fx.node.map_arg((node.args, node.kwargs), lambda read: read.meta[VALUE])
            args, kwargs = read
            with self.fake, torch.no_grad():
                if node.op == "call_function":
                    return node.target(*args, **kwargs)  # type: ignore[operator]
                if node.op == "call_method":
                    return getattr(args[0], str(node.target))(*args[1:], **kwargs)
                module = _get(self.root, str(node.target))
                if type(module) is nn.BatchNorm2d and len(args) == 1 and _fits_norm(module, args[0]):
                    return torch.empty_like(args[0])  # the same, and ten times as fast
                return module(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if node.op != "call_module":
                raise TraceError("its way depends on the data in a tensor") from None
            return self._run_once(_get(self.root, str(node.target)), args, kwargs)
        finally:
            self.quiet = False
            if self.watched:
                self.chance = _chance()  # a part that is kept whole may draw

    def _run_once(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The value of a module that looks at data, by running it on random data of the right shapes."""
        generator = torch.Generator().manual_seed(0)

        def filled(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if not leaf.is_floating_point():
                return torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device)
            return torch.randn(leaf.shape, generator=generator).to(leaf.device, leaf.dtype)

        with torch.no_grad():
            found = copy.deepcopy(module)(*tree_map(filled, args), **tree_map(filled, kwargs))
        return tree_map(self._to_fake, found)

    def _to_fake(self, leaf: Any) -> Any:
        return self.fake.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf

    def _compare(self, node: Node) -> None:
        """Stop where training mode goes another way than eval mode; remember constants that differ."""
        assert self.reference is not None
        twin = self.reference[self.made] if self.made < len(self.reference) else None
        if twin is None or twin.op != node.op or not _same_target(twin.target, node.target):
            raise _OtherWay
        node.meta[VALUE] = twin.meta.get(VALUE)
        node.meta["twin"] = twin
        for slot, mine, theirs in zip(
            ("args", "kwargs"), (node.args, node.kwargs), (twin.args, twin.kwargs), strict=True
        ):
            _differing(mine, theirs, (slot,), lambda path, a, b: self.differences.append((twin, path, a, b)))

    # What the forward asks.

    def fix(self, obj: Any, known: float) -> None:
        """Let the result refuse inputs for which a number that shaped it would be another."""
        if obj.node not in self.fixed:
            self.fixed.add(obj.node)
            held = self.create_proxy("call_function", operator.eq, (obj, known), {})
            message = f"this module was traced with a size of {known} here: trace it again for inputs of other sizes"
            self.create_proxy("call_function", torch._assert, (held, message), {})

    def to_bool(self, obj: fx.Proxy) -> bool:
        known = obj.node.meta.get(VALUE)
        if isinstance(known, Tensor):
            raise TraceError("its way depends on the data in a tensor")
        if isinstance(known, int | float) and _of_sizes(obj.node):
            self._decided(obj, known)
        return bool(known)

    def _decided(self, obj: fx.Proxy, known: float) -> None:
        """Let the result refuse inputs for which a condition on their sizes would turn out otherwise."""
        if obj.node in self.fixed:
            return
        self.fixed.add(obj.node)
        held: Any = obj
        if not isinstance(known, bool):
            held = self.create_proxy("call_function", operator.ne if known else operator.eq, (obj, 0), {})
        elif not known:
            held = self.create_proxy("call_function", operator.not_, (obj,), {})
        line = _line_now()
        message = (
            f"this module was traced where {_worked_out(obj.node)} was {known!r}{f' ({line})' if line else ''}: "
            "trace it again for inputs of other sizes"
        )
        self.create_proxy("call_function", torch._assert, (held, message), {})

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        known: Any = obj.node.meta.get(VALUE)
        if isinstance(known, Mapping):
            return iter(known)
        indexed: Any = obj
        return (indexed[i] for i in range(len(known)))

    def keys(self, obj: fx.Proxy) -> Any:
        known = obj.node.meta.get(VALUE)
        return known.keys() if isinstance(known, Mapping) else super().keys(obj)

    def proxy(self, node: Node) -> fx.Proxy:
        return _Proxy(node, self)


class _Known:
    """What a stand-in can be asked beyond what `torch.fx` allows, since its value is known."""

    node: Node
    tracer: Any

    def __len__(self) -> int:
        return len(self.node.meta[VALUE])

    def __getattr__(self, name: str) -> Any:
        known = self.node.meta.get(VALUE)
        if not isinstance(known, Tensor) and getattr(known, name, self) is None:
            return None
        return _Attribute(self, name)  # type: ignore[arg-type]

    def __setitem__(self, key: Any, given: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, given), {})

    def __index__(self) -> int:
        """A size as a plain number, for `range` and its like: from then on only inputs of that size will do."""
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int):
            raise TraceError(f"it asks for a whole number where a {type(known).__name__} is")
        self.tracer.fix(self, known)
        return known

    def __hash__(self) -> int:
        """That of a known number or type, to look it up by; from then on only inputs of that size will do."""
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int | float | torch.dtype):
            return object.__hash__(self)
        if isinstance(known, bool) and not self.tracer.quiet:
            self.tracer.to_bool(self)
        elif isinstance(known, int | float) and not self.tracer.quiet:
            self.tracer.fix(self, known)
        return hash(known)

    def __eq__(self, other: Any) -> Any:
        """A stand-in for the answer. What a cache kept of another pass equals nothing: its value is not known here."""
        if self.tracer.quiet or (isinstance(other, _Known) and other.tracer is not self.tracer):
            return self is other
        return super().__eq__(other)

    def __float__(self) -> float:
        known = self.node.meta.get(VALUE)
        if not isinstance(known, int | float):
            raise TraceError(f"it asks for a number where a {type(known).__name__} is")
        self.tracer.fix(self, known)
        return float(known)

    def __int__(self) -> int:
        return int(float(self)) if isinstance(self.node.meta.get(VALUE), float) else self.__index__()

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)


class _Proxy(_Known, fx.Proxy):
    """A stand-in for a value."""


class _Attribute(_Known, fx.proxy.Attribute):
    """A stand-in for an attribute of a value."""


class _OtherWay(Exception):
    """Training mode goes another way than eval mode."""


class _Chance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops a forward that draws random numbers itself: they would become constants."""

    def __init__(self, tracer: _Tracer):
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.tracer.quiet and torch.Tag.nondeterministic_seeded in func.tags:
            raise TraceError(DRAWS)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _recorded_factories(tracer: _Tracer) -> Iterator[None]:
    """New tensors whose size depends on the input are made anew at every call, and are no constants."""

    def recording(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if tracer.quiet or not any(isinstance(leaf, fx.Proxy) for leaf in _leaves_of((args, kwargs))):
                return function(*args, **kwargs)
            return tracer.create_proxy("call_function", function, args, kwargs)

        return call

    own = {name: getattr(torch, name) for name in (*FACTORIES, *LIMITS)}
    try:
        for name, function in own.items():
            setattr(torch, name, recording(function))
        yield
    finally:
        for name, function in own.items():
            setattr(torch, name, function)


@contextlib.contextmanager
def _answered_types() -> Iterator[None]:
    """A forward that asks `isinstance` or `torch.is_tensor` of a stand-in is told of the value it stands for.

    A `__class__` of its own would do that too, but torch's compiled code would then take a stand-in for a tensor.
    """
    own = builtins.isinstance

    def asked(given: Any, kind: Any) -> bool:
        if type(given) not in (_Proxy, _Attribute) or kind is fx.Proxy or not _asks_for_value(sys._getframe(1)):
            return own(given, kind)
        return own(given.node.meta.get(VALUE), kind)

    try:
        builtins.isinstance = asked
        yield
    finally:
        builtins.isinstance = own


def _asks_for_value(frame: FrameType) -> bool:
    """Whether code means the value where it asks a stand-in: the user's does, torch's own sees to stand-ins."""
    return frame.f_code is torch.is_tensor.__code__ or is_the_users(frame)


@contextlib.contextmanager
def _own_gradients_stop(while_true: Callable[[], bool]) -> Iterator[None]:
    """A `torch.autograd.Function` stops tracing: only what it computes would get into the graph, not its gradient."""
    # Every call of `apply` asks it, however it was bound; it is torch's own, from 2.0 up.
    own = torch.autograd.function._is_setup_context_defined

    def asked(setup_context: Any) -> Any:
        kind = sys._getframe(1).f_locals.get("cls", torch.autograd.Function)
        if while_true() and not kind.__module__.startswith("torch."):
            raise _OwnGradient(f"{kind.__name__} has a gradient of its own, which a graph does not keep")
        return own(setup_context)  # type: ignore[no-untyped-call]

    try:
        torch.autograd.function._is_setup_context_defined = asked
        yield
    finally:
        torch.autograd.function._is_setup_context_defined = own


def _of_sizes(node: Node) -> bool:
    """Whether a value was worked out from the sizes of tensors, not from their type or place."""
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        asked = one.args[1] if one.target is getattr else getattr(one.target, "__name__", one.target)
        if asked in SIZES and one.op in ("call_function", "call_method"):
            return True
        read = {other for other in one.all_input_nodes if not isinstance(value(other), Tensor)} - seen
        waiting += read
        seen |= read
    return False


def _worked_out(node: Node) -> str:
    """How a value came about, with the numbers that were there: `30 % 4`."""
    symbol = INFIX.get(getattr(node.target, "__name__", ""))
    if symbol is None or len(node.args) != 2:
        return "a size"
    known: Any = fx.node.map_arg(node.args, lambda read: read.meta[VALUE])
    left, right = (tuple(side) if isinstance(side, torch.Size) else side for side in known)
    return f"{left} {symbol} {right}"


def _line_now() -> str:
    """Where the forward that is followed stands now, if that is the user's own code."""
    frame = sys._getframe(1)
    while frame.f_code is not _followed.__code__ and frame.f_back is not None:
        if is_the_users(frame):
            return line_in(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def _leaves_of(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from _leaves_of(branch)
    elif isinstance(tree, dict):
        yield from _leaves_of(list(tree.values()))
    else:
        yield tree


def _followed(module: nn.Module, tracer: _Tracer) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of one pass and the constants it made; what fails names its place."""
    before = set(vars(module))
    try:
        with (
            _Chance(tracer),
            _recorded_factories(tracer),
            _answered_types(),
            _own_gradients_stop(lambda: not tracer.quiet),
        ):
            graph = tracer.trace(module)
    except Exception as error:  # whatever a user's forward raises on stand-ins
        path, kind = next(reversed(tracer.module_stack.values()), ("", None))
        if isinstance(error, _OtherWay):
            reason = "it goes another way in training mode than in eval mode"
        else:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _Stopped(path, kind, reason, line_of(error)) from error
    finally:
        tracer.quiet = True
        constants = {name: vars(module)[name] for name in set(vars(module)) - before}
        for name in constants:
            delattr(module, name)
    return graph, constants


def _compared(module: nn.Module, tracer: _Tracer) -> list[tuple[Node, Any, Any, Any]]:
    """Constants that differ in training mode: (node, path into its arguments, in training, otherwise)."""
    try:
        _followed(module, tracer)
    except _Stopped as stopped:
        stopped.other_way = True
        raise
    return tracer.differences


def _by_mode(graph: fx.Graph, differences: list[tuple[Node, Any, Any, Any]]) -> dict[str, nn.Module]:
    """Put a `ByMode` where a constant differs; the new modules by name."""
    made: dict[str, nn.Module] = {}
    for number, (node, path, training, otherwise) in enumerate(differences):
        name = f"by_mode_{number}"
        made[name] = ByMode(training, otherwise)
        with graph.inserting_before(node):
            constant = graph.call_module(name)
        constant.meta |= {VALUE: otherwise, "nn_module_stack": node.meta.get("nn_module_stack")}
        slot, *rest = path
        setattr(node, slot, _replaced(getattr(node, slot), rest, constant))
    return made


def _differing(mine: Any, theirs: Any, path: tuple[Any, ...], found: Callable[[Any, Any, Any], None]) -> None:
    """Compare two trees of arguments; constants may differ, anything else may not."""
    if isinstance(mine, Node) or isinstance(theirs, Node):
        if not (isinstance(mine, Node) and isinstance(theirs, Node) and mine.meta.get("twin") is theirs):
            raise _OtherWay
    elif isinstance(mine, (tuple, list)) and isinstance(theirs, (tuple, list)) and len(mine) == len(theirs):
        for index, pair in enumerate(zip(mine, theirs, strict=True)):
            _differing(*pair, (*path, index), found)
    elif isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        for key in mine:
            _differing(mine[key], theirs[key], (*path, key), found)
    elif isinstance(mine, slice) and isinstance(theirs, slice):
        for name in ("start", "stop", "step"):
            if getattr(mine, name) != getattr(theirs, name) and not isinstance(getattr(mine, name), Node):
                raise _OtherWay
    elif isinstance(mine, CONSTANTS) and isinstance(theirs, CONSTANTS):
        if mine != theirs:
            found(path, mine, theirs)
    elif type(mine) is not type(theirs) or not (mine is theirs or mine == theirs):
        raise _OtherWay


def _replaced(tree: Any, path: list[Any], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if isinstance(tree, dict):
        return {**tree, first: _replaced(tree[first], rest, new)}
    changed = [*tree[:first], _replaced(tree[first], rest, new), *tree[first + 1 :]]
    return tuple(changed) if isinstance(tree, tuple) else changed


def _same_target(first: Any, second: Any) -> bool:
    constant = "_tensor_constant"  # numbered anew in every pass
    if isinstance(first, str) and isinstance(second, str) and first.startswith(constant):
        return second.startswith(constant)
    return bool(first is second or first == second)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _chance() -> tuple[Any, ...]:
    """The states of the random numbers of Python and NumPy."""
    held = tree_leaves(np.random.get_state(legacy=False))
    return random.getstate(), *(one.tobytes() if isinstance(one, np.ndarray) else one for one in held)


def _autocasts() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


def _fits_norm(module: nn.BatchNorm2d, x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4 and x.shape[1] == module.num_features


def _get(module: nn.Module, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _check_module(module: nn.Module) -> None:
    """Refuse what cannot be traced by its kind."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise TraceError(f"{kind} is compiled by torch.jit: give the module that it was made of")
    if hasattr(module, "_orig_mod"):
        raise TraceError("the module is compiled by torch.compile: give its _orig_mod, and compile the result")
    lazy = next((path for path, part in module.named_modules() if _is_lazy(part)), None)
    if lazy is not None:
        raise TraceError(f"{lazy or kind} has no weights yet: call the module once, then they have their shapes")


def _is_lazy(part: nn.Module) -> bool:
    held = (*part._parameters.values(), *part._buffers.values())
    return any(tensor is not None and is_lazy(tensor) for tensor in held)


def _bound(module: nn.Module, example_input: Any) -> inspect.BoundArguments:
    """The example as the arguments of the module's forward, defaults among them."""
    signature = inspect.signature(module.forward)
    if not isinstance(example_input, Tensor | dict | tuple | list):
        raise SettingError(
            f"the example input is of type {type(example_input).__name__}, expected a tensor, a tuple of arguments "
            "or a dict of named ones"
        )
    if isinstance(example_input, tuple | list) and example_input and all(type(side) is int for side in example_input):
        sides = ", ".join(str(side) for side in example_input)
        raise SettingError(f"the example input is a shape, expected a tensor: torch.randn({sides})")
    try:
        match example_input:
            case dict():
                bound = signature.bind(**example_input)
            case tuple() | list():
                bound = signature.bind(*example_input)
            case _:
                bound = signature.bind(example_input)
    except TypeError as error:
        raise SettingError(
            f"the example input does not fit {type(module).__name__}.forward{signature}: {error}. "
            "Give a tensor, a tuple of arguments or a dict of named ones"
        ) from None
    bound.apply_defaults()
    return bound


@contextlib.contextmanager
def _mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """The whole module in one mode; every part as it was afterwards, whatever the forward kept in it."""
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    modes = {part: part.training for part in module.modules()}
    before = [(vars(part), dict(vars(part))) for part in parts]
    collections = [held for _, kept in before for held in kept.values() if isinstance(held, dict | list | set)]
    contents = [copy.copy(held) for held in collections]
    try:
        _set_mode(module, training)
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for now, kept in before:
            now.clear()
            now.update(kept)
        for held, content in zip(collections, contents, strict=True):
            held.clear()
            if isinstance(held, list):
                held.extend(content)
            else:
                held.update(content)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the log that torch keeps of errors which natpp catches or raises again."""
    loggers = [logging.getLogger(name) for name in NOISY]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _set_mode(module: nn.Module, training: bool) -> None:
    try:
        module.train(training)
    except NotImplementedError:
        kind = type(module).__name__
        raise TraceError(
            f"{kind} comes from torch.export and has no modes: give the module that was exported"
        ) from None


def _check_runs(module: nn.Module, example_input: Any) -> None:
    """Say so where the module does not run on the example at all."""
    from natpp.nets.measure import module_cost

    module_cost(module, example_input)  # says what is wrong


def _second_way(module: nn.Module, example_input: Any, stopped: _Stopped) -> Traced:
    """The module by `torch.export`; an error that names the place where that does not go either."""
    from natpp.fx.export import evaluate, exported

    arguments = _bound(module, example_input)
    chance = _chance()
    try:
        with _mode(module, training=False), _own_gradients_stop(lambda: True):
            graph, parts = exported(module, arguments)
            evaluate(graph, parts, arguments, VALUE)
        with _mode(module, training=True), _own_gradients_stop(lambda: True):
            twin, _ = exported(module, arguments)
        differences = _differences(graph, twin)
        if chance != _chance():
            raise TraceError(DRAWS)
    except Exception as error:  # whatever torch.export or the user's forward raises
        raise _refused(module, stopped) from error
    parts |= _by_mode(graph, differences)
    note = f"{stopped.where} could not be followed by torch.fx ({stopped.reason}): it was traced by torch.export"
    return Traced(module, graph, parts, example_input, (note, *_unread(module, parts)))


def _refused(module: nn.Module, stopped: _Stopped) -> TraceError:
    """An error that names the place and the way round."""
    return TraceError(
        f"{type(module).__name__} cannot be traced: {stopped.where} stops it "
        f"({'; '.join(said for said in (stopped.reason.rstrip('.'), stopped.line) if said)}). "
        + (
            "Call its eval() first: the result is then what it is in eval mode"
            if stopped.other_way
            else "Mark the part that does it with natpp.leaf, or move that code into a submodule and mark it"
        )
    )


def _differences(graph: fx.Graph, twin: fx.Graph) -> list[tuple[Node, Any, Any, Any]]:
    """Constants that differ between a graph and the same in training mode."""
    if len(graph.nodes) != len(twin.nodes):
        raise _OtherWay
    found: list[tuple[Node, Any, Any, Any]] = []
    for node, other in zip(graph.nodes, twin.nodes, strict=True):
        if node.op != other.op or not _same_target(node.target, other.target):
            raise _OtherWay
        other.meta["twin"] = node
        for slot in ("args", "kwargs"):
            _differing(
                *(getattr(other, slot), getattr(node, slot), (slot,)),
                lambda path, a, b, node=node: found.append((node, path, a, b)),  # type: ignore[misc]
            )
    return found
