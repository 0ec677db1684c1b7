"""Few scores, the rest predicted."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import natpp
from natpp.arch.graph import Edge, Graph
from natpp.arch.networks import setting
from natpp.core.scores import Gain, Scores
from natpp.errors import SettingError
from natpp.methods.rounds import ascended, predicted
from natpp.registry import ZOO
from natpp.scorers.base import Scorer
from natpp.scorers.features import flow_features, walk_features
from natpp.scorers.gaussian import WEIGHTS, Process
from natpp.scorers.predicted import PredictConfig, Prediction
from natpp.subjects.cells import Frame, cells_of
from natpp.subjects.many import Subjects
from natpp.verbs import samples
from tests.methods.test_learning import OPS5, RULE, SMALL, STRICT, number

QUICK = PredictConfig()


class Numbers(Scorer):
    """The score of the small space as a scorer."""

    def key(self, arch: natpp.Architecture) -> natpp.Architecture:
        return arch

    def _score(self, archs: list[natpp.Architecture]) -> Scores:
        return number(archs)


def test_features_see_function_not_names() -> None:
    for view in (flow_features, walk_features):
        for entry in ZOO.values():
            seen = view(entry.arch)
            for same in (entry.arch.canonical(), entry.arch.pruned()):
                assert view(same) == pytest.approx(seen)
        assert view(natpp.load("darts")) != view(natpp.load("nat_darts"))
        assert len({tuple(sorted(view(arch).items())) for arch in samples(200, nodes=5)}) == 200


def test_a_prediction_knows_what_it_was_shown_and_doubts_the_rest() -> None:
    archs = samples(300, nodes=4, seed=0)
    scores = np.array([float(sum(op.startswith("conv") for _, g in a.pruned().cells() for op in g.ops)) for a in archs])
    prediction = Prediction(archs[:200], scores[:200], QUICK)
    order = np.argsort(np.argsort(scores[200:]))
    guess = np.argsort(np.argsort(prediction.expected(archs[200:])))
    assert np.corrcoef(order, guess)[0, 1] > 0.6
    assert (prediction.careful(archs) < prediction.expected(archs)).all()
    again = Prediction(archs[:200], scores[:200], QUICK)
    assert (again.expected(archs) == prediction.expected(archs)).all()


def test_equal_scores_have_equal_expectations() -> None:
    archs = samples(30, seed=1)
    prediction = Prediction(archs, np.ones(30), QUICK)
    assert np.ptp(prediction.expected(archs)) < 1e-3


def test_only_the_order_of_scores_counts() -> None:
    archs = samples(60, seed=2)
    scores = np.random.default_rng(0).permutation(60).astype(float)
    one, other = Prediction(archs, scores, QUICK), Prediction(archs, np.exp(scores), QUICK)
    assert (one.careful(archs) == other.careful(archs)).all()


def test_a_process_is_what_another_library_says() -> None:
    """With length and noise given, means and deviations are scikit-learn's."""
    rows, targets = torch.randn(40, 6, dtype=torch.float64), torch.randn(40, dtype=torch.float64)
    process = Process([rows], targets)
    (length,) = process.lengths
    assert process.weights == [1.0]
    noise = (process.root @ process.root.T).diagonal().mean().item() - 1
    kernel = ConstantKernel(process.scale) * Matern(length, nu=2.5) + WhiteKernel(process.scale * noise)
    known = GaussianProcessRegressor(kernel, optimizer=None).fit(rows.numpy(), (targets - process.mean).numpy())
    new = torch.randn(10, 6, dtype=torch.float64)
    mean, spread = known.predict(new.numpy(), return_std=True)
    found, deviation = process([new])
    assert np.allclose(found.numpy(), process.mean.item() + mean)
    assert np.allclose(deviation.numpy() ** 2 + process.scale * noise, spread**2)
    _, covariance = known.predict(new.numpy(), return_cov=True)
    difference, deviation = process.difference([new[:5]], [new[5:]])
    assert np.allclose(difference.numpy(), mean[5:] - mean[:5])
    own = covariance.diagonal() - process.scale * noise
    expected = own[:5] + own[5:] - 2 * covariance[np.arange(5), np.arange(5, 10)]
    assert np.allclose(deviation.numpy() ** 2, expected)


def test_a_process_over_two_views_is_the_sum_of_both() -> None:
    """Means and deviations by the textbook's formula, from lengths, weights and noise that were found."""
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(40, size, generator=generator, dtype=torch.float64) for size in (3, 5)]
    targets = views[0][:, 0].sin() + 0.5 * views[1][:, 1]
    process = Process(views, targets)
    assert process.weights[1] in WEIGHTS
    assert sum(process.weights) == pytest.approx(1)

    def alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> Scores:
        kernels = [Matern(length, nu=2.5) for length in process.lengths]
        parts = zip(process.weights, kernels, one, other, strict=True)
        return np.asarray(sum(weight * kernel(a.numpy(), b.numpy()) for weight, kernel, a, b in parts))

    noise = (process.root @ process.root.T).diagonal().mean().item() - 1
    inverse = np.linalg.inv(alike(views, views) + noise * np.eye(40))
    new = [torch.randn(10, size, generator=generator, dtype=torch.float64) for size in (3, 5)]
    mean = process.mean.item() + alike(new, views) @ inverse @ (targets - process.mean).numpy()
    covariance = process.scale * (alike(new, new) - alike(new, views) @ inverse @ alike(views, new))
    found, deviation = process(new)
    assert np.allclose(found.numpy(), mean)
    assert np.allclose(deviation.numpy() ** 2, covariance.diagonal())
    difference, deviation = process.difference([rows[:5] for rows in new], [rows[5:] for rows in new])
    assert np.allclose(difference.numpy(), mean[5:] - mean[:5])
    own = covariance.diagonal()
    assert np.allclose(deviation.numpy() ** 2, own[:5] + own[5:] - 2 * covariance[np.arange(5), np.arange(5, 10)])


def test_a_view_that_says_nothing_weighs_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, noise = (torch.randn(60, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    process = Process([rows, noise], rows.sum(dim=1))
    assert process.weights == [1.0, 0.0]
    assert torch.equal(process([rows, noise])[0], process([rows, 0 * noise])[0])


def test_with_caution_only_sure_gains_count() -> None:
    archs = samples(120, nodes=4, seed=0)
    scores = np.array([float(sum(op.startswith("conv") for _, g in a.pruned().cells() for op in g.ops)) for a in archs])
    bold, careful = (Prediction(archs[:60], scores[:60], PredictConfig(caution=caution)) for caution in (1e-9, 1.0))
    before, after = archs[60:90], archs[90:]
    plain = bold.expected(after) - bold.expected(before)
    assert np.allclose(bold.gains(before, after), plain, atol=1e-6)
    assert (careful.gains(before, after) < plain).all()
    assert np.allclose(careful.gains(before, before), 0, atol=1e-6)
    assert (careful.gains(before, after)[3:5] == careful.gains(before[3:5], after[3:5])).all()  # whoever is beside
    assert Prediction(archs, scores, QUICK).reward().__name__ == "careful"


def test_caution_grows_in_the_first_half_of_learning() -> None:
    archs = samples(60, nodes=4, seed=0)
    prediction = Prediction(archs[:40], np.arange(40.0), PredictConfig(caution=2.0))
    before, after = archs[40:50], archs[50:]
    mean, deviation = prediction.differences(before, after)
    for done, caution in ((0.0, 0.0), (0.25, 1.0), (0.5, 2.0), (1.0, 2.0)):
        reward = prediction.reward(done)
        assert isinstance(reward, Gain)
        assert np.allclose(reward.of(before, after), mean - caution * deviation)
    assert np.array_equal(prediction.gains(before, after), prediction.reward().of(before, after))


def test_gains_are_over_the_input() -> None:
    asked = []

    def of(before: Sequence[natpp.Architecture], after: Sequence[natpp.Architecture]) -> Scores:
        asked.append(len(after))
        return number(after) - number(before)

    inputs, gain = Subjects(cells_of(SMALL, RULE, OPS5)), Gain(of)
    rows = [inputs.random_row(index, np.random.default_rng(index)) for index in range(4)]
    found = inputs.scores([0, 1, 2, 3], rows, gain)
    after = [inputs.transformed(index, row) for index, row in enumerate(rows)]
    assert (found == number(after) - number(SMALL[:4])).all()
    assert (inputs.scores([0, 1, 2, 3], rows, gain) == found).all()
    assert len(asked) == 1  # remembered
    own = inputs.before[:4]
    assert (inputs.scores([0, 1, 2, 3], own, gain) == 0).all()


def test_many_scores_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natpp.scorers.gaussian.MOST_ROWS", 50)
    archs = samples(80, seed=3)
    assert len(Prediction(archs, np.arange(80.0), QUICK)._process.solved) == 50


@pytest.mark.parametrize("task", [RULE, STRICT])
def test_climbing_stays_allowed_and_ends_higher(task: Frame) -> None:
    inputs = Subjects(cells_of(SMALL, task, OPS5))
    indices = list(range(len(inputs)))
    rows = ascended(inputs, indices, number)
    for index, row in zip(indices, rows, strict=True):
        assert inputs.masks[index][np.arange(len(row)), row].all()
        assert inputs.fits(index, row)
    after = number([inputs.transformed(index, row) for index, row in zip(indices, rows, strict=True)])
    assert (after >= number(SMALL)).all()
    assert after.mean() > number(SMALL).mean() + 1


def test_the_limit_is_spent_and_not_overspent() -> None:
    inputs = Subjects(cells_of(SMALL, RULE, OPS5))
    scorer = Numbers(limit=80)
    prediction = predicted(inputs, scorer, QUICK, np.random.default_rng(0))
    assert scorer.queries == 80
    chosen = ascended(inputs, range(len(inputs)), prediction.careful)
    reached = number([inputs.transformed(index, row) for index, row in enumerate(chosen)]).mean()
    best = number([inputs.transformed(i, row) for i, row in enumerate(ascended(inputs, range(len(inputs)), number))])
    assert reached - number(SMALL).mean() > 0.5 * (best.mean() - number(SMALL).mean())


def test_a_space_smaller_than_the_limit_ends() -> None:
    inputs = Subjects(cells_of(SMALL[:10], Frame("nat", setting("nasbench201", cells=1), strict=False), OPS5))
    scorer = Numbers(limit=1000)
    predicted(inputs, scorer, QUICK, np.random.default_rng(0))
    assert 10 <= scorer.queries < 1000


def test_bad_settings_are_refused() -> None:
    inputs = Subjects(cells_of(SMALL, RULE, OPS5))
    with pytest.raises(SettingError, match="with a limit"):
        predicted(inputs, Numbers(), QUICK, np.random.default_rng(0))
    with pytest.raises(SettingError, match="at least 2 scores"):
        predicted(inputs, Numbers(limit=1), QUICK, np.random.default_rng(0))
    with pytest.raises(SettingError, match="random_share"):
        PredictConfig(random_share=0)
    with pytest.raises(SettingError, match="rounds is 0"):
        PredictConfig(rounds=0)
    with pytest.raises(SettingError, match="caution is -1"):
        PredictConfig(caution=-1)
    with pytest.raises(SettingError, match="doubt is nan"):
        PredictConfig(doubt=float("nan"))


def test_features_see_both_cells_any_size_and_stride_2() -> None:
    for view, kinds in ((flow_features, {"normal", "reduce", "both"}), (walk_features, {"normal", "reduce"})):
        at_stride = {name for name in view(natpp.load("darts")) if name[1] == "stride 2"}
        assert {kind for kind, *_ in at_stride} == {"reduce"}  # edges of a normal cell have stride 1
        reduce = natpp.load("darts").reduce
        assert reduce is not None
        ops = {edge.op for edge in reduce.edges if edge.source < 2}
        assert {name[2] for name in at_stride} == ops
        sizes = [view(arch) for nodes in (3, 4, 5, 6) for arch in samples(2, nodes=nodes, seed=3)]
        assert all({kind for kind, *_ in one} == kinds for one in sizes)


def test_what_flows_through_a_cell_is_expected_on_a_random_way_back() -> None:
    edges = (("conv_3x3", 0, 2), ("skip_connect", 1, 2), ("sep_conv_3x3", 2, 3), ("max_pool_3x3", 1, 3))
    cell = Graph(tuple(Edge(*edge) for edge in edges), concat=(2, 3))
    seen = flow_features(natpp.Architecture(normal=cell))
    assert {name[1:]: value for name, value in seen.items() if name[0] == "normal"} == pytest.approx(
        {
            # a way from node 2 has one operation; one from node 3 has the pool, or the conv and one of node 2
            ("input 0",): (1 / 2 + 1 / 4) / 2,
            ("input 1",): (1 / 2 + 3 / 4) / 2,
            ("op", "conv_3x3"): (1 / 2 + 1 / 4) / 2,
            ("op", "skip_connect"): (1 / 2 + 1 / 4) / 2,
            ("op", "sep_conv_3x3"): 1 / 4,
            ("op", "max_pool_3x3"): 1 / 4,
            ("ops",): (1 + 3 / 2) / 2,
            ("convs",): (1 / 2 + 1 / 2 + 1 / 4) / 2,
            ("unlearned",): (1 / 2 + 1 / 2) / 2,
            ("edges",): 4,
            ("outputs",): 2,
            ("longest",): 2,
            ("deepest",): 2,
        }
    )


def convs(arch: natpp.Architecture) -> float:
    return float(sum("conv" in op for _, graph in arch.pruned().cells() for op in graph.ops))


def skips(arch: natpp.Architecture) -> float:
    return float(sum(op == "skip_connect" for _, graph in arch.pruned().cells() for op in graph.ops))


def test_few_dear_scores_stand_on_many_cheap_ones() -> None:
    archs = samples(260, nodes=4, seed=5)
    cheap = np.array([convs(arch) for arch in archs])
    dear = cheap + np.array([skips(arch) for arch in archs])
    prior = Prediction(archs[:200], cheap[:200], QUICK)
    alone, both = (Prediction(archs[:60], dear[:60], QUICK, prior=one) for one in (None, prior))
    fresh, truth = archs[200:], dear[200:]

    def agreement(values: Scores) -> float:
        return float(np.corrcoef(np.argsort(np.argsort(values)), np.argsort(np.argsort(truth)))[0, 1])

    assert agreement(both.expected(fresh)) > max(agreement(one.expected(fresh)) for one in (alone, prior))
    mean, deviation = both.differences(fresh[:40], fresh[20:])
    assert mean == pytest.approx(both.expected(fresh[20:]) - both.expected(fresh[:40]), abs=1e-6)
    assert (deviation > 0).all()
    _, same = both.differences(fresh, fresh)
    assert same == pytest.approx(0, abs=1e-5)
    half = (both.hopeful(fresh) - both.careful(fresh)) / 2
    assert both.careful(fresh) == pytest.approx(both.expected(fresh) - half)


def test_cheap_scores_that_say_the_opposite_count_nothing() -> None:
    archs = samples(60, nodes=4, seed=6)
    scores = np.array([convs(arch) for arch in archs])
    alone = Prediction(archs, scores, QUICK)
    both = Prediction(archs, scores, QUICK, prior=Prediction(archs, -scores, QUICK))
    assert both.expected(archs) == pytest.approx(alone.expected(archs))
