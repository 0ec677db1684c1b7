"""Commands about architectures: what there is, what it looks like, what it costs, what it may become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from natpp import verbs
from natpp.arch.formats import FORMATS, to_dict, to_genotype
from natpp.arch.graph import Architecture
from natpp.arch.ops import Place
from natpp.arch.rules import allowed, changes, same_graphs
from natpp.cli.flags import Arch, Common, NetworkFlags, Output, Shapes, Subject, Switch, Whole, Word
from natpp.cli.modules import is_module, load_architecture, make_module
from natpp.cli.output import new_table, picture_suffix, print_json, print_table, write_picture
from natpp.core.measures import Cost
from natpp.errors import SettingError, did_you_mean
from natpp.files import write_whole
from natpp.registry import MODELS, OPS, RULES, ZOO

if TYPE_CHECKING:
    from rich.table import Table

    from natpp.zoo import Entry, Model


@dataclass(frozen=True)
class Zoo(Common):
    """List what natpp knows by name: architectures with their cost on CIFAR, and hand-crafted networks."""


def zoo(flags: Zoo) -> None:
    entries = [(entry, verbs.cost(entry.arch)) for entry in ZOO.values()]
    if flags.json:
        cells = {entry.name: _entry_json(entry, found) for entry, found in entries}
        print_json({**cells, **{model.name: _model_json(model) for model in MODELS.values()}})
        return
    table = new_table("architecture", "kind", "params", "MAdds", "live params", "live MAdds")
    for entry, found in entries:
        numbers = (found.params, found.madds, found.live_params, found.live_madds)
        table.add_row(entry.name, entry.kind, *(f"{number:,}" for number in numbers))
    print_table(table)
    for entry, _ in entries:
        if entry.note:
            print(f"{entry.name} {entry.note}")
    table = new_table("network", "input", "output", "params", "MAdds")
    for model in MODELS.values():
        shape = " x ".join(str(side) for side in model.input_shape)
        output = f"{model.outputs} {'numbers' if model.embeds else 'classes'}"
        table.add_row(model.name, shape, output, f"{model.params:,}", f"{model.madds:,}")
    print_table(table)


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
        picture = verbs.scene(flags.arch, flags.against, where if flags.view == "network" else None)
        write_picture(flags.output, picture)
        if flags.json:
            print_json({"picture": flags.output})
        return
    if flags.view == "network":
        raise SettingError("the network view is a picture: name a file with -o, such as -o network.svg")
    arch, against = verbs.load(flags.arch), None if flags.against is None else verbs.load(flags.against)
    if flags.json:
        print_json(_shown_json(arch, against))
        return
    from natpp.report.text import architecture_text

    print(architecture_text(arch, against))


@dataclass(frozen=True)
class CostFlags(NetworkFlags):
    """Count what an architecture costs in a network, to the digit, without building it; or what a model costs."""

    arch: Subject = tyro.MISSING
    input: Shapes = None
    """of a model: the shape of its input; several with semicolons between"""
    latency: Switch = False
    """also build it and measure the time of a forward pass of one image here"""


def cost(flags: CostFlags) -> None:
    if is_module(flags.arch):
        _module_cost(flags)
        return
    if flags.input is not None and not flags.arch.endswith(".py"):
        raise SettingError("--input goes with a model, not with an architecture")
    where = flags.setting()
    found = verbs.cost(
        load_architecture(flags.arch),
        where.network,
        channels=where.channels,
        cells=where.cells,
        classes=where.classes,
        size=where.size,
        latency=flags.latency,
    )
    if flags.json:
        print_json(found.to_dict())
        return
    print(
        f"{where.network} network: {where.channels} channels, {where.cells} cells, {where.classes} classes, "
        f"{where.size} x {where.size} image"
    )
    print_table(_cost_table(found))


def _module_cost(flags: CostFlags) -> None:
    if flags.network != "cifar" or any(value is not None for value in (flags.channels, flags.cells, flags.size)):
        raise SettingError("--network, --channels, --cells and --size go with an architecture, not with a model")
    module, example = make_module(flags.arch, flags.input, classes=flags.classes)
    found = verbs.cost(module, example_input=example, latency=flags.latency)
    if flags.json:
        print_json(found.to_dict())
        return
    print(f"parameters          {found.params:>18,}")
    print(f"multiply-adds       {found.madds:>18,}")
    print(f"peak memory, bytes  {found.peak_memory_bytes:>18,}")
    if found.latency_ms is not None:
        print(f"latency, ms         {found.latency_ms:>18.2f} ± {found.latency_spread_ms:.2f}")


@dataclass(frozen=True)
class Transitions(Common):
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
            write_whole(flags.output, cost_bars_picture(place, picture_suffix(flags.output)))
        return
    names = tuple(OPS)
    chosen = names if flags.op is None else (OPS[flags.op].name,)
    table = allowed(flags.rule, place)
    found = {name: [names[column] for column in table[names.index(name)].nonzero()[0]] for name in chosen}
    if flags.json:
        costs = {name: dict(zip(("params", "madds"), OPS[name].cost(place), strict=True)) for name in chosen}
        print_json({name: {**costs[name], "transitions": found[name]} for name in chosen})
        return
    printed = new_table("operation", "params", "MAdds", "may become")
    for name in chosen:
        params, madds = OPS[name].cost(place)
        printed.add_row(name, f"{params:,}", f"{madds:,}", ", ".join(found[name]))
    print(f"rule {flags.rule}, {flags.channels} channels, stride {flags.stride}, {flags.size} x {flags.size}")
    print_table(printed)


@dataclass(frozen=True)
class Convert(Common):
    """Write an architecture in another form."""

    arch: Arch
    to: str
    """json, genotype or nasbench201"""


def convert(flags: Convert) -> None:
    if flags.to not in FORMATS:
        raise SettingError(f"unknown form {flags.to!r}. {did_you_mean(flags.to, FORMATS)}")
    text = FORMATS[flags.to](verbs.load(flags.arch))
    if flags.json:
        print_json({"form": flags.to, "text": text})
    else:
        print(text)


@dataclass(frozen=True)
class Sample(Common):
    """Draw random architectures as the paper does: sources and operations uniform, null included."""

    nodes: Whole = 4
    """intermediate nodes of a cell"""
    seed: Whole = 0
    """seed of the draw"""
    count: Whole = 1
    """how many"""


def sample(flags: Sample) -> None:
    drawn = verbs.samples(flags.count, nodes=flags.nodes, seed=flags.seed)
    if flags.json:
        print_json(to_dict(drawn[0]) if flags.count == 1 else [to_dict(arch) for arch in drawn])
        return
    for arch in drawn:
        print(to_genotype(arch))


def _shown_json(arch: Architecture, against: Architecture | None) -> dict[str, Any]:
    """An architecture with which of its edges are alive in every cell, and what changed."""
    data = {**to_dict(arch), "alive": {kind: list(graph.liveness().live) for kind, graph in arch.cells()}}
    if against is None:
        return data
    if not same_graphs(against, arch):
        return data | {"changes": None}
    found = [{"name": one.name, "before": one.before, "after": one.after} for one in changes(against, arch)]
    return data | {"changes": found}


def _entry_json(entry: Entry, found: Cost) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "source": entry.source,
        "optimized_from": entry.optimized_from,
        "note": entry.note,
        **found.to_dict(),
        "published": [vars(row) for row in entry.published],
    }


def _model_json(model: Model) -> dict[str, Any]:
    return {
        "kind": "network",
        "source": model.source,
        "note": model.note,
        "input_shape": model.input_shape,
        "outputs": model.outputs,
        "embeds": model.embeds,
        "params": model.params,
        "madds": model.madds,
        "published": [vars(row) for row in model.published],
    }


def _cost_table(found: Cost) -> Table:
    table = new_table("", "alive", "listed")
    table.add_row("parameters", f"{found.live_params:,}", f"{found.params:,}")
    table.add_row("multiply-adds", f"{found.live_madds:,}", f"{found.madds:,}")
    table.add_row("peak memory, bytes", f"{found.peak_memory_bytes:,}", "")
    if found.latency_ms is not None:
        table.add_row("latency, ms", f"{found.latency_ms:.2f} ± {found.latency_spread_ms:.2f}", "")
    return table
