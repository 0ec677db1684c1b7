"""Peak activation memory of a planned network: its forward pass, followed with sizes in place of tensors.

It does what `nets.network` does, in the same order, and a test holds the two together byte for byte.
A tensor is a token; a node that only skips is the very tensor it reads, so tokens are counted once.
"""

from __future__ import annotations

from collections.abc import Iterable

from natpp.arch.graph import NUM_INPUTS, Graph, Liveness
from natpp.arch.layers import FLOAT_BYTES, Chain, Size, area, chain_memory
from natpp.arch.networks import IMAGE_CHANNELS, Block, CellPart, Plan
from natpp.registry import OPS


def peak_memory(planned: Plan) -> int:
    """The most bytes of activations held at once for one float32 image."""
    layout = planned.layout
    readers = last_blocks(planned)
    run = _Run([FLOAT_BYTES * IMAGE_CHANNELS * layout.setting.size**2])  # the image, which the caller holds
    values = {0: 0}
    seen: dict[object, tuple[int, int]] = {}  # cells alike need alike
    for index, part in enumerate(planned.parts):
        if not part.live:
            continue
        if isinstance(part, CellPart):
            key = layout.alike[index], part.liveness
            if key not in seen:
                seen[key] = _cell(part)
            inside, out = seen[key]
            run.hold(values.values(), inside)
            values[index + 1] = values[part.block.reads[-1 - out]] if out < 0 else run.new(out)
        else:
            values[index + 1] = _block(run, part.block, values, hears=planned.hears[index + 1])
        values = {value: token for value, token in values.items() if value == 0 or readers.get(value, -1) > index}
    last = len(layout.blocks)
    size: Size = layout.blocks[-1].size_out
    if not planned.hears[-1]:  # one zero a channel stands for the last value
        size = (1, 1)
        values[last] = run.new(FLOAT_BYTES * layout.width)
    run.chain(layout.head, layout.width, size, values[last], values.values())
    return run.peak


def last_readers(graph: Graph, liveness: Liveness) -> dict[int, int]:
    """Per node that a live edge or the output reads: the last node to do so (for the output: the node count)."""
    readers = {}
    for edge, alive in zip(graph.edges, liveness.live, strict=True):
        if alive:
            readers[edge.source] = edge.target
    return readers | dict.fromkeys(graph.outputs, graph.num_nodes)


def last_blocks(planned: Plan) -> dict[int, int]:
    """Per value that a living block reads: the last block to do so. The head reads the last value."""
    readers = {}
    for index, part in enumerate(planned.parts):
        for slot, value in enumerate(part.block.reads):
            if not isinstance(part, CellPart) or part.liveness.inputs[slot]:
                readers[value] = index
    return readers | {len(planned.parts): len(planned.parts)}


class _Run:
    """Token sizes of a forward pass and the most bytes held so far."""

    def __init__(self, sizes: list[int]):
        self.sizes = sizes
        self.peak = sum(sizes)

    def new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def hold(self, tokens: Iterable[int], more: int = 0) -> None:
        self.peak = max(self.peak, sum(self.sizes[token] for token in set(tokens)) + more)

    def chain(self, chain: Chain, channels: int, size: Size, read: int, held: Iterable[int]) -> int:
        most, out = chain_memory(chain, channels, size)
        self.hold(held, most)
        return self.new(out) if out else read


def _block(run: _Run, block: Block, values: dict[int, int], *, hears: bool) -> int:
    held = [*values.values()]
    if block.reads[0] in values:
        read = values[block.reads[0]]
    else:  # the cell before it is dead: zeros stand for its output
        read = run.new(FLOAT_BYTES * block.channels_in * area(block.size_in))
        held.append(read)
    for chain in block.branches:
        held.append(run.chain(chain, block.channels_in, block.size_in, read, held))
    out = held[-1]
    if len(block.branches) > 1:
        out = run.new(run.sizes[held[-1]])
        run.hold([*held, out])
    if hears:
        return out
    zeros = run.new(run.sizes[out])
    run.hold([*held[: -len(block.branches)], out, zeros])
    return zeros


def _cell(part: CellPart) -> tuple[int, int]:
    """Most bytes a cell holds beyond the values it reads, and the bytes of its output.

    An output that is the very tensor of input 0 or 1 is given as -1 or -2.
    """
    block, _, graph, liveness = part
    run = _Run([0] * NUM_INPUTS)  # tokens 0 and 1 are the values it reads, counted outside
    node_bytes = FLOAT_BYTES * block.channels * area(block.size_out)
    states: dict[int, int] = {}
    for node in range(NUM_INPUTS):
        if liveness.inputs[node]:
            shape = block.channels_in[node], block.sizes_in[node]
            states[node] = run.chain(block.inputs[node], *shape, node, states.values())
    readers = last_readers(graph, liveness)
    for node in range(NUM_INPUTS, graph.num_nodes):
        terms: list[int] = []
        for index in graph.into(node):
            if liveness.live[index]:
                edge = graph.edges[index]
                place = block.place(edge.source)
                chain = OPS[edge.op].layers(place)
                held = [*states.values(), *terms]
                terms.append(run.chain(chain, place.channels_in, place.size, states[edge.source], held))
        if len(terms) == 2:
            states[node] = run.new(node_bytes)
            run.hold([*states.values(), *terms])
        elif terms:
            states[node] = terms[0]
        states = {kept: token for kept, token in states.items() if readers.get(kept, -1) > node}
    if len(graph.outputs) == 1:
        out = states[graph.outputs[0]]
        return run.peak, -1 - out if out < NUM_INPUTS else run.sizes[out]
    zeros = 0 if all(liveness.hears[node] for node in graph.outputs) else node_bytes
    out_bytes = node_bytes * len(graph.outputs)
    run.hold(states.values(), zeros + out_bytes)
    return run.peak, out_bytes
