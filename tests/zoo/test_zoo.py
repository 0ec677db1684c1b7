"""The zoo: every name, with its source and what was published about it."""

import json
from pathlib import Path

import pytest

import natpp
from natpp.arch.formats import from_dict
from natpp.registry import ZOO
from natpp.zoo import published_rows

INPUTS = ("darts", "enas", "naonet", "vgg_block", "resnet_block", "mobilenetv2_block")
OTHERS = ("pc_darts_cifar", "pc_darts_imagenet", "nasnet", "amoebanet", "pnas", "snas")


def test_names_and_kinds() -> None:
    assert set(ZOO) == {*INPUTS, *OTHERS, *(f"{prefix}_{name}" for prefix in ("nat", "natpp") for name in INPUTS)}
    for name, entry in ZOO.items():
        kind = {"nat": "result of NAT", "natpp": "result of NAT++"}.get(name.split("_")[0], "input")
        assert entry.kind == kind
        assert entry.source
        assert natpp.load(name) == entry.arch


def test_results_are_their_input_with_other_operations() -> None:
    for entry in ZOO.values():
        if entry.kind != "input":
            assert entry.optimized_from in INPUTS
            source = ZOO[entry.optimized_from].arch
            assert [e.source for e in source.normal.edges] == [e.source for e in entry.arch.normal.edges]


def test_published_figures() -> None:
    rows = published_rows()
    assert len(rows) == 133
    darts = {row.data: row for row in ZOO["natpp_darts"].published}
    assert (darts["CIFAR"].params_m, darts["CIFAR"].madds_m) == (2.5, 395)
    assert darts["CIFAR"].accuracy == {"CIFAR-10": 97.30, "CIFAR-100": 83.56}
    assert darts["ImageNet"].accuracy == {"top-1": 73.9, "top-5": 91.5}
    assert {row.model for row in ZOO["resnet_block"].published} == {"ResNet20", "ResNet56", "ResNet18", "ResNet50"}
    assert [row.data for row in ZOO["pc_darts_imagenet"].published] == ["ImageNet"]
    figures_only = {row.model for row in rows} & {"GHN", "PR-DARTS"}
    assert figures_only == {"GHN", "PR-DARTS"}
    assert not any("ghn" in name or "pr_darts" in name for name in ZOO)
    for row in rows:
        assert row.params_m > 0
        assert all(50 < value < 100 for value in row.accuracy.values())


def test_published_madds_that_do_not_fall() -> None:
    """Ten rows of the paper's tables go up in MAdds though the method promises they do not."""
    original = {(row.table, row.data, row.model): row.madds_m for row in published_rows() if row.method is None}
    up = {
        (row.table, row.data, row.model, row.madds_m)
        for row in published_rows()
        if row.method in ("NAT", "NAT++") and row.madds_m > original[row.table, row.data, row.model]
    }
    assert len(up) == 10


@pytest.mark.data
def test_cells_are_those_of_the_reference(data_folder: Path) -> None:
    file = data_folder.parent / "reference" / "architectures.json"
    if not file.is_file():
        pytest.skip(f"no reference cells at {file}")
    reference = json.loads(file.read_text())
    assert list(reference) == list(ZOO)
    for name, data in reference.items():
        assert from_dict(data) == ZOO[name].arch
        assert data["kind"] == ZOO[name].kind
