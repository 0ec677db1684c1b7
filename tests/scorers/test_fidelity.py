"""Fidelity: the original is nearest to itself, inputs that measure are not fitted on, and wrong input is refused."""

import numpy as np
import pytest
import torch

import natpp
from natpp.core.solve import with_option
from natpp.decisions.refit import Refit, refit
from natpp.errors import NatppError
from natpp.fx.trace import trace
from natpp.scorers.fidelity import Fidelity
from natpp.subjects.module import Module
from natpp.training.losses import softened
from tests.fx.fx_models import SMALL
from tests.fx.promises import warmed

X = torch.randn(2, 3, 16, 16)


def scorer(rounds: int = 1) -> tuple[Module, Fidelity]:
    torch.manual_seed(0)
    module = Module(trace(warmed(SMALL["resnet"](), X).eval(), X))
    inputs = list(torch.randn(256, 3, 16, 16, generator=torch.Generator().manual_seed(0)).split(32))
    return module, Fidelity(module, inputs, softened, Refit(rounds=rounds, replaced_only=True))


def test_the_original_is_nearest_to_itself() -> None:
    module, fidelity = scorer()
    start = (0,) * len(module.decisions)
    changes = [(n, one.allowed[1]) for n, one in enumerate(module.decisions) if len(one.allowed) > 1]
    plans = [start, *(with_option(start, *change) for change in changes)]
    scores = fidelity([module.candidate(plan) for plan in plans if module.fits(plan)])
    assert scores[0] == 0
    assert scores.max() < 1e-9
    assert np.median(scores) < -1e-7
    again, other = scorer()[1], scorer()[0]
    assert np.allclose(again([other.candidate(plans[1])]), scores[1:2], rtol=1e-4)


def test_inputs_that_measure_are_not_fitted_on() -> None:
    _, fidelity = scorer()
    assert len(fidelity.fitted_on) == 6
    assert len(fidelity.measured_on) == 4  # two batches, and the same mixed in pairs
    assert not any(torch.equal(one, other) for one in fidelity.fitted_on for other in fidelity.measured_on)


def test_without_targets_a_knapsack_chooses_by_fidelity() -> None:
    module = warmed(SMALL["vgg"](), X).eval()
    task = natpp.Task.inputs(list(torch.randn(48, 3, 16, 16, generator=torch.Generator().manual_seed(0)).split(16)))
    decisions = natpp.Decisions(kinds=("width",))
    for scorer in (None, "fidelity:inputs=24"):
        result = natpp.optimize(module, "knapsack", 0.6, example_input=X, decisions=decisions, task=task, scorer=scorer)
        assert result.cost_after.madds <= 0.6 * result.cost_before.madds
        assert (result.settings["method"], result.log_prob) == ("knapsack", None)
        assert {change.kind for change in result.changes} == {"width"}
    with pytest.raises(NatppError, match="knapsack chooses by scores: give a scorer, or a task"):
        natpp.optimize(module, "knapsack", 0.6, example_input=X)
    with pytest.raises(NatppError, match="fidelity compares a changed model with the original"):
        natpp.optimize("darts", "knapsack", scorer="fidelity", task="digits")
    pairs = natpp.Task.inputs([(X, X)])
    with pytest.raises(NatppError, match="fidelity needs inputs that are single tensors, not "):
        natpp.optimize(module, "knapsack", 0.6, example_input=X, task=pairs)


def test_a_change_is_fitted_alike_alone_and_from_the_first_layer() -> None:
    """What lies before a change is not run again: the fit is the same to the bit."""
    module, fidelity = scorer()
    start = (0,) * len(module.decisions)
    number = max(n for n, one in enumerate(module.decisions) if len(one.allowed) > 1)
    plan = with_option(start, number, module.decisions[number].allowed[1])
    made = module.rewritten(plan)
    refit(made, fidelity.original, fidelity.fitted_on, fidelity.config, sensitivity=fidelity.sensitivity)
    other = fidelity.fitted(plan)
    assert all(torch.equal(one, other.state_dict()[name]) for name, one in made.state_dict().items())
    outputs = [made.eval()(one) for one in fidelity.measured_on]
    assert all(torch.allclose(*pair) for pair in zip(fidelity._onward.outputs(other), outputs, strict=True))
