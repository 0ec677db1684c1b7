"""Features of an architecture for a value model: two views of its living graph, of any size.

The random-walk view is more informative with few scores; counting walks distinguishes more once there are many.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict

from natpp.arch.graph import NUM_INPUTS, Architecture

Name = tuple[str, ...]
Features = dict[Name, float]
Nodes = list[list[tuple[str, int]]]  # of every inner node: operations that arrive, and where from

MOST_SEEN = 1 << 15  # architectures whose features are cached, some kilobytes each
LONGEST_WALK = 3  # operations of a walk that are distinguished; longer walks are described by their two ends
UNLEARNED = ("unlearned",)


@functools.lru_cache(MOST_SEEN)
def flow_features(arch: Architecture) -> Features:
    """Expected counts of operations on a random walk back from an output to an input.

    Counted are each operation, all operations and convs, and how often a walk has no conv. Cells of both kinds are
    counted separately and also summed, since an operation does much the same in both. In a reduction cell the
    operations at stride 2 are counted too.
    """
    found: defaultdict[Name, float] = defaultdict(float)
    for kind, graph in arch.cells():
        nodes, concat = graph.living()
        for name, value in _flow(nodes, _outputs(nodes, concat)).items():
            found[(kind, *name)] = value
            found[("both", *name)] += value
        for name, count in _extent(nodes, concat).items():
            found[(kind, *name)] = float(count)
        if kind == "reduce":
            for name, count in _at_stride_2(nodes).items():
                found[(kind, *name)] = math.log1p(count)
    return dict(found)


@functools.lru_cache(MOST_SEEN)
def walk_features(arch: Architecture) -> Features:
    """Logarithms of the counts of operations, of consecutive pairs, and of walks from input to output.

    Cells of both kinds are counted separately, and so are the operations at stride 2 in a reduction cell.
    """
    found: Features = {}
    for kind, graph in arch.cells():
        nodes, concat = graph.living()
        counted = _walks(nodes, _outputs(nodes, concat)) + _extent(nodes, concat)
        if kind == "reduce":
            counted += _at_stride_2(nodes)
        for name, count in counted.items():
            found[(kind, *name)] = math.log1p(count)
    return found


def _outputs(nodes: Nodes, concat: list[int]) -> list[int]:
    """Nodes that are concatenated to the output."""
    return [node for node in concat if nodes[node - NUM_INPUTS]]


def _flow(nodes: Nodes, outputs: list[int]) -> Features:
    """Expected counts on a random walk back from a random output."""
    met: list[Features] = [{(f"input {node}",): 1.0, UNLEARNED: 1.0} for node in range(NUM_INPUTS)]
    for inputs in nodes:
        here: defaultdict[Name, float] = defaultdict(float)
        for op, source in inputs:
            learned = "conv" in op
            for name, value in met[source].items():
                here[name] += 0.0 if learned and name == UNLEARNED else value / len(inputs)
            here["op", op] += 1 / len(inputs)
            here["ops",] += 1 / len(inputs)
            here["convs",] += learned / len(inputs)
        met.append(here)
    found: defaultdict[Name, float] = defaultdict(float)
    for node in outputs:
        for name, value in met[node].items():
            found[name] += value / len(outputs)
    return found


def _walks(nodes: Nodes, outputs: list[int]) -> Counter[Name]:
    """Operations, pairs and walks, counted."""
    found: Counter[Name] = Counter()
    walks: list[Counter[Name]] = [Counter({(f"input {node}",): 1}) for node in range(NUM_INPUTS)]
    for inputs in nodes:
        arriving: Counter[Name] = Counter()
        for op, source in inputs:
            found["op", op] += 1
            if source >= NUM_INPUTS:
                found.update(("pair", before, op) for before, _ in nodes[source - NUM_INPUTS])
            for walk, count in walks[source].items():
                arriving[_extended(walk, op)] += count
        walks.append(arriving)
    for node in outputs:
        found.update({("walk", *walk): count for walk, count in walks[node].items()})
    return found


def _extended(walk: Name, op: str) -> Name:
    """A walk with one more operation; the middle of a long walk is dropped."""
    longer = (*walk, op)
    return longer if len(longer) <= 1 + LONGEST_WALK else (longer[0], "…", *longer[-LONGEST_WALK:])


def _extent(nodes: Nodes, concat: list[int]) -> Counter[Name]:
    """Size and depth of a graph: edges, outputs, and the largest number of operations and convs on one walk."""
    depth, convs = [0] * NUM_INPUTS, [0] * NUM_INPUTS
    for inputs in nodes:
        depth.append(1 + max((depth[source] for _, source in inputs), default=-1))
        convs.append(max((convs[source] + ("conv" in op) for op, source in inputs), default=0))
    outputs = _outputs(nodes, concat)
    return Counter(
        {
            ("edges",): sum(map(len, nodes)),
            ("outputs",): len(outputs),
            ("longest",): max((depth[node] for node in outputs), default=0),
            ("deepest",): max((convs[node] for node in outputs), default=0),
        }
    )


def _at_stride_2(nodes: Nodes) -> Counter[Name]:
    """Of a reduction cell the operations that halve the size."""
    return Counter(("stride 2", op) for node in nodes for op, source in node if source < NUM_INPUTS)
