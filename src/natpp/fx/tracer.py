"""Traces a forward with proxies, and records the fake value of every node."""

from __future__ import annotations

import functools
import inspect
import operator
import random
import re
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

from natpp.errors import is_the_users, line_in, line_of
from natpp.fx.fake import Values
from natpp.fx.leaf import is_leaf
from natpp.fx.modes import CONSTANTS, Difference, OtherWay, compare, same_target
from natpp.fx.patches import (
    DRAWS,
    NoDraws,
    NotedMode,
    answered_types,
    own_gradients_stop,
    plain_types,
    recorded_factories,
)
from natpp.fx.proxies import Proxy
from natpp.fx.traced import VALUE, TraceError, part_at, value

SIGNS = "add + sub - mul * truediv / floordiv // mod % pow ** matmul @ and_ & or_ | xor ^ lshift << rshift >> is_ is"
INFIX = dict(re.findall(r"(\w+) (\S+)", f"{SIGNS} eq == ne != lt < le <= gt > ge >=")) | {"is_not": "is not"}
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
SIZES = ("shape", "size", "numel", "nelement", "ndim", "dim", "ndimension")  # how code reads the sizes of a tensor


class Unregistered(TraceError):
    """A layer with weights that its module has not registered."""


class Stopped(Exception):
    """Tracing stopped inside a module."""

    def __init__(self, path: str, kind: type[nn.Module] | None, reason: str, line: str = ""):
        super().__init__(reason)
        self.path, self.kind, self.reason, self.line = path, kind, reason, line
        self.other_way = False  # in training mode only

    @property
    def where(self) -> str:
        return f"its part {self.path}" if self.path else "its own forward"

    def alike(self, root: nn.Module) -> set[nn.Module]:
        """The module where it stopped, and all others of its class unless that is a container's or the root's."""
        by_class = self.kind is not None and not issubclass(self.kind, CONTAINERS) and self.kind is not type(root)
        parts = root.named_modules()
        return {part for path, part in parts if path == self.path or (by_class and type(part) is self.kind)}


class Leaves:
    """Modules that stay whole because their forward cannot be traced."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.kinds: set[type[nn.Module]] = set()
        self.notes: list[str] = []

    def add(self, stopped: Stopped, root: nn.Module) -> bool:
        """Make the place where tracing stopped a leaf; False if it is the module itself, or already a leaf."""
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


class Tracer(fx.Tracer):
    """Traces a forward, and records the fake value of every node."""

    proxy_buffer_attributes = True  # what depends only on buffers is computed at every call, not a constant

    def __init__(
        self,
        arguments: inspect.BoundArguments,
        leaves: Leaves,
        reference: list[Node] | None = None,
        *,
        by_name: bool = False,
        watched: bool = False,
        known: dict[Hashable, Any] | None = None,
    ):
        super().__init__()
        self.arguments = arguments
        self.by_name = by_name  # whether the example is a dict of named arguments
        self.leaves = leaves
        self.values = Values(lambda path: part_at(self.root, path), known)
        self.quiet = False  # True while shapes are computed, and after tracing: nothing is recorded
        self.reference = reference  # nodes of the same forward in eval mode
        self.differences: list[Difference] = []
        self.made = 0
        self.visited: set[nn.Module] = set()
        self.fixed: set[Node] = set()
        self.grad, self.autocasts = torch.is_grad_enabled(), _autocasts()
        self.watched = watched
        self.mode = NotedMode(self)
        self.chance = states_of_chance()

    # Which modules are traced into.

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if is_leaf(m) or self.leaves.has(module_qualified_name, type(m)):
            return True
        if isinstance(m, torch.jit.ScriptModule):
            self.leaves.note(f"{module_qualified_name} is kept whole: it is compiled by torch.jit")
            return True
        home = getattr(type(m).forward, "__module__", "") or ""
        return home.startswith(("torch.nn.", "torch.ao.nn.")) and not isinstance(m, CONTAINERS)

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
                raise Unregistered(type(m).__name__) from None
            raise
        if _has_hooks(m) and not self.is_leaf_module(m, path):
            self.leaves.note_hooks(path)

        def to_its_end(*args: Any, **kwargs: Any) -> Any:
            found = forward(*args, **kwargs)
            self._check_chance()
            return found

        return super().call_module(m, to_its_end, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """A proxy for a parameter or buffer, found in a dict: `torch.fx` looks through all of them every time."""
        if self.quiet or not isinstance(attr_val, Tensor):
            return attr_val
        name, holder, own = self._tensors.get(id(attr_val), ("", {}, ""))
        if holder.get(own) is not attr_val:
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
        return parameter_proxy_cache[name]

    @functools.cached_property
    def _tensors(self) -> dict[int, tuple[str, dict[str, Any], str]]:
        """By id, the path of every parameter and buffer, the dict that holds it and its key there."""
        found: dict[int, tuple[str, dict[str, Any], str]] = {}
        parts = (
            (path, part) for path, part in self.root.named_modules() if not isinstance(part, torch.jit.ScriptModule)
        )
        for path, part in parts:
            for holder in (part._parameters, part._buffers):
                for own, tensor in holder.items():
                    if tensor is not None:
                        found.setdefault(id(tensor), (f"{path}.{own}" if path else own, holder, own))
        return found

    # The module's arguments.

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        own = vars(self.root).get("forward")  # a forward that was set on this instance
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
                    by_name = True  # left out, as the caller does: a wrapper may check which arguments it gets
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
        """Fix a plain argument to the example's value: the result rejects any other."""
        same = operator.is_ if given is None or isinstance(given, bool) else operator.eq
        message = f"{name} was {given!r} when this module was traced: give the same, or trace it with another"
        self._hold(same, (proxy, given), message)
        return given

    def _hold(self, test: Callable[..., Any], args: tuple[Any, ...], message: str) -> None:
        """Make the result reject inputs for which a test fails."""
        held = self.create_proxy("call_function", test, args, {})
        self.create_proxy("call_function", torch._assert, (held, message), {})

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
        """A proxy, or None if the value is None, so that `is None` works in a forward."""
        proxy = super().create_proxy(kind, target, *args, **kwargs)
        nothing = kind.startswith("call_") and proxy.node.meta.get(VALUE) is None
        return None if nothing else proxy

    def _check_chance(self) -> None:
        """Stop if Python or NumPy drew random numbers, which torch does not see."""
        if self.watched and self.chance != states_of_chance():
            raise TraceError(DRAWS)

    def _check_context(self) -> None:
        """Stop or note a change of autocast or grad mode in the forward, which a graph does not keep."""
        if _autocasts() != self.autocasts:
            raise TraceError("it switches torch.autocast, which a graph does not keep")
        if torch.is_grad_enabled() != self.grad:
            self.leaves.note("its forward switches gradients off or on for some parts: the result leaves that to you")

    def _evaluated(self, node: Node) -> Any:
        """The fake value of a node."""
        self.quiet = True
        try:
            with plain_types():
                return self.values.fake(self._given) if node.op == "placeholder" else self.values.of(node)
        finally:
            self.quiet = False
            if self.watched:
                self.chance = states_of_chance()  # a leaf may draw random numbers

    def _compare(self, node: Node) -> None:
        """Stop if training mode takes a different path than eval mode; record constants that differ."""
        assert self.reference is not None
        twin = self.reference[self.made] if self.made < len(self.reference) else None
        if twin is None or twin.op != node.op or not same_target(twin.target, node.target):
            raise OtherWay
        node.meta[VALUE] = twin.meta.get(VALUE)
        compare(node, twin, self.differences)

    # What the forward reads.

    def fix(self, obj: Any, known: float) -> None:
        """Make the result reject inputs for which a number that was used in tracing would differ."""
        if obj.node not in self.fixed:
            self.fixed.add(obj.node)
            message = f"this module was traced with a size of {known} here: trace it again for inputs of other sizes"
            self._hold(operator.eq, (obj, known), message)

    def to_bool(self, obj: fx.Proxy) -> bool:
        known = obj.node.meta.get(VALUE)
        if isinstance(known, Tensor):
            raise TraceError("its control flow depends on the data in a tensor")
        if isinstance(known, int | float) and _of_sizes(obj.node):
            self._decided(obj, known)
        return bool(known)

    def _decided(self, obj: fx.Proxy, known: float) -> None:
        """Make the result reject inputs for which a condition on their sizes would differ."""
        if obj.node in self.fixed:
            return
        self.fixed.add(obj.node)
        where = f" ({line})" if (line := _line_now()) else ""
        was = f"{_worked_out(obj.node)} was {known!r}{where}"
        message = f"this module was traced where {was}: trace it again for inputs of other sizes"
        if not isinstance(known, bool):
            self._hold(operator.ne if known else operator.eq, (obj, 0), message)
        elif not known:
            self._hold(operator.not_, (obj,), message)
        else:
            self.create_proxy("call_function", torch._assert, (obj, message), {})

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        known: Any = obj.node.meta.get(VALUE)
        indexed: Any = obj
        return iter(known) if isinstance(known, Mapping) else (indexed[i] for i in range(len(known)))

    def keys(self, obj: fx.Proxy) -> Any:
        known = obj.node.meta.get(VALUE)
        return known.keys() if isinstance(known, Mapping) else super().keys(obj)

    def proxy(self, node: Node) -> fx.Proxy:
        return Proxy(node, self)


def _of_sizes(node: Node) -> bool:
    """Whether a value was computed from the sizes of tensors, not from their dtype or device."""
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
    """How a value was computed, with its numbers: `30 % 4`."""
    symbol = INFIX.get(getattr(node.target, "__name__", ""))
    if symbol is None or len(node.args) != 2:
        return "a size"
    known: Any = fx.node.map_arg(node.args, lambda read: read.meta[VALUE])
    left, right = (tuple(side) if isinstance(side, torch.Size) else side for side in known)
    return f"{left} {symbol} {right}"


def _line_now() -> str:
    """The line that the traced forward is at, if it is the user's own code."""
    frame = sys._getframe(1)
    while frame.f_code is not followed.__code__ and frame.f_back is not None:
        if is_the_users(frame):
            return line_in(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def followed(module: nn.Module, tracer: Tracer) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of one pass and the constants it created; an error names the place."""
    before = set(vars(module))
    try:
        with (
            NoDraws(tracer),
            recorded_factories(tracer),
            answered_types(),
            tracer.mode,
            own_gradients_stop(lambda: not tracer.quiet),
        ):
            graph = tracer.trace(module)
    except Exception as error:  # whatever a user's forward raises on proxies
        path, kind = next(reversed(tracer.module_stack.values()), ("", None))
        if isinstance(error, OtherWay):
            reason = "it goes another way in training mode than in eval mode"
        else:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Stopped(path, kind, reason, line_of(error)) from error
    finally:
        tracer.quiet = True
        constants = {name: vars(module)[name] for name in set(vars(module)) - before}
        for name in constants:
            delattr(module, name)
    return graph, constants


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def states_of_chance() -> tuple[Any, ...]:
    """The states of the random number generators of Python and NumPy."""
    held = tree_leaves(np.random.get_state(legacy=False))
    return random.getstate(), *(one.tobytes() if isinstance(one, np.ndarray) else one for one in held)


def _autocasts() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
