"""How close the outputs of a changed module stay to the original's, on inputs without targets.

Replaced layers are first fitted to the original, on inputs that the score is not measured on. Only what lies after the
first change is run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from natpp.core.scores import Scores
from natpp.core.subject import Candidate
from natpp.decisions.onward import Onward
from natpp.decisions.refit import Refit, refit
from natpp.decisions.running import joined
from natpp.decisions.sensitivity import Sensitivity
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

    @functools.cached_property
    def _fit_onward(self) -> Onward:
        return Onward(self.original, joined(self.fitted_on))

    def _score(self, candidates: list[Candidate]) -> Scores:
        return np.array([self._near(one) for one in candidates])

    def _near(self, candidate: Candidate) -> float:
        plan = candidate.plan
        if not any(plan):
            return 0.0
        made = cast(Module, candidate.subject).rewritten(plan)
        if not self._survey.fill(made, {number: option for number, option in enumerate(plan) if option}):
            refit(made, self.original, (), self.config, sensitivity=self.sensitivity, runs=self._fit_onward.runs(made))
        pairs = zip(self._onward.outputs(made), self._onward.wanted, strict=True)
        found = float(np.mean([self._distance(output, wanted) for output, wanted in pairs]))
        return max(-found, WORST) if math.isfinite(found) else WORST

    def _distance(self, output: Any, wanted: Any) -> float:
        """The distance of two outputs, made 0 for equal ones: a cross-entropy with soft targets is not."""
        one, other = (tree_map_only(Tensor, Tensor.double, some) for some in (output, wanted))
        return float(self.distance(one, other)) - float(self.distance(other, other))
