"""The verbs of natpp: each joins the parts that do the work."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from natpp.arch.cost import cost_of
from natpp.arch.decisions import Decisions
from natpp.arch.graph import Architecture
from natpp.arch.load import as_architecture, load, name_of
from natpp.arch.networks import Setting
from natpp.arch.space import SPACES, sample_batch
from natpp.arch.where import as_setting
from natpp.core.budget import Budget
from natpp.core.measures import Cost
from natpp.data.named import Data, as_data
from natpp.errors import FormatError, NatppError, SettingError, did_you_mean, shortened
from natpp.registry import RECIPES, ZOO
from natpp.run import Run
from natpp.runs.benchmark import Benchmark
from natpp.runs.scoring import Short, as_scoring
from natpp.runs.search import Search
from natpp.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from natpp.core.result import Result
    from natpp.core.scores import Score
    from natpp.data.images import Images
    from natpp.methods.base import Method
    from natpp.nets.network import Network
    from natpp.nets.policy import Policy
    from natpp.report.scene import Scene
    from natpp.runs.comparison import Comparison
    from natpp.runs.scoring import Scoring
    from natpp.runs.trainings import Trained
    from natpp.saved.onnx import Exported
    from natpp.scorers.base import Scorer
    from natpp.training.evaluation import Evaluation
    from natpp.training.outcome import Outcome
    from natpp.training.task import Task


def cost(
    of: Architecture | str | Path | nn.Module,
    setting: Setting | str | None = None,
    *,
    example_input: Any = None,
    latency: bool = False,
) -> Cost:
    """What an architecture costs in a network, or what any module costs on an example input.

    Counted without building the network; `latency=True` also builds it and times it on this device.

    Examples:
        >>> natpp.cost("darts").madds
        528359040
        >>> natpp.cost("darts", "imagenet:classes=100").params
        4026652
        >>> convolution = torch.nn.Conv2d(3, 8, 3)
        >>> natpp.cost(convolution, example_input=torch.randn(1, 3, 32, 32)).madds
        194400
    """
    if isinstance(of, Architecture | str | Path):
        if example_input is not None:
            raise SettingError("example_input can only be given with a module: for an architecture, give setting")
        arch, where = as_architecture(of), as_setting(setting or "cifar")
        if not latency:
            return cost_of(arch, where)
        from natpp.nets.network import network_cost

        return network_cost(arch, where, latency=True)
    from torch import nn

    from natpp.nets.measure import module_cost

    if not isinstance(of, nn.Module):
        raise NatppError(f"expected an architecture or a torch.nn.Module, not {shortened(repr(of))}")
    if setting is not None:
        raise SettingError("setting can only be given with an architecture, not with a module")
    if example_input is None:
        raise SettingError("the cost of a module needs an example input: natpp.cost(module, example_input=x)")
    return module_cost(of, example_input, latency=latency)


def build(
    arch: Architecture | str | Path,
    setting: Setting | str | None = None,
    *,
    prune: bool = True,
    auxiliary: bool = False,
) -> Network:
    """A trainable network of an architecture: only its living operations, or with `prune=False` all of them.

    The size of a setting matters only to the auxiliary head; the network itself takes images of any size.

    Examples:
        >>> network = natpp.build("darts", "cifar:channels=8,cells=5,classes=100")
        >>> network(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """
    from natpp.nets.network import build_network

    return build_network(as_architecture(arch), as_setting(setting or "cifar"), prune=prune, auxiliary=auxiliary)


def optimize(
    subject: Architecture | str | Path | nn.Module,
    method: Method | Policy | str | Path = "auto",
    budget: Budget | str | float | Mapping[str, float] | None = None,
    *,
    example_input: Any = None,
    decisions: Decisions = Decisions(),
    task: Task | Data | Images | str | Path | None = None,
    scorer: Scorer | Scoring | Score | str | Path | None = None,
    run: Run = Run(),
) -> Result:
    """A better architecture or module: what changed and why, and the costs before and after.

    `method` is `auto`, a name such as `nat++`, `random`, `evolution:scores=20` or `nat++:mode=best-of`, or a learned
    policy, its file or the folder of its run. `auto` is the policy that ships; for a module with a task to train on
    it is `tuned`, which tunes that policy on the module. A module needs a budget; for an architecture it is `strict` by
    default: neither living parameters nor living multiply-adds rise. `rule` leaves that to the rule. Limits such as
    `{"madds": 0.6, "latency": 2.5}` (params, madds, memory in bytes, latency in ms; each a fraction up to 1 of the
    current cost, or an absolute number) are met with as few further changes as needed; 0.6 alone limits the
    multiply-adds. `BudgetError` carries the nearest result if they cannot be met.

    A module needs an `example_input`: a tensor, a tuple of arguments or a dict of named ones. The result then has a
    `.module` with the same inputs and outputs and inherited weights. `decisions` says what may change and by which
    rule. Methods that choose by scores get them from `scorer`: `short` trainings (fine-tunings of a module) on the
    `task`, `supernet`, a run's folder, a table's file or any function from candidates to scores. The inputs of a task
    also recompute the batch norm statistics of a module.

    Examples:
        An architecture, by the policy that ships:

        >>> result = natpp.optimize("naonet")
        >>> len(result.changes), result.cost_before.madds, result.cost_after.live_madds
        (10, 1673814240, 1372119264)

        The same with at least a quarter fewer multiply-adds:

        >>> natpp.optimize("naonet", budget=0.75).cost_after.live_madds
        1211871456

        A module, cut to half of its multiply-adds:

        >>> model = natpp.zoo.network("resnet20")
        >>> result = natpp.optimize(model, budget={"madds": 0.5}, example_input=torch.randn(1, 3, 32, 32))
        >>> result.cost_after.madds <= 0.5 * result.cost_before.madds
        True
        >>> result.module(torch.randn(4, 3, 32, 32)).shape
        torch.Size([4, 10])
    """
    from natpp.runs.optimizing import run_optimize

    given: Any = subject
    name = type(subject).__name__
    if isinstance(subject, Architecture | str | Path):
        given, name = as_architecture(subject), name_of(subject)
    asked: dict[str, Any] = {"example_input": example_input, "decisions": decisions, "task": _task(task)}
    return run_optimize(
        given, method, None if budget is None else Budget.of(budget), **asked, scorer=scorer, run=run, name=name
    )


def restore(folder: str | Path, module: nn.Module | None = None) -> nn.Module:
    """The module that `save(folder)` or a run of `train` or `finetune` wrote, on the CPU; no code in the folder is run.

    `module` is the original or one like it. It is needed for a fine-tuned module of your own, of which only the
    weights are kept, and for results with custom layers, which are taken from it.

    Examples:
        >>> result = natpp.optimize(natpp.zoo.network("resnet20"), budget=0.5, example_input=torch.randn(1, 3, 32, 32))
        >>> folder, images = result.save("better"), torch.randn(4, 3, 32, 32)
        >>> torch.equal(natpp.restore("better").eval()(images), result.module.eval()(images))
        True
    """
    from natpp.saved.restore import restore_module

    return restore_module(folder, module)


def search(
    task: Task | Data | Images | str | Path | None = None,
    config: Search = Search(),
    budget: str = "strict",
    *,
    on: Architecture | str | Path = "cells",
    scorer: Scorer | Short | str | Path | None = None,
    run: Run = Run(),
) -> Policy:
    """A policy learned on images, or from a scorer.

    `task` is `digits`, `cifar10:root=data` (or `cifar100`, `fashion-mnist`: `root` is the folder `natpp data` put it
    into), `imagenet:root=…` (with `train/CLASS` and `val/CLASS`), a folder of images or `Images`. Inputs are drawn
    `on` the space `cells` or `nasbench201`, or the policy is learned for one architecture. Scores come from `short`
    real trainings by default, with the preset `paper` from a `supernet` trained here; `scorer` may also be a run's
    folder (its supernet), a table's file or any `Scorer`. The other settings are fields of `Search`.

    Examples:
        A policy for DARTS from two short trainings; leave the numbers out for a real one:

        >>> quick = natpp.Search(evaluations=2, train_steps=1, steps=2)
        >>> policy = natpp.search("digits", quick, on="darts", run=natpp.Run(out="run"))
        >>> natpp.optimize("darts", policy).cost_after.live_madds <= natpp.cost("darts").live_madds
        True
    """
    from natpp.runs.jobs import run_search

    if not isinstance(config, Search):
        raise SettingError(f"expected natpp.Search(…), not {shortened(repr(config))}")
    given = str(scorer) if isinstance(scorer, Path) else scorer
    if isinstance(given, str) and given.startswith("short:"):
        given = Short.parse(given.partition(":")[2])
    return run_search(config, _task(task), budget, on=_space(on), scorer=given, run=run)


def score(
    subjects: Sequence[Architecture | str | Path | nn.Module],
    scorer: Scoring | str | Path = "short",
    *,
    task: Task | Data | Images | str | Path | None = None,
    example_input: Any = None,
    run: Run = Run(),
) -> list[Outcome]:
    """Scores of architectures or modules: `.value`, `.accuracy`, `.loss`, `.seconds`; if there is none, `.reason`.

    By `short` real trainings on the images of a task (`short:steps=200,store=scores.jsonl`), or by a run's folder (its
    supernet). Architectures of one cell are built into the network of NAS-Bench-201, pairs of cells into CIFAR's.
    Modules, which need an `example_input`, are fine-tuned from their own weights.

    Examples:
        >>> (one,) = natpp.score(["natpp_darts"], "short:steps=2", task="digits")
        >>> one.value == -one.loss, one.reason
        (True, None)
    """
    from natpp.runs.jobs import run_scores

    if isinstance(subjects, str | Path | Architecture):
        raise SettingError("expected a list of architectures: natpp.score(['darts'], task='digits')")
    given: list[Any] = [as_architecture(o) if isinstance(o, Architecture | str | Path) else o for o in subjects]
    if example_input is None and not all(isinstance(one, Architecture) for one in given):
        raise SettingError("a module needs an example input: natpp.score([module], task=…, example_input=x)")
    return run_scores(given, as_scoring(scorer), _task(task), run, example_input)


def train(
    arch: Architecture | str | Path,
    task: Task | Data | Images | str | Path,
    recipe: Recipe | str = "quick",
    *,
    setting: Setting | str | None = None,
    run: Run = Run(),
) -> Trained:
    """A network of an architecture trained from scratch, with its accuracy on the test images, read once at the end.

    `task` is as in `search`. The recipe is `cifar-600`, `random-600`, `imagenet-250`, `quick`, one of these with
    custom settings (`quick:epochs=2,channels=8`) or any `Recipe`; `setting` is the network, if it
    differs from the recipe's.

    Examples:
        >>> trained = natpp.train("darts", "digits", "quick:epochs=1,channels=4,cells=3")
        >>> 0 <= trained.test_accuracy <= 100
        True
    """
    from natpp.runs.trainings import run_training

    found = RECIPES.given(recipe)
    if setting is not None:
        where = as_setting(setting)
        found = replace(found, network=where.network, channels=where.channels, cells=where.cells)
    return run_training(as_architecture(arch), _task(task), found, run=run)


def benchmark(space: str, table: str | Path, config: Benchmark = Benchmark(), *, run: Run = Run()) -> Comparison:
    """Methods compared on a table of trained networks: how much each improves held-out inputs.

    Examples:
        >>> from pathlib import Path
        >>> ops = ("none", "skip_connect", "avg_pool_3x3", "nor_conv_1x1", "nor_conv_3x3")
        >>> rows = [f"|{op}~0|,{score}" for score, op in enumerate(ops)]
        >>> _ = Path("table.csv").write_text("\\n".join(["arch,test", *rows]))
        >>> config = natpp.Benchmark("test", "test", methods=("constant",), holdout=2, seeds=1)
        >>> found = natpp.benchmark("nasbench201", "table.csv", config)
        >>> found.inputs <= found.methods["constant"].one_shot.mean
        True
    """
    from natpp.runs.comparison import compare

    if space != "nasbench201":
        raise SettingError(f"unknown space {space!r}. {did_you_mean(space, ['nasbench201'])}")
    return compare(table, config, run.watch)


def finetune(
    of: nn.Module | Result | str | Path,
    task: Task | Data | Images | str | Path,
    recipe: Recipe | str = "tune",
    *,
    teacher: nn.Module | None = None,
    run: Run = Run(),
) -> Trained:
    """A fine-tuned copy of a module, or of the module of a result or its folder: `.module`, with its `.curve`.

    `task` is as in `search`, or `natpp.Task(train, val)` with batches (inputs, targets), such as DataLoaders, and a
    `loss` if targets are not class indices. The loop is that of `train`. With a `teacher`, such as the
    module that was optimized, half of the loss is the distance to the teacher's output.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
        >>> tuned = natpp.finetune(model, "digits", "tune:epochs=2")
        >>> [row["epoch"] for row in tuned.curve]
        [1, 2]
    """
    from torch import nn

    from natpp.core.result import Result
    from natpp.runs.trainings import run_finetuning

    known = isinstance(of, nn.Module | Result | Path) or (isinstance(of, str) and os.path.isdir(of))
    if not known:
        raise NatppError(f"expected a torch.nn.Module, or the result for one or its folder, not {shortened(repr(of))}")
    return run_finetuning(of, _task(task), RECIPES.given(recipe), teacher=teacher, run=run)


def evaluate(
    of: nn.Module | Result | Trained | str | Path,
    task: Task | Data | Images | str | Path,
    part: Literal["val", "test"] | None = None,
    *,
    against: nn.Module | None = None,
    run: Run = Run(),
) -> Evaluation:
    """Loss and metrics of a module, a result, a training or its folder on the validation or test data of a task.

    A result is compared with its original, sample by sample; `against` is another module to compare with. The part is
    `val` by default; for a network that `natpp.train` trained on all training images it is `test`.

    Examples:
        >>> trained = natpp.train("darts", "digits", "quick:epochs=1,channels=4,cells=3")
        >>> natpp.evaluate(trained, "digits").figures["accuracy"] == trained.test_accuracy
        True
    """
    from natpp.runs.evaluating import run_evaluation

    return run_evaluation(of, _task(task), part, against=against, run=run)


def export(
    of: nn.Module | Result | Trained | str | Path,
    path: str | Path,
    example_input: Any = None,
    *,
    tolerance: float = 1e-3,
) -> Exported:
    """An ONNX file of a module, a result, a training or its folder, checked in onnxruntime against the module.

    A module needs an `example_input`; a result has its own. On it and on two random inputs the outputs may differ by
    `tolerance` times the largest output; otherwise nothing is written. The batch size is free if the module allows it.

    Examples:
        >>> model = natpp.zoo.network("resnet20")
        >>> result = natpp.optimize(model, budget=0.5, example_input=torch.randn(1, 3, 32, 32))
        >>> natpp.export(result, "better.onnx").any_batch  # the same as result.export("better.onnx")
        True
    """
    from natpp.runs.exporting import run_export

    return run_export(of, path, example_input, tolerance)


def draw(arch: Architecture | str | Path, against: Architecture | str | Path | None = None) -> str:
    """A picture as SVG text: the cells of an architecture, or beside those it came from (`against`).

    Examples:
        >>> natpp.draw("natpp_darts", against="darts")[:4]
        '<svg'
    """
    from natpp.report.scene import to_svg

    return to_svg(scene(arch, against))


def scene(
    arch: Architecture | str | Path,
    against: Architecture | str | Path | None = None,
    network: Setting | None = None,
) -> Scene:
    """The picture that `draw` writes, as shapes; with `network`, the whole network around the architecture."""
    from natpp.report.draw import architecture_scene, network_scene, pair_scene

    if network is not None:
        if against is not None:
            raise SettingError("the network view shows one architecture: leave out what it came from, or the network")
        return network_scene(as_architecture(arch), network, name_of(arch))
    if against is None:
        return architecture_scene(as_architecture(arch), name_of(arch))
    names = name_of(against) or "before", name_of(arch) or "after"
    return pair_scene(as_architecture(against), as_architecture(arch), names)


def sample(nodes: int = 4, seed: int = 0) -> Architecture:
    """A random architecture as the paper draws them: sources and the thirteen operations uniform, null included.

    Examples:
        >>> natpp.sample(seed=0) == natpp.sample(seed=0), natpp.sample(nodes=5).normal.num_nodes
        (True, 7)
    """
    return samples(1, nodes=nodes, seed=seed)[0]


def samples(count: int, *, nodes: int = 4, seed: int = 0) -> list[Architecture]:
    """Several of them; the first is the one `sample` gives."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise SettingError(f"seed is {seed!r}, expected a whole number from 0 up")
    batch = sample_batch(count, nodes=nodes, generator=np.random.default_rng(seed))
    return [batch[index] for index in range(count)]


def _task(given: Any) -> Task | Data:
    """A task, or what names one."""
    if given is None or isinstance(given, str | Path | Data):
        return as_data(given)
    from natpp.training.task import Task

    return Task.of(given)


def _space(given: Architecture | str | Path) -> Architecture | str:
    """A space by its name, or an architecture."""
    if isinstance(given, Architecture) or (isinstance(given, str) and given in SPACES):
        return given
    try:
        return load(given)
    except FormatError as error:
        if not str(error).startswith("unknown architecture"):
            raise
        raise FormatError(
            f"{str(given)!r} is neither a space nor an architecture. {did_you_mean(str(given), [*SPACES, *ZOO])}"
        ) from None
