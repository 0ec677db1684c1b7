"""Architectures as blueprints: what is counted for many plans at once is what each built network has."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from natpp.arch.blueprints import alive_in, drawing
from natpp.arch.cost import cost_of, counts, counts_by_block
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.ops import Op
from natpp.errors import SettingError
from natpp.nets.measure import module_cost
from natpp.nets.network import build_network
from natpp.registry import OPS, RULES, ZOO
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects
from tests.strategies import architectures, random_architecture, settings_of


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("name", list(ZOO))
def test_random_plans_cost_what_is_built(name: str, rule: str) -> None:
    generator = np.random.default_rng(0)
    for network in ("cifar", "imagenet", "nasbench201"):
        where = setting(network, channels=4, cells=1 if network == "nasbench201" else 3, size=33)
        inputs = Subjects(cells_of([ZOO[name].arch], Frame(rule, where), tuple(OPS)))
        mask = inputs.masks[0]
        rows = (generator.random((20, *mask.shape)) * mask).argmax(axis=2)
        archs = [inputs.transformed(0, row) for row in rows]
        inputs.count([0] * len(rows), list(rows))
        for row, arch in zip(rows, archs, strict=True):
            found, alive = cost_of(arch, where), alive_in(arch, where)
            assert inputs.subjects[0].spent(row) == ((found.live_params, found.live_madds), alive.reached[-1])
        built = module_cost(build_network(archs[0], where), torch.zeros(1, 3, 33, 33))
        first = cost_of(archs[0], where)
        assert (built.params, built.madds) == (first.live_params, first.live_madds)
        assert built.peak_memory_bytes == first.peak_memory_bytes


@settings(max_examples=30)
@given(architectures(), settings_of(), st.integers(0, 1000))
def test_many_rows_are_counted_as_one_by_one(arch: Architecture, where: Setting, seed: int) -> None:
    inputs, alone = (Subjects(cells_of([arch], Frame("nat", where), tuple(OPS))) for _ in range(2))
    rows = np.random.default_rng(seed).integers(len(OPS), size=(6, len(inputs.before[0])))
    inputs.count([0] * len(rows), list(rows))
    for row in rows:
        found = counts(inputs.transformed(0, row), where)
        assert inputs.subjects[0].spent(row) == alone.subjects[0].spent(row)
        assert inputs.subjects[0].spent(row)[0] == (found.live_params, found.live_madds)


def test_decisions_are_the_free_edges_that_a_policy_sees() -> None:
    generator = np.random.default_rng(1)
    for _ in range(50):
        arch, where = random_architecture(generator), setting()
        inputs = Subjects(cells_of([arch], Frame("nat", where), tuple(OPS)))
        assert drawing(arch, where).plan == tuple(inputs.subjects[0].columns[inputs.before[0]].tolist())


@given(architectures(), settings_of())
def test_blocks_and_head_make_up_the_whole(arch: Architecture, where: Setting) -> None:
    found = counts(arch, where)
    params, madds = zip(*counts_by_block(arch, where), strict=True)
    assert (sum(params), sum(madds)) == (found.live_params, found.live_madds)


def test_an_operation_that_cannot_stand_somewhere_says_so_only_where_it_is_asked_for() -> None:
    def layers(place):  # type: ignore[no-untyped-def]
        raise SettingError("this one cannot stand here")

    OPS.add("nowhere", Op("nowhere", "other", 1, layers, extra=True))
    try:
        arch = ZOO["darts"].arch
        before = counts(arch, setting())
        with pytest.raises(SettingError, match="cannot stand here"):
            counts(arch.with_ops({"normal": ["nowhere", *arch.normal.ops[1:]]}), setting())
    finally:
        OPS.remove("nowhere")
    assert counts(arch, setting()) == before
