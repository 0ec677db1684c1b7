"""How close the outputs of a changed module stay to the original's, on inputs without targets.

Replaced layers are first fitted to the original, on inputs that the score is not measured on. Only what lies after the
first change is run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.node import Node, map_arg
from torch.utils._pytree import tree_map_only

from natpp.core.scores import Scores
from natpp.core.subject import Candidate
from natpp.decisions.refit import Refit, refit
from natpp.decisions.running import Run, joined
from natpp.decisions.sensitivity import Sensitivity
from natpp.fx.rewrite import STANDS
from natpp.nets.measure import evaluating
from natpp.scorers.base import Scorer
from natpp.scorers.short import WORST
from natpp.scorers.survey import Survey
from natpp.subjects.module import Module
from natpp.training.losses import Loss

MEASURED = 0.25  # share of the inputs that scores are measured on


class Fidelity(Scorer):
    """Minus the distance of a candidate's outputs to those of the original."""

    name = "fidelity"
    at_once = 1

    def __init__(self, module: Module, inputs: Sequence[Tensor], distance: Loss, config: Refit = Refit()):
        """`inputs` are batches; the last ones, alone and mixed in pairs, give the score; the others are for the fit."""
        super().__init__()
        self.module, self.distance, self.config = module, distance, config
        count = max(1, round(len(inputs) * MEASURED))
        self.fitted_on = list(inputs[:-count] or inputs)
        seen = inputs[-count:]
        self.measured_on = [*seen, *((one + one.flip(0)) / 2 for one in seen)]

    def estimated(self, changes: Mapping[int, int]) -> float | None:
        """The estimated loss of some options, by decision; None if only a score can tell."""
        return self._survey.loss(changes)

    @functools.cached_property
    def original(self) -> fx.GraphModule:
        """The module as natpp writes it."""
        return self.module.rewritten((0,) * len(self.module.decisions))

    @functools.cached_property
    def sensitivity(self) -> Sensitivity:
        """What errors inside the original cost."""
        return Sensitivity(self.original, self.fitted_on)

    @functools.cached_property
    def _survey(self) -> Survey:
        return Survey(self.module, self.original, joined(self.fitted_on), self.config.ridge, self.sensitivity)

    @functools.cached_property
    def _onward(self) -> Onward:
        return Onward(self.original, [(one,) for one in self.measured_on])

    def _score(self, candidates: list[Candidate]) -> Scores:
        return np.array([self._near(one) for one in candidates])

    def _near(self, candidate: Candidate) -> float:
        plan = candidate.plan
        if not any(plan):
            return 0.0
        made = cast(Module, candidate.subject).rewritten(plan)
        if not self._survey.fill(made, {number: option for number, option in enumerate(plan) if option}):
            refit(made, self.original, self.fitted_on, self.config, sensitivity=self.sensitivity)
        pairs = zip(self._onward.outputs(made), self._onward.wanted, strict=True)
        found = float(np.mean([self._distance(output, wanted) for output, wanted in pairs]))
        return max(-found, WORST) if math.isfinite(found) else WORST

    def _distance(self, output: Any, wanted: Any) -> float:
        """The distance of two outputs, made 0 for equal ones: a cross-entropy with soft targets is not."""
        one, other = (tree_map_only(Tensor, Tensor.double, some) for some in (output, wanted))
        return float(self.distance(one, other)) - float(self.distance(other, other))


class Onward:
    """The outputs of changed modules, which are run only from their first change on."""

    def __init__(self, original: fx.GraphModule, batches: Sequence[tuple[Any, ...]]):
        self.original, self.batches = original, batches
        self.by_name = {original.meta[STANDS].get(node.name, ""): node for node in original.graph.nodes}
        self.ahead = Run(original, batches)

    @functools.cached_property
    def wanted(self) -> list[Any]:
        """The original's outputs."""
        return self._outputs(Run(self.original, self.batches))

    def outputs(self, made: fx.GraphModule) -> list[Any]:
        """A changed module's outputs."""
        run, same = Run(made, self.batches), dict[Node, Node]()
        for node in run.order:
            old = self.by_name.get(made.meta[STANDS].get(node.name, ""))
            if old is not None and self._alike(node, old, run, same):
                same[node] = old
        kept, ahead = set(same.values()), self.ahead
        first = next(place for place, node in enumerate(ahead.order) if node not in kept)
        if first < ahead.place:
            ahead = self.ahead = Run(self.original, self.batches)
        with evaluating(self.original), torch.no_grad():
            while ahead.place < first:
                ahead.step(ahead.order[ahead.place])
        run.values.update({node: ahead.values[old] for node, old in same.items() if old in ahead.values})
        done = {node for node, old in same.items() if ahead.at[old] < first}
        return self._outputs(run, done)

    def _alike(self, node: Node, old: Node, run: Run, same: Mapping[Node, Node]) -> bool:
        """Whether a node computes what it does in the original, from the same inputs."""
        reads, before = node.all_input_nodes, old.all_input_nodes
        if len(reads) != len(before) or any(same.get(one) is not two for one, two in zip(reads, before, strict=True)):
            return False
        if node.op == "call_module":
            return not run.replaced(node, self.ahead, old)
        if node.op == "get_attr":
            one, two = (_attribute(*some) for some in ((run.module, node), (self.original, old)))
            return one.shape == two.shape and torch.equal(one, two)
        return node.op == old.op != "output" and str(node.args) == str(old.args)

    @torch.no_grad()
    def _outputs(self, run: Run, done: Collection[Node] = ()) -> list[Any]:
        """The outputs after all nodes but some have run; what these would have to give is computed if it is read."""
        *nodes, output = run.order
        with evaluating(run.module):
            for node in nodes:
                if node not in done:
                    for one in node.all_input_nodes:
                        run.need(one)
                    run.step(node)
        given = output.args[0]
        return [
            map_arg(given, lambda one, number=number: run.values[one][number])  # type: ignore[misc]
            for number in range(len(self.batches))
        ]


def _attribute(module: fx.GraphModule, node: Node) -> Tensor:
    found: Tensor = functools.reduce(getattr, str(node.target).split("."), module)  # type: ignore[assignment]
    return found
