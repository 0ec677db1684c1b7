"""The verbs of natpp: each joins the parts that do the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from natpp.arch.cost import cost_of
from natpp.arch.formats import looks_like_text, parse
from natpp.arch.graph import Architecture
from natpp.arch.networks import Setting, setting
from natpp.arch.space import SPACES, sample_batch
from natpp.arch.where import as_setting
from natpp.core.measures import Cost
from natpp.data.named import Data, as_data
from natpp.errors import FormatError, NatppError, SettingError, did_you_mean, shortened
from natpp.registry import MODELS, RECIPES, RULES, ZOO
from natpp.run import Run
from natpp.runs.benchmark import Benchmark
from natpp.runs.search import Search, Short
from natpp.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from natpp.core.result import Result
    from natpp.data.images import Images
    from natpp.nets.network import Network
    from natpp.nets.policy import Policy
    from natpp.report.scene import Scene
    from natpp.run import Watch
    from natpp.runs.comparison import Comparison
    from natpp.runs.trainings import Trained
    from natpp.scorers.base import Score, Scorer
    from natpp.training.losses import Loss
    from natpp.training.outcome import Outcome
    from natpp.training.task import Task


def load(given: str | Path) -> Architecture:
    """The architecture of a zoo name, a file, a text (JSON, DARTS genotype, NAS-Bench-201 string) or `-`.

    `-` reads standard input.

    Examples:
        >>> natpp.load("darts").normal.ops[:2]
        ('sep_conv_3x3', 'sep_conv_3x3')
        >>> cell = natpp.load("|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|none~2|")
        >>> natpp.cost(cell, "nasbench201").live_params
        73306
    """
    if isinstance(given, Path):
        return _parse_file(given)
    if not isinstance(given, str):
        raise FormatError(f"expected a name, a file or a text, not {shortened(repr(given))}")
    if given == "-":
        return _parse_named(_decoded(_standard_input(), "standard input"), "standard input")
    if looks_like_text(given):
        return parse(given)
    if given in ZOO:
        return ZOO[given].arch
    if os.path.exists(given):
        return _parse_file(Path(given))
    if given in MODELS:
        raise FormatError(
            f"{given} is a whole network, not an architecture of cells: natpp.zoo.network({given!r}) builds it"
        )
    if not given.strip():
        raise FormatError("the text is empty. Expected a zoo name, a file or an architecture's text")
    if Path(given).suffix or "/" in given:
        raise FormatError(f"there is no file {shortened(given)}. Expected a zoo name, a file or an architecture's text")
    raise FormatError(
        f"unknown architecture {shortened(given)}. {did_you_mean(given, ZOO)} Or give a file, '-' or the text itself."
    )


def cost(
    of: Architecture | str | Path | nn.Module,
    setting: Setting | str | None = None,
    *,
    example_input: Any = None,
    latency: bool = False,
) -> Cost:
    """What an architecture costs in a network, or what any module costs on an example input.

    Counted without building the network; `latency=True` also builds and times it on the device at hand.

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
        arch, where = _architecture(of), as_setting(setting or "cifar")
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

    return build_network(_architecture(arch), as_setting(setting or "cifar"), prune=prune, auxiliary=auxiliary)


@overload
def optimize(
    arch: Architecture | str | Path,
    policy: Policy | str | Path | None = None,
    rule: str = "nat++",
    mode: str = "greedy",
    samples: int = 10,
    scorer: Score | str | Path | None = None,
    seed: int = 0,
    budget: str | Mapping[str, float] = "strict",
    *,
    network: Setting | None = None,
    reward: str = "val_200",
    data: str | Path | Images | None = None,
    root: str | Path | None = None,
    store: str | Path | None = None,
) -> Result: ...


@overload
def optimize(
    arch: nn.Module,
    policy: Policy | str | Path | None = None,
    rule: str = "nat++",
    mode: str = "greedy",
    *,
    example_input: Any,
    seed: int = 0,
    budget: str | Mapping[str, float] = "strict",
    keep: str | type[nn.Module] | Sequence[str | type[nn.Module]] = (),
    share_blocks: bool | None = None,
    measure_latency: bool = False,
    batches: Iterable[Any] | None = None,
    train: Any = None,
    val: Any = None,
    loss: Loss | None = None,
    scorer: str | None = None,
    evaluations: int | None = None,
    minutes: float | None = None,
    train_steps: int | None = None,
    learning_rate: float | None = None,
    root: str | Path | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
) -> Result: ...


def optimize(
    arch: Architecture | str | Path | nn.Module,
    policy: Policy | str | Path | None = None,
    rule: str = "nat++",
    mode: str = "greedy",
    samples: int = 10,
    scorer: Score | str | Path | None = None,
    seed: int = 0,
    budget: str | Mapping[str, float] = "strict",
    *,
    network: Setting | None = None,
    reward: str = "val_200",
    data: str | Path | Images | None = None,
    root: str | Path | None = None,
    store: str | Path | None = None,
    example_input: Any = None,
    keep: str | type[nn.Module] | Sequence[str | type[nn.Module]] = (),
    share_blocks: bool | None = None,
    measure_latency: bool = False,
    batches: Iterable[Any] | None = None,
    train: Any = None,
    val: Any = None,
    loss: Loss | None = None,
    evaluations: int | None = None,
    minutes: float | None = None,
    train_steps: int | None = None,
    learning_rate: float | None = None,
    watch: Watch | None = None,
    say: Callable[[str], None] | None = None,
) -> Result:
    """A better architecture by a policy, with what changed, the costs before and after, and how sure the policy was.

    `policy` is a learned policy, the name of one that ships, a policy's file or a run's folder; by default
    the one that ships. `scorer` is what the mode best-of chooses by: `short` trainings on `data` (kept in the file
    `store`), a run's folder (its supernet), a table's file (its column `reward`) or any function from architectures
    to scores. Under the strict budget neither living parameters nor living multiply-adds rise in the network (by
    default CIFAR's, and NAS-Bench-201's for an architecture of one cell); `budget="rule"` leaves it to the rule. A
    budget may also set limits, as in `{"madds": 0.6, "latency": 2.5}`: params, madds, memory (bytes) or latency
    (ms), each a fraction up to 1 of the current cost or an absolute number, met with as few further changes as needed.

    Any `torch.nn.Module` is an architecture too: with `example_input` (a tensor, a tuple of arguments or a dict of
    named ones) the result has a `.module` with the same inputs and outputs and inherited weights. `keep` protects parts
    by name or type, `share_blocks` makes one decision for identical blocks (the default unless the budget has
    limits), and `batches` of inputs are used to recompute the batch norm statistics.

    With `train` and `val`, batches (inputs, targets) such as a DataLoader, or with `train` alone as the data of
    `search`, the policy is tuned on this module. It scores `evaluations` candidates with inherited weights, or as
    many as fit into `minutes`. `scorer` is `short` (fine-tunings of `train_steps` steps) or `supernet` (of the module).
    The best validation loss wins. Targets are class indices, unless a `loss` of output and targets is given.

    Examples:
        An architecture, by the policy that ships:

        >>> result = natpp.optimize("naonet")
        >>> len(result.changes), result.cost_before.madds, result.cost_after.live_madds
        (10, 1673814240, 1372119264)

        The same with at least a quarter fewer multiply-adds:

        >>> natpp.optimize("naonet", budget={"madds": 0.75}).cost_after.live_madds
        1211871456

        A module, cut to half of its multiply-adds:

        >>> model = natpp.zoo.network("resnet20")
        >>> result = natpp.optimize(model, example_input=torch.randn(1, 3, 32, 32), budget={"madds": 0.5})
        >>> result.cost_after.madds <= 0.5 * result.cost_before.madds
        True
        >>> result.module(torch.randn(4, 3, 32, 32)).shape
        torch.Size([4, 10])
    """
    learning = {
        "val": val,
        "loss": loss,
        "evaluations": evaluations,
        "minutes": minutes,
        "train_steps": train_steps,
        "learning_rate": learning_rate,
        "watch": watch,
        "say": say,
    }
    if not isinstance(arch, Architecture | str | Path):
        if network is not None or data is not None or samples != 10:
            raise SettingError("network, samples and data can only be given with an architecture, not with a module")
        options: dict[str, Any] = {
            "rule": rule,
            "seed": seed,
            "budget": budget,
            "keep": keep,
            "share_blocks": share_blocks,
            "measure_latency": measure_latency,
        }
        if train is not None:
            if mode != "greedy" or batches is not None:
                raise SettingError("mode and batches cannot be combined with train")
            learning |= {"scorer": scorer, "root": root}
            return _learned_module(arch, policy, example_input, train, options, learning)
        given = [name for name, value in (learning | {"scorer": scorer, "root": root}).items() if value is not None]
        if given:
            raise SettingError(f"{given[0]} needs train, the batches to learn from")
        return _optimized_module(arch, policy, example_input, mode=mode, batches=batches, **options)
    if example_input is not None or keep or share_blocks is not None or measure_latency or batches is not None:
        raise SettingError(
            "example_input, keep, share_blocks, measure_latency and batches can only be given with a module"
        )
    if train is not None or any(value is not None for value in learning.values()):
        raise SettingError(
            "train, val and their settings can only be given with a module: for an architecture, give scorer and data"
        )
    from natpp.core.budget import check_budget
    from natpp.methods.policy import transform
    from natpp.runs.jobs import make_scorer, short_scorer
    from natpp.scorers.base import Task

    figures = check_budget(budget)
    of_scorers = {"data": data, "root": root, "store": store, "reward": None if reward == "val_200" else reward}
    given = [name for name, value in of_scorers.items() if value is not None]
    if scorer is None and given:
        raise SettingError(f"{given[0]} needs a scorer: give one, and mode='best-of'")
    RULES[rule]  # raises if unknown
    asked = _architecture(arch)
    where = network or setting("cifar" if asked.reduce is not None else "nasbench201")
    task = Task(rule, where, strict=budget != "rule")
    chosen_by = {} if scorer is None else {"scorer": str(scorer) if isinstance(scorer, str | Path) else "given"}
    if isinstance(scorer, str | Path):
        place = None if root is None else str(root)
        if str(scorer) == "short" and data is not None:
            images = _task(data) if root is None else Data(str(data), place)
            scorer = short_scorer(where.network, images, Short(store=store), Run(seed=seed))
        else:
            scorer = make_scorer(str(scorer), reward=reward, root=place)
    answering = _policy(policy, rule)
    found = transform(asked, answering, task, mode=mode, samples=samples, score=scorer, seed=seed, budget=figures)
    return replace(found, settings=found.settings | _said(_name(arch), policy, rule) | chosen_by)


def _optimized_module(module: object, policy: Policy | str | Path | None, example_input: Any, **options: Any) -> Result:
    from natpp.subjects.module_answer import optimize_module

    found = optimize_module(_module(module, example_input), example_input, _policy(policy, options["rule"]), **options)
    return replace(found, settings=found.settings | _said(type(module).__name__, policy, options["rule"]))


def _learned_module(
    module: object,
    policy: Policy | str | Path | None,
    example_input: Any,
    train: Any,
    options: dict[str, Any],
    learning: dict[str, Any],
) -> Result:
    from natpp.methods.tuned import learn_module
    from natpp.runs.tunings import learning_settings

    found = _module(module, example_input)
    given = learning_settings(found, train, **learning)
    learned = learn_module(found, example_input, _policy(policy, options["rule"]), **given, **options)
    return replace(learned, settings=learned.settings | _said(type(module).__name__, policy, options["rule"]))


def _module(module: object, example_input: Any) -> nn.Module:
    from torch import nn

    if not isinstance(module, nn.Module):
        raise NatppError(f"expected an architecture or a torch.nn.Module, not {shortened(repr(module))}")
    if example_input is None:
        raise SettingError("a module needs an example input: natpp.optimize(module, example_input=x)")
    return module


def restore(folder: str | Path, module: nn.Module | None = None) -> nn.Module:
    """The module that `save(folder)` or a run of `train` or `finetune` wrote, on the CPU; no code there is executed.

    `module` is the original or one like it. It is needed for the weights of a fine-tuned module of your own, and if a
    result has custom layers, which are then taken from it.

    Examples:
        >>> result = natpp.optimize(natpp.zoo.network("resnet20"), example_input=torch.randn(1, 3, 32, 32))
        >>> folder, images = result.save("better"), torch.randn(4, 3, 32, 32)
        >>> torch.equal(natpp.restore("better").eval()(images), result.module.eval()(images))
        True
    """
    from natpp.saved.restore import restore_module

    return restore_module(folder, module)


def _policy(given: Policy | str | Path | None, rule: str) -> Policy:
    """The given policy, a shipped one by name or for the rule, one from a file, or that of a run's folder."""
    from natpp.nets.policy import Policy
    from natpp.policies import load_named
    from natpp.runs.jobs import run_policy

    if isinstance(given, Policy):
        return given
    return Policy.load(run_policy(given)) if given is not None and os.path.isdir(given) else load_named(given, rule)


def _said(name: str, policy: Policy | str | Path | None, rule: str) -> dict[str, Any]:
    """The part of the request that a result keeps: the names of the subject and the policy."""
    from natpp.policies import default

    known = str(policy) if isinstance(policy, str | Path) else default(rule) if policy is None else "given"
    return {"name": name, "policy": known}


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
    subjects: Sequence[Architecture | str | Path],
    scorer: Short | str | Path = "short",
    *,
    task: Task | Data | Images | str | Path | None = None,
    run: Run = Run(),
) -> list[Outcome]:
    """Scores of architectures: `.value`, `.accuracy`, `.loss`, `.seconds` and, if there is none, `.reason`.

    By `short` real trainings on the images of a task (`short:steps=200,store=scores.jsonl`), or by a run's folder (its
    supernet). Architectures of one cell are built into the network of NAS-Bench-201, pairs of cells into CIFAR's.

    Examples:
        >>> (one,) = natpp.score(["natpp_darts"], "short:steps=2", task="digits")
        >>> one.value == -one.loss, one.reason
        (True, None)
    """
    from natpp.runs.jobs import run_scores

    if isinstance(subjects, str | Path | Architecture):
        raise SettingError("expected a list of architectures: natpp.score(['darts'], task='digits')")
    given = scorer
    if isinstance(given, str) and given.partition(":")[0] == "short":
        given = Short.parse(given.partition(":")[2])
    return run_scores([_architecture(one) for one in subjects], given, _task(task), run)


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
    return run_training(_architecture(arch), _task(task), found, run=run)


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
        return network_scene(_architecture(arch), network, _name(arch))
    if against is None:
        return architecture_scene(_architecture(arch), _name(arch))
    names = _name(against) or "before", _name(arch) or "after"
    return pair_scene(_architecture(against), _architecture(arch), names)


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


def _architecture(given: Architecture | str | Path) -> Architecture:
    return given if isinstance(given, Architecture) else load(given)


def _name(given: Architecture | str | Path) -> str:
    if isinstance(given, Path):
        return given.stem
    return given if isinstance(given, str) and given in ZOO else ""


def _parse_file(path: Path) -> Architecture:
    name = repr(str(path))
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from None
    return _parse_named(_decoded(content, name), name)


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise FormatError("standard input is closed")
    buffer = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read().encode() if buffer is None else bytes(buffer.read())


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{name} is not a text file") from None


def _parse_named(text: str, where: str) -> Architecture:
    """Parses a text whose errors say where it came from."""
    try:
        return parse(text)
    except NatppError as error:
        raise type(error)(f"{where}: {error}") from None
