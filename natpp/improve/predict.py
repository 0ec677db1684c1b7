"""Few scores, the rest predicted: which architectures to score next, and what to expect of the others.

A score can be dear. So a value model, an ensemble of small networks over walks through the living
graph, is fitted on what was scored. The next ones to score are those that the current prediction
would choose for random inputs, with some at random. It sees graphs of any size, and what it is unsure
of counts less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from natpp.arch.graph import NUM_INPUTS, Architecture
from natpp.errors import SettingError
from natpp.improve.inputs import Inputs, Row
from natpp.improve.scorer import Score, Scorer, Scores

FIRST_SCORES = 16  # that tell how fast scores are
TRIES = 20  # draws for every random transformation that is wanted
LONGEST_WALK = 3  # operations of a walk that are told apart; longer ones by both their ends


@dataclass(frozen=True)
class PredictConfig:
    """How scores are predicted and chosen."""

    random_share: float = 0.4
    """share of the scores that go to architectures drawn at random"""
    rounds: int = 8
    """rounds in which the others are chosen by the prediction so far"""
    doubt: float = 0.5
    """how many standard deviations of the ensemble a final prediction loses"""
    members: int = 8
    """networks of the ensemble"""
    width: int = 64
    """hidden units"""
    steps: int = 400
    """gradient steps of a fit"""
    learning_rate: float = 5e-3
    """of AdamW, falling to zero along a cosine"""
    weight_decay: float = 1e-2
    """of AdamW"""

    def __post_init__(self) -> None:
        if not 0 < self.random_share <= 1:
            raise SettingError(f"random_share is {self.random_share}, expected a share above 0 and up to 1")
        if not self.doubt >= 0 or not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise SettingError("doubt and weight decay are numbers from 0 up, the learning rate is above 0")
        if min(self.rounds, self.members, self.width, self.steps) < 1:
            raise SettingError("rounds, members, width and steps are whole numbers from 1 up")


def walk_features(arch: Architecture) -> dict[tuple[str, ...], float]:
    """What a value model sees of an architecture: counts of operations, pairs and walks in its living graph."""
    found: dict[tuple[str, ...], float] = {}
    for kind, graph in arch.cells():
        for name, count in _graph_features(*graph.living()).items():
            found[(kind, *name)] = math.log1p(count)
    return found


def _graph_features(nodes: list[list[tuple[str, int]]], concat: list[int]) -> Counter[tuple[str, ...]]:
    features: Counter[tuple[str, ...]] = Counter()
    walks: list[Counter[tuple[str, ...]]] = [Counter({(f"input {node}",): 1}) for node in range(NUM_INPUTS)]
    for inputs in nodes:
        arriving: Counter[tuple[str, ...]] = Counter()
        for op, source in inputs:
            features["op", op] += 1
            if source >= NUM_INPUTS:
                features.update(("pair", before, op) for before, _ in nodes[source - NUM_INPUTS])
            for walk, count in walks[source].items():
                arriving[_extended(walk, op)] += count
        walks.append(arriving)
    longest = deepest = 0
    depth = [0] * NUM_INPUTS
    convs = [0] * NUM_INPUTS
    for inputs in nodes:
        depth.append(1 + max((depth[source] for _, source in inputs), default=-1))
        convs.append(max((convs[source] + ("conv" in op) for op, source in inputs), default=0))
    outputs = [node for node in concat if nodes[node - NUM_INPUTS]]
    for node in outputs:
        features.update({("walk", *walk): count for walk, count in walks[node].items()})
        longest, deepest = max(longest, depth[node]), max(deepest, convs[node])
    features["longest",] += longest
    features["deepest",] += deepest
    features["outputs",] += len(outputs)
    return features


def _extended(walk: tuple[str, ...], op: str) -> tuple[str, ...]:
    """A walk with one more operation; the middle of a long one is forgotten."""
    longer = (*walk, op)
    return longer if len(longer) <= 1 + LONGEST_WALK else (longer[0], "…", *longer[-LONGEST_WALK:])


class Prediction:
    """Scores of architectures as an ensemble expects them, on the scale of ranks from 0 to 1."""

    def __init__(self, archs: Sequence[Architecture], scores: Scores, config: PredictConfig, seed: int):
        self.config = config
        self.archs, self.scores = list(archs), scores
        features = [_cached_features(arch) for arch in archs]
        self._columns = {name: i for i, name in enumerate(sorted({name for one in features for name in one}))}
        table = self._table(features)
        self._mean, spread = table.mean(axis=0), table.std(axis=0)
        self._kept = spread > 0
        self._spread = np.where(self._kept, spread, 1)
        _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = ((np.cumsum(count) - (count + 1) / 2) / len(scores))[
            place
        ]  # equal scores share the mean of their ranks
        self._network = _fitted(self._scaled(table), torch.from_numpy(ranks).float(), config, seed)

    def expected(self, archs: Sequence[Architecture]) -> Scores:
        """Expected ranks."""
        return self._both(archs)[0]

    def careful(self, archs: Sequence[Architecture]) -> Scores:
        """Expected ranks less some of the doubt: what choices are made by."""
        expected, doubt = self._both(archs)
        return expected - self.config.doubt * doubt

    def _both(self, archs: Sequence[Architecture]) -> tuple[Scores, Scores]:
        """Expected ranks, and how far the members of the ensemble disagree."""
        with torch.no_grad():
            out = self._network(self._scaled(self._table([_cached_features(arch) for arch in archs])))
        return out.mean(dim=0).double().numpy(), out.std(dim=0, correction=0).double().numpy()

    def _table(self, features: Sequence[dict[tuple[str, ...], float]]) -> NDArray[np.float64]:
        table = np.zeros((len(features), len(self._columns)))
        for row, one in zip(table, features, strict=True):
            for name, value in one.items():
                if name in self._columns:
                    row[self._columns[name]] = value
        return table

    def _scaled(self, table: NDArray[np.float64]) -> Tensor:
        scaled = ((table - self._mean) / self._spread)[:, self._kept]
        return torch.from_numpy(scaled.clip(-5, 5)).float()


_known_features: dict[Architecture, dict[tuple[str, ...], float]] = {}


def _cached_features(arch: Architecture) -> dict[tuple[str, ...], float]:
    if arch not in _known_features:
        if len(_known_features) >= 1 << 17:
            _known_features.clear()
        _known_features[arch] = walk_features(arch)
    return _known_features[arch]


class _Ensemble(nn.Module):
    """Small networks side by side: (rows, features) to (members, rows)."""

    def __init__(self, features: int, config: PredictConfig):
        super().__init__()
        sizes = [features, config.width, config.width, 1]
        self.weights = nn.ParameterList(
            torch.randn(config.members, before, after) / max(before, 1) ** 0.5 for before, after in pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(config.members, 1, size) for size in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.expand(len(self.weights[0]), -1, -1)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if number < len(self.weights) - 1:
                hidden = hidden.relu()
        return hidden[..., 0]


def _fitted(rows: Tensor, targets: Tensor, config: PredictConfig, seed: int) -> _Ensemble:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _Ensemble(rows.shape[1], config)
        optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
        mean, spread = targets.mean(), targets.std(correction=0) + 1e-8
        seen = (torch.rand(config.members, len(rows)) < 0.9).float()  # each member leaves some rows out
        for _ in range(config.steps):
            batch = torch.randint(len(rows), (min(len(rows), 128),))
            errors = (network(rows[batch]) - (targets[batch] - mean) / spread).square() * seen[:, batch]
            optimizer.zero_grad()
            (errors.mean() * config.members).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():  # back to the scale of the targets
            network.weights[-1].mul_(spread)
            network.biases[-1].mul_(spread).add_(mean)
    return network.eval()


def predicted(
    inputs: Inputs,
    scorer: Scorer,
    config: PredictConfig,
    generator: np.random.Generator,
    plan: Callable[[], int] | None = None,
) -> Prediction:
    """A prediction fitted on as many scores as the scorer's limit allows, or as `plan` says after the first ones."""
    if scorer.left is None and plan is None:
        raise SettingError("a prediction needs a scorer with a limit")
    if scorer.left is not None and scorer.left < 2:
        raise SettingError(f"a prediction needs at least 2 scores, and {scorer.left} are left")
    budget: int = FIRST_SCORES if plan is not None or scorer.left is None else scorer.left
    archs: list[Architecture] = []
    known: set[Architecture] = set()

    def take(arch: Architecture) -> bool:
        key = scorer.key(arch)
        if key in known or len(archs) >= budget:
            return False
        known.add(key)
        archs.append(arch)
        return True

    def take_random(count: int) -> None:
        """Inputs, and where there are too few of them (one given architecture, say) random transformations."""
        for index in generator.permutation(len(inputs)).tolist():
            if count <= 0:
                return
            count -= take(inputs.archs[index])
        for _ in range(TRIES * count):
            if count <= 0:
                return
            index = int(generator.integers(len(inputs)))
            count -= take(inputs.transformed(index, inputs.random_row(index, generator)))

    if plan is not None:
        take_random(FIRST_SCORES)
        scorer(archs)
        budget = max(plan(), len(archs))
    take_random(max(round(budget * config.random_share), 2) - len(archs))
    scores = scorer(archs)
    a_round = max(math.ceil((budget - len(archs)) / config.rounds), 1)
    while len(archs) < budget:
        prediction = Prediction(archs, scores, config, int(generator.integers(2**31)))
        before = len(archs)
        wanted = min(a_round, budget - before)
        indices = generator.permutation(len(inputs)).tolist()[: max(4 * a_round, 100)]
        starts: list[tuple[int, Row]] = [(index, inputs.encoded[index].ops) for index in indices]
        while len(starts) < wanted:  # too few inputs: climb from random transformations of them too
            index = int(generator.integers(len(inputs)))
            starts.append((index, inputs.random_row(index, generator)))
        while starts and len(archs) - before < wanted:  # climb from as many as it takes
            some, starts = starts[:wanted], starts[wanted:]
            climbed = ascended(inputs, [index for index, _ in some], prediction.expected, [row for _, row in some])
            for (index, _), row in zip(some, climbed, strict=True):
                if len(archs) - before < wanted:
                    take(inputs.transformed(index, row))
        take_random(wanted - (len(archs) - before))
        if len(archs) == before:
            break  # everything there is has been scored
        scores = np.concatenate([scores, scorer(archs[before:])])
    return Prediction(archs, scores, config, int(generator.integers(2**31)))


def ascended(
    inputs: Inputs, indices: Sequence[int], score: Score, starts: Sequence[Row] | None = None, sweeps: int = 3
) -> list[Row]:
    """For each input the row that climbing edge by edge ends at: allowed transitions only, within the budget.

    It starts from the input itself, or from a row for each.
    """
    rows = [inputs.encoded[index].ops.copy() for index in indices] if starts is None else [row.copy() for row in starts]
    reached = inputs.scores(indices, rows, score)
    for _ in range(sweeps):
        before = [row.copy() for row in rows]
        for edge in range(max((len(row) for row in rows), default=0)):
            tried: list[tuple[int, Row]] = []
            for number, index in enumerate(indices):
                if edge < len(rows[number]):
                    for op in np.flatnonzero(inputs.masks[index][edge]).tolist():
                        other = rows[number].copy()
                        other[edge] = op
                        if inputs.fits(index, other):
                            tried.append((number, other))
            found = inputs.scores([indices[number] for number, _ in tried], [row for _, row in tried], score)
            for (number, row), value in zip(tried, found.tolist(), strict=True):
                if value > reached[number]:
                    rows[number], reached[number] = row, value
        if all((now == was).all() for now, was in zip(rows, before, strict=True)):
            break
    return rows
