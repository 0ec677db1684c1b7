"""The parts that experiments share: figures with intervals, groups that end in time, value models on kept scores."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import natpp
from experiments import pictures, ship_policies, table_random
from experiments import table_handcrafted as table
from experiments.choices import crossed, finals, losses
from experiments.lib import answers, cells, learned, schedules, shortlist, statistics, tables, trainer, values
from experiments.pages import originals, random_cells
from natpp.arch.formats import to_dict
from natpp.arch.graph import Architecture
from natpp.arch.networks import setting
from natpp.data.sets import load_images
from natpp.methods.policy import PolicyMethod
from natpp.registry import OPS
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects
from natpp.training.together import Trial
from natpp.verbs import samples

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_rank_correlations_worked_out_by_hand() -> None:
    assert statistics.spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)  # 1 - 6 · 2 / (4 · 15)
    assert statistics.spearman([1, 2, 3], [1, 2, 3]) is None  # too few
    assert statistics.spearman([1, 1, 1, 1], [1, 2, 3, 4]) is None
    generator = np.random.default_rng(0)
    tied = generator.integers(5, size=(2, 40)).astype(float)
    assert statistics.spearman(*tied) == pytest.approx(spearmanr(*tied).statistic)
    size = generator.normal(size=2000)
    one, other = size + generator.normal(size=2000), size + generator.normal(size=2000)
    assert statistics.spearman(one, other) > 0.4
    assert abs(statistics.partial(one, other, size)) < 0.06  # all they have in common is the size
    assert statistics.partial(size, size + 0.1 * one, one) > 0.9
    assert statistics.partial(size, one, size) is None  # nothing is left


def test_intervals_hold_what_they_say() -> None:
    generator = np.random.default_rng(1)
    before = generator.normal(90, 2, size=20)
    after = before + generator.normal(0.5, 0.3, size=20)
    found = statistics.paired(after, before)
    assert found["low"] < found["value"] < found["high"]
    assert found["low"] > 0  # pairs tell what means with such a spread could not
    assert found["wins"] + found["losses"] == 20
    assert statistics.paired(before, before) == {"value": 0, "low": 0, "high": 0, "rows": 20, "wins": 0, "losses": 0}
    few, many = (
        statistics.with_interval(statistics.spearman, x := generator.normal(size=n), x + generator.normal(size=n))
        for n in (10, 200)
    )
    assert few["high"] - few["low"] > 2 * (many["high"] - many["low"])
    holds = 0
    for seed in range(100):
        drawn = np.random.default_rng(seed).normal(1.0, 1.0, size=25)
        one = statistics.with_interval(lambda values: float(values.mean()), drawn)
        holds += one["low"] <= 1 <= one["high"]
    assert 85 <= holds <= 100
    assert statistics.mean_sd([1.0, 3.0]) == {"mean": 2.0, "sd": pytest.approx(np.sqrt(2))}
    assert statistics.mean_sd([1.0])["sd"] == 0


def test_inputs_without_all_their_results_are_asked_for_but_not_compared() -> None:
    row = {"accuracy": 90.0, "live_params": 100, "live_madds": 1000}
    rows = {(f"random {number}, {name}", 0): row for number in range(2) for name in ("input", "nat++")}
    rows["random 2, input", 0] = row
    asked = tables.asked_inputs({"asked": 8}, ["nat++"])
    found = tables.compared(rows, ["nat++"], ["nat++"], "accuracy", asked=asked)
    assert (found["inputs"], found["asked"]) == (2, 4)  # of the fourth there is nothing yet
    assert tables.compared({}, ["nat++"], ["nat++"], "accuracy", asked=4)["asked"] == 4


def test_differences_are_of_seeds_that_both_have() -> None:
    figures = {
        ("a, input", 0): 80.0,
        ("a, nat++", 0): 81.0,
        ("a, nat++", 1): 91.0,  # the input has no such seed yet
        ("b, input", 0): 70.0,
        ("b, input", 1): 80.0,
        ("b, nat++", 0): 72.0,
        ("b, nat++", 1): 84.0,
    }
    rows = {key: {"accuracy": value, "live_params": 5, "live_madds": 5} for key, value in figures.items()}
    found = tables.compared(rows, ["nat++"], ["nat++"], "accuracy", asked=2)
    assert found["differences"]["`nat++` over the inputs"]["value"] == pytest.approx((1 + 3) / 2)
    assert found["methods"]["nat++"]["over_input"]["value"] == pytest.approx((1 + 3) / 2)
    assert found["methods"]["nat++"]["accuracy"]["mean"] == pytest.approx((86 + 78) / 2)  # of all seeds it has
    told = {"a": {"input": 1, "nat++": 2}, "b": {"input": 2, "nat++": 2}}
    kept = {subject: {name: {"trainings": [0] * count} for name, count in row.items()} for subject, row in told.items()}
    assert random_cells._seeds({"rows": kept}) == "one seed (1 to 2 of the inputs; 2 of `nat++`)"
    assert random_cells._seeds({"rows": {"a": {"input": {"trainings": [0]}}}}) == "one seed"


def test_the_seed_that_picked_is_left_out_of_a_second_look() -> None:
    figures = {
        ("a, nat++ best of 10", 0): 99.0,
        ("a, nat++ best of 10", 1): 82.0,
        ("a, constant", 0): 80.0,
        ("a, constant", 1): 81.0,
        ("b, nat++ best of 10", 0): 99.0,  # no other seed yet
        ("b, constant", 0): 80.0,
    }
    found = table_random.of_later_seeds({key: {"test_accuracy": one} for key, one in figures.items()}, ["a", "b"])
    (name, one), *others = found.items()
    assert (name, one["value"], one["rows"], others) == ("`nat++ best of 10` over `constant`", 1, 1, [])


def test_the_default_policy_is_compared_over_the_cells_and_seeds_that_it_is_trained_with() -> None:
    accuracies = {
        ("a, input", 0): 80.0,
        ("a, input", 1): 99.0,  # a seed that it does not have
        ("a, nat++", 0): 82.0,
        ("a, constant", 0): 81.0,
        (f"a, {table_random.BY_DEFAULT}", 0): 83.0,
        ("b, input", 0): 70.0,
        ("b, nat++", 0): 71.0,
        ("b, constant", 0): 72.0,  # it has no answer to b that is trained
    }
    rows = {
        (name, seed): {"seed": seed, "test_accuracy": value, "seconds": 1.0, "curve": [1.0]}
        | dict.fromkeys(tables.COSTS, 2e6 if name.endswith("input") else 1e6)
        for (name, seed), value in accuracies.items()
    }
    machine = {"gpu": "a GPU", "torch": "2.11.0", "processor": "x86_64"}
    found = table_random.of_default(rows, {"asked": 2, "machine": machine, "groups": [{"seconds": 12.0}]})
    assert (found["inputs"], found["asked"], found["seeds"]) == (1, 2, [0])
    assert {name: one["value"] for name, one in found["differences"].items()} == {
        "`nat++ by cifar10` over the inputs": 3,
        "`nat++ by cifar10` over `nat++`": 1,
        "`nat++ by cifar10` over `constant`": 2,
    }
    assert list(found["rows"]) == ["a"]
    text = "\n".join(random_cells._by_default(found))
    assert "trained on 1 of 2 of these cells (one seed, 12 s on a GPU" in " ".join(text.split())
    assert "| `nat++ by cifar10` | 83.00 | +3.00 (+3.00 to +3.00) | 1 of 1 | 1.00 M (−50%) | 1.00 M (−50%) |" in text
    untrained = {key: row for key, row in rows.items() if "by" not in key[0]}
    found = table_random.of_default(untrained, {"asked": 2, "machine": machine, "groups": []})
    assert random_cells._by_default(found) == []


def test_the_page_says_which_round_reached_what_was_asked_for() -> None:
    sure, close = {"value": 0.5, "low": 0.1, "high": 0.9}, {"value": 0.1, "low": -0.1, "high": 0.3}
    names = ("nat++", "nat++ best of 10")
    found = {
        "differences": {f"`{one}` over {other}": sure for one in names for other in random_cells.ASKED_ABOVE},
        "methods": {name: {"live_params_change": -0.1, "live_madds_change": -0.2} for name in names},
    }
    assert random_cells._verdict(found) == "`nat++` meets the target; `nat++ best of 10` meets the target."
    found["differences"]["`nat++` over `constant`"] = close
    found["methods"]["nat++ best of 10"]["live_params_change"] = 0.0
    told = "`nat++` misses `constant` (+0.10 (−0.10 to +0.30)); `nat++ best of 10` misses fewer parameters and MAdds."
    assert random_cells._verdict(found) == told


def test_groups_end_in_time_and_fit_into_memory() -> None:
    recipe = trainer.LONGER
    whole = {"trainings": 16, "seconds": 160.0, "peak_memory_gib": 16.0}
    assert trainer.group_size(recipe, [], 81, float("inf")) == 21  # nobody knows yet: four of 22 at most
    assert trainer.group_size(recipe, [], 81, 60) == 0  # 8 · 5,273 steps of 8 cells take longer
    assert trainer.group_size(recipe, [whole], 81, float("inf")) == 27
    assert trainer.group_size(recipe, [whole], 5, 600) == 5
    assert trainer.group_size(recipe, [whole, whole | {"peak_memory_gib": None}], 5, 600) == 5  # one over a cluster
    assert trainer.group_size(recipe, [whole], 81, 150) == 13  # 13 · 10 s · 1.15
    assert trainer.group_size(recipe, [whole], 81, 80) == 0  # fewer than 8 take as long as 8
    assert trainer.group_size(recipe, [whole | {"peak_memory_gib": 48.0}], 81, 600) == 12  # 36 of 3 GiB each
    slow = {"trainings": 4, "seconds": 160.0, "peak_memory_gib": 4.0}  # as slow as a group of 8 would be
    assert trainer.group_size(recipe, [whole, slow], 81, 600) == 26
    assert trainer.group_size(recipe, [slow | {"seconds": 400.0}], 81, 600) == 10
    few = [
        whole | {"trainings": 22, "seconds": 322.0},
        whole | {"trainings": 1, "seconds": 49.0, "peak_memory_gib": 3.3},
    ]  # 36 + 13 each
    assert trainer.group_size(recipe, few, 60, 600) == 20  # three alike, memory of a lone one notwithstanding
    assert trainer.group_size(recipe, few, 60, 120) == 5  # 36 + 5 · 13 s, 1.15 times
    assert trainer.group_size(recipe, few, 60, 55) == 0
    assert trainer.group_size(recipe, [], 3, 0.0, memory=False) == 3  # on a CPU, in the small form


def test_groups_are_dealt_evenly() -> None:
    waiting = list(range(81))  # by cost
    costs = []
    while waiting:
        some = trainer.dealt(waiting, min(16, len(waiting)))
        assert len(set(some)) == len(some)
        waiting = [one for one in waiting if one not in some]
        costs.append(sum(some) / len(some))
    assert max(costs[:-1]) - min(costs[:-1]) < 6


def test_the_recipe_is_what_the_issue_of_it_says() -> None:
    longer = trainer.LONGER
    assert (longer.cells, longer.channels, longer.tested) == (8, 16, False)
    assert longer.config.steps * longer.config.batch == pytest.approx(15 * 45_000, rel=1e-3)


def test_value_models_never_see_what_is_left_out() -> None:
    archs = [arch.essence() for arch in samples(160, nodes=4, seed=9)]
    truth = {arch: float(sum("conv" in op for _, graph in arch.cells() for op in graph.ops)) for arch in archs}
    dear = dict(list(truth.items())[:100])
    known = truth | dict.fromkeys(list(dear)[:1], 1e9)  # an outlier that would be seen
    for model in (*values.MODELS, values.TOGETHER):  # the last asks all others of the later ones
        said = values.left_out(known, dear, model, {}, folds=2, losses=dear)
        assert list(said) == list(dear)
        assert values.spearman(list(said.values()), list(dear.values())) > 0.3
    seen = dear | dict.fromkeys(list(dear)[:1], 1e9)
    for model in ("short", *values.LATER_MODELS):
        given = known, seen, model
        with_it = values.value_model(*given, losses=seen).expected(archs[:1])[0]
        without = values.value_model(*given, losses=seen, without={archs[0]}).expected(archs[:1])[0]
        assert with_it > without + 0.1


def test_what_became_of_an_input_is_left_out_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    archs = [arch.essence() for arch in samples(12, nodes=4, seed=3)]
    dear = {arch: float(number) for number, arch in enumerate(archs)}
    left: list[set[Architecture]] = []

    def model(*_: object, without: set[Architecture], **__: object) -> Any:
        left.append(without)
        return SimpleNamespace(expected=lambda some: np.array([dear[arch] for arch in some]))

    monkeypatch.setattr(values, "value_model", model)
    came_from = {arch: archs[number // 3 * 3] for number, arch in enumerate(archs)}
    assert values.left_out({}, dear, "short", came_from) == dear
    assert sorted(map(len, left)) == [3] * 4  # as many folds as families
    for some in left:
        assert len({came_from[arch] for arch in some}) == 1


def test_halves_share_no_family_and_no_model_sees_the_other_half(monkeypatch: pytest.MonkeyPatch) -> None:
    archs = [arch.essence() for arch in samples(12, nodes=4, seed=3)]
    came_from = {arch: archs[number // 3 * 3] for number, arch in enumerate(archs)}
    seen: list[set[Architecture]] = []

    def model(
        _: object,
        dear: dict[Architecture, float],
        *__: object,
        losses: dict[Architecture, float],
        without: set[Architecture],
        **___: object,
    ) -> None:
        seen.append({*dear, *losses} - without)

    monkeypatch.setattr(crossed, "pick_of_search", lambda _: None)
    for name, value in {
        "cheap_scores": {},
        "dear_scores": dict.fromkeys(archs[:9], 0.0),
        "loss_scores": dict.fromkeys(archs, 0.0),
        "came_from": came_from,
    }.items():
        monkeypatch.setattr(values, name, lambda *_, value=value: value)
    monkeypatch.setattr(values, "value_model", model)
    halves = crossed.Halves(Path(), 4)
    for half in crossed.HALVES:
        halves.model("mixture", half, 0.5)
    one, other = seen
    assert one | other == set(archs)
    assert not {came_from[arch] for arch in one} & {came_from[arch] for arch in other}
    assert len(one) == len(other) == 6


def test_a_round_knows_what_the_rounds_before_it_trained(tmp_path: Path) -> None:
    kept, aside = (next(cell.arch for cell in cells.truth_cells() if cell.aside == wished) for wished in (False, True))
    first, second = samples(2, nodes=4, seed=5)

    def write(name: str, **rows: tuple[Architecture, list[float | None]]) -> None:
        trained = [
            {"name": one.replace("_", ", "), "seed": seed, "arch": to_dict(arch), "accuracy": value}
            for one, (arch, seeds) in rows.items()
            for seed, value in enumerate(seeds)
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps({"trained": trained}))

    write("longer", kept=(kept, [80.0]), aside=(aside, [90.0]))
    write("worth_1", a_input=(first, [70.0]), a_ours=(second, [None]))
    write("harm_1", b_input=(kept, [80.0, 82.0]), b_ours=(second, [60.0, 62.0]))
    assert values.dear_scores(tmp_path) == {kept.essence(): 80}
    expected = {kept.essence(): 81, aside.essence(): 90, first.essence(): 70, second.essence(): 61}
    assert values.dear_scores(tmp_path, 2) == expected
    assert values.before(1) == []
    found = values.came_from(tmp_path, values.before(2))
    for one, two in {first: first, second: first, kept: kept}.items():
        assert found[one.essence()] == two.essence()
    assert set(values.parents()) < set(found)


def test_losses_of_tables_are_brought_to_one_recipe_with_the_longer_trainings(tmp_path: Path) -> None:
    archs = [arch.essence() for arch in samples(6, nodes=4, seed=5)]

    def write(name: str, losses: dict[int, list[float]]) -> None:
        trained = [
            {
                "name": f"{number}, input",
                "seed": seed,
                "arch": to_dict(archs[number]),
                "value": -loss,
                "curve": [9, loss],
            }
            for number, seeds in losses.items()
            for seed, loss in enumerate(seeds)
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps({"trained": trained}))

    write("longer", {0: [0.1], 1: [0.4, 0.1]})
    write("worth_2", {2: [0.3]})
    write("worth_4", {5: [0.3]})  # is not before the fourth round
    write("table_random_1", {2: [0.9], 3: [0.4]})
    found = values.loss_scores(tmp_path, 4)
    assert {archs.index(arch): np.exp(-value) for arch, value in found.items()} == pytest.approx(
        {
            0: 0.1,
            1: 0.2,
            2: 0.3,
            3: 0.4,
        }  # over seeds a mean of logarithms; of two recipes the longer one counts
    )
    write("table_cells_1", {0: [0.2, 5.0], 1: [0.8, 5.0], 4: [0.5]})  # their first seeds tell
    found = values.loss_scores(tmp_path, 4)
    slope, height = np.log(2) / np.log(4), np.log(0.1) - 0.5 * np.log(0.2)
    assert np.exp(-found[archs[3]]) == pytest.approx(np.exp(height + slope * np.log(0.4)))
    assert set(found) == set(archs[:4])  # published cells of a table only show how recipes differ
    assert values.before(4)[-3:] == ["harm_3", "table_random_1", "table_random_1_again"]


def test_places_and_fields_worked_out_by_hand() -> None:
    fields = {"conv_1x1": 0, "conv_5x5": 4, "sep_conv_3x3": 4, "dil_conv_5x5": 8, "max_pool_3x3": 2, "skip_connect": 0}
    assert {op: values.grown(op) for op in fields} == fields
    assert values.grown("conv_1x7_7x1") == 6
    found = values.place_features(natpp.load("resnet_block"))
    (kind, graph), *_ = natpp.load("resnet_block").cells()
    nodes, _ = graph.living()
    counted = Counter(op for node in nodes for op, _ in node)
    assert {op: found[kind, "op", op] for op in counted} == counted
    assert found[kind, "type", "conv"] == 2
    assert found[kind, "widest field"] == 4  # two 3x3 convolutions, one after the other
    assert found[kind, "field"] == 2  # on half of the ways, as the other half is the skip
    assert found[kind, "depthwise"] == 0


def test_where_value_models_differ_is_doubt_too() -> None:
    parts = [
        SimpleNamespace(
            config=PredictConfig(caution=1.0),
            differences=lambda *_, mean=mean: (np.array([mean, 1.0]), np.array([3.0, 0.0])),
            _both=lambda _, mean=mean: np.array([[mean, 3.0], [1.0, 0.0]]),
        )
        for mean in (0.0, 8.0)
    ]
    both = values.Mean(parts)
    expected, doubt = both.differences([], [])
    assert (expected.tolist(), doubt.tolist()) == ([4.0, 1.0], [5.0, 0.0])  # 3 of each, 4 between them
    assert both.gains([], []).tolist() == [-1.0, 1.0]
    assert both.expected(["one", "other"]).tolist() == [4.0, 1.0]


def test_what_is_left_of_accuracies_is_told_from_what_seeds_do() -> None:
    chance = np.random.default_rng(0)
    found = {}
    for number, arch in enumerate(samples(200, nodes=4, seed=1)):
        loss = chance.uniform(0.1, 0.3)
        seeds = range(3 if number < 100 else 1)
        found[arch] = {seed: (95 - 25 * loss + chance.normal(0, 0.5), loss + chance.normal(0, 1e-3)) for seed in seeds}
    said = losses.by_seeds(found)
    own = dict(zip(found, chance.normal(0, 1, size=len(found)), strict=True))  # what the loss does not show
    more = {
        arch: {seed: (one + own[arch], loss) for seed, (one, loss) in seeds.items()} for arch, seeds in found.items()
    }
    assert losses.by_seeds(more)["left_of_accuracy"] > 2 * losses.by_seeds(more)["left_by_seeds_alone"]
    assert (said["networks"], said["with_several_seeds"]) == (200, 100)
    assert said["accuracy_by_seeds"] == pytest.approx(0.5, rel=0.1)
    assert said["loss_by_seeds"] == pytest.approx(1e-3, rel=0.1)
    assert said["left_of_accuracy"] == pytest.approx(said["left_by_seeds_alone"], rel=0.2)  # all follows from losses
    assert said["points_per_loss"] == pytest.approx(-25, rel=0.1)
    groups = [([0.0, 1.0, 2.0], [10.0, 11.0, 12.0]), ([100.0, 101.0], [0.0, 1.0])]
    assert losses.within(groups)["value"] == pytest.approx(1)  # means of groups do not count
    assert losses.within([([0.0, 1.0], [1.0, 0.0])])["value"] == pytest.approx(-1)


def test_what_agrees_best_is_picked() -> None:
    found = {
        "one": {"spearman": 0.9, "partial_given_madds": 0.1},
        "other": {"spearman": 0.8, "partial_given_madds": 0.4},
        "none": {"spearman": None, "partial_given_madds": None},
    }
    assert values.best_of(found) == "other"
    one, two = samples(2, nodes=4, seed=1)
    assert values.pairs_among([one, two], {two: one}) == [(1, 0)]
    assert values.pairs_among([one], {one: one}) == []


def test_the_pool_has_every_kind_and_nothing_that_is_set_aside() -> None:
    drawn = cells.Pool().draw(300, np.random.default_rng(0))
    assert not {arch.essence() for arch in drawn} & cells.set_aside()
    ops = {edge.op for arch in drawn for _, graph in arch.cells() for edge in graph.edges}
    assert ops == set(OPS)
    nulls = [np.mean([op == "null" for _, graph in arch.cells() for op in graph.ops]) for arch in drawn]
    assert min(nulls) == 0
    assert max(nulls) > 0.5
    assert {len(arch.normal.inputs) for arch in drawn} >= {4, 5}
    again = cells.Pool().draw(300, np.random.default_rng(0))
    assert again == drawn


def test_axes_hold_all_values() -> None:
    for points in ([93.1, 94.87, 90.2], [0.31, 0.12], [1.0, 1.0], [5.0], [0.0, 100.0], [-3.0, 2.5]):
        ticks = pictures._ticks(points)
        assert ticks[0] <= min(points)
        assert ticks[-1] >= max(points)
        assert 2 <= len(ticks) <= 11
        assert len(set(np.diff(ticks).round(6))) == 1


def test_pictures_of_random_architectures_show_every_method_and_round(tmp_path: Path) -> None:
    methods, recipe = ("input", "nat", "nat++"), {"config": {"steps": 40, "batch": 5}}

    def made(more: float) -> dict[str, object]:
        same = {name: {"live_params": 1e6, "test_accuracy": 90.0} for name in methods}
        better = {name: {"live_params": 1e6, "test_accuracy": 90.0 + more * (name != "input")} for name in methods}
        curves = {
            name: {"curve": [2.0, 1.0, 0.5], "skips": skips, "test_accuracy": 90.0}
            for name, skips in (("input", 8), ("nat++", 3))
        }
        rows, converged = {"random 0": same, "random 1": better}, {"random 1": curves}
        return {
            "methods": dict.fromkeys(methods),
            "rows": rows,
            "convergence": converged,
            "recipe": recipe,
            "images": 20,
        }

    (tmp_path / "table_random.json").write_text(json.dumps({"rounds": {"1": made(1.0), "2": made(2.0)}}))
    drawn = list(ElementTree.fromstring(pictures.random_cells(tmp_path)))  # noqa: S314 (our own)
    assert sum(one.tag.endswith("circle") for one in drawn) == 2 * 2 * 2  # two methods, rounds, originals
    arrows = [one.attrib["stroke"] for one in drawn if "marker-end" in one.attrib]
    assert arrows == [pictures.BLUE, pictures.GOLD] * 2  # one original of each round is left as it was
    drawn = list(ElementTree.fromstring(pictures.convergence(tmp_path)))  # noqa: S314
    assert sum(one.tag.endswith("polyline") for one in drawn) == 2 * 2
    words = [one.text for one in drawn if one.tag.endswith("text")]
    assert words.count("original: 90.0 %, skips: 8") == words.count("nat++: 90.0 %, skips: 3") == 2
    assert {"round 1, random 1", "round 2, random 1"} <= set(words)
    assert "10" in words  # epochs: 40 steps of 5 of 20 images


def test_curves_are_told_of_originals_that_were_changed() -> None:
    one, other = (to_dict(arch) for arch in samples(2, seed=3))

    def row(arch: object) -> dict[str, object]:
        return {"arch": arch, "curve": [1.0], "test_accuracy": 90.0}

    subjects = [f"random {number}" for number in range(6)]
    rows = {(f"{subject}, input", 0): row(one) for subject in subjects}
    rows |= {
        (f"{subject}, nat++", 0): row(one if subject in ("random 0", "random 2") else other) for subject in subjects
    }
    assert list(table_random.convergence(rows, subjects)) == ["random 1", "random 3", "random 4", "random 5"]


def test_scores_are_judged_over_the_networks_they_know(tmp_path: Path) -> None:
    archs = [arch.essence() for arch in samples(8, nodes=4, seed=5)]
    assert len(set(archs)) == 8

    def write(name: str, numbers: list[int], seed: int, more: float = 0.0) -> None:
        rows = [
            {
                "name": names.get(number, f"{number}"),
                "seed": seed,
                "arch": to_dict(archs[number]),
                "live_params": -number,
                "live_madds": 7,
                "test_accuracy": None if number == 7 else number + more,
                "value": None if number == 7 else number,
                "loss": 1 / (1 + number),
                "curve": [9.0, 2 / (1 + number)],
            }
            for number in numbers
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps({"trained": rows}))

    names = {0: "a, input", 1: "a, nat++", 2: "b, input", 3: "b, constant", 4: "b, random", 5: "darts, input"}
    write("table_random_1", [0, 1, 2, 3, 7], 0)  # the last one failed
    write("table_random_2", [3, 4], 0, 10.0)  # 3 again, by the same seed
    write("table_random_2_finals", [6], 0)
    write("table_cells_1", [5], 1)
    write("direct", [0, 1, 2, 7], 0)
    write("short_1", [3], 0)  # by another schedule than searches use
    write("table_random_2_short", [2, 4], 0)
    (tmp_path / "direct_supernet_0.json").write_text(
        json.dumps({"scores": [[to_dict(archs[number]), number] for number in (0, 1, 2, 5)]})
    )
    value = {arch: float(number) for number, arch in enumerate(archs)}
    prediction = SimpleNamespace(expected=lambda some: np.array([value[arch] for arch in some]))
    known = answers.Knowledge({}, None, prediction, frozenset(archs[6:7]))  # type: ignore[arg-type]
    found = tables.agreement(tmp_path, {2: known}, schedules.Pick(next(iter(schedules.SCHEDULES)), "training"))
    assert found["networks"] == 7
    scores = found["scores"]
    assert {name: one["networks"] for name, one in scores.items()} == {
        "live parameters": 7,
        "live MAdds": 7,
        "a short training": 4,
        "the value model of round 2": 6,  # it was fitted on the seventh
        "a supernet, seed 0": 4,
    }
    assert scores["a short training"]["spearman"]["value"] == pytest.approx(1)
    truth = [0, 1, 2, 13, 14, 5]
    assert scores["the value model of round 2"]["spearman"]["value"] == pytest.approx(
        spearmanr(range(6), truth).statistic
    )
    assert scores["a supernet, seed 0"]["spearman"]["value"] == pytest.approx(1)
    assert scores["live parameters"]["spearman"]["value"] == pytest.approx(-spearmanr(range(7), [*truth, 6]).statistic)
    assert scores["live parameters"]["spearman"]["low"] < 0
    assert scores["live MAdds"]["spearman"] is None  # all alike
    told = random_cells._scores_against_truth(found)
    assert "| a supernet, seed 0 | 4 | 1.00 (1.00 to 1.00) | – | – |" in told
    assert "| live MAdds | 7 | – | – | – |" in told
    assert "| a short training | 4 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | – |" in told
    assert found["common"] == 4  # those with a short training, which the value model was not fitted on
    assert scores["live parameters"]["common"]["value"] == pytest.approx(-1)
    assert found["inputs"] == 3
    among = scores["the value model of round 2"]["among_answers"]  # 0 and 1 of a, 2 and 3 of b, none at random
    assert (among["value"], among["rows"]) == (pytest.approx(spearmanr([-1, 1, -1, 1], [-1, 1, -11, 11]).statistic), 4)


def test_costs_of_seeds_are_averaged_and_every_training_is_told() -> None:
    costs = {"params": 4, "madds": 40, "live_params": 4, "live_madds": 40, "latency_ms": 1.0}
    rest = {"seconds": 1.0, "curve": [2.0, 1.0]}
    rows = {
        (f"one, {kind}", seed): {"seed": seed, "test_accuracy": 90.0 + seed, **costs, **rest, "changes": []}
        for kind in ("input", "random")
        for seed in (0, 1)
    }
    rows["one, random", 1] |= {"live_madds": 20, "latency_ms": 2.0}
    rows["one, random", 2] = rows["one, random", 1] | {"seed": 2, "test_accuracy": None}  # it failed
    found = tables.with_trainings(tables.beside_originals(rows, ("input", "random"), "test_accuracy"), rows)["one"]
    assert (found["random"]["live_madds"], found["random"]["latency_ms"], found["random"]["seeds"]) == (30, 1.5, 2)
    assert [row["test_accuracy"] for row in found["random"]["trainings"]] == [90.0, 91.0, None]
    assert set(found["input"]["trainings"][0]) == {"seed", "test_accuracy", *costs, *rest}


def test_a_rule_is_compared_with_random_changes_by_networks_and_by_trainings() -> None:
    accuracies = {("one", "nat++"): [80.0, 82.0], ("one", table.RANDOM): [79.0, 83.0]}
    accuracies |= {("two", "nat++"): [70.0, 72.0], ("two", table.RANDOM): [68.0, 70.0]}
    rows = {
        (f"{name}, {kind}", seed): {"test_accuracy": value}
        for (name, kind), values in accuracies.items()
        for seed, value in enumerate(values)
    }
    models = {
        name: {kind: {"accuracy": {"mean": sum(accuracies[name, kind]) / 2}} for kind in ("nat++", table.RANDOM)}
        for name in ("one", "two")
    }
    found = table.over_random(models, rows, "nat++")
    assert (found["value"], found["rows"]) == (1.0, 2)  # 0 and 2
    assert (found["trainings_above"], found["trainings"]) == (3, 4)
    assert "nat++ +1.00 (+0.00 to +2.00), 3 of 4. This table does not separate nat++ from" in originals._over_random(
        {"nat++": found}
    )
    rows["two, nat++", 1]["test_accuracy"] = None  # it failed
    assert table.over_random(models, rows, "nat++")["trainings"] == 3


def test_early_losses_are_compared_where_a_method_changed_something() -> None:
    archs = samples(3, nodes=4, seed=8)

    def row(arch: Architecture, early: float) -> dict[str, Any]:
        return {"arch": to_dict(arch), "curve": [9.0, early, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]}

    rows = {(f"{name}, {method}", 0): row(archs[2], 1.0) for name in "ab" for method in table_random.METHODS}
    rows |= {("a, input", 0): row(archs[0], 1.2), ("b, input", 0): row(archs[1], 0.8)}
    rows["b, nat", 0] = row(archs[1], 0.1)  # not changed
    found = table_random.bias(rows, ["a", "b"])
    assert (found["nat++"]["changed"], found["nat++"]["ahead"]) == (2, 1)
    assert (found["nat"]["changed"], found["nat"]["ahead"]) == (1, 1)
    assert found["nat++"]["skips"] == table_random.skips(archs[2])


def test_digits_are_enlarged_for_networks_that_need_it() -> None:
    digits = load_images("digits")
    assert table.large_enough(digits, "resnet20") is digits
    large = table.large_enough(digits, "vgg16")
    assert large.train.shape[2:] == large.test.shape[2:] == (32, 32)
    assert (large.train[:, :, ::4, ::4] == digits.train).all()
    assert natpp.zoo.network("vgg16", classes=10).eval()(table.example_of(32)).shape == (1, 10)


def test_a_trial_tells_what_a_group_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def trained(builds: object, starts: object, trial: Trial, **options: object) -> None:
        seen.update(tested=trial.tested, steps=trial.schedule.steps)
        options["spent"] |= {"capture": 2.0, "training": 4.0}  # type: ignore[operator]

    monkeypatch.setattr(table, "train_together", trained)
    images = SimpleNamespace(validation=torch.empty(0))
    recipe = replace(table.RECIPE, config=replace(table.RECIPE.config, steps=10 * table.TRIAL))
    assert table.expected_seconds([], images, recipe, 0) == 2 + 10 * 4
    assert seen["steps"] == table.TRIAL
    assert not seen["tested"]  # test images are for the training that is kept


def test_groups_of_other_experiments_tell_what_a_training_takes(tmp_path: Path) -> None:
    longer, own = trainer.LONGER, tmp_path / "own.json"
    groups = [{"trainings": 16, "seconds": 160.0, "peak_memory_gib": 24.0}]
    (tmp_path / "other.json").write_text(json.dumps({"recipe": asdict(longer), "groups": groups}))
    (tmp_path / "answers.json").write_text("{}")
    own.write_text(json.dumps({"recipe": asdict(longer), "groups": groups * 2}))
    assert trainer.groups_like(tmp_path, longer, own) == groups
    half = replace(longer, config=replace(longer.config, steps=longer.config.steps // 2))
    assert trainer.groups_like(tmp_path, half, own)[0]["seconds"] == pytest.approx(80, rel=1e-3)
    assert trainer.groups_like(tmp_path, replace(longer, cells=5), own) == []


def test_answers_are_kept_for_those_who_gave_them(tmp_path: Path) -> None:
    file, first, other = tmp_path / "answers.json", {"one": samples(1, seed=1)[0]}, {"one": samples(1, seed=2)[0]}
    assert answers.kept_answers(file, "a", lambda: first) == first
    assert answers.kept_answers(file, "a", lambda: other) == first
    with pytest.raises(SystemExit, match="has answers of other policies"):
        answers.kept_answers(file, "b", lambda: other)


def test_policies_that_ship_are_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(EXPERIMENTS / "runs" / "cells", runs, ignore=shutil.ignore_patterns("polic*"))
    mark = learned.mark_of(runs)
    shipped = tmp_path / "package"
    shutil.copytree(learned.shipped.FOLDER, shipped)
    monkeypatch.setattr(learned.shipped, "FOLDER", shipped)
    assert learned.mark_of(runs) == mark
    (shipped / "cifar10.safetensors").write_bytes((shipped / "cifar10_nat.safetensors").read_bytes())
    with pytest.raises(SystemExit, match=r"do not all match ship_policies\.json"):
        learned.mark_of(runs)
    (shipped / "cifar10.safetensors").unlink()
    with pytest.raises(SystemExit, match="do not all match"):
        learned.mark_of(runs)
    with pytest.raises(SystemExit, match="there are no policies yet"):
        learned.mark_of(runs, 9)


def test_times_of_two_machines_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, one, two = tmp_path / "latency.json", iter([5.0, 3.0, 4.0, 9.0, 6.0, 7.0]), iter(range(10, 20))
    measures = {"one": lambda: next(one)}
    times, on = tables.least_latencies(file, measures)
    assert times == {"one": 3.0}  # somebody else took the machine the other times
    monkeypatch.setattr(tables, "machine", lambda: {"gpu": "another"})
    assert tables.least_latencies(file, measures) == (times, on)  # all is known: nothing is measured here
    again, elsewhere = tables.least_latencies(file, measures | {"two": lambda: next(two)}, smoke=True)
    assert elsewhere == "another"
    assert again == {"one": 7.0, "two": 10.0}


def test_networks_that_compute_the_same_have_one_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {(name, 0): {"arch": to_dict(samples(1, seed=seed)[0])} for name, seed in (("a", 1), ("b", 1), ("c", 2))}
    taken = iter([5.0, 3.0])
    monkeypatch.setattr(tables.natpp, "cost", lambda *_, **__: SimpleNamespace(latency_ms=next(taken)))
    found, _ = tables.with_costs(rows, setting("cifar", channels=2, cells=2, size=8), tmp_path / "file", smoke=True)
    assert [row["latency_ms"] for row in found.values()] == [5.0, 5.0, 3.0]
    assert found["a", 0]["live_params"] == found["b", 0]["live_params"] != found["c", 0]["live_params"]


def test_a_network_other_than_was_trained_has_no_latency(tmp_path: Path) -> None:
    rows = {("resnet20, nat++", 0): {"size": 32, "changes": [["no.such.layer", "conv_3x3", "null"]]}}
    with pytest.raises(SystemExit, match="is not what natpp makes now"):
        table.with_latencies(rows, table.TableHandcrafted(runs=tmp_path, smoke=True))


def test_short_trainings_help_to_pick_from_what_is_proposed() -> None:
    known = learned.learned_nothing()
    archs = {f"random {number}": arch for number, arch in enumerate(samples(2, seed=7))}
    methods, where = ("nat++", "nat++ best of 10", "random best of 10"), setting("cifar", channels=4, cells=5)
    proposals = answers.proposed(archs, methods, known, where, seed=3)
    assert [len(some) for some in proposals.values()] == [1, 1, 10, 10, 10, 10]
    assert proposals["random 1, nat++ best of 10"][0] == proposals["random 1, nat++"][0]  # one of the ten
    found = answers.answered(archs, methods, known, where, seed=3)
    assert found["random 0, input"] == archs["random 0"]
    for name, some in proposals.items():
        gains = known.prediction.gains([archs[answers.split_name(name)[0]]] * len(some), some)
        assert found[name] == some[int(gains.argmax())]

    listed = shortlist.listed(proposals)
    assert len(listed) == 4 * 10
    assert listed["random 1, random best of 10, 9"] == proposals["random 1, random best of 10"][9]
    wanted = {name: some[3].essence() for name, some in proposals.items() if len(some) > 1}
    scores = {arch.essence(): -float(number) for number, arch in enumerate(listed.values())}
    scores |= dict.fromkeys(wanted.values(), 1.0)
    tried = replace(known, tried=answers.Tried(scores, (0.0, 1.0)))
    found = answers.answered(archs, methods, tried, where, seed=3)
    assert {name: found[name].essence() for name in wanted} == wanted  # the best by short trainings alone
    some = proposals["random 1, random best of 10"]
    kept = dict.fromkeys((arch.essence() for arch in some[8:]), 0.0)
    for weights in ((0.0, 1.0), (1.0, 0.0)):
        tried = replace(known, tried=answers.Tried(kept, weights))
        gains = tried.gains([archs["random 1"]] * 10, some)
        assert np.isneginf(gains).tolist() == [True] * 8 + [False] * 2  # what failed is never the best
    expected = known.prediction.differences([archs["random 1"]] * 10, some)[0]
    assert gains[8:] == pytest.approx(expected[8:])  # what was fitted is what is expected, without caution


def test_the_best_by_the_score_come_first_and_what_computes_the_same_once() -> None:
    known = learned.learned_nothing()
    archs = {"random 0": samples(1, seed=7)[0]}
    where, name = setting("cifar", channels=4, cells=5), "random 0, random best of 10"
    some = answers.proposed(archs, ["random best of 10"], known, where, seed=3)[name]
    scores = {arch.essence(): float(number) for number, arch in enumerate(some)}
    tried = replace(known, tried=answers.Tried(scores, (0.0, 1.0)))
    found = answers.ranked(archs, ["random best of 10"], tried, where, seed=3)[name]
    assert [arch.essence() for arch in found] == sorted(scores, key=lambda arch: -scores[arch])
    one = known.policies["nat++"]
    with torch.no_grad():  # all samples of a policy that is sure are alike
        for parameter in one.head[-1].parameters():
            parameter.mul_(1e4)
    alike = answers.ranked(archs, ["nat++ best of 10"], known, where, seed=3)["random 0, nat++ best of 10"]
    assert len(alike) == 1


def test_a_final_is_settled_by_training_losses_alone(tmp_path: Path) -> None:
    one, two, three, four = samples(4, seed=5)
    listed = shortlist.finalists({"a, nat++": [one], "a, best": [one, two, four], "b, best": [three, four]})
    assert listed == {"a, nat++": one, "a, best, 0": one, "a, best, 1": two, "b, best, 0": three, "b, best, 1": four}
    finals = shortlist.of_finals(listed)
    assert list(finals) == ["a, best, 0", "a, best, 1", "b, best, 0", "b, best, 1"]

    def keep(losses: Mapping[str, float | None]) -> None:
        rows = [
            {"name": name, "seed": 0, "arch": to_dict(finals[name]), "value": loss, "loss": None, "curve": [9.0, loss]}
            | {"test_accuracy": 50.0 + 10 * (loss or 0)}  # the other way round
            for name, loss in losses.items()
        ]
        (tmp_path / "table_finals.json").write_text(json.dumps({"asked": 4, "trained": rows}))

    keep({"a, best, 0": 0.3, "a, best, 1": 0.2, "b, best, 0": 0.1})
    with pytest.raises(SystemExit, match="not all trained yet"):
        shortlist.settled(tmp_path, "table", listed)
    keep({"a, best, 0": 0.3, "a, best, 1": 0.2, "b, best, 0": None, "b, best, 1": 0.4})  # one of them failed
    assert shortlist.settled(tmp_path, "table", listed) == {"a, nat++": one, "a, best": two, "b, best": four}
    keep({"a, best, 0": 0.2, "a, best, 1": 0.2, "b, best, 0": 0.1, "b, best, 1": 0.4})
    assert shortlist.settled(tmp_path, "table", listed) == {"a, nat++": one, "a, best": one, "b, best": three}
    assert shortlist.settled(tmp_path, "none", {"a, nat++": one}) == {"a, nat++": one}  # nothing to settle


def test_what_is_drawn_differs_as_a_value_model_says() -> None:
    *archs, origin = samples(9, nodes=4, seed=5)
    model = Prediction(archs[:5], np.array([0.3, 0.1, 0.5, 0.2, 0.4]), PredictConfig())
    mean, root = finals.possible(model, origin, archs)
    assert mean == pytest.approx(model.differences([origin] * 8, archs)[0])
    covariance = root @ root.T
    assert np.sqrt(covariance.diagonal()) == pytest.approx(model.differences([origin] * 8, archs)[1])
    apart = covariance[2, 2] + covariance[6, 6] - 2 * covariance[2, 6]
    assert np.sqrt(apart) == pytest.approx(model.differences([archs[2]], [archs[6]])[1][0])


def test_finals_are_told_once_all_are_there(tmp_path: Path) -> None:
    rows = [
        {
            "name": f"random {number}, nat++ best of 10, {place}",
            "seed": 0,
            "value": 1,
            "loss": None,
            "curve": [9.0, loss],
        }
        for number, both in enumerate([(0.2, 0.3), (0.5, 0.4), (0.1, 0.1)])
        for place, loss in enumerate(both)
    ]
    for there in (5, 6):
        (tmp_path / "table_random_2_finals.json").write_text(json.dumps({"asked": 6, "trained": rows[:there][::-1]}))
        found = finals.shown(tmp_path)
        assert bool(found) == (there == 6)
    one = found["nat++ best of 10"]
    assert (one["finals"], one["first_won"]) == (3, 2)
    assert one["loss_below_first"] == pytest.approx(0.1 / 3)


def test_weights_of_short_trainings_are_those_that_made_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    archs = [arch.essence() for arch in samples(41, nodes=4, seed=5)]
    predicted, loss = generator.normal(size=40), np.exp(generator.normal(size=40))
    family = np.repeat(np.arange(8), 5)
    truth = 2 * predicted - 3 * np.log(loss) + 10 * family  # of what they come from nothing is learned

    def row(name: str, arch: Architecture, last: float, value: float | None = -1.0) -> dict[str, Any]:
        return {"name": name, "seed": 0, "arch": to_dict(arch), "value": value, "loss": 7.0, "curve": [9.0, last]}

    rows = [row(f"{number}", arch, float(last)) for number, (arch, last) in enumerate(zip(archs, loss, strict=False))]
    methods = ("input", "nat++", "constant", "random", "random")
    answers = [row(f"{family[number]}, {methods[number % 5]}", archs[number], 1.0) for number in range(15)]
    failed = row("failed", archs[40], 1e9, None)
    for name, some in (("short_0", rows[:30]), ("direct", [*rows[30:], failed]), ("worth_1", answers)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"trained": some}))
    dear = dict(zip(archs, [*truth.tolist(), 0.0], strict=True))
    origin = {arch: archs[5 * family[number]] for number, arch in enumerate(archs[:40])} | {archs[40]: archs[0]}
    monkeypatch.setattr(shortlist, "learned_from", lambda *_: ({}, dear, {}, "short"))
    monkeypatch.setattr(shortlist, "learned_in", lambda *_: ({"round": 2}, {}))
    pick = schedules.Pick(next(iter(schedules.SCHEDULES)), "training")
    monkeypatch.setattr(shortlist, "pick_of_search", lambda _: pick)
    monkeypatch.setattr(shortlist, "came_from", lambda *_: origin)
    monkeypatch.setattr(
        shortlist, "left_out", lambda *_, **__: dict(zip(archs, [*predicted.tolist(), 0.0], strict=True))
    )
    monkeypatch.setattr(shortlist, "normal_scores", lambda values: values)
    found = shortlist.kept_fit(tmp_path / "fit.json", tmp_path)
    assert found["weights"] == pytest.approx([2, 3])
    assert (found["cells"], found["families"]) == (40, 8)  # what failed is left out
    assert {name: one["cells"] for name, one in found["agreement"].items()} == {
        "all, accuracy": 40,
        "close, accuracy": 9,
    }
    for one in found["agreement"].values():
        assert one["both"] == pytest.approx(1)
    assert (
        0 < found["agreement"]["all, accuracy"]["value_model"] < found["agreement"]["all, accuracy"]["short_training"]
    )
    for one_family in ({}, dict.fromkeys(archs, archs[0])):  # nothing to compare with
        monkeypatch.setattr(shortlist, "came_from", lambda *_, found=one_family: found)
        assert shortlist.fitted(tmp_path)["weights"] == (1, 1)
    assert shortlist.kept_fit(tmp_path / "fit.json", tmp_path) == found  # what was fitted once stays


def test_nothing_is_picked_before_all_is_tried(tmp_path: Path) -> None:
    pick, file = schedules.Pick("any", "training"), tmp_path / "table_short.json"
    arch = samples(1, seed=1)[0]
    one = {"name": "a", "seed": 0, "arch": to_dict(arch), "value": -1.0, "loss": None, "curve": [1.0]}
    for asked in (None, 2, 1):
        if asked is not None:
            file.write_text(json.dumps({"asked": asked, "trained": [one]}))
        if asked != 1:
            with pytest.raises(SystemExit, match="not all trained yet"):
                shortlist.tried(tmp_path, "table", pick, (1.0, 1.0))
    assert shortlist.tried(tmp_path, "table", pick, (1.0, 1.0)).scores == {arch.essence(): 0.0}


def test_where_the_value_model_knows_nothing_the_edges_stay() -> None:
    archs = cells.Pool().draw(90, np.random.default_rng(2))
    noise = dict(zip((arch.essence() for arch in archs[:40]), np.random.default_rng(3).normal(size=40), strict=True))
    inputs = Subjects(cells_of(archs[40:], Frame("nat++", setting("cifar"), strict=True), tuple(OPS)))
    changed = {}
    for caution, steps in ((0.0, 60), (1.0, 120)):  # it is learned first what would be best, then what is sure
        config = replace(ship_policies.learn_config(1, smoke=True), steps=steps, learning_rate=1e-2, inputs=10)
        model = values.value_model(noise, {}, "short", config=PredictConfig(caution=caution))
        method = PolicyMethod("nat++", learned=ship_policies.learned(inputs, model, 0.0, config))
        rows = answers.answers_of(method, inputs, model.reward(), np.random.default_rng(0))
        changed[caution] = ship_policies.on_fresh(inputs, rows, model)["edges_changed"]
    assert changed[1.0] < 0.15 < 0.4 < changed[0.0]
