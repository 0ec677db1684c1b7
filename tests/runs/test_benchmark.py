"""Tables of trained networks, and methods judged by them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import natpp
from natpp.arch.formats import to_nasbench201
from natpp.cli import main
from natpp.errors import NatppError
from natpp.methods.learning import PRESETS, LearnConfig
from natpp.runs.benchmark import Benchmark
from natpp.runs.comparison import compare
from natpp.scorers.table import Table, TableScorer, read_table
from natpp.testing import check_scorer
from tests.methods.test_learning import SMALL, number


@pytest.fixture
def small_table(tmp_path: Path) -> Path:
    """All 125 cells of two nodes with a made-up accuracy, as CSV, in an order of its own."""
    order = np.random.default_rng(1).permutation(len(SMALL))
    accuracy = 50 + 5 * number(SMALL)
    lines = ["arch,val,test,name"]
    lines += [f"{to_nasbench201(SMALL[i])},{accuracy[i]},{accuracy[i] + 1},x" for i in order]
    file = tmp_path / "table.csv"
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "best", lambda: LearnConfig(steps=150, inputs=16, learning_rate=3e-3))


def test_a_table_scorer_keeps_its_promises(small_table: Path) -> None:
    table = read_table(small_table, ["val"])
    assert len(table) == 125
    check_scorer(lambda limit=None: TableScorer(table, "val", limit), SMALL[:20])


def test_without_a_limit_every_row_is_its_own_and_with_one_the_first_of_its_class() -> None:
    same = [natpp.load("|none~0|+|nor_conv_3x3~0|none~1|"), natpp.load("|nor_conv_3x3~0|+|nor_conv_3x3~0|none~1|")]
    table = Table(same, {"val": np.array([1.0, 2.0])})
    assert TableScorer(table, "val")(same).tolist() == [1, 2]
    limited = TableScorer(table, "val", limit=1)
    assert limited(same).tolist() == [1, 1]
    assert limited.queries == 1


def test_the_benchmark_tells_methods_apart(small_table: Path, quick: None) -> None:
    config = Benchmark(reward="val", score="test", holdout=25, seeds=2)
    found = compare(small_table, config)
    assert found.oracle_by_reward == pytest.approx(found.oracle_by_score)  # the columns agree here
    rows = found.methods
    assert list(rows) == list(config.methods)
    assert rows["nat++"].share_of_oracle > 0.9
    assert rows["random"].share_of_oracle < 0.5
    assert rows["random"].queries == 0
    assert rows["constant"].best_of_10 is None
    assert rows["nat++"].best_of_10.mean <= found.oracle_by_reward + 1e-9
    again = compare(small_table, config)
    assert again.methods["nat++"].one_shot == rows["nat++"].one_shot
    data = json.loads(json.dumps(found.to_dict()))
    assert list(data) == ["inputs", "oracle_by_reward", "oracle_by_score", "methods"]
    for row in data["methods"].values():
        assert list(row) == [
            *("one_shot", "best_of_10", "share_of_oracle", "params_change", "madds_change", "queries", "seconds")
        ]
    assert data["methods"]["nat++"]["one_shot"] == {
        "mean": rows["nat++"].one_shot.mean,
        "sd": rows["nat++"].one_shot.sd,
    }
    head, _, table = str(found).partition("\n")
    assert head.startswith(f"inputs {found.inputs:.2f}, best reachable by val ")
    assert f"{rows['constant'].one_shot.mean:.2f} ± {rows['constant'].one_shot.sd:.2f}   –" in table


def test_a_strict_budget_never_raises_the_cost(small_table: Path, quick: None) -> None:
    usual = Benchmark(reward="val", score="test", holdout=25, seeds=1, methods=("random",))
    found = compare(small_table, replace(usual, strict=True, methods=("nat++", "random")))
    free = compare(small_table, usual)
    assert found.oracle_by_reward <= free.oracle_by_reward
    for row in found.methods.values():
        assert row.params_change <= 0
        assert row.madds_change <= 0


METHODS = ("nat++", "constant", "random", "random-best-of-10")


def test_evaluations_are_a_limit_on_everything(small_table: Path, quick: None) -> None:
    config = Benchmark(reward="val", score="test", holdout=25, seeds=1, evaluations=30, methods=METHODS)
    found = compare(small_table, config)
    assert found.methods["random"] is None  # it has no use for them
    assert found.to_dict()["methods"]["random"] is None
    assert re.search("^ random +–", str(found), re.MULTILINE)
    assert all(row.queries <= 30 for row in found.methods.values() if row is not None)
    assert found.methods["nat++"].share_of_oracle > 0.5


def test_the_split_is_by_the_order_of_products_not_of_the_file(small_table: Path, tmp_path: Path) -> None:
    lines = small_table.read_text().splitlines()
    other = tmp_path / "other.csv"
    other.write_text("\n".join([lines[0], *lines[:0:-1]]))
    results = [
        compare(file, Benchmark(reward="val", score="test", holdout=25, seeds=1, methods=("random",)))
        for file in (small_table, other)
    ]
    assert results[0].inputs == results[1].inputs


def test_the_command(small_table: Path, quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--table", str(small_table), "--reward", "val", "--score", "test", "--holdout", "25", "--seeds", "1"]
    assert main(["benchmark", "nasbench201", *flags, "--method", "nat++,random"]) == 0
    assert "share of oracle" in capsys.readouterr().out
    assert main(["benchmark", "nasbench201", *flags, "--method", "random", "--budget", "strict", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["methods"]) == {"random"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("nasbench101",), "unknown space 'nasbench101'. Did you mean 'nasbench201'?"),
        (("nasbench201", "--reward", "vale"), "no column 'vale'. Did you mean 'val'?"),
        (("nasbench201", "--reward", "name"), "does not hold numbers"),
        (("nasbench201", "--method", "nat+"), "unknown method 'nat+'. Did you mean 'nat++'?"),
        (("nasbench201", "--preset", "papr"), "Did you mean 'paper'?"),
        (("nasbench201", "--method", "random,random"), "lists a method twice"),
        (("nasbench201", "--budget", "strct"), "Did you mean 'strict'?"),
        (("nasbench201", "--rule", "nap"), "Did you mean 'nat'?"),
        (("nasbench201", "--holdout", "125"), "holdout is 125, but the table has 125"),
        (("nasbench201", "--holdout", "0"), "holdout is 0"),
        (("nasbench201", "--evaluations", "1"), "evaluations is 1"),
        (("nasbench201", "--seeds", "0"), "seeds is 0"),
    ],
)
def test_wrong_flags_are_one_line(
    flags: tuple[str, ...], words: str, small_table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ("--reward", "val") if "--reward" not in flags else ()
    assert main(["benchmark", *flags, "--table", str(small_table), *usual, "--score", "test"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no such file"),
        ("", "is not a Parquet or CSV table"),
        ("arch,val,test\n", "is empty"),
        ("val,test\n1,2\n", "no column 'arch'"),
        ("arch,val,test\n|none~0|,1,\n", "empty or infinite"),
        ("arch,val,val,test\n|none~0|,1,2,3\n", "two columns with the same name"),
        ("arch,val,test\n|non~0|,1,2\n", "Did you mean 'none'?"),
        ("arch,val,test\n|none~0|,1,2\n|none~0|,1,2\n", "row 2 of the table repeats an architecture of row 1"),
    ],
)
def test_broken_tables_are_refused(content: str | None, words: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(NatppError) as caught:
        read_table(file, ["val", "test"])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.data
def test_the_oracles_of_nasbench201(data_folder: Path) -> None:
    """Best reachable architecture of 2,000 held-out inputs, with and without a strict budget."""
    file = str(data_folder / "nasbench201_cifar10.parquet")
    for strict, by_reward in ((False, 91.79), (True, 91.30)):
        found = compare(file, Benchmark(methods=("random",), seeds=1, strict=strict))
        assert found.inputs == pytest.approx(87.29, abs=0.005)
        assert found.oracle_by_reward == pytest.approx(by_reward, abs=0.005)
        if not strict:
            assert found.oracle_by_score == pytest.approx(92.05, abs=0.005)


@pytest.mark.slow
@pytest.mark.data
def test_nat_plus_plus_gets_what_the_oracle_gets(data_folder: Path) -> None:
    file = str(data_folder / "nasbench201_cifar10.parquet")
    found = compare(file, Benchmark(methods=("nat++", "constant"), seeds=1)).methods
    assert found["nat++"].one_shot.mean > 91.7
    assert found["nat++"].one_shot.mean > found["constant"].one_shot.mean
