"""The policy: a graph convolutional network that outputs a distribution over operations for every edge.

Forbidden transitions have probability exactly zero (the paper's binary-masked softmax).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from natpp.arch.graph import KINDS, NUM_INPUTS, Architecture, Graph
from natpp.arch.rules import Mask
from natpp.config import At, Config, fields_of
from natpp.errors import FormatError, SettingError
from natpp.files import write_whole
from natpp.registry import OPS

Ints = NDArray[np.int64]
NODE_KINDS = 3  # input 0, input 1, intermediate


class Encoded(NamedTuple):
    """One architecture as arrays: all cells in one graph, chains merged, fixed edges left out."""

    ops: Ints  # (edges,) index into the policy's operations
    sources: Ints  # (edges,) node that the edge reads
    targets: Ints  # (edges,)
    nodes: Ints  # (nodes, 3): cell kind, node kind, whether the output concatenates it
    places: tuple[tuple[str, int], ...]  # per edge: its cell and its index in the cell


def encode(arch: Architecture, ops: Sequence[str] | None = None) -> Encoded:
    """The arrays of an architecture, for a policy with these operations (by default all registered ones)."""
    return encode_cells(arch.cells(), ops)


def encode_cells(cells: Iterable[tuple[str, Graph]], ops: Sequence[str] | None = None) -> Encoded:
    """The arrays of some cells, given as (kind, graph)."""
    index = {name: number for number, name in enumerate(ops if ops is not None else OPS)}
    codes: list[int] = []
    ends: list[tuple[int, int]] = []
    nodes: list[tuple[int, int, int]] = []
    places: list[tuple[str, int]] = []
    for kind, graph in cells:
        offset, cell, outputs = len(nodes), KINDS.index(kind), {graph.names[node] for node in graph.outputs}
        nodes += [(cell, 0, 0), (cell, 1, 0)]  # the parts of a chain are one node
        nodes += [(cell, 2, int(name in outputs)) for name in range(NUM_INPUTS, graph.names[-1] + 1)]
        for number, edge in enumerate(graph.edges):
            if edge.fixed:
                continue
            if edge.op not in index:
                raise FormatError(
                    f"the policy does not know the operation {edge.op}: it was trained on another space "
                    "(train one with natpp search: --extras for all operations, --arch for this architecture)"
                )
            codes.append(index[edge.op])
            ends.append((offset + graph.names[edge.source], offset + graph.names[edge.target]))
            places.append((kind, number))
    sources, targets = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return Encoded(np.array(codes, dtype=np.int64), sources, targets, np.array(nodes, dtype=np.int64), tuple(places))


class GraphBatch(NamedTuple):
    """Many architectures as one disjoint graph."""

    ops: Tensor  # (edges,)
    sources: Tensor  # (edges,)
    targets: Tensor  # (edges,)
    nodes: Tensor  # (nodes, 3)
    owners: Tensor  # (edges,) index of the architecture
    mask: Tensor  # (edges, ops) allowed transitions
    size: int  # number of architectures


def collate(encoded: Sequence[Encoded], masks: Sequence[Mask], device: torch.device | str = "cpu") -> GraphBatch:
    """A batch of architectures of any sizes, with the transitions allowed on each edge."""
    sizes = [len(one.nodes) for one in encoded]
    edges = [len(one.ops) for one in encoded]
    shift = np.repeat(np.cumsum([0, *sizes[:-1]]), edges)
    arrays = (
        np.concatenate([one.ops for one in encoded]),
        np.concatenate([one.sources for one in encoded]) + shift,
        np.concatenate([one.targets for one in encoded]) + shift,
        np.concatenate([one.nodes for one in encoded]),
        np.repeat(np.arange(len(encoded)), edges),
        np.concatenate(masks),
    )
    ops, sources, targets, nodes, owners, mask = (torch.from_numpy(array).to(device) for array in arrays)
    return GraphBatch(ops, sources, targets, nodes, owners, mask, len(encoded))


def edge_masks(masks: dict[str, Mask], encoded: Encoded) -> Mask:
    """The rows of per-cell masks for the edges of an encoded architecture: (edges, ops)."""
    rows = [masks[kind][number] for kind, number in encoded.places]
    return np.stack(rows) if rows else np.zeros((0, next(iter(masks.values())).shape[1]), dtype=bool)


class Transitions(NamedTuple):
    """A distribution over transformations; edges are independent given the architectures."""

    batch: GraphBatch
    log_probs: Tensor  # (edges, ops); masked entries are very negative, with probability exactly 0

    @property
    def probs(self) -> Tensor:
        """Probabilities, (edges, ops)."""
        return self.log_probs.exp()

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Sampled operations for every edge: (count, edges)."""
        return torch.multinomial(self.probs, count, replacement=True, generator=generator).T

    def greedy(self) -> Tensor:
        """The most likely operation of every edge: (edges,)."""
        return self.log_probs.argmax(dim=-1)

    def probabilities(self, choices: Tensor) -> NDArray[np.float64]:
        """Probability of the choice on each edge, for choices (samples, edges)."""
        picked = self.probs.detach()[torch.arange(choices.shape[-1]), choices]
        return picked.cpu().numpy().astype(np.float64)

    def log_prob(self, choices: Tensor) -> Tensor:
        """Log-probability of transformations (…, edges), per architecture: (…, architectures)."""
        edges = self.log_probs.expand(*choices.shape, -1).gather(-1, choices[..., None])[..., 0]
        return self._per_architecture(edges)

    def entropy(self) -> Tensor:
        """Entropy of the transformation, per architecture: (architectures,)."""
        return self._per_architecture(-(self.probs * self.log_probs).sum(dim=-1))

    def _per_architecture(self, edges: Tensor) -> Tensor:
        total = edges.new_zeros(*edges.shape[:-1], self.batch.size)
        return total.index_add(-1, self.batch.owners, edges)


def masked_log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Log of the binary-masked softmax, Eq. (6) of the paper; masked entries get the lowest finite number."""
    lowest = torch.finfo(logits.dtype).min
    return torch.where(mask, logits.masked_fill(~mask, lowest).log_softmax(dim=-1), lowest)


@dataclass(frozen=True)
class PolicyConfig(Config):
    """The architecture of a policy network."""

    form: Literal["edges", "paper"] = "edges"
    """edges: logits from both nodes and the edge's own operation; paper: the GCN of the paper"""
    depth: Annotated[int, At(least=1)] = 2
    """number of graph-convolution layers"""
    width: Annotated[int, At(least=1)] = 64
    """number of features per node"""


class Policy(nn.Module):
    """Logits over operations for every edge; the list of operations, `ops`, is saved with the weights.

    Examples:
        >>> from natpp.nets.policy import Policy
        >>> policy = Policy(ops=["conv_3x3", "skip_connect", "null"])
        >>> policy.save("policy.safetensors")
        >>> Policy.load("policy.safetensors").ops
        ('conv_3x3', 'skip_connect', 'null')
    """

    def __init__(self, config: PolicyConfig | None = None, ops: Sequence[str] | None = None):
        super().__init__()
        self.config = config or PolicyConfig()
        self.ops = tuple(ops if ops is not None else OPS)
        if len(set(self.ops)) < len(self.ops) or not all(isinstance(op, str) for op in self.ops):
            raise SettingError("the operations of a policy must be distinct names")
        num_ops, width = len(self.ops), self.config.width
        if self.config.form == "paper":
            first = num_ops + len(KINDS) + NODE_KINDS
            widths = [first] + [width] * self.config.depth
            self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
            self.head: nn.Module = nn.Linear(2 * width, num_ops)
        else:
            self.op = nn.Embedding(num_ops, width)
            self.kind = nn.Embedding(len(KINDS) * NODE_KINDS * 2, width)
            self.layers = nn.ModuleList(_EdgeLayer(width) for _ in range(self.config.depth))
            self.head = nn.Sequential(nn.Linear(3 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, num_ops))

    def forward(self, batch: GraphBatch) -> Transitions:
        """The distribution over transformations, for every architecture of a batch."""
        logits = self._paper(batch) if self.config.form == "paper" else self._edges(batch)
        return Transitions(batch, masked_log_softmax(logits, batch.mask))

    def _edges(self, batch: GraphBatch) -> Tensor:
        carried = self.op(batch.ops)  # (edges, width)
        cell, kind, listed = batch.nodes.T
        nodes = self.kind((cell * NODE_KINDS + kind) * 2 + listed)  # (nodes, width)
        nodes = nodes.index_add(0, batch.targets, carried)
        for layer in self.layers:
            nodes = layer(nodes, carried, batch)
        logits: Tensor = self.head(torch.cat([nodes[batch.sources], nodes[batch.targets], carried], dim=-1))
        return logits

    def _paper(self, batch: GraphBatch) -> Tensor:
        """Z = A σ(A X W0) W1 W_FC, where A is the adjacency of the directed graph with self-loops.

        With both directions in A, all nodes of a complete graph like that of NAS-Bench-201 would get the same features.
        """
        cell, kind, _ = batch.nodes.T
        size = len(batch.nodes)
        one_hot = nn.functional.one_hot(batch.ops, len(self.ops)).float()
        ops = one_hot.new_zeros(size, len(self.ops)).index_add(0, batch.targets, one_hot)
        kinds = nn.functional.one_hot(cell, len(KINDS)), nn.functional.one_hot(kind, NODE_KINDS)
        nodes = torch.cat([ops, *kinds], dim=-1)
        for number, layer in enumerate(self.layers):
            nodes = layer(nodes.index_add(0, batch.targets, nodes[batch.sources]))
            if number < len(self.layers) - 1:
                nodes = nodes.relu()
        logits: Tensor = self.head(torch.cat([nodes[batch.sources], nodes[batch.targets]], dim=-1))
        return logits

    def save(self, path: str | Path, notes: dict[str, object] | None = None) -> None:
        """Write the policy as one safetensors file: weights, shape, operations and your notes."""
        from safetensors.torch import save

        said = {"natpp": "policy", "config": asdict(self.config), "ops": self.ops, "notes": notes or {}}
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        write_whole(path, save(weights, metadata={"natpp": json.dumps(said)}))

    @staticmethod
    def load(path: str | Path) -> Policy:
        """Read a policy file; nothing in it is executed."""
        return load_policy(path)[0]


class _EdgeLayer(nn.Module):
    """A graph-convolution layer with separate weights for messages along edges, against edges, and the node itself."""

    def __init__(self, width: int):
        super().__init__()
        self.own = nn.Linear(width, width)
        self.forth = nn.Linear(2 * width, width, bias=False)
        self.back = nn.Linear(2 * width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, carried: Tensor, batch: GraphBatch) -> Tensor:
        heard = torch.cat([nodes[batch.sources], carried], dim=-1)
        told = torch.cat([nodes[batch.targets], carried], dim=-1)
        total = self.own(nodes).index_add(0, batch.targets, self.forth(heard))
        out: Tensor = nodes + self.norm(total.index_add(0, batch.sources, self.back(told))).relu()
        return out


def load_policy(path: str | Path) -> tuple[Policy, dict[str, object]]:
    """The policy in a file, and its notes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("natpp", "null"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except OSError as error:
        raise FormatError(f"cannot read the policy {str(path)!r}: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        raise FormatError(f"{str(path)!r} is not a policy file, or it is damaged: {error}") from None
    if not isinstance(metadata, dict) or metadata.get("natpp") != "policy":
        raise FormatError(f"{str(path)!r} holds weights, but not those of a natpp policy")
    try:
        known = fields_of(PolicyConfig)
        policy = Policy(PolicyConfig(**{k: v for k, v in metadata["config"].items() if k in known}), metadata["ops"])
        policy.load_state_dict(weights)
        notes = dict(metadata["notes"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, SettingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FormatError(f"the policy file {str(path)!r} is damaged: {reason}") from None
    if not all(tensor.isfinite().all() for tensor in weights.values()):
        raise FormatError(f"the policy file {str(path)!r} is damaged: a weight is not a number")
    return policy.eval(), notes
