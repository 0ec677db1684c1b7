"""Commands that make architectures better: a policy learned, applied, compared with others; data fetched."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from natpp import verbs
from natpp.cli.flags import Common, NetworkFlags, NumberOrDefault, Shapes, Subject, Switch, Whole, WholeOrDefault, Word
from natpp.cli.modules import is_module, load_architecture, make_module, parse_budget
from natpp.cli.output import COMMAND, is_first_process, new_table, print_json, print_table, remark, say, shown_progress
from natpp.errors import NatppError, SettingError, did_you_mean, shortened
from natpp.policies import default
from natpp.registry import RULES
from natpp.report.page import check_target

if TYPE_CHECKING:
    from natpp.core.result import Result


@dataclass(frozen=True)
class Optimize(NetworkFlags):
    """Make an architecture or a model better by a learned policy: changes, costs before and after."""

    network: str = "auto"
    """cifar, imagenet or nasbench201; auto is cifar, and nasbench201 for an architecture of one cell"""
    arch: Subject = tyro.MISSING
    input: Shapes = None
    """of a model: the shape of its input; several with semicolons between"""
    keep: Annotated[Word, tyro.conf.arg(metavar="layer4,head")] = None
    """of a model: parts that stay as they are, with commas between"""
    share_blocks: Switch = True
    """of a model: decide for every block by itself, as is done under a budget of figures"""
    measure_latency: Switch = False
    """of a model: measure the time of a forward pass before and after"""
    policy: Annotated[Word, tyro.conf.arg(metavar="NAME|FILE|RUN")] = None
    """a policy that ships, a policy's file or a run's folder; by default the one that ships"""
    rule: str = "nat++"
    """nat, nat++ or cost"""
    mode: str = "greedy"
    """greedy: the likeliest transitions; sample: once for every edge; best-of: the best of several by a scorer"""
    samples: Whole = 10
    """how many best-of draws"""
    scorer: Annotated[Word, tyro.conf.arg(metavar="short|RUN|TABLE")] = None
    """what best-of chooses by: short trainings on data, a run's folder (its supernet), a table of trained networks"""
    reward: str = "val_200"
    """column of the table that is the score"""
    data: Annotated[Word, tyro.conf.arg(metavar="DATA")] = None
    """images for the scorer short: digits, cifar10, cifar100, fashion-mnist, imagenet or a folder"""
    root: Annotated[Word, tyro.conf.arg(metavar="DIR")] = None
    """folder that natpp data put the data into; of imagenet the one with train and val"""
    store: Annotated[Word, tyro.conf.arg(metavar="FILE")] = None
    """file that short trainings' scores are kept in and taken from"""
    seed: Whole = 0
    """seed of the draws"""
    budget: Annotated[str, tyro.conf.arg(metavar="strict|rule|madds=0.6,…")] = "strict"
    """strict: living parameters and MAdds do not rise; rule: what the rule allows; or at most so much params, madds,
    memory (bytes) or latency (ms): a fraction up to 1 of what is there now, or a figure"""
    out: Annotated[Word, tyro.conf.arg(aliases=("-o",), metavar="FILE|DIR")] = None
    """file to write the better architecture to, as JSON; of a model the folder: weights, architecture, Python file"""
    report: Annotated[Word, tyro.conf.arg(metavar="FILE")] = None
    """page to write that shows all of it: graphs, reasons, costs"""


LONGEST_NAME = 80
OF_MODELS = ("input", "keep", "share_blocks", "measure_latency")
OF_ARCHITECTURES = ("network", "channels", "cells", "size", "samples", "scorer", "reward", "data", "root", "store")


def optimize(flags: Optimize) -> None:
    if flags.report is not None:
        check_target(flags.report)
        if flags.out is not None and Path(flags.out).resolve() == Path(flags.report).resolve():
            raise SettingError(f"--out and --report are both {flags.out!r}: the one would replace the other")
    if is_module(flags.arch):
        _optimize_module(flags)
        return
    if flags.arch.endswith(".py"):
        load_architecture(flags.arch)  # says that its function is missing
    _refuse(flags, OF_MODELS, "goes with a model, not with an architecture")
    if flags.out is not None:
        _check_target(flags.out)
    budget = parse_budget(flags.budget)
    arch = load_architecture(flags.arch)
    usual = "cifar" if arch.reduce is not None else "nasbench201"
    network = usual if flags.network == "auto" else flags.network
    found = verbs.optimize(
        arch,
        flags.policy,
        flags.rule,
        flags.mode,
        flags.samples,
        flags.scorer,
        flags.seed,
        budget,
        network=replace(flags, network=network).setting(),
        reward=flags.reward,
        data=flags.data,
        root=flags.root,
        store=flags.store,
    )
    found = _named(found, flags)
    if flags.report is not None:
        found.report(flags.report)
    if flags.out is not None:
        found.save(flags.out)
    if flags.json:
        print_json(found.to_dict())
    else:
        print(found)
        _remarks(flags)


def _check_target(path: str) -> None:
    """Refuse to write an architecture over what is none."""
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            load_architecture(os.path.abspath(path))
        except NatppError:
            raise SettingError(f"{path!r} is there and is no architecture: move it, or choose another place") from None


def _optimize_module(flags: Optimize) -> None:
    _refuse(flags, OF_ARCHITECTURES, "goes with an architecture, not with a model")
    budget = parse_budget(flags.budget)
    module, example = make_module(flags.arch, flags.input, classes=flags.classes, seed=flags.seed)
    found = verbs.optimize(
        module,
        flags.policy,
        flags.rule,
        flags.mode,
        example_input=example,
        seed=flags.seed,
        budget=budget,
        keep=[name.strip() for name in flags.keep.split(",")] if flags.keep else (),
        share_blocks=None if flags.share_blocks else False,
        measure_latency=flags.measure_latency,
    )
    found = _named(found, flags)
    if flags.report is not None:
        found.report(flags.report)
    if flags.out is not None:
        found.save(flags.out)
    if flags.json:
        print_json(found.to_dict())
        return
    print(found)
    _remarks(flags)
    if flags.out is not None:
        saved = json.loads(Path(flags.out, "architecture.json").read_text(encoding="utf-8"))
        more = ", module=original" if saved["module"]["given"] else ""
        print(f"written to {flags.out}; natpp.restore({flags.out!r}{more}) gives the module")


def _named(found: Result, flags: Optimize) -> Result:
    """The result with what it is called here, and the command it was made by."""
    name = flags.arch if len(flags.arch) <= LONGEST_NAME and "\n" not in flags.arch else "an architecture"
    return replace(found, settings=found.settings | {"name": name, "command": COMMAND.get()})


def _remarks(flags: Optimize) -> None:
    if flags.report is not None:
        print(f"report: {flags.report}")
    if flags.policy is None:
        name = default(flags.rule)
        remark(f"by the policy {name}, named for what it learned from; natpp search learns one on your images")


def _refuse(flags: Optimize, names: tuple[str, ...], why: str) -> None:
    usual = {field.name: field.default for field in fields(flags)}
    for name in names:
        if getattr(flags, name) != usual[name]:
            flag = f"no-{name}" if usual[name] is True else name
            raise SettingError(f"--{flag.replace('_', '-')} {why}")


@dataclass(frozen=True)
class Search(Common):
    """Learn a policy on images, or from scores at hand; kept in a folder, and resumed from it."""

    out: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """folder to keep the run in: settings, curves, checkpoints, the policy"""
    data: Annotated[Word, tyro.conf.arg(metavar="DATA")] = None
    """digits, cifar10, cifar100, fashion-mnist, imagenet or a folder of images; not needed with a scorer at hand"""
    root: Annotated[Word, tyro.conf.arg(metavar="DIR")] = None
    """folder that natpp data put the data into; of imagenet the one with train and val"""
    size: WholeOrDefault = None
    """pixels a side that a folder's images are cropped and scaled to (imagenet: 224)"""
    space: str = "cells"
    """what inputs are drawn from: cells or nasbench201"""
    nodes: str = "4,5"
    """nodes of the cells, with commas between"""
    extras: Switch = False
    """draw operations beyond the paper's thirteen too"""
    arch: Word = None
    """learn for this one architecture: a zoo name, a file, '-' or the text itself"""
    rule: str = "nat++"
    """nat, nat++ or cost"""
    budget: str = "strict"
    """strict: living parameters and MAdds do not rise; rule: what the rule allows"""
    preset: str = "best"
    """best: few scores, the rest predicted, then the policy; paper: supernet and policy in turn, as published"""
    scorer: Annotated[Word, tyro.conf.arg(metavar="short|supernet|RUN|TABLE")] = None
    """short (real trainings; what best uses), supernet (trained in this run; what paper uses), a run's folder (its
    supernet), or a table of trained networks"""
    reward: str = "val_200"
    """column of the table that is the score"""
    evaluations: WholeOrDefault = None
    """most architectures to score, the rest being predicted; auto: 200 where they are trained (100 on small images), no
    limit with a table"""
    minutes: NumberOrDefault = None
    """time there is: as many are scored as fit, at most `evaluations`, and the policy learns in what is left"""
    random_share: NumberOrDefault = None
    """share of the scores that are of architectures drawn at random; others are chosen by what is known by then"""
    store: Annotated[Word, tyro.conf.arg(metavar="FILE")] = None
    """file that short trainings' scores are kept in and taken from; by default RUN/scores.jsonl"""
    price: Annotated[Word, tyro.conf.arg(metavar="madds=X,params=Y")] = None
    """points of the score that a halving of living multiply-adds or parameters is worth"""
    caution: NumberOrDefault = None
    """standard deviations that a predicted improvement loses: 1 leaves most of what is good already alone"""
    train_steps: WholeOrDefault = None
    """gradient steps of a short training"""
    together: WholeOrDefault = None
    """short trainings side by side on a GPU"""
    epochs: WholeOrDefault = None
    """epochs of the supernet (paper: of both)"""
    architectures: WholeOrDefault = None
    """architectures a step of the supernet, over all processes"""
    batch: WholeOrDefault = None
    """images a step, of each"""
    steps: WholeOrDefault = None
    """gradient steps of the policy (paper: follows from epochs)"""
    channels: WholeOrDefault = None
    """channels of the first cells of the networks that are trained"""
    cells: WholeOrDefault = None
    """their cells (nasbench201: a stage)"""
    seed: Whole = 0
    """seed of everything random"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: str = "auto"
    """auto (bf16 on a GPU), 32, bf16 or 16"""
    resume: Switch = False
    """go on with the run in the folder; starts it where there is none"""
    tensorboard: Switch = False
    """write curves for TensorBoard too"""


def search(flags: Search) -> None:
    from natpp.runs.jobs import last_row

    with shown_progress() as watch:
        policy = verbs.search(
            flags.data,
            flags.rule,
            flags.preset,
            flags.arch,
            flags.scorer,
            flags.evaluations,
            flags.out,
            flags.seed,
            root=flags.root,
            size=flags.size,
            space=flags.space,
            nodes=_numbers("nodes", flags.nodes),
            extras=flags.extras,
            budget=flags.budget,
            reward=flags.reward,
            minutes=flags.minutes,
            price=None if flags.price is None else _prices(flags.price),
            random_share=flags.random_share,
            caution=flags.caution,
            train_steps=flags.train_steps,
            together=flags.together,
            epochs=flags.epochs,
            architectures=flags.architectures,
            batch=flags.batch,
            steps=flags.steps,
            channels=flags.channels,
            cells=flags.cells,
            device=flags.device,
            precision=flags.precision,
            store=flags.store,
            resume=flags.resume,
            tensorboard=flags.tensorboard,
            watch=watch,
            say=say,
        )
    if not is_first_process():
        return
    choices = last_row(flags.out, "choices")
    file = os.path.join(flags.out, "policy.safetensors")
    if flags.json:
        print_json({"policy": file, "ops": policy.ops, "choices": choices})
        return
    best = os.path.join(flags.out, "architecture.json")
    if flags.arch is not None and os.path.exists(best):
        from natpp.report.text import architecture_text

        before, after = verbs.load(flags.arch), verbs.load(best)
        print(architecture_text(after, before))
        for name in ("live_params", "live_madds"):
            old, new = (getattr(verbs.cost(arch), name) for arch in (before, after))
            print(f"{name.replace('_', ' '):<14} {old:>15,} → {new:>15,}  ({new / old - 1:+.1%})")
        print(f"best found: {best}")
    elif flags.arch is not None:
        print(verbs.optimize(flags.arch, policy, flags.rule, seed=flags.seed, budget=flags.budget))
    if choices is not None:
        inputs = "the input" if choices["inputs"] == 1 else f"{choices['inputs']} inputs"
        print(f"score of {inputs}: {choices['before']:.2f}, of what became of them: {choices['after']:.2f}")
    print(f"policy: {file}")


@dataclass(frozen=True)
class Score(Common):
    """Score architectures by short real trainings, or by a run's supernet: higher is better."""

    archs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARCH")]
    """zoo names, files or texts"""
    data: Annotated[Word, tyro.conf.arg(metavar="DATA")] = None
    """digits, cifar10, cifar100, fashion-mnist, imagenet or a folder of images"""
    root: Annotated[Word, tyro.conf.arg(metavar="DIR")] = None
    """folder that natpp data put the data into; of imagenet the one with train and val"""
    size: WholeOrDefault = None
    """pixels a side that a folder's images are cropped and scaled to (imagenet: 224)"""
    scorer: Annotated[str, tyro.conf.arg(metavar="short|RUN")] = "short"
    """short: real trainings; a run's folder: its supernet"""
    store: Annotated[Word, tyro.conf.arg(metavar="FILE")] = None
    """file that scores are kept in and taken from"""
    train_steps: WholeOrDefault = None
    """gradient steps of a training"""
    channels: WholeOrDefault = None
    """channels of the first cells of the networks that are trained"""
    cells: WholeOrDefault = None
    """their cells (nasbench201: a stage)"""
    seed: Whole = 0
    """seed of first weights and batches"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""


def score(flags: Score) -> None:
    if not flags.archs:
        raise SettingError("name at least one architecture: natpp score darts enas --data digits")
    with shown_progress() as watch:
        found = verbs.score(
            flags.archs,
            flags.data,
            flags.scorer,
            flags.store,
            flags.seed,
            root=flags.root,
            size=flags.size,
            train_steps=flags.train_steps,
            channels=flags.channels,
            cells=flags.cells,
            device=flags.device,
            watch=watch,
            say=say,
        )
    if not is_first_process():
        return
    if flags.json:
        print_json([{"arch": arch, **asdict(one)} for arch, one in zip(flags.archs, found, strict=True)])
        return
    table = new_table("architecture", "score", "accuracy", "loss", "seconds", "")
    for arch, one in zip(flags.archs, found, strict=True):
        numbers = ("–" if value is None else f"{value:.3f}" for value in (one.value, one.accuracy, one.loss))
        table.add_row(arch if len(arch) < 40 else arch[:37] + "…", *numbers, f"{one.seconds:.1f}", one.reason or "")
    print_table(table)


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise SettingError(f"{name} is {shortened(text)}, expected whole numbers with commas between") from None


def _prices(text: str) -> dict[str, float]:
    try:
        return {name.strip(): float(value) for name, value in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise SettingError(f"price is {shortened(text)}, expected for example madds=2,params=0.5") from None


@dataclass(frozen=True)
class Benchmark(Common):
    """Compare methods on a table of trained networks: what each makes of held-out inputs."""

    which: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="nasbench201")]
    """the space of the table: nasbench201"""
    table: str
    """file with a column arch and columns of accuracies: Parquet or CSV"""
    reward: str = "val_200"
    """column that methods see"""
    score: str = "test_200"
    """column that they are judged by"""
    method: str = "nat++,nat,constant,random,random-best-of-10,evolution"
    """methods to compare, with commas between"""
    preset: str = "best"
    """how policies learn: best or paper"""
    rule: str = "nat++"
    """rule for methods that are not named for one: nat, nat++ or cost"""
    budget: str = "rule"
    """rule: what the rule allows; strict: also no rise in living parameters or MAdds"""
    evaluations: WholeOrDefault = None
    """most distinct architectures whose reward is looked up, the rest being predicted; auto is no limit"""
    holdout: Whole = 2000
    """inputs set aside for judging"""
    split_seed: Whole = 0
    """seed of the split"""
    seeds: Whole = 3
    """runs"""


def benchmark(flags: Benchmark) -> None:
    if flags.which != "nasbench201":
        raise SettingError(f"unknown space {flags.which!r}. {did_you_mean(flags.which, ['nasbench201'])}")
    if flags.budget not in ("rule", "strict"):
        raise SettingError(f"unknown budget {flags.budget!r}. {did_you_mean(flags.budget, ['rule', 'strict'])}")
    RULES[flags.rule]  # answers an unknown name
    from natpp.runs.benchmark import BenchmarkConfig
    from natpp.runs.benchmark import benchmark as run

    config = BenchmarkConfig(
        table=flags.table,
        reward=flags.reward,
        score=flags.score,
        methods=tuple(name.strip() for name in flags.method.split(",")),
        preset=flags.preset,
        rule=flags.rule,
        strict=flags.budget == "strict",
        evaluations=flags.evaluations,
        holdout=flags.holdout,
        split_seed=flags.split_seed,
        seeds=flags.seeds,
    )
    with shown_progress() as watch:
        found = run(config, watch)
    if flags.json:
        print_json(found)
        return
    print(
        f"inputs {found['inputs']:.2f}, best reachable by {flags.reward} {found['oracle_by_reward']:.2f}, "
        f"by {flags.score} {found['oracle_by_score']:.2f}"
    )
    table = new_table(
        "method", "one shot", "best of 10", "share of oracle", "live params", "live MAdds", "queries", "seconds"
    )
    for name, row in found["methods"].items():
        if row is None:
            table.add_row(name, *["–"] * 7)
            continue
        spreads = [f"{s['mean']:.2f} ± {s['sd']:.2f}" if s else "–" for s in (row["one_shot"], row["best_of_10"])]
        share = "–" if row["share_of_oracle"] is None else f"{row['share_of_oracle']:.1%}"
        changes = (f"{row[key]:+.1%}" for key in ("params_change", "madds_change"))
        table.add_row(name, *spreads, share, *changes, f"{row['queries']:,.0f}", f"{row['seconds']:.1f}")
    print_table(table)


@dataclass(frozen=True)
class Data(Common):
    """Put a data set into a folder as one file, checked: from its home page, or from a file at hand."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="cifar10|cifar100|fashion-mnist")]
    """the data set"""
    root: str
    """folder to put it into"""
    source: Annotated[Word, tyro.conf.arg(name="from", metavar="PATH")] = None
    """archive or folder at hand: the Python or binary archive, mosaics with labels.json, batches"""


def data(flags: Data) -> None:
    from natpp.data.sets import store_images

    file = store_images(flags.name, flags.root, flags.source)
    if flags.json:
        print_json({"data": flags.name, "file": str(file)})
    else:
        print(file)
