"""Results page: whole networks. A trained one cut, two trained from scratch, and models of other libraries."""

from __future__ import annotations

import re
from typing import Any

from experiments.pages.words import counted, gathered, measured, prose, spread_of, table


def module_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """A trained network cut."""
    accuracy = {
        name: measured(gathered([run["test_accuracy"] for run in found["pieces"][name]]), 2)
        for name in ("original", "learned", "policy", "random")
    }
    share = spread_of([run["share_of_madds"] for run in found["pieces"]["learned"]], 2)
    return [
        (
            f"ResNet-20 trained on {found['plan']['data']} ({accuracy['original']} %), cut to {share} of its MAdds and"
            f" fine-tuned for a fifth of the epochs",
            f"**{accuracy['learned']} %**",
            f"a random cut {accuracy['random']} %, the policy `{_policy_of(found)}` without data"
            f" {accuracy['policy']} %",
        )
    ]


def quick(found: dict[str, Any]) -> str:
    """Two trainings from scratch."""
    lines = [
        "## Training from scratch: recipe `quick`, CIFAR-10",
        "",
        "`python -m experiments quick_cifar10 --root DIR --table FILE`. All 50,000 training images; the test images",
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
        "`python -m experiments fx_models`, on a CPU, random weights.",
        *prose(
            f"{len(rows)} models. Traced: {len(traced)}, {sum(row['by_export'] for row in traced)} of these by"
            f" `torch.export`. Changed by the policy `{found['policy']}`: {changed}; MAdds drop in {cheaper} of them;"
            " a change may also be an added skip, which costs nothing. Bit-identical outputs if nothing changes:"
            f" {sum(row['bit_equal'] for row in traced)}. Result does not cost more:"
            f" {sum(row['no_dearer'] for row in traced)}. Same shapes: {sum(row['same_shapes'] for row in traced)}."
            f" Saved and restored with equal outputs: {sum(row['restored'] for row in traced)}. Cut to 0.6 of the"
            f" MAdds on request: {cut}. torch {machine['torch']}, torchvision {machine['torchvision']},"
            f" timm {machine['timm']}, {machine['threads']} threads."
        ),
        *prose(
            "Sites: operations that can be replaced; changes can also add skips elsewhere. Seconds: trace, transform,"
            " rewrite and measure costs. 0.6: the share of MAdds left with a budget of 0.6; after ≥, the smallest"
            " possible share if the budget cannot be met, as given in the error."
        ),
        *table("| model | sites | changes | M MAdds | after | 0.6 | seconds | unchanged: equal | restored: equal |"),
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
    """The smallest possible share, read from the error of a budget that cannot be met."""
    found = re.search(r"\((\d\.\d+) of the module's\)", reason)
    return f"{float(found[1]):.2f}" if found else "1"


def _policy_of(found: dict[str, Any]) -> str:
    """The default policy when a network was cut; the first one was learned on digits."""
    return str(found["pieces"]["policy"][0].get("policy", "digits"))


def resnet20(found: dict[str, Any]) -> str:
    """A trained network, cut and fine-tuned, beside rivals."""
    plan, pieces = found["plan"], found["pieces"]
    digits = plan["data"] == "digits"
    titles = {
        "original": f"ResNet-20, {plan['epochs']} epochs",
        "learned": "learned on the network and its data",
        "policy": f"the policy `{_policy_of(found)}`, no data",
        "random": "a random transformation",
        "scratch": "the learned architecture, from fresh weights",
        "long": f"the same for {plan['epochs']} epochs",
    }
    lines = [
        f"## A trained network cut to 0.6 of its multiply-adds: ResNet-20, {plan['data']}",
        *prose(
            f"`python -m experiments resnet20 --runs FOLDER {'--digits' if digits else '--root DIR'}`."
            " The cut network inherits weights and is fine-tuned"
            f" for {plan['tuned_epochs']} epochs, a fifth of the original's. {plan['validation']:,} training images are"
            " held out for selection; test accuracy in per cent, read once, mean ± sd over seeds."
            + (" All fine-tuning distills from the original in addition to the labels." if plan.get("taught") else "")
            + f" Learning scored {plan['tune']['evaluations']} candidates by fine-tuning for"
            f" {plan['schedule']['steps']} steps" + _finals(plan["tune"]) + "."
        ),
        *table("| | seeds | test accuracy | share of MAdds | share of parameters | seconds |"),
    ]
    for name, title in titles.items():
        runs = pieces.get(name, [])
        if runs:
            shares = [
                spread_of([run[share] for run in runs], 2) if share in runs[0] else "–"
                for share in ("share_of_madds", "share_of_params")
            ]
            accuracy = measured(gathered([run["test_accuracy"] for run in runs]), 2)
            seconds = spread_of([run["seconds"] + run.get("learning_seconds", 0.0) for run in runs], 0)
            lines.append(f"| {title} | {len(runs)} | {accuracy} | {' | '.join(shares)} | {seconds} |")
    lines += ["", *_curves({titles[name]: pieces[name] for name in titles if name in pieces}, plan["tuned_epochs"])]
    if "agreement" in pieces:
        lines += prose(_agreement(pieces["agreement"], plan))
    machine = found["machine"]
    return "\n".join([*lines, "", f"On {machine['gpu'] or machine['processor']}, torch {machine['torch']}."]) + "\n"


def _finals(tune: dict[str, Any]) -> str:
    if tune.get("finalists", 0) < 2:
        return ""
    return f", and the {tune['finalists']} best of them for {tune['longer']} times as many"


def _curves(runs: dict[str, list[dict[str, Any]]], epochs: int) -> list[str]:
    """Validation accuracy by epoch, means over seeds."""
    head = " | ".join(str(epoch) for epoch in range(1, epochs + 1))
    lines = [f"| validation accuracy after epoch | {head} |", "|---|" + "---|" * epochs]
    for title, found in runs.items():
        curves = [[row["validation_accuracy"] for row in run["curve"][:epochs]] for run in found]
        means = [sum(values) / len(values) for values in zip(*curves, strict=True)]
        lines.append(f"| {title} | " + " | ".join(f"{value:.1f}" for value in means) + " |")
    return lines


def _agreement(runs: list[dict[str, Any]], plan: dict[str, Any]) -> str:
    figures = {
        name: measured(gathered([run["spearman"][name] for run in runs]), 2) for name in ("short", "supernet", "madds")
    }
    seconds = {name: spread_of([run["seconds"][name] for run in runs], 0) for name in ("short", "supernet")}
    return (
        f"Correlation of scores with the validation loss after {plan['compared_epochs']} epochs of fine-tuning, over"
        f" {len(runs[0]['scores']['full'])} transformations drawn at random within the budget (Spearman,"
        f" {counted(len(runs), 'seed')}): short fine-tuning {figures['short']} ({seconds['short']} s), a supernet with"
        f" the same total number of steps {figures['supernet']} ({seconds['supernet']} s), multiply-adds"
        f" {figures['madds']}."
    )
