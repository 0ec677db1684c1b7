"""A new method: try every change of a single edge and keep the one with the best score."""

import numpy as np

import natpp
from natpp.arch.networks import setting
from natpp.methods.base import picked
from natpp.registry import METHODS, OPS
from natpp.scorers.base import Task
from natpp.subjects.many import Inputs
from natpp.testing import check_method


class OneChange:
    rule, asks = None, True  # works with any rule and uses scores

    def fit(self, inputs, score, generator):
        return self  # nothing to learn

    def one_shot(self, inputs, score, generator):
        return picked(inputs, [list(self.changed(inputs, index)) for index in range(len(inputs))], score)

    def candidates(self, inputs, count, generator): ...  # it has only one candidate

    def changed(self, inputs, index):
        for edge, op in np.argwhere(inputs.masks[index]):  # what rule and budget allow, including no change
            row = np.where(np.arange(len(inputs.masks[index])) == edge, op, inputs.encoded[index].ops)
            yield inputs.repaired(index, row, np.ones(len(row)))


def cheap(archs):
    return np.array([-natpp.cost(arch).live_madds for arch in archs])


METHODS.add("one-change", OneChange())  # for natpp benchmark … --method one-change
inputs = Inputs([natpp.load("darts")], Task("nat++", setting("cifar")), tuple(OPS))
check_method(OneChange(), inputs, cheap)
(row,) = OneChange().one_shot(inputs, cheap, np.random.default_rng(0))
better = inputs.transformed(0, row)
print(f"{natpp.cost('darts').live_madds:,} → {natpp.cost(better).live_madds:,} MAdds")
