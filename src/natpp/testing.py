"""Contract tests for extensions: call these on a new operation, rule, kind of decision, scorer, method or task.

natpp's own tests call them on everything that is registered. A broken contract raises AssertionError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from natpp.arch.decisions import Decisions
from natpp.arch.graph import Architecture
from natpp.arch.layers import halved
from natpp.arch.ops import Place
from natpp.arch.rules import allowed
from natpp.core.budget import excess
from natpp.core.decision import Change, Plan
from natpp.core.result import Result
from natpp.core.scores import Score
from natpp.core.solve import with_option
from natpp.core.subject import Row
from natpp.data.loader import samples_in
from natpp.decisions.operation import build, forms
from natpp.decisions.operation import cost as site_cost
from natpp.fx.sites import Site, find_items
from natpp.fx.trace import trace
from natpp.methods.base import Method
from natpp.nets.measure import module_cost
from natpp.registry import MEASURES, OPS
from natpp.run import Run
from natpp.saved.restore import restore_module
from natpp.scorers.base import LimitReached, Scorer
from natpp.subjects.many import Subjects
from natpp.subjects.module import Module
from natpp.training.losses import cross_entropy, summed
from natpp.training.task import Task

PLACES = tuple(
    Place(channels_in, channels_out, stride, size)
    for channels_in, channels_out in ((4, 4), (5, 5), (3, 6))
    for stride in (1, 2)
    for size in ((8, 8), (7, 5), (1, 1))
)
SITES = (  # layers that an operation may replace in a module
    nn.Conv2d(4, 4, 5, padding=2),
    nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
    nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2),
    nn.Conv2d(4, 4, 3, padding=1, groups=4),
    nn.MaxPool2d(3, stride=1, padding=1),
)


def check_op(name: str) -> None:
    """An operation builds at every place and site, returns the promised shape, and costs exactly what it reports.

    Examples:
        >>> from natpp.testing import check_op
        >>> check_op("sep_conv_3x3")
    """
    op = OPS[name]
    assert op.name == name, f"{name} is registered under a different name than its own, {op.name}"
    for place in PLACES:
        module = op.build(place).eval()
        images = torch.randn(2, place.channels_in, *place.size, requires_grad=True)
        before = images.detach().clone()
        with FlopCounterMode(display=False) as counter:
            out = module(images)
        expected = (2, place.channels_out, *halved(place.size, (place.stride, place.stride)))
        assert out.shape == expected, f"{name} gives {tuple(out.shape)} at {place}, expected {expected}"
        assert torch.equal(images, before), f"{name} changes its input"
        params, madds = op.cost(place)
        counted = sum(parameter.numel() for parameter in module.parameters())
        assert counted == params, f"{name} has {counted} parameters at {place} but reports {params}"
        flops = counter.get_total_flops()
        assert flops == 2 * 2 * madds, f"{name} does {flops // 4} multiply-adds at {place} but reports {madds}"
        if out.requires_grad:
            out.square().sum().backward()
            grads = [parameter.grad for parameter in module.parameters()]
            assert all(grad is not None and grad.isfinite().all() for grad in grads), (
                f"{name} has a missing or non-finite gradient"
            )
    if op.replaces_sites and not op.extra:  # extra operations are never chosen
        for layer in SITES:
            _check_at_site(name, layer)


def _check_at_site(name: str, layer: nn.Module) -> None:
    """An operation can replace a layer of a module, with inherited weights."""
    images = torch.randn(2, 4, 9, 8)
    traced = trace(nn.Sequential(layer), images)
    (site,) = find_items(traced)
    assert isinstance(site, Site)
    if not forms(site, name):
        return
    module = build(site, name, traced.parts)
    out, expected = module(images), layer(images)
    assert out.shape == expected.shape, f"{name} gives {tuple(out.shape)} in place of {layer}, not {expected.shape}"
    found, said = module_cost(module, images), site_cost(site, name, 2, traced.parts)
    assert (found.params, found.madds) == said, f"{name} costs {found.params, found.madds} there but reports {said}"


def check_rule(name: str) -> None:
    """A rule allows every operation to stay, never leads to an extra one, and never makes an extra one more expensive.

    Examples:
        >>> from natpp.testing import check_rule
        >>> check_rule("nat++")
    """
    names = tuple(OPS)
    for place in PLACES:
        table = allowed(name, place)
        assert table.shape == (len(names), len(names))
        for row, source in enumerate(names):
            assert table[row, row], f"{name} does not allow {source} to stay"
            for column, target in enumerate(names):
                if row == column or not table[row, column]:
                    continue
                assert not OPS[target].extra, f"{name} leads from {source} to the extra operation {target}"
                if OPS[source].extra:
                    pairs = zip(OPS[target].cost(place), OPS[source].cost(place), strict=True)
                    assert all(after <= before for after, before in pairs), f"{source} → {target} costs more at {place}"


class _Residual(nn.Module):
    """A residual block after a stem, and a linear layer: with everything that a kind may decide about."""

    def __init__(self, groups: int = 1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, groups=groups), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.shortcut, self.act = nn.Conv2d(8, 16, 1, stride=2), nn.PReLU(16)
        self.head = nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        out: Tensor = self.head(self.act(inner + self.shortcut(x)).mean(dim=(2, 3)))
        return out


def _chain() -> nn.Module:
    layers = (nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 20))


NETWORKS: tuple[Callable[[], nn.Module], ...] = (_Residual, lambda: _Residual(groups=8), _chain)


def check_decision(name: str) -> None:
    """A kind of decision finds something in three networks, and each option costs what is measured once it is built.

    Without changes, the output is bit-identical. A plan with as many changes as possible appears in JSON, is restored
    from files and is shown in a report.

    Examples:
        >>> from natpp.testing import check_decision
        >>> check_decision("term")
    """
    found = 0
    for make in NETWORKS:
        torch.manual_seed(0)
        module, images = make().eval(), torch.randn(2, 3, 8, 8)
        subject = Module(trace(module, images), Decisions(kinds=(name,)))
        start = (0,) * len(subject.decisions)
        made, _ = subject.built(start)
        assert torch.equal(made(images), module(images)), f"{name} changes what a network computes before any decision"
        whole = start
        for number, one in enumerate(subject.decisions):
            for option in one.allowed[1:]:
                assert one.kind == name, f"{one.name} may change, but {name} does not decide it"
                plan = with_option(start, number, option)
                found += 1
                assert subject.fits(plan), f"{one.name} allows {one.options[option].value}, which cuts something off"
                assert subject.plan(subject.row(plan)) == plan, f"the columns of {one.name} are not its options"
                made, _ = subject.built(plan)  # it compares the blueprint with what is measured
                assert made(images).shape == module(images).shape, f"{one.name} changes the shape of the output"
                whole = further if subject.fits(further := with_option(whole, number, option)) else whole
        _check_kept(subject, whole, images)
    assert found, f"{name} finds nothing to decide in any of the networks that it is checked on"


def _check_kept(subject: Module, plan: Plan, images: Tensor) -> None:
    """A changed module survives JSON and files, and the report shows its changes."""
    made, cost = subject.built(plan)
    picked = {number: one.options[plan[number]].value for number, one in enumerate(subject.decisions) if plan[number]}
    names = {number: subject.decisions[number].name for number in picked}
    changes = [
        Change(names[one], subject.decisions[one].kind, subject.decisions[one].options[0].value, value)
        for one, value in picked.items()
    ]
    chances = [[1 / len(one.options)] * len(one.options) for one in subject.decisions]
    before = module_cost(subject.given, images)
    result = Result(subject, plan, made, before, cost, tuple(changes), log_prob=0.0, chances=chances)
    data = json.loads(json.dumps(result.to_dict()))
    assert data == result.to_dict(), "the result changes when it is written as JSON and read back"
    places = [one for group in data["groups"] for one in group["decisions"]] + data.get("elsewhere", [])
    told = {(place["name"], place["after"]) for place in places}
    assert {(names[number], value) for number, value in picked.items()} <= told, "the JSON does not name every change"
    with TemporaryDirectory() as folder:
        again = restore_module(result.save(Path(folder) / "saved"))
        assert torch.equal(again(images), made(images)), "the restored module computes something else"
        page = result.report(Path(folder) / "page.html").read_text(encoding="utf-8")
        assert all(name in page for name in names.values()), "the report does not name every change"


def check_measure(name: str) -> None:
    """A measure gives the same figure for a plan as for the network built from it.

    Examples:
        >>> from natpp.testing import check_measure
        >>> check_measure("memory")
    """
    measure, module = MEASURES[name], Module(trace(_Residual().eval(), torch.randn(2, 3, 8, 8)))
    option = next((number, one.allowed[1]) for number, one in enumerate(module.decisions) if len(one.allowed) > 1)
    start = (0,) * len(module.decisions)
    for plan in (start, with_option(start, *option)):
        said = measure.of_plan and measure.of_plan(module, plan)
        built = measure.of(module.built(plan, latency=True)[1])
        assert 0 <= built < float("inf"), f"the {name} of a network is {built} {measure.unit}"
        assert said in (None, built), f"the {name} of a module is {said} {measure.unit} by its plan, but {built} built"
    assert not measure.adds_up or name in module.blueprint.figures, f"{name} adds up, but blueprints do not count it"


def check_scorer(make: Callable[..., Scorer], archs: Sequence[Architecture]) -> None:
    """A scorer gives one number per architecture, is repeatable, counts distinct architectures and respects its limit.

    Examples:
        >>> import numpy as np
        >>> from natpp.scorers.base import Scorer
        >>> from natpp.testing import check_scorer
        >>> class Cheap(Scorer):
        ...     def _score(self, archs):
        ...         return np.array([-float(natpp.cost(arch).live_madds) for arch in archs])
        >>> check_scorer(Cheap, [natpp.sample(seed=seed) for seed in range(3)])
    """
    scorer = make()
    scores = scorer(archs)
    assert scores.shape == (len(archs),), f"{len(archs)} architectures give scores of shape {scores.shape}"
    assert np.isfinite(scores).all(), "a score is not finite"
    distinct = len({scorer.key(arch) for arch in archs})
    assert scorer.queries == distinct, f"{distinct} distinct architectures were counted as {scorer.queries} queries"
    assert (scorer(archs[::-1]) == scores[::-1]).all(), "the same architectures get different scores the second time"
    assert scorer.queries == distinct, "scoring the same architectures again was counted"
    keys = make(limit=len(archs)).key  # with a limit, a scorer may treat more architectures as equal
    try:
        make(limit=len({keys(arch) for arch in archs}) - 1)(archs)
    except LimitReached:
        return
    raise AssertionError("the scorer scored more architectures than its limit")


def check_method(method: Method, subjects: Subjects, score: Score) -> None:
    """A method's rows follow the rule and the budget, and the same seed gives the same rows.

    Its answer for each subject alone does so too, within the limits if there are any.

    Examples:
        >>> from natpp.arch.networks import setting
        >>> from natpp.registry import METHODS, OPS
        >>> from natpp.subjects.cells import Cells, Frame
        >>> from natpp.subjects.many import Subjects
        >>> from natpp.testing import check_method
        >>> cells = Cells(natpp.load("darts"), Frame("nat++", setting("cifar")), tuple(OPS))
        >>> check_method(METHODS["random"], Subjects([cells]), score=None)
    """
    assert not method.refuses.keys() & {one.name for one in subjects.subjects}, "the method refuses these subjects"
    answers: list[list[Row]] = []
    for _ in range(2):
        chance = np.random.default_rng(0)
        fitted = method.fit(subjects, score, chance)
        answers.append([])
        for count in (1, 3):
            found = fitted.propose(subjects, count, score, chance)
            assert len(found) == len(subjects), f"there are {len(found)} answers for {len(subjects)} subjects"
            for index, rows in enumerate(found):
                expected = count if method.samples_many else 1
                assert len(rows) == expected, f"{len(rows)} candidates were proposed, expected {expected}"
                for row in rows:
                    _check_row(subjects, index, row)
                answers[-1] += rows
        answer = fitted.answer(alone := Subjects(subjects.subjects[:1], subjects.budget), score, Run())
        answers[-1].append(row := alone.subjects[0].row(answer.plan))
        _check_row(alone, 0, row)
    pairs = zip(*answers, strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs), "the same seed gave a different answer"


def _check_row(subjects: Subjects, index: int, row: Row) -> None:
    """A row keeps the rule, the budget and its limits."""
    subject, plan = subjects.subjects[index], subjects.subjects[index].plan(row)
    assert subjects.masks[index][np.arange(len(row)), row].all(), "the rule forbids a transition"
    assert subjects.fits(index, row), "the answer is over budget"
    if limits := subjects.limits(index):
        _, cost = subject.made(plan, latency=subjects.timed)
        assert excess(cost, limits) <= 0, "the answer does not meet its limits"


def check_task(task: Task, answer: Callable[[Any], Any] | None = None, *, batches: int = 20) -> None:
    """A task's parts do not overlap. For a perfect answer its loss is lowest and finite and its metrics are highest.

    `answer` turns targets into what a perfect module would output: by default logits for cross-entropy, otherwise the
    targets themselves. Looks at the first `batches` batches of each part. For a task without targets, only the inputs
    are checked.
    Examples:
        >>> from natpp.testing import check_task
        >>> from natpp.training.task import Task
        >>> check_task(Task.named("digits"))
    """
    if not task.targets:
        assert list(task.calibration(torch.device("cpu"), 1)), f"{task.name} has no batch of inputs"
        return
    answer = answer or (_logits if task.loss is cross_entropy else _same)
    seen: dict[bytes, str] = {}
    for part in ("train", "val", "test"):
        for inputs, targets in islice(task.part(part), batches):
            for sample in _samples(inputs):
                other = seen.setdefault(sample, part)
                assert other == part, f"{task.name} has the same sample in {other} and {part}"
            _check_answers(task, inputs, targets, answer)


def _check_answers(task: Task, inputs: Any, targets: Any, answer: Callable[[Any], Any]) -> None:
    """Compare a perfect answer with the perfect answer to other samples."""
    size, perfect = samples_in((inputs, targets)), answer(targets)
    wrong = tree_map(lambda leaf: leaf.roll(1, 0) if isinstance(leaf, Tensor) else leaf, perfect)
    losses = [float(task.loss(output, targets)) for output in (perfect, wrong)]
    assert np.isfinite(losses).all(), f"the loss of {task.name} is {losses}, expected finite numbers"
    assert losses[0] <= losses[1], f"the loss of {task.name} is higher for a perfect answer than for a wrong one"
    for name, metric in task.metrics.items():
        best, other = (float(summed(metric, output, targets, size)) / size for output in (perfect, wrong))
        if not np.isnan(best):
            said = f"the {name} of {task.name} is {best} for a perfect answer and {other} for a wrong one"
            assert 0 <= other <= best <= 1, said


def _samples(inputs: Any) -> Iterator[bytes]:
    """The bytes of each sample of a batch."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    for rows in zip(*tensors, strict=True):
        yield b"".join(row.cpu().contiguous().numpy().tobytes() for row in rows)


def _logits(targets: Tensor) -> Tensor:
    return 10 * functional.one_hot(targets.long()).float()


def _same(targets: Any) -> Any:
    return targets
