"""Groups sites and sums into blocks, each a graph in the paper's form, so that a policy sees the same as in cells.

Node 1 is the input of a block, node 0 the older input: another feature map that a sum of the block reads, or else the
input of the block before. Sums are padded to two inputs with nulls from node 0. The last node is a sum or a pooling; if
it is neither, a skip with room for a shortcut follows. A skip in front pads the block to four nodes, as in the paper's
VGG, ResNet and MobileNetV2. A 1x1 convolution that only projects a shortcut to the shape of a sum counts as a skip.

A residual block is everything between a sum and the feature map its terms have in common. The remaining sites are
grouped by the module they belong to, and such a group ends after a pooling that halves.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from torch.fx.node import Node

from natpp.arch.graph import NULL, SKIP, Graph
from natpp.core.blueprint import Join, reached_and_alive
from natpp.fx.aliasing import idle
from natpp.fx.sites import Item, Keep, Site, Sum, find_items
from natpp.fx.traced import Traced, value
from natpp.registry import OPS

MAX_SITES = 5  # in a block without a sum: the paper's cells have four or five nodes
MIN_NODES = 4
POINTWISE = ("conv", 1, False, False)  # how a 1x1 convolution looks


@dataclass(frozen=True)
class Term:
    """One input of a node: an operation on an earlier node. Without a site it is a plain skip or null."""

    op: str
    source: int
    site: Site | None = None
    order: int = 0  # its place in the sum as written


@dataclass(frozen=True)
class BlockNode:
    """A feature map of a block: its terms, and the site or sum it comes from (None for an added skip)."""

    terms: tuple[Term, ...]
    item: Item | None


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a network with the graph that represents it."""

    name: str
    kind: str  # normal, or reduce if a site has stride 2
    items: tuple[Item, ...]
    inputs: tuple[Node | None, Node]
    """node 0, if there is one, and node 1"""
    nodes: tuple[BlockNode, ...]
    """nodes from 2 on"""
    outputs: tuple[int, ...]
    """nodes that something outside reads"""
    graph: Graph

    @functools.cached_property
    def terms(self) -> tuple[tuple[int, Term], ...]:
        """Every decision: (target, term), in the order of the graph's free edges."""
        return tuple((target, term) for target, node in enumerate(self.nodes, start=2) for term in node.terms)

    @property
    def inside(self) -> list[Node]:
        """The nodes of its sites and sums."""
        return [node for item in self.items for node in item.nodes]

    @property
    def ops(self) -> tuple[str, ...]:
        """The operation of every term."""
        return tuple(term.op for _, term in self.terms)

    def with_ops(self, ops: Sequence[str]) -> Graph:
        """The graph with other operations, one for each term."""
        free = iter(ops)
        return self.graph.with_ops([edge.op if edge.fixed else next(free) for edge in self.graph.edges])

    def alive(self, ops: Sequence[str]) -> tuple[list[bool], bool]:
        """Per term, whether an output depends on it; and whether the input reaches every output."""
        reads, joins, terms, nodes = self._wiring
        passing = [1] * len(reads)
        passing[0] = int(self.inputs[0] is not None)
        for step, op in zip(terms, ops, strict=True):
            passing[step] = int(op != NULL)
        reached, alive = reached_and_alive(reads, joins, passing, {nodes[number]: 1 for number in self.outputs})
        return [bool(alive[step]) for step in terms], all(reached[nodes[number]] for number in self.outputs)

    @functools.cached_property
    def _wiring(self) -> tuple[list[tuple[int, ...]], list[Join], list[int], list[int]]:
        """The block as steps: what each reads, how its inputs join, and the steps of terms and of nodes."""
        reads: list[tuple[int, ...]] = [(), ()]
        terms: list[int] = []
        nodes = [0, 1]
        for node in self.nodes:
            own = range(len(reads), len(reads) + len(node.terms))
            reads += [(nodes[term.source],) for term in node.terms]
            terms += own
            nodes.append(len(reads))
            reads.append(tuple(own))
        joins: list[Join] = ["sum" if number > 1 else "all" for number in range(len(reads))]
        return reads, joins, terms, nodes

    @functools.cached_property
    def read_outside_as(self) -> dict[Node, int]:
        """Per value, the node that represents it outside: a skip added behind the last site replaces it."""
        nodes = enumerate(self.nodes, start=2)
        numbers = {node.item.output: number for number, node in nodes if node.item is not None}
        if self.nodes[-1].item is None:
            behind, last = self.nodes[-1].terms[-1].source, len(self.nodes) + 1
            return {node: last if number == behind else number for node, number in numbers.items()}
        return numbers

    def edge_name(self, index: int) -> str:
        """Readable name of a decision: its site, or the block and the two nodes."""
        target, term = self.terms[index]
        return term.site.name if term.site is not None else f"{self.name} [{term.source} → {target}]"


def find_blocks(traced: Traced, keep: Keep = ()) -> list[Block]:
    """The blocks of a traced module in the order in which they run."""
    unread = idle(traced.graph, traced.parts)  # it stays as it is
    items = [item for item in find_items(traced, keep) if item.output not in unread]
    return _Partition(traced, items).blocks()


def grouped(blocks: Sequence[Block], *, share: bool = True) -> list[list[int]]:
    """Groups of blocks that share decisions, being alike in kind and graph; one block each without `share`."""
    groups: dict[object, list[int]] = {}
    for index, block in enumerate(blocks):
        groups.setdefault((block.kind, block.graph) if share else index, []).append(index)
    return list(groups.values())


class _Partition:
    def __init__(self, traced: Traced, items: list[Item]):
        self.items = items
        self.by_output = {item.output: item for item in items}
        self.position = {node: index for index, node in enumerate(traced.graph.nodes)}
        self.level = self._levels(traced)
        self.parent = self._dominators()
        self.owner = self._owners()

    def blocks(self) -> list[Block]:
        groups = self._residual()
        taken = {item for group in groups for item in group}
        groups += self._chains([item for item in self.items if item not in taken and isinstance(item, Site)])
        groups = [sorted(group, key=lambda item: self.position[item.output]) for group in groups]
        groups.sort(key=lambda group: self.position[group[0].output])
        made: list[Block] = []
        producer: dict[Node, Block] = {}
        names: Counter[str] = Counter()
        for group in groups:
            if (block := self._block(group, producer, names)) is not None:
                made.append(block)
                producer.update((item.output, block) for item in group)
        return made

    # Positions in the graph.

    def _levels(self, traced: Traced) -> dict[Node, int]:
        """Per value, the most separators on any path to it."""
        inner = {node for item in self.items for node in item.nodes}
        level: dict[Node, int] = {}
        for node in traced.graph.nodes:
            item = self.by_output.get(node)
            if item is not None:
                level[node] = max(level[source] for source in item.sources)
            elif node not in inner:
                read = [level[source] for source in node.all_input_nodes if source in level]
                level[node] = max(read) + 1 if read else 0
        return level

    def _dominators(self) -> dict[Node, Node | None]:
        """Per value, the last value on all paths to it."""
        parent: dict[Node, Node | None] = {}
        depth: dict[Node, int] = {}

        def common(first: Node | None, second: Node | None) -> Node | None:
            while first is not second:
                if first is None or second is None:
                    return None
                if depth[first] >= depth[second]:
                    first = parent[first]
                else:
                    second = parent[second]
            return first

        for node in self.level:
            item = self.by_output.get(node)
            sources: Iterable[Node] = item.sources if item is not None else node.all_input_nodes
            read: list[Node | None] = [
                source for source in sources if source in depth and (source.op == "placeholder" or parent[source])
            ]
            last = parent[node] = functools.reduce(common, read) if read else None
            depth[node] = 0 if last is None else depth[last] + 1
        return parent

    def _owners(self) -> dict[Item, str]:
        """Per site, the innermost module with more than one site."""
        paths = {item: _module_paths(item) for item in self.items if isinstance(item, Site)}
        counts = Counter(path for found in paths.values() for path in set(found))
        return {item: next((path for path in reversed(found) if counts[path] > 1), "") for item, found in paths.items()}

    # Grouping.

    def _residual(self) -> list[list[Item]]:
        """Per sum, the items between it and the feature map that its terms have in common; inner sums first."""
        groups: list[list[Item]] = []
        taken: set[Item] = set()
        for item in self.items:
            if not isinstance(item, Sum):
                continue
            fork, level = self.parent[item.output], self.level[item.output]
            members: dict[Item, None] = {item: None}
            waiting = list(item.terms)
            while waiting:
                read = waiting.pop()
                found = self.by_output.get(read)
                if read is fork or found is None or found in taken or found in members or self.level[read] != level:
                    continue
                members[found] = None
                waiting += found.sources
            if fork is None:  # the terms have nothing in common: the block is the sum alone
                members = {item: None}
            group = list(members)
            if len(_externals(group)) <= 2:
                groups.append(group)
                taken.update(group)
        return groups

    def _chains(self, sites: list[Site]) -> list[list[Item]]:
        """Sites outside residual blocks, grouped by module."""
        groups: list[list[Item]] = []
        open_groups: dict[tuple[int, str], tuple[list[Item], set[Node]]] = {}  # with the values an item may read
        for site in sites:
            key = self.level[site.output], self.owner[site]
            group, readable = open_groups.get(key, ([], set()))
            if not group or site.source not in readable or len(group) >= MAX_SITES:
                group, readable = [], {site.source}
                groups.append(group)
                open_groups[key] = group, readable
            group.append(site)
            readable.add(site.output)
            chained = all(second.sources == (first.output,) for first, second in pairwise(group))
            if OPS[site.op].family == "pool" and site.place.stride == 2 and chained:
                del open_groups[key]
        return groups

    # The graph.

    def _block(self, group: list[Item], producer: dict[Node, Block], names: Counter[str]) -> Block | None:
        external = sorted(_externals(group), key=self.position.__getitem__)
        if len(external) > 2:
            return None
        sites = [item for item in group if isinstance(item, Site)]
        read_by_sites = [item.source for item in sites if item.source in external]
        newer = read_by_sites[0] if read_by_sites else external[-1]
        others = [node for node in external if node is not newer]
        older = others[0] if others else None
        if older is None and newer in producer:
            older = producer[newer].inputs[1]
        own = {node for item in group for node in item.nodes}
        nodes, numbers = self._nodes(group, older if others else None, newer)
        heard = [numbers[item.output] for item in group if item.output in numbers and not set(item.output.users) <= own]
        if not heard:  # the block's output is unused
            return None
        nodes, heard = _padded(nodes, heard)
        nodes = [replace(node, terms=(*(Term(NULL, 0),) * (2 - len(node.terms)), *node.terms)) for node in nodes]
        graph = Graph.from_inputs([[(term.op, term.source) for term in node.terms] for node in nodes], heard)
        kind = "reduce" if any(site.place.stride == 2 for site in sites) else "normal"
        name = _unique(self._name(group), names)
        return Block(name, kind, tuple(group), (older, newer), tuple(nodes), tuple(heard), graph)

    def _nodes(self, group: list[Item], older: Node | None, newer: Node) -> tuple[list[BlockNode], dict[Node, int]]:
        numbers: dict[Node, int] = {newer: 1}
        if older is not None:
            numbers[older] = 0
        projections = self._projections(group)
        nodes: list[BlockNode] = []
        for item in group:
            if isinstance(item, Site):
                if item in projections:
                    continue
                terms = [Term(item.op, numbers[item.source], item)]
            else:
                terms = []
                for order, read in enumerate(item.terms):
                    found = self.by_output.get(read)
                    through = found if isinstance(found, Site) and found in projections else None
                    terms.append(Term(SKIP, numbers[through.source if through else read], through, order))
                terms.sort(key=lambda term: term.source)
            numbers[item.output] = len(nodes) + 2
            nodes.append(BlockNode(tuple(terms), item))
        return nodes, numbers

    def _projections(self, group: list[Item]) -> set[Site]:
        """Sites that only project a shortcut to the shape of a sum; at most all but one of its terms."""
        found: set[Site] = set()
        for item in group:
            if isinstance(item, Sum):
                sites = [site for read in item.terms if isinstance(site := self.by_output.get(read), Site)]
                fork = self.parent[item.output]
                projecting = [site for site in sites if site in group and _projects(site) and site.source is fork]
                found.update(projecting[: len(item.terms) - 1])
        return found

    def _name(self, group: list[Item]) -> str:
        """The module that holds all items, or the first site."""
        paths = [_module_paths(item) for item in group]
        alike = list(takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False)))
        common = alike[-1][0] if alike else ""
        sites = [item for item in group if isinstance(item, Site)]
        crowded = any(path == common for item, path in self.owner.items() if item not in group)
        return common if common and not crowded else sites[0].name if sites else group[0].name


def _padded(nodes: list[BlockNode], heard: list[int]) -> tuple[list[BlockNode], list[int]]:
    """The nodes, with a skip behind if the last is neither a sum nor a pooling, and one in front if fewer than four."""
    last = nodes[-1].item
    pooled = isinstance(last, Site) and OPS[last.op].family == "pool"
    if heard == [len(nodes) + 1] and isinstance(last, Site) and not pooled and len(nodes) < MIN_NODES:
        nodes = [*nodes, BlockNode((Term(SKIP, len(nodes) + 1),), None)]
        heard = [len(nodes) + 1]
    if len(nodes) < MIN_NODES and len(heard) == 1:
        moved = [
            replace(node, terms=tuple(replace(term, source=term.source + (term.source >= 1)) for term in node.terms))
            for node in nodes
        ]
        nodes = [BlockNode((Term(SKIP, 1),), None), *moved]
        heard = [number + 1 for number in heard]
    return nodes, heard


def _externals(group: Sequence[Item]) -> set[Node]:
    inside = {item.output for item in group}
    return {read for item in group for read in item.sources if read not in inside}


def _projects(site: Site) -> bool:
    """Whether a site is a 1x1 convolution without activation that changes the shape and is read only by a sum."""
    changes = site.place.stride == 2 or site.place.channels_in != site.place.channels_out
    plain = not site.before and len(site.after) <= 1 and len(site.output.users) == 1
    return site.form.looks == POINTWISE and changes and plain


def _module_paths(item: Item) -> list[str]:
    """The modules an item belongs to, outermost first; for a called module, its parents."""
    node = item.main[0] if isinstance(item, Site) else item.additions[-1]
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return paths[:-1] if node.op == "call_module" else paths


def _unique(name: str, names: Counter[str]) -> str:
    names[name] += 1
    return name if names[name] == 1 else f"{name} ({names[name]})"


def shape(node: Node) -> tuple[int, ...]:
    """The shape of a feature map."""
    return tuple(int(side) for side in value(node).shape)


def node_shape(block: Block, number: int) -> tuple[int, ...]:
    """The shape of a node's feature map."""
    if number < 2:
        given = block.inputs[number]
        assert given is not None
        return shape(given)
    node = block.nodes[number - 2]
    return shape(node.item.output) if node.item is not None else node_shape(block, node.terms[-1].source)
