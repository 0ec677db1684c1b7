"""A traced module with some of it changed, as a plain `GraphModule`.

Unchanged parts keep their nodes, names and exact weights; a replacement takes the name of what it replaces. Nothing is
shared with the original. Values that get a new reader are protected from in-place operations. What changes, and how it
is written, is up to the kinds of decisions.
"""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.fx.node import Node

from natpp.errors import GraphError
from natpp.fx.aliasing import idle, mutated
from natpp.fx.traced import Traced, copied

Swap = Callable[["Draft", Node, Callable[[Node], Node]], Node]  # a node's new value, given those of its inputs
STANDS = "stands for"  # in a module's meta: for each node, the original node that it stands for, by name
CUTS = "cut to"  # in a module's meta: the channels that stay, for nodes that lose some
TAKEN = {*dir(fx.GraphModule), "meta"} - set(dir(nn.Module))


class Shared:
    """Parts for modules that share weights: copies of the original's parts, and replacements as they are built."""

    def __init__(self, traced: Traced):
        self.parts: dict[str, Any] = copied(traced.parts)
        self.made: dict[tuple[str, object], Any] = {}


class Edit(Protocol):
    """A change of some nodes of a traced module."""

    nodes: set[Node]
    """the nodes that it writes, instead of copies of them"""
    reads: list[Node]
    """values that it reads and the original does not read there"""

    def write(self, draft: Draft, node: Node) -> Node | None:
        """The new value of one of its nodes; None if nothing outside reads it, or it has no input left."""


def rewrite(
    traced: Traced,
    edits: Iterable[Edit] = (),
    swaps: Mapping[Node, Swap] | None = None,
    shared: Shared | None = None,
) -> fx.GraphModule:
    """The module with these edits, and other calls in place of some nodes; without any, an exact copy.

    It shares nothing with the original. With `shared`, it takes all of its parts from there.
    """
    return Draft(traced, edits, swaps or {}, shared).written()


class Draft:
    """A traced module while it is being rewritten: its new nodes and modules."""

    def __init__(self, traced: Traced, edits: Iterable[Edit], swaps: Mapping[Node, Swap], shared: Shared | None):
        self.traced, self.swaps, self.shared = traced, swaps, shared
        self.graph = fx.Graph()
        self.new: dict[Node, Node] = {}  # old value → new one
        self.idle = idle(traced.graph, traced.parts)
        self.had_readers: set[Node] = set()  # new nodes whose originals had readers that are used
        self.made: dict[str, Any] = {}  # new modules, parameters and buffers by path
        calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
        self.called_often = {path for path, count in calls.items() if count > 1}  # other calls may stay as they are
        self.guarded: set[Node] = set()  # new nodes with a reader that the original does not have
        self.stands: dict[Node, Node] = {}  # new nodes, and the original ones whose values they stand for
        self.cuts: dict[Node, list[int]] = {}  # new nodes with fewer channels: those of the original that stay
        self.edits: dict[Node, Edit] = {}
        self.extra_reads: set[Node] = set()
        for edit in edits:
            self.edits.update(dict.fromkeys(edit.nodes, edit))
            self.extra_reads.update(edit.reads)

    def written(self) -> fx.GraphModule:
        """The module."""
        for node in self.traced.graph.nodes:
            edit = self.edits.get(node)
            if edit is not None:
                made = edit.write(self, node)
            elif self.new.keys() >= set(node.all_input_nodes):
                made = self.copied(node, self.new.__getitem__)
            elif node.op == "output":
                raise GraphError("with these operations nothing reaches the output")
            else:
                made = None  # one of its inputs was removed
            if made is not None:
                self.new[node] = made
                if node in self.extra_reads:
                    self.guarded.add(made)
        self._prune()
        return self._module()

    # Nodes.

    def copied(self, node: Node, find: Callable[[Node], Node]) -> Node:
        """A copy of a node that reads what `find` gives for its inputs, or what takes its place."""
        return self.swaps[node](self, node, find) if node in self.swaps else self.plain(node, find)

    def plain(self, node: Node, find: Callable[[Node], Node]) -> Node:
        """A copy of a node that reads what `find` gives for its inputs."""
        touched = mutated(node, self.traced.parts)
        if touched is not None and find(touched) in self.guarded:
            safe = self.function(torch.clone, find(touched))
            found = self.graph.node_copy(node, lambda read: safe if read is touched else find(read))
        else:
            found = self.graph.node_copy(node, find)
        found.meta, self.stands[found] = {}, node
        if isinstance(found.type, str):  # a string annotation cannot be pickled
            found.type = None
        if set(node.users) - self.idle:
            self.had_readers.add(found)
        return found

    def chain(self, nodes: Sequence[Node], read: Node, source: Node) -> Node:
        """Copies of a chain of nodes; the first one read `read`, and its copy reads `source`."""
        for node in nodes:
            source = self.copied(node, lambda old, read=read, source=source: source if old is read else self.new[old])  # type: ignore[misc]
            read = node
        return source

    def function(self, function: Any, *args: Any) -> Node:
        """A call of a function."""
        node = self.graph.call_function(function, args)
        self.had_readers.add(node)
        return node

    def call(
        self, path: str, key: object, make: Callable[[], nn.Module], source: Node, stands_for: Node | None = None
    ) -> Node:
        """A call of a new module; modules that share weights have one for each path and key."""
        path = free(path, self.made.keys() | self.called_often)
        self._hold(path, key, make)
        node = self.graph.create_node("call_module", path, (source,), {})
        self.had_readers.add(node)
        if stands_for is not None:
            self.stands[node] = stands_for
        return node

    def tensor(self, path: str, key: object, make: Callable[[], torch.Tensor]) -> Node:
        """A new parameter or buffer in place of the one at a path."""
        self._hold(path, key, make)
        node = self.graph.create_node("get_attr", path, (), {})
        self.had_readers.add(node)
        return node

    def _hold(self, path: str, key: object, make: Callable[[], Any]) -> None:
        if self.shared is None:
            self.made[path] = make()
        else:
            if (path, key) not in self.shared.made:
                self.shared.made[path, key] = make()
            self.made[path] = self.shared.made[path, key]

    def _prune(self) -> None:
        """Remove nodes that lost their last reader; unused readers, such as size checks, do not count and go too."""
        nowhere = idle(self.graph, {**self.traced.parts, **self.made})
        for node in reversed(list(self.graph.nodes)):
            if node in self.had_readers and node.op != "placeholder" and set(node.users) <= nowhere:
                self._erase(node)

    def _erase(self, node: Node) -> None:
        for reader in list(node.users):
            self._erase(reader)
        self.graph.erase_node(node)

    # Modules.

    def _module(self) -> fx.GraphModule:
        used = {str(node.target) for node in self.graph.nodes if node.op in ("call_module", "get_attr")}
        kept = sorted(used - self.made.keys())
        if self.shared is None:
            parts = copied({path: self.traced.parts[path] for path in kept})
        else:
            parts = {path: self.shared.parts[path] for path in kept}
        original = self.traced.module
        _check_names(used)
        module = fx.GraphModule(parts | self.made, self.graph, class_name=type(original).__name__)
        module.graph.lint()
        names = {node.name for node in module.graph.nodes}
        stands = {new.name: old.name for new, old in self.stands.items() if new.name in names}
        cuts = {node.name: stay for node, stay in self.cuts.items() if node.name in names}
        module.meta = {STANDS: stands, CUTS: cuts}
        _restore_names(module, original)
        _restore_modes(module, original)
        _restore_persistence(module, original)
        return module


def free(path: str, taken: Any) -> str:
    """The path, with a number if it is taken."""
    number, found = 1, path
    while found in taken:
        number += 1
        found = f"{path}_{number}"
    return found


def _check_names(paths: Iterable[str]) -> None:
    """Reject names that the code of a `GraphModule` cannot use; reports the first in alphabetical order."""
    for path in sorted(paths):
        first, *_ = parts = path.split(".")
        if first in TAKEN or any(keyword.iskeyword(part) for part in parts):
            whose = "torch.fx.GraphModule reserves" if first in TAKEN else "is a Python keyword"
            raise GraphError(f"the layer {path!r} has a name that {whose}: give it another one in the module")


def _restore_names(module: fx.GraphModule, original: nn.Module) -> None:
    """Parts with several names keep all of them, whichever the graph calls."""
    names: dict[int, list[str]] = {}
    for path, part in original.named_modules(remove_duplicate=False):
        names.setdefault(id(part), []).append(path)
    called = {str(node.target) for node in module.graph.nodes if node.op == "call_module"}
    for same in names.values():
        own = next((path for path in same if path in called), None)
        for path in same if own is not None else ():
            if path not in called:
                module.add_submodule(path, module.get_submodule(str(own)))


def _restore_modes(module: fx.GraphModule, original: nn.Module) -> None:
    """Training or eval mode as before, part by part; a new part gets the mode of its parent."""
    modes = {path: part.training for path, part in original.named_modules()}
    for path, part in module.named_modules():
        known = path
        while known and known not in modes:
            known = known.rpartition(".")[0]
        part.training = modes[known]


def _restore_persistence(module: fx.GraphModule, original: nn.Module) -> None:
    """Buffers outside the state dict stay outside, and so do constants from tracing."""
    known = {name for name, _ in original.named_buffers(remove_duplicate=False)}
    for path, part in module.named_modules():
        if type(part) is nn.Module or part is module:  # layers keep their own
            prefix = f"{path}." if path else ""
            part._non_persistent_buffers_set |= {name for name in part._buffers if prefix + name not in known}
    for path, part in original.named_modules():
        for name in part._non_persistent_buffers_set:
            try:
                holder = module.get_submodule(path)
            except AttributeError:
                continue
            if name in holder._buffers:
                holder._non_persistent_buffers_set.add(name)
