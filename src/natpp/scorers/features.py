"""What a value model sees of an architecture: two views of its living graph, of any size.

What flows through it says most where few scores are known; which walks it has tells more apart once many are.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict

from natpp.arch.graph import NUM_INPUTS, Architecture

Name = tuple[str, ...]
Features = dict[Name, float]
Nodes = list[list[tuple[str, int]]]  # of every inner node: operations that arrive, and where from

MOST_SEEN = 1 << 15  # architectures whose features are kept, some kilobytes each
LONGEST_WALK = 3  # operations of a walk that are told apart; longer ones by both their ends
UNLEARNED = ("unlearned",)


@functools.lru_cache(MOST_SEEN)
def flow_features(arch: Architecture) -> Features:
    """What is met on a way back from an output to an input, drawn at random at every node: expected numbers.

    That is of every operation, of all and of convs, and how often there is no conv on it. Cells of both kinds are told
    apart and also summed up, since an operation does much the same in both; in a reduction cell those at stride 2 are
    counted.
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
    """Counts of operations, of pairs one after the other, and of walks from input to output, on a scale of logarithms.

    Cells of both kinds are told apart, and in a reduction cell the operations that stand at stride 2.
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
    """Nodes that the output is made of."""
    return [node for node in concat if nodes[node - NUM_INPUTS]]


def _flow(nodes: Nodes, outputs: list[int]) -> Features:
    """Expected numbers on a random way back from a random output."""
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
    """A walk with one more operation; the middle of a long one is forgotten."""
    longer = (*walk, op)
    return longer if len(longer) <= 1 + LONGEST_WALK else (longer[0], "…", *longer[-LONGEST_WALK:])


def _extent(nodes: Nodes, concat: list[int]) -> Counter[Name]:
    """How far a graph reaches: edges, outputs, and the most operations and convs on one walk."""
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
