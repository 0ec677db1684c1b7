"""Every scorer that has a name: made for architectures and for modules, or refused in a line; the contract of each."""

from pathlib import Path

import numpy as np
import pytest
import torch

import natpp
from natpp.data.named import Data
from natpp.errors import NatppError, SettingError
from natpp.fx.trace import trace
from natpp.registry import SCORERS
from natpp.run import Run
from natpp.runs.scoring import Scoring, Short, Supernet, Table, Wanted, as_scoring
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.testing import check_scorer
from tests.fx.fx_models import SMALL

CELLS = [f"|{op}~0|" for op in ("nor_conv_3x3", "skip_connect", "avg_pool_3x3")]
SMALLEST = {"steps": 1, "channels": 2, "cells": 1}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a search that trained a supernet."""
    config = natpp.Search(preset="paper", epochs=1, channels=2, cells=1, steps=1, nodes=(2,))
    natpp.search("digits", config, scorer="supernet", run=Run(out=tmp_path / "run", device="cpu"))
    return tmp_path / "run"


def small(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Scoring:
    """A scorer with what it needs, as small as can be."""
    if name == "supernet":
        return Supernet(run=request.getfixturevalue("run"), steps=1)
    if name == "table":
        file = tmp_path / "table.csv"
        file.write_text("\n".join(["arch,val", *(f"{cell},{score}" for score, cell in enumerate(CELLS))]))
        return Table(file, "val")
    return Short(**SMALLEST) if name == "short" else SCORERS[name]


@pytest.mark.parametrize("name", list(SCORERS))
def test_every_scorer_scores_architectures(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    given = small(name, tmp_path, request)
    network = "nasbench201" if name == "table" else "cifar"
    archs = [natpp.load(one) for one in CELLS] if name == "table" else [natpp.sample(2, seed) for seed in range(3)]

    def make(limit: int | None = None) -> object:
        return given.make(Wanted(network, Data("digits"), Run(device="cpu"), limit=limit))

    if name == "fidelity":
        with pytest.raises(SettingError, match=r"^fidelity compares a changed model with the original[^\n]*$"):
            make()
    elif name == "short":  # whose limit a search sets: tests/scorers/test_short.py
        assert np.isfinite(make()(archs)).all()
    else:
        check_scorer(make, archs)


@pytest.mark.parametrize("name", list(SCORERS))
def test_every_scorer_scores_candidates_for_a_module_or_says_why_not(name: str) -> None:
    module = Module(trace(natpp.zoo.network("resnet20"), torch.randn(2, 3, 8, 8)))
    wanted = Wanted("", Data("digits"), Run(device="cpu"), Subjects([module]))
    if name == "table":
        with pytest.raises(SettingError, match=r"^a table scores architectures, not candidates for a module: [^\n]*$"):
            SCORERS[name].make(wanted)
        return
    asked = {"inputs": 32} if name == "fidelity" else {"steps": 1}
    scorer = type(SCORERS[name])(**asked).make(wanted)
    start = module.candidate((0,) * len(module.decisions))
    dropped = module.candidate(module.at_least_one(start.plan, np.zeros(module.mask.shape)))
    scores = scorer([start, dropped])
    assert np.isfinite(scores).all()
    assert (scorer([dropped, start]) == scores[::-1]).all()
    assert scorer.queries == 2


def test_what_names_a_scorer(tmp_path: Path) -> None:
    assert as_scoring("short:steps=3") == Short(steps=3)
    assert as_scoring(tmp_path) == Supernet(run=tmp_path)
    assert as_scoring("scores.csv", reward="val") == Table("scores.csv", "val")
    assert as_scoring(Short()) == Short()
    for wrong, words in (
        ("shrt", "Did you mean 'short'"),
        (3, "expected a scorer, its name, a run's folder or a table"),
    ):
        with pytest.raises(NatppError, match=words):
            as_scoring(wrong)
    for name in ("supernet", "table"):
        with pytest.raises(SettingError, match=f"the scorer {name} needs"):
            SCORERS[name].make(Wanted("cifar", Data("digits")))
    module = Module(trace(SMALL["vgg"](), torch.randn(2, 3, 8, 8)))
    elsewhere = Wanted("", Data("digits"), Run(workers="ray"), Subjects([module]))
    with pytest.raises(SettingError, match="only short trainings of architectures can be shared"):
        SCORERS["short"].make(elsewhere)
