"""The commands: each calls a verb and prints the result. Their parameters are their flags."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

from natpp import verbs
from natpp.arch.formats import FORMATS, to_dict, to_genotype
from natpp.arch.load import load
from natpp.arch.ops import Place
from natpp.arch.rules import allowed
from natpp.arch.where import Where
from natpp.cli import shown
from natpp.cli.flags import Flag, Group
from natpp.cli.output import (
    is_first_process,
    picture_suffix,
    print_json,
    print_table,
    say,
    shown_progress,
    write_picture,
)
from natpp.cli.subjects import (
    MODEL,
    TEXT,
    is_module,
    load_architecture,
    load_module,
    make_example,
    make_module,
)
from natpp.config import Among
from natpp.errors import SettingError, counted
from natpp.files import write_whole
from natpp.registry import MODELS, OPS, RECIPES, RULES, ZOO
from natpp.report.page import check_target, write_report
from natpp.report.text import architecture_text, new_table
from natpp.run import Run
from natpp.runs.benchmark import Benchmark
from natpp.runs.scoring import Short
from natpp.runs.search import Search
from natpp.training.recipe import Recipe

Arch = Annotated[str, Flag(TEXT, "ARCH", positional=True)]
Subject = Annotated[
    str, Flag(f"an architecture: {TEXT}; or a model: {MODEL}", "ARCH|NETWORK|FILE.py:FUNCTION", positional=True)
]
Picture = Annotated[str | None, Flag("picture to write, .svg or .png", "FILE", short="-o")]
TASK = Flag("data to train on: digits, cifar10:root=data, imagenet:root=DIR, a folder of images", "TASK")
Task = Annotated[str | None, TASK]
Images = Annotated[str, TASK]
Shapes = Annotated[
    str | None, Flag("for a model: the shape of its input; separate several with semicolons", "1,3,224,224")
]
Rule = Annotated[str, Among(RULES), Flag("nat, nat++ or cost")]
Output = Annotated[str, Flag("the page to write; an earlier report there is replaced", "FILE", short="-o")]
Kept = Annotated[Run, Group(leave_out=("workers",), required=("out",))]


def zoo(*, json: bool = False) -> None:
    """List the zoo: architectures with their cost on CIFAR, and hand-crafted networks."""
    entries = [(entry, verbs.cost(entry.arch)) for entry in ZOO.values()]
    if json:
        cells = {entry.name: shown.entry_json(entry, found) for entry, found in entries}
        print_json({**cells, **{model.name: shown.model_json(model) for model in MODELS.values()}})
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


def show(
    arch: Arch,
    *,
    output: Picture = None,
    against: Annotated[
        str | None, Flag("the architecture it came from: changed edges are marked old → new", "ARCH")
    ] = None,
    view: Annotated[
        Literal["cells", "network"],
        Flag("cells, or network: the whole network with shapes and costs (a picture)"),
    ] = "cells",
    where: Where = Where(),
    json: bool = False,
) -> None:
    """Show an architecture: a picture with -o, else its nodes as text."""
    network = where.setting()
    if output is not None:
        write_picture(output, verbs.scene(arch, against, network if view == "network" else None))
        if json:
            print_json({"picture": output})
        return
    if view == "network":
        raise SettingError("the network view is a picture: name a file with -o, such as -o network.svg")
    found, before = load(arch), None if against is None else load(against)
    if json:
        print_json(shown.architecture_json(found, before))
        return
    print(architecture_text(found, before))


def cost(
    arch: Subject,
    *,
    input: Shapes = None,
    latency: Annotated[bool, Flag("also build it and measure the time of a forward pass of one image here")] = False,
    where: Where = Where(),
    json: bool = False,
) -> None:
    """Compute the exact cost of an architecture in a network, without building it, or of a model."""
    if is_module(arch):
        if any(name != "classes" for name in where.changed()):
            raise SettingError("--network, --channels, --cells and --size can only be given with an architecture")
        module, example = make_module(arch, input, classes=where.classes)
        found = verbs.cost(module, example_input=example, latency=latency)
    else:
        if input is not None and not arch.endswith(".py"):
            raise SettingError("--input can only be given with a model, not with an architecture")
        found = verbs.cost(load_architecture(arch), where.setting(), latency=latency)
    if json:
        print_json(found.to_dict())
    elif is_module(arch):
        shown.print_module_cost(found)
    else:
        shown.print_cost(found, where.setting())


def transitions(
    op: Annotated[str | None, Flag("one operation; all of them without it", "[OP]", positional=True)] = None,
    *,
    rule: Rule = "nat++",
    channels: Annotated[int, Flag("channels in and out of the place")] = 128,
    stride: Annotated[int, Flag("stride of the place, 1 or 2")] = 1,
    size: Annotated[int, Flag("height and width of the place")] = 32,
    plot: Annotated[
        bool, Flag("draw the cost of every operation as bars: in the terminal, or as a picture with -o")
    ] = False,
    output: Picture = None,
    json: bool = False,
) -> None:
    """List what each operation may become under a rule, and what the operations cost at a place."""
    place = Place(channels, channels, stride, (size, size))
    if output is not None and not plot:
        raise SettingError("-o can only be given with --plot")
    if plot:
        if op is not None or json:
            raise SettingError("--plot draws all operations: leave out the operation and --json")
        from natpp.report.bars import cost_bars_picture, cost_bars_text

        if output is None:
            print(cost_bars_text(place))
        else:
            write_whole(output, cost_bars_picture(place, picture_suffix(output)))
        return
    names = tuple(OPS)
    chosen = names if op is None else (OPS[op].name,)
    table = allowed(rule, place)
    found = {name: [names[column] for column in table[names.index(name)].nonzero()[0]] for name in chosen}
    if json:
        costs = {name: dict(zip(("params", "madds"), OPS[name].cost(place), strict=True)) for name in chosen}
        print_json({name: {**costs[name], "transitions": found[name]} for name in chosen})
        return
    printed = new_table("operation", "params", "MAdds", "may become")
    for name in chosen:
        params, madds = OPS[name].cost(place)
        printed.add_row(name, f"{params:,}", f"{madds:,}", ", ".join(found[name]))
    print(f"rule {rule}, {counted(channels, 'channel')}, stride {stride}, {size} x {size}")
    print_table(printed)


def convert(
    arch: Arch,
    *,
    form: Annotated[str, Among(FORMATS), Flag("json, genotype or nasbench201", name="to")],
    json: bool = False,
) -> None:
    """Write an architecture in another form."""
    text = FORMATS[form](load(arch))
    if json:
        print_json({"form": form, "text": text})
    else:
        print(text)


def sample(
    *,
    nodes: Annotated[int, Flag("intermediate nodes of a cell")] = 4,
    seed: Annotated[int, Flag("seed of the draw")] = 0,
    count: Annotated[int, Flag("how many")] = 1,
    json: bool = False,
) -> None:
    """Draw random architectures as the paper does: sources and operations uniform, null included."""
    drawn = verbs.samples(count, nodes=nodes, seed=seed)
    if json:
        print_json(to_dict(drawn[0]) if count == 1 else [to_dict(arch) for arch in drawn])
        return
    for arch in drawn:
        print(to_genotype(arch))


def search(
    *,
    run: Annotated[Run, Group(required=("out",))],
    task: Task = None,
    space: Annotated[str, Flag("what inputs are drawn from: cells or nasbench201")] = "cells",
    arch: Annotated[str | None, Flag(f"learn for this one architecture: {TEXT}")] = None,
    budget: Annotated[
        str, Flag("strict: living parameters and MAdds do not rise; rule: what the rule allows")
    ] = "strict",
    scorer: Annotated[
        str | None,
        Flag(
            "short (real trainings; what best uses), supernet (trained in this run; what paper uses), a run's folder "
            "(its supernet), or a table of trained networks",
            "short|supernet|RUN|TABLE",
        ),
    ] = None,
    search: Search = Search(),
    json: bool = False,
) -> None:
    """Learn a policy from images or from existing scores; the run is kept in a folder and can be resumed."""
    on = space if arch is None else load(arch)
    with shown_progress() as watch:
        policy = verbs.search(task, search, budget, on=on, scorer=scorer, run=replace(run, watch=watch, say=say))
    if is_first_process():
        shown.print_search(policy, str(run.out), search, budget, run.seed, arch, json=json)


def score(
    archs: Annotated[tuple[str, ...], Flag("zoo names, files or texts", "ARCH", positional=True, several=True)],
    *,
    task: Task = None,
    scorer: Annotated[str, Flag("short: real trainings; a run's folder: its supernet", "short|RUN")] = "short",
    short: Annotated[Short, Group(("batch", "learning_rate", "together"), names={"steps": "train_steps"})] = Short(),
    run: Annotated[Run, Group(("out", "resume", "precision", "tensorboard"))] = Run(),
    json: bool = False,
) -> None:
    """Score architectures by short real trainings, or by a run's supernet: higher is better."""
    if not archs:
        raise SettingError("name at least one architecture: natpp score darts enas --task digits")
    with shown_progress() as watch:
        by = short if scorer == "short" else scorer
        found = verbs.score(archs, by, task=task, run=replace(run, watch=watch, say=say))
    if not is_first_process():
        return
    if json:
        print_json([{"arch": arch, **asdict(one)} for arch, one in zip(archs, found, strict=True)])
        return
    table = new_table("architecture", "score", "accuracy", "loss", "seconds", "")
    for arch, one in zip(archs, found, strict=True):
        numbers = ("–" if value is None else f"{value:.3f}" for value in (one.value, one.accuracy, one.loss))
        table.add_row(arch if len(arch) < 40 else arch[:37] + "…", *numbers, f"{one.seconds:.1f}", one.reason or "")
    print_table(table)


def benchmark(
    which: Annotated[str, Flag("the space of the table: nasbench201", "nasbench201", positional=True)],
    *,
    table: Annotated[str, Flag("file with a column arch and columns of accuracies: Parquet or CSV")],
    comparison: Annotated[Benchmark, Group(("strict",), names={"methods": "method"})] = Benchmark(),
    budget: Annotated[
        Literal["rule", "strict"],
        Flag("rule: what the rule allows; strict: also no rise in living parameters or MAdds"),
    ] = "rule",
    json: bool = False,
) -> None:
    """Compare methods on a table of trained networks: how much each improves held-out inputs."""
    with shown_progress() as watch:
        found = verbs.benchmark(which, table, replace(comparison, strict=budget == "strict"), run=Run(watch=watch))
    if json:
        print_json(found.to_dict())
    else:
        print(found)


def train(
    arch: Arch,
    *,
    run: Kept,
    task: Images,
    recipe: Annotated[
        str, Flag(f"{', '.join(RECIPES)}; auto in the flags below means the recipe's value", "NAME")
    ] = "quick",
    training: Annotated[Recipe, Group(changes=True, leave_out=("network",))],
    json: bool = False,
) -> None:
    """Train a network of an architecture from scratch; the run is kept in a folder and can be resumed."""
    by = replace(RECIPES.given(recipe), **training)  # type: ignore[arg-type]
    with shown_progress() as watch:
        found = verbs.train(arch, task, by, run=replace(run, watch=watch, say=say))
    if not is_first_process():
        return
    if json:
        print_json({"test_accuracy": found.test_accuracy, "out": run.out, **found.settings, "curve": found.curve})
        return
    last = found.curve[-1]
    print(f"accuracy on the training images as augmented: {last['train_accuracy']:.2f} %")
    if "validation_accuracy" in last:
        print(f"accuracy on the {by.validation} validation images: {last['validation_accuracy']:.2f} %")
    print(f"accuracy on the test images: {found.test_accuracy:.2f} %")
    print(f"result: {Path(str(run.out), 'result.json')}")


def finetune(
    model: Annotated[str, Flag(f"{MODEL}, or the folder of a result", "NETWORK|FILE.py:FUNCTION|DIR", positional=True)],
    *,
    run: Kept,
    task: Images,
    input: Shapes = None,
    teacher: Annotated[
        str | None, Flag("a model to distill from: half of the loss is the distance to its output", "MODEL")
    ] = None,
    recipe: Annotated[str, Flag("tune or another; auto in the flags below means the recipe's value", "NAME")] = "tune",
    training: Annotated[
        Recipe, Group(changes=True, leave_out=("network", "channels", "cells", "auxiliary", "drop_path"))
    ],
    json: bool = False,
) -> None:
    """Fine-tune a model, or a result of natpp optimize; the run is kept in a folder and can be resumed."""
    by = replace(RECIPES.given(recipe), **training)  # type: ignore[arg-type]
    module = model if os.path.isdir(model) else load_module(model, input, run.seed)
    guide = None if teacher is None else load_module(teacher, input, run.seed)
    with shown_progress() as watch:
        found = verbs.finetune(module, task, by, teacher=guide, run=replace(run, watch=watch, say=say))
    if not is_first_process():
        return
    if json:
        print_json({"out": run.out, **found.settings, "curve": found.curve})
        return
    print(found)
    print(f"weights: {Path(str(run.out), 'module.safetensors')}")
    more = "" if Path(str(run.out), "module").is_dir() else ", module=original"
    print(f"natpp.restore({str(run.out)!r}{more}) gives the module")


def evaluate(
    model: Annotated[
        str,
        Flag(f"{MODEL}, or the folder of a result or a training", "NETWORK|FILE.py:FUNCTION|DIR", positional=True),
    ],
    *,
    task: Images,
    part: Annotated[
        Literal["val", "test"] | None,
        Flag("the data to measure on; auto: val, or test for a network that natpp train trained on all images"),
    ] = None,
    against: Annotated[
        str | None, Flag("a model or folder to compare with on the same samples, such as the original", "MODEL|DIR")
    ] = None,
    input: Shapes = None,
    run: Annotated[Run, Group(("out", "resume", "seed", "workers", "tensorboard"))] = Run(),
    json: bool = False,
) -> None:
    """Measure the loss and the metrics of a model, a result or a training on held-out data."""
    one = model if os.path.isdir(model) else load_module(model, input)
    other = None if against is None else load_module(against, input)
    found = verbs.evaluate(one, task, part, against=other, run=replace(run, say=say))
    if json:
        print_json(found.to_dict())
    else:
        print(found)


def export(
    model: Annotated[
        str,
        Flag(f"{MODEL}, or the folder of a result or a training", "NETWORK|FILE.py:FUNCTION|DIR", positional=True),
    ],
    *,
    output: Annotated[str, Flag("the ONNX file to write", "FILE", short="-o")],
    input: Shapes = None,
    tolerance: Annotated[float, Flag("most that onnxruntime may differ by, as a share of the largest output")] = 1e-3,
    json: bool = False,
) -> None:
    """Write a model or a result as an ONNX file, and check it in onnxruntime."""
    if os.path.isdir(model):
        found = verbs.export(model, output, None if input is None else make_example(input), tolerance=tolerance)
    else:
        module, example = make_module(model, input)
        found = verbs.export(module, output, example, tolerance=tolerance)
    if json:
        print_json(found.to_dict())
    else:
        print(found)


def report(
    what: Annotated[
        str, Flag("a search's folder, a file that natpp optimize wrote, a saved module", "RUN|RESULT", positional=True)
    ],
    *,
    output: Output = "report.html",
    trained: Annotated[
        tuple[str, ...], Flag("folders of natpp train whose test accuracies are shown", "RUN", several=True)
    ] = (),
    json: bool = False,
) -> None:
    """Write a report: one HTML page that shows a result or a search, with graphs, reasons, costs and curves."""
    check_target(output)
    write_report(what, output, trained=trained)
    if json:
        print_json({"report": output, "bytes": Path(output).stat().st_size})
    else:
        print(f"report: {output}")


def data(
    name: Annotated[str, Flag("the data set", "cifar10|cifar100|fashion-mnist", positional=True)],
    *,
    root: Annotated[str, Flag("folder to put it into", "DIR")],
    source: Annotated[
        str | None,
        Flag(
            "archive or folder that you have: the Python or binary archive, mosaics with labels.json, batches",
            "PATH",
            "from",
        ),
    ] = None,
    json: bool = False,
) -> None:
    """Download a data set, or convert an archive that you have, into one checked file in a folder."""
    from natpp.data.sets import store_images

    file = store_images(name, root, source)
    if json:
        print_json({"data": name, "file": str(file)})
    else:
        print(file)
