"""A traced module with other operations, as a plain `GraphModule`.

Unchanged parts keep their nodes, names and exact weights; a replacement takes the name of the operation it replaces.
Nothing is shared with the original. An added shortcut starts at zero (`FadeIn`), so that the function is the same at
first. Values that get a new reader are protected from in-place operations.
"""

from __future__ import annotations

import keyword
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import Node

from natpp.arch.graph import NULL, SKIP
from natpp.decisions.operation import build, forms
from natpp.decisions.term import shortcut
from natpp.errors import GraphError
from natpp.fx.aliasing import idle, mutated
from natpp.fx.blocks import Block, BlockNode, Term, node_shape, shape
from natpp.fx.parts import FadeIn
from natpp.fx.sites import Site, Sum
from natpp.fx.traced import Traced, copied, value

Ops = Sequence[str]  # one operation for each term of a block
TAKEN = {*dir(fx.GraphModule), "meta"} - set(dir(nn.Module))


class Shared:
    """Parts for modules that share weights: copies of the original's parts, and replacements as they are built."""

    def __init__(self, traced: Traced):
        self.parts: dict[str, Any] = copied(traced.parts)
        self.made: dict[tuple[str, str], nn.Module] = {}


def rewrite(
    traced: Traced, blocks: Sequence[Block] = (), ops: Sequence[Ops] = (), shared: Shared | None = None
) -> fx.GraphModule:
    """The module with these operations in its blocks; without any, a copy that computes exactly the same.

    It shares nothing with the original. With `shared`, it takes all of its parts from there.
    """
    return _Writer(traced, blocks, ops, shared).written()


class _Writer:
    def __init__(self, traced: Traced, blocks: Sequence[Block], ops: Sequence[Ops], shared: Shared | None = None):
        self.traced, self.shared = traced, shared
        self.graph = fx.Graph()
        self.new: dict[Node, Node] = {}  # old value → new one
        self.idle = idle(traced.graph, traced.parts)
        self.had_readers: set[Node] = set()  # new nodes whose originals had readers that are used
        self.made: dict[str, nn.Module] = {}  # new modules by path
        calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
        self.called_often = {path for path, count in calls.items() if count > 1}  # other calls may stay as they are
        self.guarded: set[Node] = set()  # new nodes with a reader that the original does not have
        self.changed = [_Changed(block, row) for block, row in zip(blocks, ops, strict=True) if tuple(row) != block.ops]
        self.extra_reads = {
            changed.block.inputs[0] for changed in self.changed for read in changed.added_sources() if read == 0
        }

    def written(self) -> fx.GraphModule:
        inside = {node: changed for changed in self.changed for item in changed.block.items for node in item.nodes}
        outputs = {item.output: changed for changed in self.changed for item in changed.block.items}
        for node in self.traced.graph.nodes:
            if node in outputs:
                self._emit(outputs[node], node)
            elif node not in inside:
                self.new[node] = self._copied(node, self.new.__getitem__)
            if node in self.extra_reads and node in self.new:
                self.guarded.add(self.new[node])
        self._prune()
        return self._module()

    # Nodes.

    def _copied(self, node: Node, find: Callable[[Node], Node]) -> Node:
        touched = mutated(node, self.traced.parts)
        if touched is not None and find(touched) in self.guarded:
            safe = self._function(torch.clone, find(touched))
            found = self.graph.node_copy(node, lambda read: safe if read is touched else find(read))
        else:
            found = self.graph.node_copy(node, find)
        found.meta = {}
        if isinstance(found.type, str):  # a string annotation cannot be pickled
            found.type = None
        if set(node.users) - self.idle:
            self.had_readers.add(found)
        return found

    def _emit(self, changed: _Changed, output: Node) -> None:
        """The new value of a site or sum of a changed block, if anything still reads it."""
        number = changed.heard_as.get(output)
        if number is not None and changed.needed[number]:
            self.new[output] = self._value(changed, number)

    def _value(self, changed: _Changed, number: int) -> Node:
        if number < 2:
            given = changed.block.inputs[number]
            assert given is not None
            return self.new[given]
        if number in changed.values:
            return changed.values[number]
        node = changed.block.nodes[number - 2]
        live = [(index, term) for index, term in changed.terms_of(number) if changed.live[index]]
        live.sort(key=lambda pair: (pair[1].op == NULL, pair[1].order))  # added shortcuts come last
        found = [self._term(changed, number, index, term, alone=len(live) == 1) for index, term in live]
        total = found[0]
        for other in found[1:]:
            total = self._function(operator.add, total, other)
        if isinstance(node.item, Sum):
            if len(found) == 1:
                self.guarded.add(total)  # others may read the same tensor
            total = self._chain(node.item.after, node.item.additions[-1], total)
        changed.values[number] = total
        return total

    def _term(self, changed: _Changed, number: int, index: int, term: Term, *, alone: bool) -> Node:
        op, source = changed.ops[index], self._value(changed, term.source)
        if term.site is None:
            if term.op != NULL:
                return source
            return self._shortcut(changed.block, number, term, source, alone=alone)
        site = term.site
        if op == term.op:
            return self._chain(site.nodes, site.source, source)
        if not forms(site, op):
            self.guarded.add(source)
            return source
        read = self._chain(site.before, site.source, source)
        path = _free(site.name, self.made.keys() | self.called_often)
        self._make(path, op, lambda: build(site, op, self.traced.parts))
        main = self.graph.create_node("call_module", path, (read,), {})
        self.had_readers.add(main)
        return self._chain(site.after, site.main[-1], main)

    def _chain(self, nodes: Sequence[Node], read: Node, source: Node) -> Node:
        """Copies of a chain of nodes; the first one read `read`, and its copy reads `source`."""
        for node in nodes:
            source = self._copied(node, lambda old, read=read, source=source: source if old is read else self.new[old])  # type: ignore[misc]
            read = node
        return source

    def _shortcut(self, block: Block, number: int, term: Term, source: Node, *, alone: bool) -> Node:
        """A skip in place of a null."""
        self.guarded.add(source)
        given = block.inputs[term.source]
        assert given is not None
        wide, target = shape(given), node_shape(block, number)
        if wide == target and alone:
            return source
        like = value(given)
        path = _shortcut_path(block, number, term, self.traced, self.made)

        def make() -> nn.Module:
            if wide == target:
                return FadeIn().to(like.device, like.dtype)
            return shortcut(wide[1], target[1], _halvings(wide, target), like)

        self._make(path, SKIP, make)
        call = self.graph.create_node("call_module", path, (source,), {})
        self.had_readers.add(call)
        return call

    def _make(self, path: str, op: str, make: Callable[[], nn.Module]) -> None:
        """A new module, or the shared one if it exists already."""
        if self.shared is None:
            self.made[path] = make()
            return
        if (path, op) not in self.shared.made:
            self.shared.made[path, op] = make()
        self.made[path] = self.shared.made[path, op]

    def _function(self, function: Any, *args: Node) -> Node:
        node = self.graph.call_function(function, args)
        self.had_readers.add(node)
        return node

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
        module.meta = {}
        _restore_names(module, original)
        _restore_modes(module, original)
        _restore_persistence(module, original)
        return module


class _Changed:
    """A block with other operations, and which of its terms are alive."""

    def __init__(self, block: Block, ops: Ops):
        self.block, self.ops = block, tuple(ops)
        self.values: dict[int, Node] = {}
        self.live, connected = block.alive(ops)
        if not connected:
            raise GraphError(f"{block.name}: with these operations nothing reaches its output")
        self.needed = [False] * (len(block.nodes) + 2)
        for number in block.outputs:
            self.needed[number] = True
        for (_, term), alive in zip(block.terms, self.live, strict=True):
            self.needed[term.source] |= alive
        self.heard_as = read_outside_as(block)

    def terms_of(self, number: int) -> list[tuple[int, Term]]:
        return [(index, term) for index, (target, term) in enumerate(self.block.terms) if target == number]

    def added_sources(self) -> list[int]:
        pairs = zip(self.block.terms, self.ops, strict=True)
        return [term.source for (_, term), op in pairs if term.op == NULL and op == SKIP]


def read_outside_as(block: Block) -> dict[Node, int]:
    """Per value of the block, the node that represents it outside: a skip added behind the last site replaces it."""
    numbers = {node.item.output: number for number, node in enumerate(block.nodes, start=2) if node.item is not None}
    last: BlockNode = block.nodes[-1]
    if last.item is None:
        behind = last.terms[-1].source
        return {node: len(block.nodes) + 1 if number == behind else number for node, number in numbers.items()}
    return numbers


def _halvings(wide: tuple[int, ...], target: tuple[int, ...]) -> int:
    halvings, size = 0, wide[2:]
    while size != target[2:] and max(size) > 1:
        size = tuple(-(-side // 2) for side in size)
        halvings += 1
    return halvings


def _free(path: str, taken: Any) -> str:
    number, free = 1, path
    while free in taken:
        number += 1
        free = f"{path}_{number}"
    return free


def _shortcut_path(block: Block, number: int, term: Term, traced: Traced, taken: Any) -> str:
    name = block.name.replace(" (", "_").replace(")", "")
    label = f"shortcut_{term.source}_{number}"
    site = next((item for item in block.items if isinstance(item, Site)), None)
    if name in traced.parts or (site is not None and name == site.name):
        parent, _, last = name.rpartition(".")
        label = f"{label}_of_{last}"
        return _free(f"{parent}.{label}" if parent else label, taken | traced.parts.keys())
    return _free(f"{name}.{label}", taken | traced.parts.keys())


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
