"""The page of results, from what the experiments measured, and the table of the README.

`python experiments/page.py` writes `docs/results.md`, and `README.md` between its two marks.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from natpp.files import write_whole

BANDWIDTH = 4800  # gigabytes a second that the memory of an H200 can move, by its data sheet
THRICE = ("sep_conv_3x3", "sep_conv_5x5")  # operations that were to be three times as fast as torch's
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
README = HERE.parent / "README.md"
MARK = "†"
ASKED_ABOVE = ("the inputs", "`constant`", "`random`", "`random best of 10`")
CONTROL = "random to the same budget"
COUNTED = "blocks that go with a dropped branch are counted"
REPLACED = {  # why natpp makes others of these hand-crafted networks now
    "resnet20": COUNTED,
    "resnet56": COUNTED,
    "vgg16": "natpp meets budgets by what the policy prefers, which began with a look at these figures",
    "shufflenet": "convolutions in groups may change too, which began with a look at these figures: before, only those"
    " that see beyond a pixel could, and nearly all of them had to, to save 3 %",
}
START, END = "<!-- results: written by experiments/page.py -->\n", "<!-- end of results -->"
HEAD = """# Results

Written by `experiments/page.py` from `experiments/results/*.json`, which also have settings, seeds, versions and
hardware. The command that makes each table again stands above it. The methods on true scores of NAS-Bench-201 are on
[a page of their own](nasbench201.md), costs of hand-crafted networks [too](zoo.md). [How to reproduce
them](reproduce.md) lists all scripts with what they need.
"""


def page(results: Path = HERE / "results") -> str:
    """All tables for which there are results."""
    parts = [HEAD]
    for name, table in TABLES.items():
        file = results / f"{name}.json"
        if file.exists():
            parts.append(table(json.loads(file.read_text())))
    return "\n".join(parts)


def readme(text: str, results: Path = HERE / "results") -> str:
    """The README with a new table between its marks."""
    before, _, rest = text.partition(START)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"the README has no lines {START.strip()!r} and {END!r}")
    return before + START + "\n" + summary(results) + "\n" + mark + after


def summary(results: Path) -> str:
    """The main figures for which there are results: what was measured, natpp, what stands beside it."""
    rows: list[tuple[str, str, str]] = []
    for name, lines in SUMMARY.items():
        file = results / f"{name}.json"
        if file.exists():
            rows += lines(json.loads(file.read_text()))
    table = ["| measured | natpp | beside it |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(table) + "\n"


def _table_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Methods on the true scores of NAS-Bench-201."""

    def shown(setting: str, method: str) -> str:
        return _figure(found[setting]["found"]["methods"][method]["one_shot"], 2)

    true, strict, few = "val_200", "val_200, strict budget", "val_200, 100 evaluations"
    ours = found[true]["found"]
    cut = found[strict]["found"]["methods"]["nat++"]
    return [
        (
            f"NAS-Bench-201, all scores known: mean test accuracy of {found[true]['config']['holdout']:,} held-out"
            f" inputs ({ours['inputs']:.2f}) after one shot",
            f"**{shown(true, 'nat++')}**, {ours['methods']['nat++']['madds_change']:+.0%} MAdds",
            f"the paper's settings {shown('val_200, preset paper', 'nat++')}, a fixed map {shown(true, 'constant')},"
            f" best of 10 random ones {shown(true, 'random-best-of-10')}, best possible by the reward"
            f" {ours['oracle_by_reward']:.2f}",
        ),
        (
            "the same where neither parameters nor MAdds may rise",
            f"**{shown(strict, 'nat++')}**, {cut['madds_change']:+.0%} MAdds".replace("-", "−"),
            f"a fixed map {shown(strict, 'constant')}, best possible {found[strict]['found']['oracle_by_reward']:.2f}",
        ),
        (
            "the same as the first with 100 scores, the rest predicted",
            f"**{shown(few, 'nat++')}**",
            f"a fixed map {shown(few, 'constant')}, best of 10 random ones {shown(few, 'random-best-of-10')}",
        ),
    ]


def _truth_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """From images to a policy."""
    first = found["runs"]["seed"][0]
    rivals = found["rivals"]
    return [
        (
            f"From CIFAR-10 images to a policy, {_figure(found['evaluations'], 0)} short trainings on one"
            f" {first['machine']['gpu']}: share of what the best possible gains",
            f"**{_figure(found['share_of_oracle'], 3)}** in {_figure(found['seconds'], 0)} s",
            f"a fixed map {_figure(rivals['constant']['share_of_oracle'], 3)}, best of 10 random ones"
            f" {_figure(rivals['random-best-of-10']['share_of_oracle'], 3)} on the same prediction; MAdds as the score"
            f" {_figure(rivals['live MAdds']['share_of_oracle'], 3)}",
        )
    ]


def _module_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """A trained network cut."""
    accuracy = {
        name: _figure(_gathered([run["test_accuracy"] for run in found["pieces"][name]]), 2)
        for name in ("original", "learned", "policy", "random")
    }
    share = _spread([run["share_of_madds"] for run in found["pieces"]["learned"]], 2)
    return [
        (
            f"ResNet-20 trained on {found['plan']['data']} ({accuracy['original']} %), cut to {share} of its MAdds and"
            f" fine-tuned for a fifth of the epochs",
            f"**{accuracy['learned']} %**",
            f"a random cut {accuracy['random']} %, the policy `{_policy_of(found)}` without data"
            f" {accuracy['policy']} %",
        )
    ]


def truth(found: dict[str, Any]) -> str:
    """Short trainings and what was learned from them, beside rivals."""
    runs = found["runs"]
    first = runs["seed"][0]
    settings = first["settings"]
    schedule, network = settings["schedule"], settings["network"]
    phases = {name: _spread([run["phases"].get(name, 0.0) for run in runs["seed"]]) for name in first["phases"]}
    lines = [
        "## From images to a policy: NAS-Bench-201, CIFAR-10",
        "",
        _paragraph(
            "`python experiments/truth_nasbench201.py search --root DIR --runs FOLDER`, then `direct`, `rival --name"
            " supernet`, `rival --name paper` and `judge --table FILE` with the same folder."
        ),
        "",
        _paragraph(
            f"{_count(len(runs['seed']), 'seed')} on {first['machine']['gpu']}, torch {first['machine']['torch']}."
            f" Trainings: {network['cells']} cells a stage, {network['channels']} channels, batch {schedule['batch']},"
            f" {schedule['steps']} steps, learning rate {schedule['learning_rate']} after {schedule['warm_up']} of"
            f" warm-up, {schedule['together']} at a time;"
            f" {first['at_random']} architectures at random and {first['evaluations'] - first['at_random']} chosen by"
            f" the prediction in {_count(settings['search']['predict']['rounds'], 'round')}; then a policy."
            " The clock starts with the images on the device and ends with the closed policy file; warm-up and capture"
            " are in it."
            " The schedule was picked on 64 architectures by `val_200` ([Searches](search.md)); of the settings of"
            " policy and prediction some were picked with a look at the table, and [that page](nasbench201.md) says"
            " which. Neither search nor prediction sees it."
        ),
        "",
        _paragraph(
            f"direct: Spearman of the score with `test_200` over {_spread([run['drawn'] for run in runs['seed']], 0)}"
            " random architectures, those left out that the schedule was picked on. all, equal MAdds, equal ops:"
            " Spearman of the predicted score with `test_200` over the 15,284 architectures with a live path, within"
            " groups of equal live MAdds, within groups with equal counts of every live operation. share: of what the"
            " oracle by `val_200` gains on 2,000 held-out inputs, by one shot. Mean ± sd, of one seed where there is"
            " no sd; – does not apply."
        ),
        "",
        "| | seconds | trained | direct | `val_12` on the same | all | equal MAdds | equal ops | share |",
        "|---|---|---|---|---|---|---|---|---|",
        _row("**short trainings**", found),
    ]
    titles = {
        "constant": "`constant` on the same prediction",
        "random-best-of-10": "`random-best-of-10` on the same prediction",
        "live MAdds": "live MAdds as the score",
        "supernet": "a fast supernet in the same seconds"
        if _as_long(found, "supernet")
        else "a fast supernet in fewer seconds",
        "paper": "preset `paper`, stopped at the same seconds",
    }
    lines += [_row(title, found["rivals"][name]) for name, title in titles.items() if name in found["rivals"]]
    lines += [
        "| *asked for* | ≤ 376 | | ≥ 0.88 | | ≥ 0.85 | ≥ 0.70 | ≥ 0.33 | ≥ 0.95 |",
        "",
        _paragraph(
            f"Seconds by phase: {', '.join(f'{name} {spent}' for name, spent in phases.items())}. Images a second:"
            f" {_spread([_trained_images(run) / run['phases']['training'] for run in runs['seed']], 0)} in training,"
            f" {_spread([run['images_per_second'] for run in runs['seed']], 0)} with all that scoring"
            f" takes{_memory(runs['seed'])}."
        ),
    ]
    notes = {f"Seed {run['seed']}: {run['policy_note']}." for run in runs["seed"] if "policy_note" in run}
    lines += [_paragraph(note) for note in sorted(notes)]
    for name, what in (("supernet", "the supernet took {steps:,} steps"), ("paper", "the preset took {steps:,} steps")):
        for run in runs.get(name, []):
            lines.append(f"In {run['seconds']:.0f} s {what.format(**run)} of its weights{_memory([run])}.")
    lines += [
        "",
        _paragraph(
            "What would come next: other sizes of groups, since so many side by side use a part of the memory's"
            " bandwidth only ([their speed](#speed-of-trainings)); then fewer and larger launches, such as both"
            " convolutions of a node in one, and capturing a group of trainings while the one before it still runs."
        ),
    ]
    return "\n".join(lines) + "\n"


def _trained_images(run: dict[str, Any]) -> float:
    """How many images all trainings of a run saw."""
    schedule = run["settings"]["schedule"]
    return float(run["evaluations"] * schedule["steps"] * schedule["batch"])


def _as_long(found: dict[str, Any], rival: str) -> bool:
    """Whether a rival had the seconds of the search, but for a twentieth."""
    seconds = found["rivals"].get(rival, {}).get("seconds")
    return seconds is None or seconds["mean"] >= 0.95 * found["seconds"]["mean"]


def schedules(found: dict[str, Any]) -> str:
    """How the schedule of short trainings was picked."""
    machine = next(iter(found.values()))["machine"]
    picked = next((name for name, one in found.items() if one["picked"]), "none of them")
    lines = [
        "## The schedule of short trainings",
        "",
        _paragraph(
            "`python experiments/schedules_nasbench201.py --root DIR --table FILE`. Schedules on one named set of 64"
            " architectures (the script says which), by agreement with `val_200`: Spearman, and in brackets its part"
            " given live MAdds. Rows from the second on differ from the first in what they name. The loss is that of"
            " the validation images, that of the last training steps, or the mean of both. Searches use"
            f" *{picked}*, and both losses. On {machine['gpu']}, torch {machine['torch']}."
        ),
        "",
        "| schedule | validation loss | training loss | both | mean accuracy | seconds for 64 |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        figures = " | ".join(
            f"{of['spearman']:.3f} ({of['partial_given_madds']:.3f})" for of in one["agreement"].values()
        )
        lines.append(f"| {name} | {figures} | {one['mean_accuracy']:.1f} | {one['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def quick(found: dict[str, Any]) -> str:
    """Two trainings from scratch."""
    lines = [
        "## Training from scratch: recipe `quick`, CIFAR-10",
        "",
        "`python experiments/quick_cifar10.py --root DIR --table FILE`. All 50,000 training images; the test images",
        "are read once, at the end; one seed.",
        "",
        "| architecture | epochs | cells | channels | test accuracy | training accuracy by epoch | seconds | images/s |"
        " elsewhere |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        curve = " ".join(f"{row['train_accuracy']:.0f}" for row in one["curve"])
        where = one["network"]
        said = ", ".join(
            f"{what}: {value:.2f}" if isinstance(value, float) else f"{what}: {value['CIFAR-10']:.2f}"
            for what, value in one["elsewhere"].items()
        )
        lines.append(
            f"| {name} | {one['recipe']['epochs']} | {where['cells']} | {where['channels']} |"
            f" {one['test_accuracy']:.2f} | {curve} | {one['seconds']:.0f} | {one['images_per_second']:,.0f} | {said} |"
        )
    machine = next(iter(found.values()))["machine"]
    return "\n".join([*lines, "", f"On {machine['gpu']}, torch {machine['torch']}."]) + "\n"


def speed(found: dict[str, Any]) -> str:
    """Speed of trainings."""
    lines = [
        "## Speed of trainings",
        "",
        "`python benchmarks/training.py --json experiments/results/speed.json`, random images already on the device,",
        f"{found['machine']['gpu']}, torch {found['machine']['torch']}.",
        "",
        "| `natpp train`, DARTS, 36 channels, 20 cells | images/s | a plain NCHW loop (TF32) | ratio | GiB |",
        "|---|---|---|---|---|",
    ]
    for one in found["train"]:
        lines.append(
            f"| batch {one['batch']} | {one['natpp_images_per_second']:,.0f} | {one['plain_images_per_second']:,.0f} |"
            f" {one['ratio']:.2f} | {one['reserved_gib']:.1f} |"
        )
    lines += ["", "| a supernet's step, 20 architectures of 32 images | ms |", "|---|---|"]
    lines += [f"| {one['cells_a_stage']} cells a stage | {one['milliseconds']:.1f} |" for one in found["supernet"]]
    lines += [
        "",
        "| short trainings, batch 128 | ms an architecture step | images/s | bytes moved, GB/s | of 4.8 TB/s |"
        " seconds besides, a group | GiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found["short"]:
        lines.append(
            f"| {one['together']} side by side | {one['milliseconds_an_architecture_step']:.2f} |"
            f" {one['images_per_second']:,.0f} | {one['gigabytes_per_second']:,.0f} |"
            f" {one['gigabytes_per_second'] / BANDWIDTH:.0%} | {one['seconds_besides']:.1f} |"
            f" {one['reserved_gib']:.1f} |"
        )
    lines += [
        "",
        _paragraph(
            "Bytes moved: what the operations of a step read and write, each tensor once for each operation. Seconds"
            " besides are those of building, trying once, capturing and judging a group. GiB: of the device's memory,"
            " with what CUDA graphs keep."
        ),
    ]
    return "\n".join(lines) + "\n"


def kernels(found: dict[str, Any]) -> str:
    """Operations, short trainings and a supernet's step in natpp's kernels, beside torch's."""
    lines = [
        "## Kernels",
        "",
        _paragraph(
            "`python benchmarks/separable.py --json experiments/results/kernels.json`, bf16, random images already on "
            f"the device, {_device(found['machine'])}. Forward and backward inside a CUDA graph; torch's own kernels "
            "in the same run, in the faster of contiguous and channels-last memory with `cudnn.benchmark`."
        ),
        "",
        "| operation | images x channels x size | stride | us | torch's | ratio | forward alone | of 4.8 TB/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found.get("operations", []):
        images, channels, height, width = one["shape"]
        torchs = min(way["microseconds"] for name, way in one["torch"].items() if name != "compiled")
        lines.append(
            f"| `{one['op']}` | {images} x {channels} x {height} x {width} | {one['stride']} "
            f"| {one['natpp']['microseconds']:.0f} | {torchs:.0f} | {one['ratio']:.2f} | {one['forward_ratio']:.2f} "
            f"| {one['share_of_bandwidth']:.0%} |"
        )
    asked = [one["ratio"] for one in found.get("operations", []) if one["op"] in THRICE and one["stride"] == 1]
    if asked and min(asked) < 3:
        lines += [
            "",
            _paragraph(
                f"For `sep_conv` of 3x3 and 5x5 a ratio of 3 was asked for; at stride 1 it is {_spread(asked, 2)}. By"
                " themselves they are a chain of short launches that leave most of the bandwidth unused; whole networks"
                " side by side gain more (below). What would get there is both halves of the operation in one launch"
                " each way, with the batch norm between them."
            ),
        ]
    compiled = [
        f"{one['torch']['compiled']['microseconds']:.0f} us for `{one['op']}` at {'x'.join(map(str, one['shape']))}"
        for one in found.get("operations", [])
        if "microseconds" in one["torch"].get("compiled", {})
    ]
    if compiled:
        lines += ["", _paragraph(f"`torch.compile` of the same takes {', '.join(compiled)}.")]
    if "short" in found:
        short = found["short"]
        each = {name: short[name]["milliseconds_an_architecture_step"] for name in ("natpp", "plain")}
        lines += [
            "",
            _paragraph(
                f"Short trainings of `darts`, {short['cells']} cells, {short['channels']} channels, batch "
                f"{short['batch']}, {short['together']} side by side: {each['natpp']:.2f} ms an architecture step, "
                f"{each['plain']:.2f} with torch's kernels ({short['ratio']:.1f} times as "
                f"long{_memory([short])}). Asked for: at most 2."
            ),
        ]
    if "supernet" in found:
        step = found["supernet"]
        lines += [
            "",
            _paragraph(
                f"A supernet's weight step, thirteen operations, {step['architectures']} architectures of "
                f"{step['batch']} images: {step['natpp']['milliseconds_a_step']:.0f} ms, "
                f"{step['plain']['milliseconds_a_step']:.0f} with torch's kernels; the capture of a graph for every"
                f" {step['natpp']['steps_a_graph']} steps is in it, a replay takes"
                f" {step['natpp']['milliseconds_a_replay']:.0f}. Asked for: at most 127."
            ),
        ]
    return "\n".join(lines) + "\n"


def fx_models(found: dict[str, Any]) -> str:
    """Models of other libraries, optimized."""
    rows = [row for row in found["models"].values() if row["state"] not in ("missing", "broken")]
    traced = [row for row in rows if row["state"] == "traced"]
    machine = found["machine"]
    changed = sum(row["changes"] > 0 for row in traced)
    cheaper = sum(row["madds_after"] < row["madds"] for row in traced)
    cut = sum(row["cut"] is not None for row in traced)
    lines = [
        "## Models of torchvision and timm",
        "",
        "`python experiments/fx_models.py`, on a CPU, random weights.",
        "",
        _paragraph(
            f"{len(rows)} models, {len(traced)} of them traced, {sum(row['by_export'] for row in traced)} of these by"
            f" `torch.export`; {changed} changed by the policy `{found['policy']}`, which saves MAdds"
            f" in {cheaper}: where nothing stood it may put a skip, which costs nothing. With nothing changed the"
            f" outputs of {sum(row['bit_equal'] for row in traced)} are equal to the bit; no result costs more:"
            f" {sum(row['no_dearer'] for row in traced)}; same shapes: {sum(row['same_shapes'] for row in traced)};"
            f" saved and restored with equal outputs: {sum(row['restored'] for row in traced)}; cut to 0.6 of their"
            f" MAdds on request: {cut}. torch {machine['torch']}, torchvision {machine['torchvision']},"
            f" timm {machine['timm']}, {machine['threads']} threads."
        ),
        "",
        _paragraph(
            "Sites: operations that may be replaced; changes may also be of places where nothing stood. Seconds: trace,"
            " transform, rewrite, and the measuring of costs. 0.6: the share of MAdds that is left when 0.6 are asked"
            " for; where that is out of reach, an error says what is nearest, here after ≥."
        ),
        "",
        "| model | sites | changes | M MAdds | after | 0.6 | seconds | unchanged is equal | restored is equal |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in traced:
        left = f"≥ {_nearest(row['not_cut'])}" if row["cut"] is None else f"{row['cut']:.2f}"
        equal = ("yes" if row[name] else "no" for name in ("bit_equal", "restored"))
        lines.append(
            f"| `{row['model']}` | {row['sites']} | {row['changes']} | {row['madds'] / 1e6:,.1f} |"
            f" {row['madds_after'] / 1e6:,.1f} | {left} | {row['seconds']:.1f} | {' | '.join(equal)} |"
        )
    others = [row for row in rows if row["state"] != "traced"]
    if others:
        lines += ["", "Not traced:", ""]
        lines += [f"- `{row['model']}` ({row['state']}): {row['reason']}" for row in others]
    return "\n".join(lines) + "\n"


def _nearest(reason: str) -> str:
    """The share that is left at least, of what is said where a budget is out of reach."""
    found = re.search(r"\((\d\.\d+) of the module's\)", reason)
    return f"{float(found[1]):.2f}" if found else "1"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _row(title: str, figures: dict[str, Any]) -> str:
    names = (
        ("seconds", 0),
        ("evaluations", 0),
        ("direct_spearman", 3),
        ("direct_spearman_val_12", 3),
        ("spearman", 3),
        ("within_equal_madds", 3),
        ("within_equal_ops", 3),
        ("share_of_oracle", 3),
    )
    cells = [_figure(figures[name], digits) for name, digits in names]
    return f"| {title} | " + " | ".join(cells) + " |"


def _figure(found: dict[str, float] | None, digits: int) -> str:
    if found is None:
        return "–"
    spread = f" ± {found['sd']:.{digits}f}" if found["sd"] else ""
    return f"{found['mean']:,.{digits}f}{spread}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _spread(values: list[float], digits: int = 1) -> str:
    low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _policy_of(found: dict[str, Any]) -> str:
    """The policy that shipped when a network was cut; the first one was learned on digits."""
    return str(found["pieces"]["policy"][0].get("policy", "digits"))


def resnet20(found: dict[str, Any]) -> str:
    """A trained network cut and fine-tuned, beside rivals."""
    plan, pieces = found["plan"], found["pieces"]
    digits = plan["data"] == "digits"
    titles = {
        "original": f"ResNet-20, {plan['epochs']} epochs",
        "learned": "learned on it and its data",
        "policy": f"the policy `{_policy_of(found)}`, no data",
        "random": "a random transformation",
        "scratch": "the learned one from fresh weights",
        "long": f"the same for {plan['epochs']} epochs",
    }
    lines = [
        f"## A trained network cut to 0.6 of its multiply-adds: ResNet-20, {plan['data']}",
        "",
        _paragraph(
            f"`python experiments/resnet20.py --runs FOLDER {'--digits' if digits else '--root DIR'}`."
            " What is cut inherits weights and is fine-tuned"
            f" for {plan['tuned_epochs']} epochs, a fifth of the original's. {plan['validation']:,} training images are"
            " set aside for choices; test accuracy in per cent, read once, mean ± sd over seeds."
            + (" All fine-tunings follow the original beside the labels." if plan.get("taught") else "")
            + f" Learning scored {plan['tune']['evaluations']} candidates by fine-tunings of"
            f" {plan['schedule']['steps']} steps" + _finals(plan["tune"]) + "."
        ),
        "",
        "| | seeds | test accuracy | of the MAdds | of the parameters | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, title in titles.items():
        runs = pieces.get(name, [])
        if runs:
            shares = [
                _spread([run[share] for run in runs], 2) if share in runs[0] else "–"
                for share in ("share_of_madds", "share_of_params")
            ]
            accuracy = _figure(_gathered([run["test_accuracy"] for run in runs]), 2)
            seconds = _spread([run["seconds"] + run.get("learning_seconds", 0.0) for run in runs], 0)
            lines.append(f"| {title} | {len(runs)} | {accuracy} | {' | '.join(shares)} | {seconds} |")
    lines += ["", *_curves({titles[name]: pieces[name] for name in titles if name in pieces}, plan["tuned_epochs"])]
    if "agreement" in pieces:
        lines += ["", _paragraph(_agreement(pieces["agreement"], plan))]
    machine = found["machine"]
    return "\n".join([*lines, "", f"On {machine['gpu'] or machine['processor']}, torch {machine['torch']}."]) + "\n"


def _finals(tune: dict[str, Any]) -> str:
    if tune.get("finalists", 0) < 2:
        return ""
    return f", and the {tune['finalists']} best of them by {tune['longer']} times as many"


def _curves(runs: dict[str, list[dict[str, Any]]], epochs: int) -> list[str]:
    """Validation accuracy epoch by epoch, means over seeds."""
    head = " | ".join(str(epoch) for epoch in range(1, epochs + 1))
    lines = [f"| validation accuracy after epoch | {head} |", "|---|" + "---|" * epochs]
    for title, found in runs.items():
        curves = [[row["validation_accuracy"] for row in run["curve"][:epochs]] for run in found]
        means = [sum(values) / len(values) for values in zip(*curves, strict=True)]
        lines.append(f"| {title} | " + " | ".join(f"{value:.1f}" for value in means) + " |")
    return lines


def _agreement(runs: list[dict[str, Any]], plan: dict[str, Any]) -> str:
    figures = {
        name: _figure(_gathered([run["spearman"][name] for run in runs]), 2) for name in ("short", "supernet", "madds")
    }
    seconds = {name: _spread([run["seconds"][name] for run in runs], 0) for name in ("short", "supernet")}
    return (
        f"How far scores agree with the validation loss after a fine-tuning of {plan['compared_epochs']} epochs, over"
        f" {len(runs[0]['scores']['full'])} transformations drawn at random within the budget (Spearman,"
        f" {_count(len(runs), 'seed')}): short fine-tunings {figures['short']} ({seconds['short']} s), a supernet with"
        f" as many steps in all {figures['supernet']} ({seconds['supernet']} s), multiply-adds {figures['madds']}."
    )


def _gathered(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else 0.0}


def truth_cells(found: dict[str, Any]) -> str:
    """The space of cells: longer trainings, schedules and models that were tried, and the search that was judged."""
    longer = found["longer"]
    recipe, groups = longer["recipe"], longer["groups"]
    lines = [
        "## From images to a policy: the thirteen-operation space, CIFAR-10",
        "",
        _paragraph(
            "`python experiments/truth_cells.py train --root DIR --runs FOLDER`, then `schedules`, `search`, `rival"
            " --name supernet`, `rival --name paper`, `experiments/policies.py learn` and `experiments/worth.py train`"
            " (below), `direct` and `judge` with the same folder."
        ),
        "",
        _paragraph(
            f"{_so_far(found['cells'], longer['asked'])} trained from scratch, {recipe['config']['steps']:,} steps of"
            f" {recipe['config']['batch']} images with a full cosine, {recipe['cells']} cells, {recipe['channels']}"
            f" channels, {longer['images']:,} images; accuracy on the validation images, with statistics of the batch."
            f" {found['trained_seconds']:,.0f} s of {_device(longer['machine'])}{_peak(groups)}. A third of each kind"
            " was set aside: no choice of the first round was made by it."
        ),
    ]
    if found["schedules"]:
        lines += ["", *_cell_schedules(found)]
    if found.get("models"):
        lines += [
            "",
            _paragraph(
                "Value models on the same cells, each left out in all forms (nine folds): `short` is fitted on short"
                " trainings, `longer` on the longer ones, `mixture` on the longer ones with `short` as what to expect."
                " With cost: before it looks at the graph, `short` expects what those of like cost have."
            ),
            "",
            "| value model | Spearman | given MAdds | of changes |",
            "|---|---|---|---|",
        ]
        for name, one in found["models"].items():
            lines.append(f"| `{name}` | {_three(one)} |")
    for search in found.get("searches", []):
        lines += ["", _paragraph(_cells_search(search))]
    if "spearman" in found:
        lines += ["", *_judged_cells(found)]
    return "\n".join(lines) + "\n"


def _so_far(trained: int, asked: int) -> str:
    """How many cells, and of how many, where some are missing."""
    return _count(trained, "cell") if trained == asked else f"So far {trained} of {_count(asked, 'cell')}"


def _cell_schedules(found: dict[str, Any]) -> list[str]:
    pick = found["pick"]
    lines = [
        _paragraph(
            "Schedules of short trainings on cells that are not set aside, all of them that were trained for longer by"
            " then: Spearman with the longer training, its part given live MAdds, and Spearman of the differences"
            " between a cell and its change. The score is minus the loss of the validation images, of the last training"
            f" steps, or the mean of both. Searches use *{pick['schedule']}*, loss: {pick['losses']} (picked before the"
            " first search, by the highest mean of the first two figures)."
        ),
        "",
        "| schedule | cells | validation loss | training loss | both | accuracy | seconds each |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found["schedules"].items():
        figures = " | ".join(_three(one[losses], " / ") for losses in ("validation", "training", "both"))
        lines.append(
            f"| {name} | {one['trained']} | {figures} | {one['mean_accuracy']:.1f} | {one['seconds_each']:.2f} |"
        )
    return lines


def _cells_search(search: dict[str, Any]) -> str:
    """How long a search took, and for what."""
    phases = ", ".join(f"{name} {seconds:.0f}" for name, seconds in search["phases"].items())
    return (
        f"A search, seed {search['seed']}: {search['evaluations']} short trainings in {search['seconds']:.0f} s on"
        f" {_device(search['machine'])}, from images on the device to the closed policy file ({phases})"
        f"{_memory([search])}." + (f" {search['policy_note']}." if "policy_note" in search else "")
    )


def _judged_cells(found: dict[str, Any]) -> list[str]:
    lines = [
        _paragraph(
            f"Judged by the longer training of {found['judged']} cells, those set aside and the first round below, and"
            f" of {found['pairs']} pairs of an input and its change; 95 % bootstrap intervals. direct: the score of the"
            f" cell itself; the others: what is predicted, from all scores that are not set aside (value model"
            f" `{found['model']}`, with the seconds of all their trainings), or by a search alone. Last: what the"
            " policy that was learned so does to `darts`, points of accuracy, mean of three seeds."
        ),
        "",
        "| | seconds | direct | predicted | given MAdds | of changes | `darts` |",
        "|---|---|---|---|---|---|---|",
        _cells_row("**short trainings and prediction**", found),
        *(
            _cells_row(f"the search with seed {one['seed']} alone", one)
            for one in found["searches"]
            if "spearman" in one
        ),
    ]
    titles = {"supernet": "a supernet, planned for the search's seconds", "paper": "preset `paper`, stopped at them"}
    for name, one in found["rivals"].items():
        lines.append(_cells_row(titles.get(name, name), one))
    lines.append("| *asked for* | ≤ 376 a search | | ≥ 0.75 | ≥ 0.5 | | ≥ −0.3 |")
    steps = {"supernet": "the supernet's weights took {} steps", "paper": "those of the preset {}"}
    spent = [
        f"in {one['seconds']:.0f} s " + steps[name].format(f"{one['steps']:,}")
        for name, one in found["rivals"].items()
        if name in steps
    ]
    if spent:
        lines += ["", _paragraph(f"{', '.join(spent).capitalize()}.")]
    return lines


def _cells_row(title: str, one: dict[str, Any]) -> str:
    names = ("direct_spearman", "spearman", "partial_given_madds", "paired_spearman")
    seconds = f"{one['seconds']:.0f}" if "seconds" in one else "–"
    change = _signed(one["darts_change"]) if "darts_change" in one else "–"
    return f"| {title} | {seconds} | " + " | ".join(_with_interval(one[name]) for name in names) + f" | {change} |"


def policies(found: dict[str, Any]) -> str:
    """What policies that ship learned, by the value model."""
    lines = [
        "## The policies that ship",
        "",
        _paragraph(
            "`python experiments/policies.py learn --runs FOLDER --round NUMBER` and `ship`, with the folder of"
            " `truth_cells.py`. An improvement counts less a part of its standard deviations, and a saving counts a"
            " little. On fresh inputs, by the value model: expected improvement (1 is a standard deviation of all"
            " accuracies), the same less the doubt, edges that change, MAdds."
        ),
    ]
    for name, one in found.items():
        lines += ["", *_shipped(name, one)]
    return "\n".join(lines) + "\n"


def _shipped(title: str, found: dict[str, Any]) -> list[str]:
    """The policies of a name, and how much caution they might have learned with."""
    losses = f"; training losses of {found['loss_scores']}" if found.get("loss_scores") else ""
    lines = [
        _paragraph(
            f"**`{title}`**, round {found['round']}: value model `{found['model']}` on {found['cheap_scores']} short"
            f" and {found['dear_scores']} longer trainings{losses}; caution {found['caution']}, and all living MAdds"
            f" are worth {' and '.join(f'{price} (`{rule}`)' for rule, price in found['prices'].items())} standard"
            f" deviations of accuracies; {found['pool']:,} inputs, {found['learn']['steps']:,} steps."
        ),
        "",
        "| | improvement | less the doubt | edges changed | MAdds | cells of the zoo changed | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for rule, one in found["policies"].items():
        for name, figures in one["fresh_inputs"].items():
            ours = name == "policy"
            whose = f"`{rule}`" if ours else f"{name}, `{rule}`"
            zoo = f"{sum(row['changes'] > 0 for row in one['zoo'].values())} of {len(one['zoo'])}" if ours else ""
            lines.append(
                f"| {whose} | {_signed(figures['expected_improvement'])} |"
                f" {_signed(figures['expected_improvement_less_doubt'])} | {figures['edges_changed']:.0%} |"
                f" {_percent(figures['madds_change'])} | {zoo} | {format(one['seconds'], '.0f') if ours else ''} |"
            )
    lines += [
        "",
        _paragraph(
            "How much caution: what climbing finds for fresh inputs under `nat++`, where it is kept only if the value"
            " model is that sure of it."
        ),
        "",
        "| caution | improvement | inputs changed | edges changed | MAdds |",
        "|---|---|---|---|---|",
    ]
    for caution, figures in found["cautions"].items():
        lines.append(
            f"| {caution} | {_signed(figures['expected_improvement'])} | {figures['inputs_changed']:.0%} |"
            f" {figures['edges_changed']:.0%} | {_percent(figures['madds_change'])} |"
        )
    return lines


def crossed(found: dict[str, Any]) -> str:
    """Policies that learned on half of what is known, judged by the other half."""
    lines = [
        "## What a policy should learn on",
        "",
        _paragraph(
            "`python experiments/crossed.py --runs FOLDER --round NUMBER`, with the folder of `truth_cells.py`. A"
            " policy finds what its value model is wrong about, so what it expects of its own changes says little. Here"
            " it learns on half of the longer trainings that there are before a round, whole families together, and"
            " value models that were fitted on the other half say what its changes are worth. Of `nat++` and, after the"
            " stroke, of a fixed map that was fitted with as much caution, below also of maps that were fitted without"
            " any: improvement of fresh random cells in standard deviations, mean of both halves. As in a round: by its"
            " value model, caution and price. Beside cost: the value model sees what flows through a graph and what it"
            " costs at once. `places`: it sees where operations stand and how far they see, walks, and costs. `losses`"
            " sees the same and is fitted on training losses; `losses by flow` sees flow, walks and costs. `together`:"
            " the mean of these three and of `mixture beside cost`."
        ),
    ]
    for number, one in found["rounds"].items():
        lines += ["", *_crossed_round(number, one)]
    return "\n".join(lines) + "\n"


def _crossed_round(number: str, found: dict[str, Any]) -> list[str]:
    learned, settings = found["learn"], found["settings"]
    judges = list(next(iter(settings.values()))["constant"]["judges"]) if settings else []
    lines = [
        _paragraph(
            f"**Before round {number}**: {' and '.join(map(str, found['dear_scores']))} longer trainings"
            + (f" ({' and '.join(map(str, found['loss_scores']))} with losses)" if "loss_scores" in found else "")
            + f", and {found['cheap_scores']} short ones that `mixture` knows too; {found['fresh']} fresh cells;"
            f" {learned['steps']} steps of {learned['inputs']} inputs and {learned['samples']} samples with one seed,"
            " for longer as in round 2."
        ),
        "",
        "| | caution, price | own | " + " | ".join(f"by `{name}`" for name in judges) + " | MAdds |",
        "|---" * (4 + len(judges)) + "|",
    ]
    for name, one in settings.items():
        some = [one[kind] for kind in ("policy", "constant") if kind in one]
        figures = [[each["own"] for each in some], *([each["judges"][judge] for each in some] for judge in judges)]
        title, by = (name, f"{one['caution']}, {one['price']}") if "policy" in one else ("fixed map", "–")
        lines.append(
            f"| {title}: `{one['model']}` | {by} | "
            + " | ".join(" / ".join(_signed(value) for value in values) for values in figures)
            + f" | {' / '.join(_percent(each['madds_change']) for each in some)} |"
        )
    return lines


def losses(found: dict[str, Any]) -> str:
    """What a training tells, and how far value models know it."""
    seeds, fresh = found["seeds"], found["fresh"]
    lines = [
        "## What a training tells: accuracy and training loss",
        "",
        _paragraph(
            "`python experiments/losses.py --runs FOLDER`, with the folder of `truth_cells.py`. Over"
            f" {seeds['networks']} networks of the longer recipe, validation accuracies differ by a standard deviation"
            f" of {seeds['accuracy_sd']:.2f} points, from seed to seed (of {seeds['with_several_seeds']} of them) by"
            f" {seeds['accuracy_by_seeds']:.2f}. Training losses at the end differ by {seeds['loss_sd']:.4f}, from seed"
            f" to seed by {seeds['loss_by_seeds']:.4f}. Where the loss is known,"
            f" {seeds['left_of_accuracy']:.2f} points are left of the accuracies;"
            f" seeds alone would leave {seeds['left_by_seeds_alone']:.2f}. So the loss of one training, worth"
            f" {abs(seeds['points_per_loss']) / 100:.2f} points a hundredth, says more of what an architecture reaches"
            " than its accuracy."
        ),
        "",
        _paragraph(
            f"The first table of [random architectures](#random-architectures-cifar-10) by it: {fresh['inputs']} inputs"
            " and what learned methods made of them, which no value model here was fitted on (what `places` and"
            " `losses` see was picked with a look at them, though). Correlation of value models"
            f" with losses, less the means of each input's; all are fitted on the same {fresh['trainings']} longer"
            " trainings, the first, which that table's policies had learned on, and the last on short ones too"
            " ([what they see](#what-a-policy-should-learn-on)). 95 % intervals by bootstrap over inputs."
        ),
        "",
        "| value model | correlation |",
        "|---|---|",
        *(f"| `{name}` | {_with_interval(one)} |" for name, one in fresh["agreement"].items()),
        "",
        "Differences of that table by training losses, in points of accuracy:",
        "",
        *_differences(fresh["differences"]),
    ]
    return "\n".join(lines) + "\n"


def worth(found: dict[str, Any]) -> str:
    """Policies on fresh cells, and on published ones."""
    lines = [
        "## What the policies are worth: fresh random cells, and published ones, CIFAR-10",
        "",
        _paragraph(
            "`python experiments/worth.py train --root DIR --runs FOLDER` and `judge`, with the folder of"
            " `truth_cells.py`. The random cells of a round are new to its policies; those of a later round know"
            " what was trained before. Published cells were among what all learned from."
        ),
    ]
    for number, one in found["rounds"].items():
        if one.get("methods"):
            agreement = one["agreement"]
            lines += [
                "",
                _paragraph(
                    f"**Round {number}.** {one['inputs']} of {one['asked']} random cells and what becomes of them,"
                    f" trained by the longer recipe ({_device(one['machine'])}{_peak(one['groups'])}); one score for"
                    " all, strict budget. Validation accuracy, mean ± sd; the paired difference to the input with its"
                    f" 95 % bootstrap interval; live costs. The value model (`{agreement['model']}`,"
                    f" {agreement['dear_scores']} longer trainings) agrees with them by a Spearman of"
                    f" {_with_interval(agreement['spearman'])}, with differences to inputs by"
                    f" {_with_interval(agreement['paired_spearman'])}: that tells methods apart. Among what `nat++` and"
                    f" the fixed map changed it is {_with_interval(agreement['paired_of_learned'])}."
                ),
                "",
                *_methods_table(one, "accuracy", "validation accuracy"),
            ]
        if one.get("harm"):
            lines += [
                "",
                f"Round {number}: published cells by the same recipe; ours is one shot of `nat++`. Asked for: at most"
                " 0.3 below the original.",
                "",
                *_originals_table(one["harm"], "validation accuracy"),
            ]
    return "\n".join(lines) + "\n"


def finals(found: dict[str, Any]) -> str:
    """How many of ten should meet in a final, by simulation."""
    best = " | ".join("best of 10 by the score" if one == 1 else f"final of {one}" for one in found["finalists"])
    lines = [
        "## How many of ten meet in a final",
        "",
        _paragraph(
            "`python experiments/finals.py --runs FOLDER`, with the folder of `truth_cells.py`: simulated, no network"
            f" is trained. {found['inputs']} fresh random cells, the policy of the second table of [random"
            f" architectures](#random-architectures-cifar-10), {found['draws']} draws each of what value models hold"
            " possible; those fitted on training losses, and after the stroke those fitted on accuracies. A short"
            f" training shows it with a noise of {found['short']['noise']:.2f} deviations, as in cells that have a"
            " longer one too, and the ten are ordered by it and the value model as in that table. Improvement over the"
            " inputs in standard deviations. Distinct: of ten, how many compute different things."
        ),
        "",
        f"| temperature of samples | distinct | fixed map | one shot | a sample | {best} |",
        "|---|---|---|---|---|" + "---|" * len(found["finalists"]),
    ]
    for temperature, one in found["temperatures"].items():
        truths = one["losses"], one["accuracies"]
        rows = [[some["map"], some["one_shot"], some["sample"], *some["best"]] for some in truths]
        figures = " | ".join(f"{_signed(loss)} / {_signed(accuracy)}" for loss, accuracy in zip(*rows, strict=True))
        lines.append(f"| {temperature} | {one['distinct']:.1f} | {figures} |")
    if found["shown"]:
        told = "; ".join(
            f"among those of `{method}` the first by the score won {one['first_won']} of {one['finals']}, and the"
            f" winner's loss is {one['loss_below_first']:.4f} below that of the first"
            for method, one in found["shown"].items()
        )
        lines += ["", _paragraph(f"What the finals of that table showed, by training losses: {told}.")]
    return "\n".join(lines) + "\n"


def table_cells(found: dict[str, Any]) -> str:
    """Published cells, the authors' results, and ours."""
    lines = [
        "## NAS cells, CIFAR-10",
        "",
        _paragraph(
            "`python experiments/table_cells.py train --root DIR --runs FOLDER` and `judge`, with the folder of"
            " `truth_cells.py`. Same recipe, width and depth for everyone. Test accuracy, read once, mean ± sd over"
            " seeds; changes are over the seeds that both have. Costs are live ones: of what reaches the output. Last"
            " column: what the paper has, after its own longer training, at its own sizes. The published cells, and the"
            " authors' NAT++ results, are among those whose trainings our policies learned from; ours save little or"
            " nothing here, so differences of their size are also what seeds do."
        ),
    ]
    for number, one in found["rounds"].items():
        recipe = one["recipe"]
        lines += [
            "",
            f"### NAS cells, round {number}",
            "",
            _paragraph(
                f"Ours is one shot of the {_policies(one)}, strict budget. {one['trainings']} trainings, those of"
                f" earlier rounds among them, of {_epochs(one)} epochs with a full cosine, {recipe['cells']} cells,"
                f" {recipe['channels']} channels, all {one['images']:,} training images; new ones took"
                f" {sum(group['seconds'] for group in one['groups']):,.0f} s of {_device(one['machine'])}. Latency of"
                f" one image on {one['latency_on']}."
            ),
            "",
            *_originals_table(one["cells"], "test accuracy", found["paper"]),
        ]
    return "\n".join([*lines, *_of_two_sizes(found["paper"])]) + "\n"


def table_handcrafted(found: dict[str, Any]) -> str:
    """Hand-crafted networks, what both rules make of them, and a random control."""
    earlier = len(found["earlier"])
    replaced = f" and {earlier} that {'was' if earlier == 1 else 'were'} replaced" if earlier else ""
    lines = [
        "## Hand-crafted networks, CIFAR-10",
        "",
        _paragraph(
            "`python experiments/table_handcrafted.py train --root DIR --runs FOLDER` and `judge`, with the folder of"
            f" `truth_cells.py`. {found['trainings']} of {found['asked']} trainings{replaced}, {_epochs(found)} epochs"
            f" with a full cosine from fresh weights, all {found['images']:,} training images,"
            f" {found['seconds']:,.0f} s of {_device(found['machine'])}. Test accuracy, read once for each training,"
            f" mean ± sd over seeds; latency of one image on {found['latency_on']}, the least of some medians. Cut to"
            f" {found['share']:g} of the MAdds, or to what lies next below it, by the {_policies(found)}, without data,"
            " and at random, anew for each seed (its costs are means). Last column: what the paper has, after its own"
            f" longer training. {_seen_before()}"
        ),
        "",
        *_originals_table(found["models"], "test accuracy", found["paper"]),
        "",
        _paragraph(
            "Mean change: "
            + ", ".join(f"{kind} {_mean_change(found['models'], kind)}" for kind in ("nat", "nat++", CONTROL))
            + ". "
            + _over_random(found["over_random"])
            + _twins(found["models"])
        ),
        *_replaced(found["earlier"]),
    ]
    return "\n".join(lines) + "\n"


def _mean_change(found: dict[str, Any], kind: str) -> str:
    """Points of accuracy that a kind of change is worth, in the mean over the originals that it was trained on."""
    some = [kinds[kind]["change"] for kinds in found.values() if kind in kinds]
    return _signed(statistics.fmean(some)) if some else "–"


def _mean_madds(found: dict[str, Any], kind: str) -> str:
    """The same of multiply-adds."""
    some = [kinds[kind]["live_madds"] / kinds["input"]["live_madds"] - 1 for kinds in found.values() if kind in kinds]
    return _percent(statistics.fmean(some)) if some else "–"


def _over_random(found: dict[str, Any]) -> str:
    """How sure it is that rules do better than a random change."""
    told = ", ".join(
        f"{rule} {_with_interval(one, signed=True)}, {one['trainings_above']} of {one['trainings']}"
        for rule, one in found.items()
    )
    unsure = [rule for rule, one in found.items() if one["low"] <= 0 <= one["high"]]
    verdict = f" This table does not tell {' and '.join(unsure)} from random changes." if unsure else ""
    return (
        "Over the random change, in the mean over networks with its 95 % bootstrap interval over them, and how many"
        f" trainings are above that of the same seed: {told}.{verdict}"
    )


def _twins(found: dict[str, Any]) -> str:
    """Networks of which both rules make the same."""
    same = [
        f"`{name}`"
        for name, kinds in found.items()
        if {"nat", "nat++"} <= kinds.keys()
        and all(kinds["nat"][key] == kinds["nat++"][key] for key in ("live_params", "live_madds", "accuracy"))
    ]
    return f" Of {', '.join(same)} both rules make what computes the same." if same else ""


def _seen_before() -> str:
    """Which hand-crafted networks were trained anew after their figures had led to changes."""
    names = " and ".join(f"`{name}`" for name in REPLACED if REPLACED[name] is not COUNTED)
    return f"Earlier test figures of {names} (below the table) led to changes of natpp, so those here are not blind."


def _replaced(rows: list[dict[str, Any]]) -> list[str]:
    """Networks that natpp no longer makes, with how they did and why it makes others."""
    lines = []
    for subject in dict.fromkeys(row["name"].rpartition(", ")[0] for row in rows):
        same: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["name"].rpartition(", ")[0] == subject:
                same[row["name"].rpartition(", ")[2], _counted(row["changes"])].append(row)
        found = [
            f"{kind} ({changes}; {some[0]['live_madds'] / 1e6:.2f} M MAdds) had"
            f" {_figure(_gathered([row['test_accuracy'] for row in some]), 2)}"
            for (kind, changes), some in same.items()
        ]
        why = REPLACED.get(subject, "natpp makes others now")
        told = f"`{subject}`, made and tested earlier, and replaced: {'; '.join(found)}. By now {why}."
        lines += ["", _paragraph(told)]
    return lines


def _counted(changes: list[list[str]]) -> str:
    """What was changed, with names where it was done once."""
    same: defaultdict[str, list[str]] = defaultdict(list)
    for name, before, after in changes:
        same[f"{before} → {after}"].append(name)
    return ", ".join(
        f"{names[0]} {what}" if len(names) == 1 else f"{len(names)} {what}" for what, names in same.items()
    )


def _epochs(found: dict[str, Any]) -> str:
    """Of a training with so many images."""
    config = found["recipe"]["config"]
    return f"{config['steps'] * config['batch'] / found['images']:.0f}"


def _originals_table(found: dict[str, Any], title: str, paper: dict[str, Any] | None = None) -> list[str]:
    """Published cells, and what became of each; with latencies where they are known, and with what the paper says."""
    timed = all("latency_ms" in one for kinds in found.values() for one in kinds.values())
    head = ["seeds", title, "change", "parameters", "MAdds"]
    head += ["latency, ms"] * timed + ["the paper's (M parameters, M MAdds)"] * (paper is not None)
    lines = [f"| | {' | '.join(head)} |", "|---|" + "---|" * len(head)]
    for subject, kinds in found.items():
        for kind, one in kinds.items():
            row = [
                f"`{subject}`" if kind == "input" else f"`{subject}`, {kind}",
                str(one["seeds"]),
                _figure(one["accuracy"], 2),
                "" if kind == "input" else _signed(one["change"]),
            ]
            for key in ("live_params", "live_madds"):
                change = "" if kind == "input" else f" ({_percent(one[key] / kinds['input'][key] - 1)})"
                row.append(f"{one[key] / 1e6:.2f} M{change}")
            if timed:
                row.append(f"{one['latency_ms']:.2f}")
            if paper is not None:
                said = paper[subject].get(kind)
                size = f" ({said['params_m']:g}, {said['madds_m']:g})" if said else ""
                mark = MARK if _two_sizes(paper[subject], kind) else ""
                row.append(f"{said['accuracy']:.2f}{size}{mark}" if said else "")
            lines.append(f"| {' | '.join(row)} |")
    return lines


def _two_sizes(paper: dict[str, Any], kind: str) -> tuple[float, float] | None:
    """The share of the original's MAdds that the paper's result has, and that in one network, if a tenth apart."""
    if "madds_of_original" not in paper.get(kind, {}):
        return None
    share, true = paper[kind]["madds_m"] / paper["input"]["madds_m"], paper[kind]["madds_of_original"]
    return (share, true) if abs(share / true - 1) > 0.1 else None


def _of_two_sizes(paper: dict[str, Any]) -> list[str]:
    """Which of the paper's rows compare networks of different sizes."""
    found = [
        f"`{subject}`, {kind} has {sizes[0]:.2f} of the original's MAdds there and {sizes[1]:.2f} in one network"
        for subject, kinds in paper.items()
        for kind in kinds
        if (sizes := _two_sizes(kinds, kind))
    ]
    told = f"{MARK} In the paper original and result are not of one size: {'; '.join(found)}."
    return ["", _paragraph(told)] if found else []


def table_random(found: dict[str, Any]) -> str:
    """Random architectures and what every method makes of them."""
    lines = [
        "## Random architectures, CIFAR-10",
        "",
        _paragraph(
            "`python experiments/table_random.py train --root DIR --runs FOLDER` and `judge`, with the folder of"
            " `truth_cells.py`. Asked for: `nat++` above the inputs, a fixed map and both random controls, the 95 %"
            " interval of the difference above 0, with fewer parameters and MAdds than the inputs. A round that misses"
            " it is a reason to change what the policy learns on ([what the first one led"
            " to](policy.md#after-the-first-table)) and to take twenty fresh cells; all rounds stay here. Random"
            " changes within the same budget save far more than any other, so part of what they lose is size; beside"
            " hand-crafted networks (below) they are cut as far as ours."
        ),
        "",
        *(f"- Round {number}: {_verdict(one)}" for number, one in found["rounds"].items()),
    ]
    for number, one in found["rounds"].items():
        recipe = one["recipe"]
        lines += [
            "",
            f"### Round {number}",
            "",
            _paragraph(
                f"{one['inputs']} of {one['asked']} sampled cells, {one['trainings']} trainings ({one['distinct']} that"
                f" compute different things) of {_epochs(one)} epochs with a full cosine, {recipe['cells']} cells,"
                f" {recipe['channels']} channels, all"
                f" {one['images']:,} training images, {_seeds(one)},"
                f" {sum(group['seconds'] for group in one['groups']):,.0f} s of {_device(one['machine'])}"
                f"{_peak(one['groups'])}. One shots are of the {_policies(one)}; one score for all, strict budget. Test"
                " accuracy, read once, mean ± sd; the paired difference to the originals, over the seeds that both"
                " have, with its 95 % bootstrap interval over cells (there is one learned policy and one random change"
                " of each cell, and no interval over these); live costs: of what reaches the output; latency of one"
                " image on"
                f" {one['latency_on']}, the least of several passes."
            ),
            "",
            *_shortlist(one.get("shortlist")),
            *_methods_table(one, "test_accuracy", "test accuracy"),
            *_by_default(one.get("default")),
            "",
            _paragraph(_bias(one["bias"])),
            "",
            *_convergence(one["convergence"]),
        ]
    told = ", ".join(
        f"{'originals' if name == 'input' else name} {row['accuracy']['CIFAR-10']:.2f} ±"
        f" {row['sd']['CIFAR-10']:.2f} ({row['params_m']:g} M parameters, {row['madds_m']:g} M MAdds)"
        for name, row in found["paper"].items()
    )
    lines += [
        "",
        _paragraph(f"The paper's, on twenty cells of its own, after its longer training: {told}."),
        "",
        "![Accuracy against parameters: from each original to what every method makes of it](pictures/random.svg)",
        "",
        "![Training loss by epoch: originals and what `nat++` makes of them](pictures/convergence.svg)",
        "",
        *_scores_against_truth(found["agreement"]),
    ]
    return "\n".join(lines) + "\n"


def _verdict(found: dict[str, Any]) -> str:
    """What of what was asked for a round of random architectures has reached."""
    told = []
    for name in ("nat++", "nat++ best of 10"):
        beside = {other: found["differences"][f"`{name}` over {other}"] for other in ASKED_ABOVE}
        missed = [f"{other} ({_with_interval(one, signed=True)})" for other, one in beside.items() if one["low"] <= 0]
        costs = [found["methods"][name][f"{key}_change"] for key in ("live_params", "live_madds")]
        missed += [] if max(costs) < 0 else ["fewer parameters and MAdds"]
        told.append(f"`{name}` {'misses ' + ' and '.join(missed) if missed else 'reaches it'}")
    if found.get("shortlist"):
        told[-1] += ", with short trainings of its ten and whole ones of two, which the fixed map has not"
    return "; ".join(told) + "."


def _shortlist(found: dict[str, Any] | None) -> list[str]:
    """How short trainings helped to pick the best of ten."""
    if found is None:
        return []
    recipe, fit = found["recipe"], found["fit"]
    text = (
        f"Best of ten: all {found['candidates']}, of `nat++` and random ones alike, were trained for"
        f" {recipe['config']['steps']:,} steps in {recipe['cells']} cells ({found['trainings']} that compute different"
        f" things, {sum(group['seconds'] for group in found['groups']):,.0f} s of {_device(found['machine'])})."
        f" {fit['weights'][0]:.2f} times what the value model expects less {fit['weights'][1]:.2f} times the logarithm"
        f" of the {found['losses']} loss says which are best."
    )
    if finals := found["finals"]:
        spent = sum(group["seconds"] for group in finals["groups"])
        text += (
            f" The best {finals['finalists']} of each were trained by the table's own recipe ({finals['candidates']},"
            f" {spent:,.0f} s), and the lower training loss is the answer; that training is the first seed of its row."
        )
    text += " One shots and the fixed map get no such look."
    if fit["cells"]:
        text += (
            f" These weights fit the accuracies of {fit['cells']} cells of {fit['families']} families. Correlations"
            " within families, with accuracies and losses of longer trainings; the value model had not seen them, and"
            " the weights are fitted on the other families:"
        )
    return [_paragraph(text), "", *_agreement_table(fit.get("agreement", {}))]


def _agreement_table(found: dict[str, Any]) -> list[str]:
    """Correlations of a value model, of short trainings and of both."""
    if not found:
        return []
    lines = ["| truth | cells | value model | short training | both |", "|---|---|---|---|---|"]
    for name, one in found.items():
        figures = " | ".join(f"{one[key]:.2f}" for key in ("value_model", "short_training", "both"))
        lines.append(f"| {name.replace('close', 'inputs, `nat++` and map')} | {one['cells']} | {figures} |")
    return [*lines, ""]


def _by_default(found: dict[str, Any] | None) -> list[str]:
    """The policy that answers where none is named, beside others, as far as it is trained."""
    if found is None or not found["inputs"]:
        return []
    name = list(found["methods"])[-1]
    seeds = "one seed" if len(found["seeds"]) == 1 else f"{len(found['seeds'])} seeds"
    text = (
        f"`{name}`: one shot of the policy that answers where none is named, an earlier one, trained on"
        f" {found['inputs']} of {found['asked']} of these cells ({seeds},"
        f" {sum(group['seconds'] for group in found['groups']):,.0f} s of {_device(found['machine'])}), which were"
        " dealt out by size. All over the same cells and seeds:"
    )
    return ["", _paragraph(text), "", *_methods_table(found, "test_accuracy", "test accuracy")]


def _seeds(found: dict[str, Any]) -> str:
    """How many seeds networks have."""
    counted: dict[str, list[int]] = {}
    for methods in found["rows"].values():
        for name, row in methods.items():
            counted.setdefault(name, []).append(len(row["trainings"]))
    alike: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for name, counts in counted.items():
        if max(counts) > 1:
            alike[min(counts), max(counts)].append("the inputs" if name == "input" else f"`{name}`")
    several = [
        f"{least} to {most} of {', '.join(names)}" if least < most else f"{most} of {', '.join(names)}"
        for (least, most), names in alike.items()
    ]
    return f"one seed ({'; '.join(several)})" if several else "one seed"


def _scores_against_truth(found: dict[str, Any]) -> list[str]:
    """Spearman of every score with test accuracy."""
    lines = [
        "### Scores against truth",
        "",
        _paragraph(
            f"Spearman with test accuracy over {found['networks']} trained networks that compute different things:"
            " those of all rounds, and NAS cells (below) as far as they are trained, their mean over seeds. Every score"
            " over the networks it knows, the value model of a table over those that it was not fitted on, a short"
            " training over those that had one by the schedule of searches. Over the same: the"
            f" {found['common']} that all of ours know, most of them picked with the help of their short trainings."
            " Random changes are small and bad, which size tells; so the last column is among the other answers to each"
            f" of {found['inputs']} inputs, less what these have in common: what a search has to tell apart. 95 %"
            " bootstrap intervals."
        ),
        "",
        "| score | networks | Spearman | over the same | among the answers to an input |",
        "|---|---|---|---|---|",
    ]
    for name, one in found["scores"].items():
        figures = " | ".join(_with_interval(one[key]) for key in ("spearman", "common", "among_answers"))
        lines.append(f"| {name} | {one['networks']} | {figures} |")
    return lines


def _methods_table(found: dict[str, Any], figure: str, title: str) -> list[str]:
    """Methods beside the inputs, and our differences to all."""
    timed = "latency_ms" in found["methods"]["input"]
    lines = [
        f"| | {title} | over the input | wins | parameters | MAdds |" + (" latency, ms |" if timed else ""),
        "|---|---|---|---|---|---|" + ("---|" if timed else ""),
    ]
    for name, one in found["methods"].items():
        ours, over = name != "input", one["over_input"]
        costs = [
            f"{one[key]['mean'] / 1e6:.2f} M" + (f" ({_percent(one[f'{key}_change'])})" if ours else "")
            for key in ("live_params", "live_madds")
        ]
        row = [
            f"`{name}`" if ours else "the inputs",
            _figure(one[figure], 2),
            _with_interval(over, 2, signed=True) if ours else "",
            f"{over['wins']} of {over['rows']}" if ours else "",
            *costs,
        ]
        lines.append("| " + " | ".join(row + ([f"{one['latency_ms']['mean']:.2f}"] if timed else [])) + " |")
    lines += ["", "Paired differences, 95 % intervals:", ""]
    lines += _differences(found["differences"])
    if found.get("later_seeds"):
        lines += ["", "The same by the other seeds alone, since the first had a part in picking the best of ten:", ""]
        lines += _differences(found["later_seeds"])
    return lines


def _differences(found: dict[str, Any]) -> list[str]:
    return [f"- {name}: {_with_interval(one, 2, signed=True)}" for name, one in found.items()]


def _bias(found: dict[str, Any]) -> str:
    """Skips and early losses of all cells of a round."""
    skips = ", ".join(
        f"{one['skips']:.2f} in {'the inputs' if name == 'input' else f'those of `{name}`'}"
        for name, one in found.items()
    )
    ahead = ", ".join(f"`{name}` {one['ahead']} of {one['changed']}" for name, one in found.items() if name != "input")
    return (
        f"Skips that reach the output, mean over all cells: {skips}. How many of those that a method changed have a"
        f" lower training loss than their input after a quarter of the training: {ahead}. By the first seed; the first"
        " four cells:"
    )


def _policies(found: dict[str, Any]) -> str:
    """Whose answers a table has."""
    return f"policies of [round {found['policies']} of learning](policy.md#policies-that-ship)"


def _convergence(found: dict[str, Any]) -> list[str]:
    quarters = (0.25, 0.5, 0.75, 1.0)
    lines = [
        "| training loss after | " + " | ".join(f"{share:.0%}" for share in quarters) + " | skips | test accuracy |",
        "|---|" + "---|" * (len(quarters) + 2),
    ]
    for subject, kinds in found.items():
        for kind, one in kinds.items():
            curve = one["curve"]
            losses = [f"{curve[max(round(share * len(curve)) - 1, 0)]:.2f}" for share in quarters]
            title = subject if kind == "input" else f"{subject}, `{kind}`"
            lines.append(f"| {title} | {' | '.join(losses)} | {one['skips']} | {one['test_accuracy']:.2f} |")
    return lines


def _cells_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """How far the score of the search in the space of cells is true."""
    if found.get("spearman") is None or not found["searches"]:
        return []
    rivals = {"supernet": "a supernet", "paper": "the paper's settings", "live MAdds": "MAdds"}
    searches = [("a search alone", one) for one in found["searches"]]
    beside = [*searches, *((title, found["rivals"].get(name, {})) for name, title in rivals.items())]
    return [
        (
            "Thirteen operations, CIFAR-10: Spearman of the predicted score with longer training over"
            f" {found['judged']} cells that it had not seen",
            f"**{found['spearman']['value']:.2f}** in {found['seconds']:.0f} s",
            ", ".join(
                f"{title} {_signed(one['spearman']['value'], signed=False)}"
                + (f" in {one['seconds']:.0f} s" if "seconds" in one else "")
                for title, one in beside
                if one.get("spearman") is not None
            ),
        )
    ]


def _worth_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every round of fresh cells that is complete."""
    rows = []
    for number, one in found["rounds"].items():
        if one.get("inputs") != one.get("asked", 0):
            continue
        over = {name: _with_interval(of["over_input"], signed=True) for name, of in one["methods"].items()}
        madds = {name: _percent(of["live_madds_change"]) for name, of in one["methods"].items()}
        rows.append(
            (
                f"{one['inputs']} fresh random cells, one shot of the policy of round {number}, trained for"
                f" {_epochs(one)} epochs on CIFAR-10: points of validation accuracy over the inputs (95 % interval),"
                " neither parameters nor MAdds may rise",
                f"**{over['nat++']}**, {madds['nat++']} MAdds",
                f"a fixed map {over['constant']}, {madds['constant']} MAdds; best of 10 random ones"
                f" {over['random best of 10']}, {madds['random best of 10']}",
            )
        )
    return rows


def _random_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every round of random architectures."""
    rows = []
    for number, one in found["rounds"].items():
        told = {
            name: f"{of['test_accuracy']['mean']:.2f} ({_percent(of['live_madds_change'])} MAdds)"
            for name, of in one["methods"].items()
        }
        over = _with_interval(one["differences"]["`nat++` over `constant`"], signed=True)
        picked = ", picked by short and whole trainings," if one.get("shortlist") else ""
        rows.append(
            (
                f"{one['inputs']} random cells ({one['methods']['input']['test_accuracy']['mean']:.2f} %) trained from"
                f" scratch on CIFAR-10, table {number}: test accuracy after one shot of `nat++`, strict budget",
                f"**{told['nat++']}**; over the fixed map {over}",
                f"the best of 10 by `nat++`{picked} {told['nat++ best of 10']}, a fixed map {told['constant']}, a"
                f" random change {told['random']}, best of 10 random ones {told['random best of 10']}",
            )
        )
    return rows


def _cells_trained_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Published cells of the last round, and those that the authors changed too."""
    every, ours, theirs = list(found["rounds"].values())[-1]["cells"], "ours, `nat++`", "published NAT++"
    shared = {name: kinds for name, kinds in every.items() if theirs in kinds}

    def told(cells: dict[str, Any], kind: str) -> str:
        return f"{_mean_change(cells, kind)} over {len(cells)} cells, {_mean_madds(cells, kind)} MAdds"

    names = ", ".join(f"`{name}`" for name in every)
    return [
        (
            f"Published cells ({names}), which the policy learned from too, trained from scratch on CIFAR-10, one shot,"
            " strict budget: points of test accuracy over the originals, in the mean",
            f"{told(every, ours)}; {told(shared, ours)}",
            f"the authors' NAT++ results {told(shared, theirs)}",
        )
    ]


def _handcrafted_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Hand-crafted networks, once all are trained."""
    if found["trainings"] < found["asked"]:
        return []
    models = found["models"]
    names = ", ".join(f"`{name}`" for name in models)
    return [
        (
            f"Hand-crafted networks ({names}) cut to {found['share']:g} of their MAdds without data and trained from"
            " scratch on CIFAR-10: points of test accuracy over the originals, in the mean (two of them were looked at"
            " before, see there)",
            f"{_mean_change(models, 'nat++')}, `nat` {_mean_change(models, 'nat')}",
            f"a random change {_mean_change(models, CONTROL)}; `nat++` over it"
            f" {_with_interval(found['over_random']['nat++'], signed=True)}",
        )
    ]


def _three(one: dict[str, float | None], between: str = " | ") -> str:
    names = ("spearman", "partial_given_madds", "paired_spearman")
    return between.join("–" if one[name] is None else f"{one[name]:.2f}".replace("-", "−") for name in names)


def _with_interval(one: dict[str, float] | None, digits: int = 2, *, signed: bool = False) -> str:
    if one is None:
        return "–"
    value, low, high = (_signed(one[key], digits, signed=signed) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _signed(value: float, digits: int = 2, *, signed: bool = True) -> str:
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def _percent(share: float) -> str:
    return f"{share:+.0%}".replace("-", "−")


def _device(machine: dict[str, Any]) -> str:
    return f"{machine['gpu'] or machine['processor']}, torch {machine['torch']}"


def _memory(runs: list[dict[str, Any]]) -> str:
    """What was taken of the device's memory at most, where that was measured."""
    most = [run["reserved_gib"] for run in runs if run.get("reserved_gib")]
    return f", {max(most):.1f} GiB of its memory" if most else ""


def _peak(groups: list[dict[str, Any]]) -> str:
    peaks = [group["peak_memory_gib"] for group in groups if group["peak_memory_gib"]]
    return f", peak {max(peaks):.1f} GiB" if peaks else ""


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "truth_nasbench201": truth,
    "schedules_nasbench201": schedules,
    "truth_cells": truth_cells,
    "losses": losses,
    "crossed": crossed,
    "policies": policies,
    "worth": worth,
    "finals": finals,
    "table_random": table_random,
    "table_cells": table_cells,
    "table_handcrafted": table_handcrafted,
    "quick_cifar10": quick,
    "resnet20": resnet20,
    "resnet20_digits": resnet20,
    "speed": speed,
    "kernels": kernels,
    "fx_models": fx_models,
}


SUMMARY: dict[str, Callable[[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "nasbench201": _table_rows,
    "truth_nasbench201": _truth_rows,
    "truth_cells": _cells_summary,
    "worth": _worth_summary,
    "table_random": _random_summary,
    "table_cells": _cells_trained_summary,
    "table_handcrafted": _handcrafted_summary,
    "resnet20": _module_rows,
    "resnet20_digits": _module_rows,
}


if __name__ == "__main__":
    write_whole(PAGE, page())
    write_whole(README, readme(README.read_text(encoding="utf-8")))
