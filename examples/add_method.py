"""A new method: try every change of a single decision and keep the one with the best score."""

from dataclasses import dataclass

import numpy as np
import torch

import natpp
from natpp.arch.networks import setting
from natpp.methods.base import Method, picked
from natpp.registry import METHODS, OPS
from natpp.subjects.cells import Cells, Frame
from natpp.subjects.many import Subjects
from natpp.testing import check_method


@dataclass(frozen=True)
class OneChange(Method):
    needs_scores = True  # a field would be a setting: one-change:tries=20

    def propose(self, subjects, count, score, chance):
        candidates = [list(self.changed(subjects, index)) for index in range(len(subjects))]
        return [[row] for row in picked(subjects, candidates, score)]

    def changed(self, subjects, index):
        for place, op in np.argwhere(subjects.masks[index]):  # what rule and budget allow, including no change
            row = np.where(np.arange(len(subjects.before[index])) == place, op, subjects.before[index])
            yield subjects.repaired(index, row, np.ones(len(row)))


def cheap(archs):  # a scorer can be any function from candidates to numbers; higher is better
    return np.array([-natpp.cost(arch).live_madds for arch in archs])


def small(candidates):  # candidates for a module: a subject and a plan; `build()` makes the changed module
    return np.array([-one.subject.living(one.plan)["params"] for one in candidates])


METHODS.add("one-change", OneChange())
check_method(OneChange(), Subjects([Cells(natpp.load("darts"), Frame("nat++", setting("cifar")), tuple(OPS))]), cheap)
print(natpp.optimize("darts", "one-change", scorer=cheap))
x = torch.ones(1, 3, 32, 32)
print(natpp.optimize(natpp.zoo.network("resnet20"), "one-change", "strict", example_input=x, scorer=small))
