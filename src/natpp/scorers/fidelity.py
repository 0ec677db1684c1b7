"""How close the outputs of a changed module stay to the original's, on inputs without targets.

Replaced layers are first fitted to the original, on inputs that the score is not measured on. Only what lies after the
first change is run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from natpp.core.decision import Plan
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

FEW, LEAST = 3, 0.1  # one of so many batches shows what later layers make up for; the least that remains
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

    def fitted(self, plan: Plan) -> fx.GraphModule:
        """The module under a plan, fitted to the original."""
        made = self.module.rewritten(plan)
        changes = {number: option for number, option in enumerate(plan) if option}
        whole = sum(not changes.keys().isdisjoint(part) for part in self.module.together) > 1
        if changes and (whole or not self._survey.fill(made, changes)):
            self._refit(made, self._fit_onward, whole)
        return made

    def remaining(self, plan: Plan) -> float:
        """The share of a distance that remains once the layers behind the changes are fitted, too; on a few inputs."""
        fit, measure = self._few
        alone, whole = self.fitted(plan), self.module.rewritten(plan)
        self._refit(whole, fit, True)
        before, after = (self._far(made, measure) for made in (alone, whole))
        return float(np.clip(after / before, LEAST, 1.0)) if before > 0 else 1.0

    @functools.cached_property
    def _few(self) -> tuple[Onward, Onward]:
        fit, measure = joined(self.fitted_on)[::FEW], [(one,) for one in self.measured_on][::2]
        return Onward(self.original, fit), Onward(self.original, measure)

    def _refit(self, made: fx.GraphModule, onward: Onward, whole: bool) -> None:
        config = replace(self.config, replaced_only=not whole)
        refit(made, self.original, (), config, sensitivity=self.sensitivity, runs=onward.runs(made))

    def _near(self, candidate: Candidate) -> float:
        if not any(candidate.plan):
            return 0.0
        found = self._far(self.fitted(candidate.plan), self._onward)
        return max(-found, WORST) if math.isfinite(found) else WORST

    def _far(self, made: fx.GraphModule, onward: Onward) -> float:
        """The mean distance of a module's outputs to the original's."""
        pairs = zip(onward.outputs(made), onward.wanted, strict=True)
        return float(np.mean([self._distance(output, wanted) for output, wanted in pairs]))

    def _distance(self, output: Any, wanted: Any) -> float:
        """The distance of two outputs, made 0 for equal ones: a cross-entropy with soft targets is not."""
        one, other = (tree_map_only(Tensor, Tensor.double, some) for some in (output, wanted))
        return float(self.distance(one, other)) - float(self.distance(other, other))
