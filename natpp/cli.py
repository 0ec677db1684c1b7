"""The command line: one subcommand a verb, its flags made from a dataclass.

Wrong input is one line on standard error and exit status 2.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from natpp import __version__, api
from natpp.arch.cost import Cost
from natpp.arch.formats import FORMATS, to_dict, to_genotype, to_json
from natpp.arch.layout import Setting, setting
from natpp.arch.ops import Place
from natpp.arch.transitions import allowed
from natpp.errors import NatppError, SettingError, did_you_mean, shortened
from natpp.files import write_whole
from natpp.registry import OPS, RULES, ZOO

if TYPE_CHECKING:
    from rich.table import Table

    from natpp.report.scene import Scene
    from natpp.search.transform import Result

POSITIONAL = ("arch", "op", "which", "name")  # fields that are no flags
Arch = Annotated[
    str, tyro.conf.Positional, tyro.conf.arg(metavar="ARCH", help="a zoo name, a file, '-' or the text itself")
]


def _whole(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"expected a whole number, not {shortened(words[0])}") from None


Whole = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="N",
        instance_from_str=_whole,
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
WholeOrDefault = Annotated[
    int | None,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="N",
        instance_from_str=lambda words: None if words == ["auto"] else _whole(words),
        is_instance=lambda value: value is None or isinstance(value, int),
        str_from_instance=lambda value: ["auto" if value is None else str(value)],
    ),
]
# A word, whatever it is: tyro would read "None" as nothing.
Word = Annotated[
    str | None,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="ARCH",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: [value or "nothing"],
    ),
]
Output = Annotated[Word, tyro.conf.arg(name="output", aliases=("-o",), metavar="FILE")]
Switch = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True)
class NetworkFlags:
    """The network an architecture stands in."""

    network: str = "cifar"
    """cifar, imagenet or nasbench201"""
    channels: WholeOrDefault = None
    """channels of the first cells; auto is the network's own, here and below"""
    cells: WholeOrDefault = None
    """number of cells (nasbench201: a stage)"""
    classes: WholeOrDefault = None
    """number of classes"""
    size: WholeOrDefault = None
    """height and width of the image"""

    def setting(self) -> Setting:
        return setting(self.network, channels=self.channels, cells=self.cells, classes=self.classes, size=self.size)


@dataclass(frozen=True)
class Zoo:
    """List the architectures natpp knows by name: kind, parameters and multiply-adds on CIFAR."""

    json: Switch = False
    """print JSON, with sources, notes and published figures"""


def zoo(flags: Zoo) -> None:
    entries = [(entry, api.cost(entry.arch)) for entry in ZOO.values()]
    if flags.json:
        _print_json({entry.name: _entry_json(entry, found) for entry, found in entries})
        return
    table = _table("architecture", "kind", "params", "MAdds", "live params", "live MAdds")
    for entry, found in entries:
        numbers = (found.params, found.madds, found.live_params, found.live_madds)
        table.add_row(entry.name, entry.kind, *(f"{number:,}" for number in numbers))
    _print(table)
    for entry, _ in entries:
        if entry.note:
            print(f"{entry.name} {entry.note}")


@dataclass(frozen=True)
class Show(NetworkFlags):
    """Show an architecture: a picture with -o, else its nodes as text."""

    arch: Arch = tyro.MISSING
    output: Output = None
    """picture to write, .svg or .png"""
    against: Word = None
    """the architecture it came from: changed edges are marked old → new"""
    view: str = "cells"
    """cells, or network: the whole network with shapes and costs (a picture)"""


def show(flags: Show) -> None:
    if flags.view not in ("cells", "network"):
        raise SettingError(f"unknown view {flags.view!r}. {did_you_mean(flags.view, ('cells', 'network'))}")
    where = flags.setting()
    if flags.output is not None:
        picture = api.scene(flags.arch, flags.against, where if flags.view == "network" else None)
        _write_picture(flags.output, picture)
        return
    if flags.view == "network":
        raise SettingError("the network view is a picture: name a file with -o, such as -o network.svg")
    from natpp.report.text import architecture_text

    print(architecture_text(api.load(flags.arch), None if flags.against is None else api.load(flags.against)))


@dataclass(frozen=True)
class CostFlags(NetworkFlags):
    """Count what an architecture costs in a network, to the digit, without building it."""

    arch: Arch = tyro.MISSING
    latency: Switch = False
    """also build it and measure the time of a forward pass of one image here"""
    json: Switch = False
    """print JSON"""


def cost(flags: CostFlags) -> None:
    where = flags.setting()
    found = api.cost(
        flags.arch,
        where.network,
        channels=where.channels,
        cells=where.cells,
        classes=where.classes,
        size=where.size,
        latency=flags.latency,
    )
    if flags.json:
        _print_json(found.to_dict())
        return
    print(
        f"{where.network} network: {where.channels} channels, {where.cells} cells, {where.classes} classes, "
        f"{where.size} x {where.size} image"
    )
    _print(_cost_table(found))


@dataclass(frozen=True)
class Transitions:
    """List what each operation may become under a rule, and what the operations cost at a place."""

    op: Annotated[Word, tyro.conf.Positional, tyro.conf.arg(metavar="[OP]")] = None
    """one operation; all of them without it"""
    rule: str = "nat++"
    """nat, nat++ or cost"""
    channels: Whole = 128
    """channels in and out of the place"""
    stride: Whole = 1
    """stride of the place, 1 or 2"""
    size: Whole = 32
    """height and width of the place"""
    json: Switch = False
    """print JSON"""
    plot: Switch = False
    """draw the cost of every operation as bars: in the terminal, or as a picture with -o"""
    output: Output = None
    """picture to write with --plot, .svg or .png"""


def transitions(flags: Transitions) -> None:
    place = Place(flags.channels, flags.channels, flags.stride, (flags.size, flags.size))
    if flags.output is not None and not flags.plot:
        raise SettingError("-o goes with --plot")
    RULES[flags.rule]  # answers an unknown name
    if flags.plot:
        if flags.op is not None or flags.json:
            raise SettingError("--plot draws all operations: leave out the operation and --json")
        from natpp.report.bars import cost_bars_picture, cost_bars_text

        if flags.output is None:
            print(cost_bars_text(place))
        else:
            write_whole(flags.output, cost_bars_picture(place, _suffix(flags.output)))
        return
    names = tuple(OPS)
    chosen = names if flags.op is None else (OPS[flags.op].name,)
    table = allowed(flags.rule, place)
    found = {name: [names[column] for column in table[names.index(name)].nonzero()[0]] for name in chosen}
    if flags.json:
        costs = {name: dict(zip(("params", "madds"), OPS[name].cost(place), strict=True)) for name in chosen}
        _print_json({name: {**costs[name], "transitions": found[name]} for name in chosen})
        return
    printed = _table("operation", "params", "MAdds", "may become")
    for name in chosen:
        params, madds = OPS[name].cost(place)
        printed.add_row(name, f"{params:,}", f"{madds:,}", ", ".join(found[name]))
    print(f"rule {flags.rule}, {flags.channels} channels, stride {flags.stride}, {flags.size} x {flags.size}")
    _print(printed)


@dataclass(frozen=True)
class Convert:
    """Write an architecture in another form."""

    arch: Arch
    to: str
    """json, genotype or nasbench201"""


def convert(flags: Convert) -> None:
    if flags.to not in FORMATS:
        raise SettingError(f"unknown form {flags.to!r}. {did_you_mean(flags.to, FORMATS)}")
    print(FORMATS[flags.to](api.load(flags.arch)))


@dataclass(frozen=True)
class Sample:
    """Draw random architectures as the paper does: sources and operations uniform, null included."""

    nodes: Whole = 4
    """intermediate nodes of a cell"""
    seed: Whole = 0
    """seed of the draw"""
    count: Whole = 1
    """how many"""
    json: Switch = False
    """print JSON (a list where there are several) instead of a genotype a line"""


def sample(flags: Sample) -> None:
    drawn = api.samples(flags.count, nodes=flags.nodes, seed=flags.seed)
    if flags.json:
        _print_json(to_dict(drawn[0]) if flags.count == 1 else [to_dict(arch) for arch in drawn])
        return
    for arch in drawn:
        print(to_genotype(arch))


@dataclass(frozen=True)
class Optimize(NetworkFlags):
    """Make an architecture better by a learned policy: changes, costs before and after."""

    arch: Arch = tyro.MISSING
    policy: str = tyro.MISSING
    """the policy's file"""
    rule: str = "nat++"
    """nat, nat++ or cost"""
    mode: str = "greedy"
    """greedy: the likeliest transitions; sample: once for every edge; best-of: the best of several by a scorer"""
    samples: Whole = 10
    """how many best-of draws"""
    scorer: Word = None
    """what best-of chooses by: a table of trained networks"""
    reward: str = "val_200"
    """column of the table that is the score"""
    seed: Whole = 0
    """seed of the draws"""
    budget: str = "strict"
    """strict: living parameters and MAdds do not rise; rule: what the rule allows"""
    json: Switch = False
    """print JSON"""
    out: Annotated[Word, tyro.conf.arg(aliases=("-o",), metavar="FILE")] = None
    """file to write the better architecture to, as JSON"""


def optimize(flags: Optimize) -> None:
    arch = api.load(flags.arch)
    scorer = None
    if flags.scorer is not None:
        from natpp.evaluate.table import TableScorer, read_table

        scorer = TableScorer(read_table(flags.scorer, [flags.reward]), flags.reward)
    network = "nasbench201" if arch.reduce is None and flags.network == "cifar" else flags.network
    found = api.optimize(
        arch,
        flags.policy,
        flags.rule,
        flags.mode,
        flags.samples,
        scorer,
        flags.seed,
        flags.budget,
        network=replace(flags, network=network).setting(),
    )
    if flags.out is not None:
        write_whole(flags.out, to_json(found.after) + "\n")
    if flags.json:
        _print_json(_result_json(found, flags))
    else:
        print(found)


def _result_json(found: Result, flags: Optimize) -> dict[str, Any]:
    return {
        "before": to_dict(found.before),
        "after": to_dict(found.after),
        "changes": [
            {
                "cell": change.cell,
                "from": change.before.source,
                "to": change.before.target,
                "before": change.before.op,
                "after": change.after.op,
            }
            for change in found.changes
        ],
        "cost_before": found.cost_before.to_dict(),
        "cost_after": found.cost_after.to_dict(),
        "log_prob": found.log_prob,
        "probabilities": found.probabilities,
        "masked": found.masked,
        "seed": flags.seed,
        "rule": flags.rule,
        "budget": flags.budget,
        "mode": flags.mode,
        "policy": flags.policy,
    }


@dataclass(frozen=True)
class Benchmark:
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
    json: Switch = False
    """print JSON"""


def benchmark(flags: Benchmark) -> None:
    if flags.which != "nasbench201":
        raise SettingError(f"unknown space {flags.which!r}. {did_you_mean(flags.which, ['nasbench201'])}")
    if flags.budget not in ("rule", "strict"):
        raise SettingError(f"unknown budget {flags.budget!r}. {did_you_mean(flags.budget, ['rule', 'strict'])}")
    RULES[flags.rule]  # answers an unknown name
    from natpp.evaluate.benchmark import BenchmarkConfig
    from natpp.evaluate.benchmark import benchmark as run

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
    found = run(config)
    if flags.json:
        _print_json(found)
        return
    print(
        f"inputs {found['inputs']:.2f}, best reachable by {flags.reward} {found['oracle_by_reward']:.2f}, "
        f"by {flags.score} {found['oracle_by_score']:.2f}"
    )
    table = _table(
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
    _print(table)


@dataclass(frozen=True)
class Data:
    """Put a data set into a folder as one file, checked: from its home page, or from a file at hand."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="cifar10|cifar100|fashion-mnist")]
    """the data set"""
    root: str
    """folder to put it into"""
    source: Annotated[Word, tyro.conf.arg(name="from", metavar="PATH")] = None
    """archive or folder at hand: the Python or binary archive, mosaics with labels.json, batches"""


def data(flags: Data) -> None:
    from natpp.data.sets import store_images

    print(store_images(flags.name, flags.root, flags.source))


VERBS: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
    "zoo": (Zoo, zoo),
    "show": (Show, show),
    "cost": (CostFlags, cost),
    "transitions": (Transitions, transitions),
    "convert": (Convert, convert),
    "sample": (Sample, sample),
    "optimize": (Optimize, optimize),
    "benchmark": (Benchmark, benchmark),
    "data": (Data, data),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an arrow that a terminal cannot show is no reason to fail
    try:
        if not given or given[0] in ("-h", "--help"):
            print(_overview())
        elif given[0] == "--version":
            print(f"natpp {__version__}")
        elif given[0] not in VERBS:
            raise SettingError(f"unknown command {given[0]!r}. {did_you_mean(given[0], VERBS)}")
        else:
            flags_type, run = VERBS[given[0]]
            run(_parse(flags_type, given[0], given[1:]))
        if sys.stdout is not None:
            sys.stdout.flush()
    except NatppError as error:
        print(f"natpp: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (head, say) has seen enough
        _silence_output()
    except OSError as error:
        _silence_output()
        print(f"natpp: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _silence_output() -> None:
    """Nobody reads standard output any more: let Python's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _overview() -> str:
    width = max(len(verb) for verb in VERBS)
    lines = [f"  {verb:<{width}}  {_summary(flags_type)}" for verb, (flags_type, _) in VERBS.items()]
    return "\n".join(
        [
            "natpp, an architecture optimizer for PyTorch",
            "",
            "usage: natpp COMMAND [flags]",
            "",
            *lines,
            "",
            "natpp COMMAND --help tells the flags of a command.",
        ]
    )


def _summary(flags_type: type[Any]) -> str:
    return (flags_type.__doc__ or "").splitlines()[0]


def _parse(flags_type: type[Any], verb: str, arguments: list[str]) -> Any:
    """The flags of a verb; what tyro says of wrong ones in a box becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(flags_type, prog=f"natpp {verb}", description=_summary(flags_type), args=arguments)
    except SystemExit as stop:
        if not stop.code:
            raise SystemExit(0) from None
        message = _one_line(said.getvalue())
        if wrong := re.match(r"Unrecognized options: (--[\w-]+)", message):
            names = [field.name for field in fields(flags_type) if field.name not in POSITIONAL]
            flags = [f"--{name.replace('_', '-')}" for name in names]
            message = f"unknown flag {wrong[1]}. {did_you_mean(wrong[1], flags)}"
        raise SettingError(f"{message} (natpp {verb} --help tells the flags)") from None


def _one_line(boxed: str) -> str:
    """The message of a box with a title, up to its first ruled line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", boxed)
    lines = [line.strip(" ╭╮╰╯│─") for line in plain.strip().splitlines()[1:]]
    ruled = [not line.strip("-") for line in lines]
    start = ruled.index(False) if False in ruled else len(lines)
    end = ruled.index(True, start) if True in ruled[start:] else len(lines)
    return " ".join(lines[start:end]).rstrip(".") or "wrong flags"


def _entry_json(entry: Any, found: Cost) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "source": entry.source,
        "optimized_from": entry.optimized_from,
        "note": entry.note,
        **found.to_dict(),
        "published": [vars(row) for row in entry.published],
    }


def _cost_table(found: Cost) -> Table:
    table = _table("", "alive", "listed")
    table.add_row("parameters", f"{found.live_params:,}", f"{found.params:,}")
    table.add_row("multiply-adds", f"{found.live_madds:,}", f"{found.madds:,}")
    table.add_row("peak memory, bytes", f"{found.peak_memory_bytes:,}", "")
    if found.latency_ms is not None:
        table.add_row("latency, ms", f"{found.latency_ms:.2f} ± {found.latency_spread_ms:.2f}", "")
    return table


def _table(*headers: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        number = header.lower().endswith(("params", "madds")) or header in ("alive", "listed")
        table.add_column(header, justify="right" if number else "left", no_wrap=number)
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 140
    Console(width=width, highlight=False).print(table)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def _suffix(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".svg", ".png"):
        raise SettingError(f"a picture is .svg or .png, not {path!r}")
    return suffix


def _write_picture(path: str, picture: Scene) -> None:
    from natpp.report.scene import to_png, to_svg

    write_whole(path, to_svg(picture) if _suffix(path) == ".svg" else to_png(picture))


if __name__ == "__main__":
    sys.exit(main())
