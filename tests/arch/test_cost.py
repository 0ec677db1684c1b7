"""Costs to the digit: published figures, a table of 15,625 networks, and what is counted on built networks."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import natpp
from natpp.arch.cost import cost_of, counts
from natpp.arch.formats import parse
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.where import Where
from natpp.errors import NatppError
from natpp.nets.measure import module_cost
from natpp.nets.network import build_network
from natpp.registry import NETWORKS, ZOO
from tests.strategies import architectures, random_architecture, settings_of

# Counted on the authors' own networks: parameters and multiply-adds.
PUBLISHED = {
    ("darts", "cifar"): (3349342, 528359040),
    ("darts", "imagenet"): (4718752, 529911552),
    ("nat_darts", "cifar"): (2682334, 424181376),
    ("nat_darts", "imagenet"): (3978784, 440949504),
    ("natpp_darts", "cifar"): (2476054, 394155648),
    ("natpp_darts", "imagenet"): (3723808, 413289984),
    ("enas", "cifar"): (3859894, 605719584),
    ("enas", "imagenet"): (5625952, 608152320),
    ("natpp_enas", "cifar"): (3691414, 580836384),
    ("natpp_enas", "imagenet"): (5376736, 583352832),
}


@pytest.mark.parametrize(("name", "network"), PUBLISHED)
def test_published_costs_to_the_digit(name: str, network: str) -> None:
    found = natpp.cost(name, setting(network))
    assert (found.params, found.madds) == PUBLISHED[name, network]


@pytest.mark.data
def test_all_of_nasbench201(data_folder: Path) -> None:
    """Parameters are equal; the table counts the 10 additions of the classifier's bias as multiply-adds, we do not."""
    import pyarrow.parquet as pq

    table = pq.read_table(data_folder / "nasbench201_cifar10.parquet")
    where = setting("nasbench201")
    rows = zip(*(table[name].to_pylist() for name in ("arch", "params_m", "madds_m")), strict=True)
    differences = set()
    for text, params, madds in rows:
        found = counts(parse(text), where)
        differences.add((round(params * 1e6) - found.params, round(madds * 1e6) - found.madds))
    assert table.num_rows == 15625
    assert differences == {(0, 10)}


def assert_counted(arch: Architecture, where: Setting) -> None:
    """The analytic cost is what is counted on the networks built from it, byte for byte in memory too."""
    analytic = cost_of(arch, where)
    image = torch.zeros(1, 3, where.size, where.size)
    full = module_cost(build_network(arch, where, prune=False), image)
    live = module_cost(build_network(arch, where), image)
    assert (full.params, full.madds) == (analytic.params, analytic.madds)
    assert (live.params, live.madds) == (analytic.live_params, analytic.live_madds)
    assert live.peak_memory_bytes == analytic.peak_memory_bytes


@pytest.mark.parametrize("name", list(ZOO))
def test_every_zoo_entry_costs_what_is_counted(name: str) -> None:
    for network in ("cifar", "imagenet", "nasbench201"):
        cells = 1 if network == "nasbench201" else 3
        for size in (32, 64):
            assert_counted(ZOO[name].arch, setting(network, channels=4, cells=cells, classes=7, size=size))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_network_costs_what_is_counted(name: str) -> None:
    assert_counted(ZOO["darts"].arch, setting(name, channels=4, classes=7, size=48))
    assert setting(name) == NETWORKS[name].default


@settings(max_examples=40)
@given(architectures(), settings_of())
def test_random_architectures_cost_what_is_counted(arch: Architecture, where: Setting) -> None:
    assert_counted(arch, where)


@given(architectures(), settings_of(max_channels=50, max_cells=20, max_size=300))
def test_alive_is_at_most_listed(arch: Architecture, where: Setting) -> None:
    found = counts(arch, where)
    assert 0 < found.live_params <= found.params
    assert 0 < found.live_madds <= found.madds
    pruned = counts(arch.pruned(), where)
    assert (pruned.live_params, pruned.live_madds) == (found.live_params, found.live_madds)


def test_isomorphic_architectures_cost_the_same() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        arch = random_architecture(generator)
        assert counts(arch, setting()) == counts(arch.canonical(), setting())


def test_dead_input_convs_and_cells_are_not_alive() -> None:
    vgg = natpp.cost("vgg_block")
    assert vgg.live_params < vgg.params  # the older input is read by null edges only
    skips_every_second = natpp.load(
        "Genotype(normal=[('conv_1x1', 0), ('null', 1)], normal_concat=[2], "
        "reduce=[('conv_1x1', 0), ('null', 1)], reduce_concat=[2])"
    )
    few, many = (natpp.cost(skips_every_second, setting(cells=cells, channels=8)) for cells in (1, 2))
    assert few.live_params < many.params
    network = natpp.build(skips_every_second, "cifar:cells=4,channels=8")
    assert sorted(network.blocks) == ["cell_1", "cell_3", "stem"]


def test_a_constant_network_is_its_stem_and_head() -> None:
    """Stem, residual blocks and head belong to the network: they stand whatever the architecture is."""
    nothing = natpp.load("|none~0|")
    found = natpp.cost(nothing, "cifar:channels=4,cells=2,classes=5")
    assert found.live_params == 12 * 3 * 9 + 2 * 12 + 16 * 1 * 5 + 5
    assert found.live_madds == 12 * 3 * 9 * 32 * 32 + 16 * 5
    table = natpp.cost(nothing, "nasbench201")
    assert (table.live_params, table.live_madds) == (table.params, table.madds) == (73306, 7783040)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"channels": 0}, "channels is 0, expected a whole number from 1 up"),
        ({"cells": -1}, "cells is -1"),
        ({"size": 2.5}, "size is 2.5"),
        ({"classes": True}, "classes is True"),
        ({"network": "cifr"}, "Did you mean 'cifar'?"),
        ({"network": "imagenet", "channels": 1}, "expected 2 or more"),
        ({"channels": 10**400}, "channels is too large, expected at most 1,000,000"),
        ({"cells": 10**6}, "cells is too large, expected at most 1,000"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(NatppError) as caught:
        natpp.cost("darts", Where(**options).setting())
    assert words in str(caught.value)


def test_a_setting_is_taken_as_text_and_an_example_input_is_not() -> None:
    assert natpp.cost("darts", "imagenet:cells=4") == natpp.cost("darts", setting("imagenet", cells=4))
    with pytest.raises(NatppError, match=r"unknown network 'cifr'\. Did you mean 'cifar'?"):
        natpp.cost("darts", "cifr:cells=4")
    with pytest.raises(NatppError, match="expected a network's name or a Setting, not '3'"):
        natpp.cost("darts", 3)
    with pytest.raises(NatppError, match="only be given with a module"):
        natpp.cost("darts", example_input=torch.zeros(1))
