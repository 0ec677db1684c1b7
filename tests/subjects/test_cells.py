"""Cells as a subject: decisions with reasons, plans beside rows, and costs that are those of the architecture."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import natpp
from natpp.arch.cost import cost_of
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.rules import masks
from natpp.core.subject import Candidate, Subject
from natpp.registry import OPS, RULES, ZOO
from natpp.subjects.cells import Cells, Frame
from tests.strategies import architectures, settings_of

NAMES = tuple(OPS)


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("name", list(ZOO))
def test_options_say_why_they_are_not_allowed(name: str, rule: str) -> None:
    arch, where = ZOO[name].arch, setting("cifar", channels=8, cells=3)
    cells = Cells(arch, Frame(rule, where), NAMES)
    by_rule, by_both = masks(arch, rule, where, strict=False), masks(arch, rule, where)
    for (kind, edge), decision in zip(cells.encoded.places, cells.decisions, strict=True):
        assert decision.options[0].value == arch.graph(kind).ops[edge]
        assert {option.value for option in decision.options} == set(NAMES)
        for option in decision.options:
            column = NAMES.index(str(option.value))
            told = "" if by_both[kind][edge, column] else "cost" if by_rule[kind][edge, column] else "rule"
            assert option.why_not == told


@settings(max_examples=40)
@given(architectures(), settings_of(), st.integers(0, 1000))
def test_a_plan_costs_what_its_architecture_costs(arch: Architecture, where: Setting, seed: int) -> None:
    subject: Subject
    subject = cells = Cells(arch, Frame("cost", where, strict=False), NAMES)
    generator = np.random.default_rng(seed)
    plans = [tuple(int(generator.choice(one.allowed)) for one in subject.decisions) for _ in range(6)]
    subject.count([subject.row(plan) for plan in plans])
    assert subject.apply((0,) * len(plans[0])) == arch
    for plan in plans:
        after = subject.apply(plan)
        found = cost_of(after, where)
        assert subject.living(plan) == {"params": found.live_params, "madds": found.live_madds}
        assert subject.memory(plan) == found.peak_memory_bytes
        assert cells.plan(cells.row(plan)) == plan
        assert Candidate(subject, plan).build() == after
        assert Candidate(subject, plan).key == after.essence()


def test_a_strict_budget_takes_nothing_dearer_and_nothing_cut_off() -> None:
    cells = Cells(natpp.load("vgg_block"), Frame("nat", setting("cifar")), NAMES)
    loose = Cells(natpp.load("vgg_block"), Frame("nat", setting("cifar"), strict=False), NAMES)
    keep = (0,) * len(cells.decisions)
    nothing = tuple(one.number("null") for one in cells.decisions)
    assert cells.fits(keep)
    assert not cells.fits(nothing)
    assert loose.fits(nothing)
    assert cells.blueprint.cost(nothing) is None
