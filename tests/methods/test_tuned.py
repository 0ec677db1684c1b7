"""Learning on one module and its data: candidates, scores, the supernet, the choice; and that it is worth it."""

import copy
import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import natpp
from natpp.core.budget import BudgetError
from natpp.core.decision import Plan
from natpp.core.result import Result
from natpp.core.solve import with_option
from natpp.core.subject import Candidate
from natpp.data.batches import Batches
from natpp.data.loader import Loaded
from natpp.data.sets import load_images
from natpp.errors import NatppError, SettingError
from natpp.methods.candidates import Candidates, Tuning, View
from natpp.methods.tuned import Tuned
from natpp.nets.measure import module_cost
from natpp.nets.policy import Policy
from natpp.policies import load_named
from natpp.scorers.module_supernet import Expanded
from natpp.scorers.short import ShortTunings
from natpp.subjects.rows import perturbed
from natpp.training import together as side_by_side
from natpp.training.losses import cross_entropy
from natpp.training.recipe import ShortConfig
from natpp.training.together import Trial, train_together
from tests.fx.fx_models import BasicBlock
from tests.optimizing import by_policy, view

CPU = torch.device("cpu")
POLICY = natpp.Decisions(kinds=("operation", "term"))  # what a policy sees
FEW: dict[str, Any] = {"evaluations": 5, "train_steps": 2}


class Tiny(nn.Module):
    """A ResNet for digits: three stages of residual blocks."""

    def __init__(self, width: int = 8, depth: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width]
        self.stages = nn.Sequential(
            *(
                BasicBlock(widths[stage + (block > 0)], widths[stage + 1], 2 if stage and not block else 1)
                for stage in range(3)
                for block in range(depth)
            )
        )
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stages(torch.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


@functools.cache
def digits() -> tuple[TensorDataset, list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Images to learn from, and batches to choose by and to test with."""
    found = Batches(load_images("digits"))
    train = TensorDataset(*found.take(np.arange(len(found))))
    return train, [(found.validation, found.validation_labels)], list(found.test_batches(400))


def loader(seed: int = 0, batch: int = 64) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(digits()[0], batch, shuffle=True, drop_last=True, generator=generator)


@functools.cache
def trained(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return natpp.finetune(
        Tiny(), loader(seed), "tune:epochs=5,learning_rate=0.1", run=natpp.Run(device="cpu")
    ).module.eval()


def example() -> Tensor:
    return digits()[1][0][0][:2]


def learned(seed: int = 0, **options: Any) -> Result:
    """What is learned on batches of digits."""
    return on_data(natpp.Task(list(loader(seed)), digits()[1]), run=natpp.Run(seed=seed), **options)


def on_data(
    task: Any, module: nn.Module | None = None, given: Any = None, run: natpp.Run = natpp.Run(), **options: Any
) -> Result:
    """A module with its operations and terms tuned on a task: few candidates and steps unless options say otherwise."""
    options = FEW | options
    steps = options.pop("train_steps")
    scorer = f"{options.pop('scorer', 'short')}:steps={steps}"
    run = replace(run, watch=options.pop("watch", None))
    budget, method = options.pop("budget", "strict"), Tuned(**options)
    inputs = example() if given is None else given
    given = {"example_input": inputs, "task": task, "scorer": scorer, "decisions": POLICY}
    return natpp.optimize(module or trained(), method, budget, run=run, **given)


def asked(fraction: float | None = None, module: nn.Module | None = None) -> View:
    given = example() if module is None else example().to(next(module.parameters()).device)
    found = module or trained()
    return view(found, given, "strict" if fraction is None else {"madds": fraction}, share_blocks=False)


def candidates(fraction: float | None = 0.6) -> Candidates:
    found = asked(fraction)
    return Candidates(found, found.limits)


def drawn(found: Candidates, count: int) -> list[Candidate]:
    """Candidates drawn from the policy made flatter by noise."""
    chances = (np.random.default_rng(seed) for seed in range(count))
    return [found.module.candidate(found.drawn(perturbed(found.view.table, chance))) for chance in chances]


def as_it_is(found: Candidates) -> Plan:
    return (0,) * len(found.module.decisions)


def trial(steps: int = 3, **options: Any) -> Trial:
    schedule = ShortConfig(steps=steps, learning_rate=0.02, clip=5.0)
    kept = Loaded.of(list(loader()), digits()[1], steps)
    return Trial(kept, schedule, options.pop("device", CPU), loss=cross_entropy, **options)


def no_opinion() -> Policy:
    """Every allowed transition is as likely as any other."""
    policy = Policy(ops=load_named().ops)
    for parameter in policy.parameters():
        parameter.data.zero_()
    return policy.eval()


# Candidates.


def test_candidates_keep_the_limits() -> None:
    found, generator = candidates(), np.random.default_rng(0)
    limit, keys = found.limits["madds"], set()
    plan = found.drawn(found.view.table)
    for number in range(16):
        table = perturbed(found.view.table, generator, 3.0)
        plan = found.mutated(plan, table, generator) if number % 2 else found.drawn(table)
        assert found.fits(plan)
        assert found.allowed(plan)
        assert found.madds(plan) <= limit
        assert module_cost(found.module.rewritten(plan), example()).madds <= limit
        keys.add(found.module.key(plan))
    assert len(keys) > 8
    assert not found.fits(as_it_is(found))


def test_what_computes_the_same_is_one_candidate() -> None:
    found = candidates(None)
    names = [block.name for block in found.module.first]
    part = found.module.parts[names.index("stages.0")]
    first, second = (number for number in part if found.module.term(number).op == "conv_3x3")
    dropped = with_option(as_it_is(found), first, found.module.decisions[first].number("null"))  # second gets nothing
    other = with_option(dropped, second, found.module.decisions[second].number("conv_1x1"))
    assert found.module.key(dropped) == found.module.key(other)
    assert found.module.key(dropped) != found.module.key(as_it_is(found))
    assert not found.features(found.module.key(as_it_is(found)))
    assert found.features(found.module.key(dropped))["changes",] == 3  # both, and what the sum read of them


def test_a_policy_learns_decisions_within_the_limits() -> None:
    found = candidates()
    decisions, chance = Tuning(found), np.random.default_rng(0)
    drawn = np.stack([perturbed(found.view.table, chance).argmax(axis=1) for _ in range(3)])
    drawn[0] = found.module.before
    for (index, given, now), row in zip(decisions.rows([0], drawn, np.ones(drawn.shape)), drawn, strict=True):
        assert index == 0
        assert (given == row).all()
        assert found.fits(found.module.plan(now))
    assert decisions.batch([0]).size == 1
    assert len(decisions.before[0]) == drawn.shape[1]


# Scores.


def test_a_short_tuning_is_a_tuning() -> None:
    """The steps of torch's own optimizer from inherited weights, judged by the statistics of the batch."""
    found, settings = candidates(), trial(3)
    plan = found.drawn(found.view.table)
    (score,) = ShortTunings(settings).tuned([found.module.candidate(plan)])
    module = found.module.rewritten(plan).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
    assert isinstance(settings.data, Loaded)
    for step, (inputs, targets) in enumerate(settings.data.train):
        optimizer.param_groups[0]["lr"] = 0.02 * 0.5 * (1 + math.cos(math.pi * step / 3))
        optimizer.zero_grad()
        functional.cross_entropy(module(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 5.0)
        optimizer.step()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats, part.running_mean, part.running_var = False, None, None
    inputs, targets = digits()[1][0]
    with torch.no_grad():
        assert score == pytest.approx(-functional.cross_entropy(module.eval()(inputs), targets).item(), rel=1e-3)


def test_neighbours_change_no_score() -> None:
    found, settings = candidates(), trial(2)
    some = drawn(found, 3)
    scorer = ShortTunings(settings)
    together = copy.copy(scorer)
    together.at_once = 3
    assert together.tuned(some) == scorer.tuned(some) == [scorer.tuned([one])[0] for one in some]


def test_groups_that_were_halved_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found, settings = candidates(), trial(2)
    some = drawn(found, 4)
    expected = ShortTunings(settings).tuned(some)
    trained, sizes = side_by_side._trained, []

    def small(builds: Any, *rest: Any) -> Any:
        sizes.append(len(builds))
        if len(builds) > 1:
            raise torch.OutOfMemoryError
        return trained(builds, *rest)

    monkeypatch.setattr(side_by_side, "_trained", small)
    said: list[str] = []
    scorer = ShortTunings(replace(settings, say=said.append))
    scorer.at_once = 2
    assert scorer.tuned(some[:2]) + scorer.tuned(some[2:]) == expected
    assert sizes == [2, 1, 1, 1, 1]
    assert len(said) == 1


def test_only_what_wants_a_gradient_is_tuned() -> None:
    net = copy.deepcopy(trained())
    net.conv1.weight.requires_grad_(False)
    kept: list[nn.Module] = []

    def build() -> nn.Module:
        kept.append(copy.deepcopy(net))
        return kept[-1]

    settings = trial(2)
    (outcome,) = train_together([build], [0], settings)
    assert outcome.accuracy is not None
    assert torch.equal(kept[0].conv1.weight, net.conv1.weight)
    assert not torch.equal(kept[0].fc.weight, net.fc.weight)
    frozen = copy.deepcopy(net).requires_grad_(False)
    (same,) = train_together([lambda: copy.deepcopy(frozen)], [0], settings)
    assert same.loss > 0  # nothing to train is no error


def test_a_supernet_computes_what_its_candidates_do() -> None:
    found, settings = candidates(), trial(2)
    some = [one.plan for one in drawn(found, 3)]
    expanded = Expanded(found.module, settings, lambda step: some[step % 3])
    inputs, _ = digits()[1][0]
    before = copy.deepcopy(trained().state_dict())
    for plan in [*some, as_it_is(found)]:
        alone = found.module.rewritten(plan).train()
        with torch.no_grad():
            torch.testing.assert_close(expanded.path(plan).train()(inputs), alone(inputs))
    first, second = expanded.path(some[0]), expanded.path(as_it_is(found))
    assert first.fc.weight is second.fc.weight  # weights are shared
    again = [found.module.candidate(plan) for plan in some]
    scores = expanded.tuned(again)
    expanded.train(expanded.draw, 12)
    assert expanded.tuned(again) != scores
    assert len(expanded.losses) == 12
    assert expanded.path(some[0]).fc.weight is second.fc.weight
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained().state_dict().items())


def test_a_supernet_learns() -> None:
    found = candidates()

    def draw(step: int) -> Plan:
        return found.drawn(perturbed(found.view.table, np.random.default_rng(step)))

    expanded = Expanded(found.module, trial(16), draw)
    unseen = [found.module.candidate(draw(1000 + number)) for number in range(4)]
    before = expanded.tuned(unseen)
    expanded.train(draw, 60)
    assert np.mean(expanded.tuned(unseen)) > np.mean(before) + 0.3


@pytest.mark.gpu
def test_on_a_gpu_scores_come_from_one_graph_and_are_near_those_of_a_cpu() -> None:
    device = torch.device("cuda")
    scores = []
    for place in (CPU, device):
        made = asked(0.6, copy.deepcopy(trained()).to(place))
        found = Candidates(made, made.limits)
        some, said = drawn(found, 5), list[str]()
        scores.append(ShortTunings(trial(8, device=place, say=said.append)).tuned(some))
        assert not said  # nothing had to go without a graph
    assert scores[1] == pytest.approx(scores[0], rel=0.3, abs=0.1)
    moved = {"module": copy.deepcopy(trained()).to(device), "given": example().to(device)}
    result = on_data(natpp.Task(loader(), digits()[1]), **moved, budget={"madds": 0.6})
    assert next(result.module.parameters()).device.type == "cuda"
    for scorer in ("short", "supernet"):
        assert on_data("digits", **moved, scorer=scorer).learned


# The whole way.


@pytest.mark.parametrize("scorer", ["short", "supernet"])
def test_the_best_that_was_scored_is_the_result(scorer: str) -> None:
    seen: list[int] = []
    result = learned(
        budget={"madds": 0.6}, scorer=scorer, evaluations=7, watch=lambda phase, done, *_: seen.append(done)
    )
    assert seen == sorted(seen)
    found = result.learned
    assert found is not None
    assert seen[-1] == 7
    assert len({one.ops for one in found.scored}) == 6  # and one that was too dear
    decisive = found.finals or dict(enumerate(one.score for one in found.scored))
    assert found.best == max(decisive, key=decisive.__getitem__)
    assert [tuple(ops) for ops in result.subject.block_ops(result.plan)] == list(found.scored[found.best].ops)
    assert result.cost_after.madds <= 0.6 * result.cost_before.madds
    assert all(one.madds <= 0.6 * result.cost_before.madds for one in found.scored)
    assert "candidates by" in str(result)
    before = load_named().state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in found.policy.state_dict().items())
    assert not result.module.training


def test_what_is_too_dear_is_learned_from_and_never_taken() -> None:
    scored: list[int] = []
    plain = ShortTunings.tuned

    def counted(scorer: ShortTunings, some: list[Any], longer: int = 1) -> list[float]:
        scored.extend([longer] * len(some))
        return plain(scorer, some, longer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShortTunings, "tuned", counted)
        found = learned(budget={"madds": 0.6}, evaluations=12).learned
    assert scored.count(1) == 13  # with the module itself, which is there to be compared with
    assert len(found.scored) == 10  # two of the first five were too dear
    assert all(one.madds <= 0.6 * module_cost(trained(), example()).madds for one in found.scored)


def test_longer_tunings_decide_between_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ShortTunings.tuned

    def turned(scorer: ShortTunings, some: list[Any], longer: int = 1) -> list[float]:
        return [float(place) for place in range(len(some))] if longer > 1 else plain(scorer, some)

    monkeypatch.setattr(ShortTunings, "tuned", turned)
    found = learned(evaluations=6).learned
    order = np.argsort([-one.score for one in found.scored], kind="stable").tolist()
    assert found.finals == {index: float(place) for place, index in enumerate(order[:4])}
    assert found.best == order[3]
    assert "the 4 best of them were fine-tuned again for longer" in found.measured["how"]
    assert found.to_dict()["finals"] == [[index, score] for index, score in found.finals.items()]


def test_a_longer_tuning_takes_more_steps() -> None:
    module = asked().module
    same = [module.candidate((0,) * len(module.decisions))]
    long, short = (ShortTunings(trial(steps)) for steps in (6, 3))
    twice = ShortTunings(replace(long.trial, schedule=short.trial.schedule))
    assert twice.tuned(same, 2) == long.tuned(same) != short.tuned(same)


def test_the_result_is_fitted_to_the_original_behind_the_first_change() -> None:
    result = learned(budget={"madds": 0.6})
    assert any("fitted to what the original computes" in note for note in result.notes)
    original, made = trained().state_dict(), result.module.state_dict()
    assert any(name in made and not torch.equal(tensor, made[name]) for name, tensor in original.items())
    (images, _), *_ = digits()[1]
    with torch.no_grad():
        wanted, plain = trained()(images), result.subject.apply(result.plan).eval()(images)
        assert (result.module(images) - wanted).square().mean() < 0.5 * (plain - wanted).square().mean()


def test_without_figures_the_original_is_a_candidate() -> None:
    found = learned().learned
    assert found is not None
    own = tuple(block.ops for block in asked().module.blocks)
    assert found.scored[0].ops == own
    assert found.scored[0].score == found.original
    assert found.scored[found.best].score >= found.original


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (learned(budget={"params": 0.7}) for _ in range(2))
    assert first.learned is not None
    assert second.learned is not None
    assert first.learned.scored == second.learned.scored
    states = first.module.state_dict(), second.module.state_dict()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    other = learned(1, budget={"params": 0.7}).learned
    assert other is not None
    assert other.scored != first.learned.scored


def test_memory_is_measured_and_time_is_limited() -> None:
    result = learned(budget={"memory": 0.95})
    assert result.cost_after.peak_memory_bytes <= 0.95 * result.cost_before.peak_memory_bytes
    short = learned(evaluations=None, minutes=1e-6).learned
    assert short is not None
    assert len(short.scored) == 2
    still = learned(evaluations=None, minutes=1e-6, scorer="supernet").learned
    assert still is not None
    assert len(still.scored) == 2
    some = learned(evaluations=None, minutes=0.02).learned
    assert some is not None
    assert 4 < len(some.scored) < 100
    assert some.seconds < 30


def test_images_by_name() -> None:
    result = on_data("digits", budget={"madds": 0.8})
    assert result.learned is not None
    assert len(result.learned.scored) == 5


class Both(nn.Module):
    """Two inputs, a dict of outputs, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        found = self.second(self.first(x))
        return {"mean": self.drop(found).mean((2, 3)) * scale[:, None], "map": found}


@pytest.mark.parametrize("scorer", ["short", "supernet"])
def test_any_inputs_and_outputs_with_a_loss(scorer: str) -> None:
    torch.manual_seed(0)
    batches = [((torch.randn(8, 3, 8, 8), torch.rand(8)), {"wanted": torch.rand(8, 4)}) for _ in range(3)]

    def loss(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return functional.mse_loss(output["mean"], targets["wanted"])

    net = Both()
    first, second = (
        on_data(natpp.Task(batches, batches, loss=loss), net, batches[0][0], scorer=scorer) for _ in range(2)
    )
    assert first.learned is not None
    assert second.learned is not None
    assert first.learned.scored == second.learned.scored  # chance too
    assert set(first.module(*batches[0][0])) == {"mean", "map"}


def test_a_module_without_sites_comes_back() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    result = on_data(natpp.Task(loader(), digits()[1]), net)
    assert not result.changes
    assert result.learned is None


X, LABELS = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": []}, "train is empty"),
        ({"val": []}, "val is empty"),
        ({"val": None}, "train needs val"),
        ({"train": iter([(X, LABELS)])}, "used up after one pass"),
        ({"train": [(X, LABELS.float())]}, "expected logits"),
        ({"train": [(X[:, :1], LABELS)]}, "does not run on the inputs"),
        ({"train": [(X, LABELS + 9)]}, "targets go from 9 to 12, but there are 10 outputs"),
        ({"evaluations": 1}, "evaluations is 1"),
        ({"minutes": 0}, "minutes is 0"),
        ({"train_steps": 0}, "steps"),
        ({"scorer": "shrt"}, "unknown scorer 'shrt'. Did you mean 'short'"),
        ({"budget": {"flops": 1}}, "unknown cost 'flops'"),
    ],
)
def test_wrong_input_stops_at_the_door(options: dict[str, Any], message: str) -> None:
    given = {"train": [(X, LABELS)], "val": [(X, LABELS)]} | options

    def run() -> None:
        on_data(natpp.Task(given.pop("train"), given.pop("val")), **given)

    with pytest.raises(NatppError, match=message):
        run()


def test_more_wrong_input() -> None:
    with pytest.raises(BudgetError, match="nearest allowed"):
        learned(budget={"madds": 0.001})
    with pytest.raises(SettingError, match="tuned chooses by scores: give a scorer, or a task"):
        natpp.optimize(trained(), "tuned", budget="strict", example_input=example())
    with pytest.raises(SettingError, match="auto does not use a task"):
        natpp.optimize("darts", task=loader())


# That it is worth it.


@functools.cache
def best(seed: int, scorer: str = "short") -> Result:
    """What is learned at 0.6 of the multiply-adds."""
    return learned(seed, budget={"madds": 0.6}, scorer=scorer, evaluations=12, train_steps=8)


def tuned(module: nn.Module | Result, seed: int, epochs: int = 1, rate: float = 0.02) -> list[float]:
    """Losses on test images, epoch by epoch, of a fine-tuning."""
    found = natpp.finetune(
        module,
        natpp.Task(loader(seed), digits()[2]),
        f"tune:epochs={epochs},learning_rate={rate}",
        run=natpp.Run(device="cpu", seed=seed),
    )
    return [row["validation_loss"] for row in found.curve]


def test_inherited_weights_need_fewer_epochs_than_fresh_ones() -> None:
    fresh = copy.deepcopy(best(0).module)
    torch.manual_seed(0)
    for part in fresh.modules():
        if isinstance(part, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            part.reset_parameters()
    inherited = tuned(best(0), 0)
    scratch = [*tuned(fresh, 0, rate=0.1), *tuned(fresh, 0, epochs=2)]
    assert inherited[0] < 0.6 * min(scratch)


@pytest.mark.parametrize("scorer", ["short", pytest.param("supernet", marks=pytest.mark.slow)])
def test_what_is_learned_beats_random_transformations_of_the_same_cost(scorer: str) -> None:
    rivals = [
        by_policy(trained(), example(), no_opinion(), mode="sample", seed=seed, budget={"madds": 0.6})
        for seed in range(5)
    ]
    losses = [tuned(best(seed, scorer), seed)[-1] for seed in range(2)]
    others = [tuned(result, seed)[-1] for seed, result in enumerate(rivals)]
    assert max(losses) < np.median(others)
    assert np.mean(losses) < 0.7 * np.mean(others)
