"""Results page: cells of thirteen operations. How well scores agree, and how good the policies are."""

from __future__ import annotations

from typing import Any

from experiments.pages.shapes import methods_table, originals_table
from experiments.pages.words import (
    counted,
    epochs_of,
    hardware,
    memory_used,
    paragraph,
    peak_of,
    per_cent,
    prose,
    table,
    titled,
    with_interval,
    with_sign,
)


def images(found: dict[str, Any]) -> str:
    """The space of cells: longer trainings, schedules, value models, and the search."""
    longer = found["longer"]
    recipe, groups = longer["recipe"], longer["groups"]
    lines = titled(
        "From images to a policy: the thirteen-operation space, CIFAR-10",
        "`python -m experiments images_cells train --root DIR --runs FOLDER`, then `schedules`, `search`, `rival"
        " --name supernet`, `rival --name paper`, `ship_policies learn` and `judge_policies train`"
        " (below), `direct` and `judge` with the same folder.",
        f"{_so_far(found['cells'], longer['asked'])} trained from scratch, {recipe['config']['steps']:,} steps of"
        f" {recipe['config']['batch']} images with a full cosine, {recipe['cells']} cells, {recipe['channels']}"
        f" channels, {longer['images']:,} images. Accuracy is on the validation images, with batch statistics."
        f" {found['trained_seconds']:,.0f} s on {hardware(longer['machine'])}{peak_of(groups)}. A third of each kind"
        " was held out: no choice in the first round used it.",
    )
    if found["schedules"]:
        lines += ["", *_cell_schedules(found)]
    if found.get("models"):
        lines += [
            *prose(
                "Value models on the same cells, each cell held out in all its forms (nine folds). `short` is fitted on"
                " short training runs, `longer` on the longer ones, and `mixture` on the longer ones with `short` as"
                " the prior mean. With cost: the prior mean of `short` depends on cost."
            ),
            *table("| value model | Spearman | given MAdds | of changes |"),
        ]
        for name, one in found["models"].items():
            lines.append(f"| `{name}` | {_three(one)} |")
    for search in found.get("searches", []):
        lines += prose(_cells_search(search))
    if "spearman" in found:
        lines += ["", *_judged_cells(found)]
    return "\n".join(lines) + "\n"


def _so_far(trained: int, asked: int) -> str:
    """The number of cells, and of how many if some are missing."""
    return counted(trained, "cell") if trained == asked else f"So far {trained} of {counted(asked, 'cell')}"


def _cell_schedules(found: dict[str, Any]) -> list[str]:
    pick = found["pick"]
    lines = [
        paragraph(
            "Schedules of short training runs, compared on the cells that were not held out and had a longer run by"
            " then: Spearman with the longer run, partial Spearman given live MAdds, and Spearman of the differences"
            " between a cell and its changed version. The score is minus the validation loss, minus the loss of the"
            f" last training steps, or minus the mean of both. Searches use *{pick['schedule']}*, loss:"
            f" {pick['losses']} (picked before the first search by the highest mean of the first two figures)."
        ),
        *table("| schedule | cells | validation loss | training loss | both | accuracy | seconds each |"),
    ]
    for name, one in found["schedules"].items():
        figures = " | ".join(_three(one[losses], " / ") for losses in ("validation", "training", "both"))
        lines.append(
            f"| {name} | {one['trained']} | {figures} | {one['mean_accuracy']:.1f} | {one['seconds_each']:.2f} |"
        )
    return lines


def _cells_search(search: dict[str, Any]) -> str:
    """The seconds of a search by phase."""
    phases = ", ".join(f"{name} {seconds:.0f}" for name, seconds in search["phases"].items())
    return (
        f"Search with seed {search['seed']}: {search['evaluations']} short training runs in {search['seconds']:.0f} s"
        f" on {hardware(search['machine'])}, from images on the device to the written policy file ({phases})"
        f"{memory_used([search])}." + (f" {search['policy_note']}." if "policy_note" in search else "")
    )


def _judged_cells(found: dict[str, Any]) -> list[str]:
    lines = [
        paragraph(
            f"Evaluated on the longer training runs of {found['judged']} cells (the held-out ones and the first round"
            f" below) and of {found['pairs']} pairs of an input and its changed version; 95 % bootstrap intervals."
            " direct: the score of the cell itself. The other columns are predictions, from all scores that were not"
            f" held out (value model `{found['model']}`, with the seconds of all their training runs), or from one"
            " search alone. The last column is what the resulting policy does to `darts`, in points of accuracy, mean"
            " of three seeds."
        ),
        *table("| | seconds | direct | predicted | given MAdds | of changes | `darts` |"),
        _cells_row("**short training runs and prediction**", found),
        *(
            _cells_row(f"the search with seed {one['seed']} alone", one)
            for one in found["searches"]
            if "spearman" in one
        ),
    ]
    titles = {"supernet": "a supernet, given the time of the search", "paper": "preset `paper`, stopped at that time"}
    for name, one in found["rivals"].items():
        lines.append(_cells_row(titles.get(name, name), one))
    lines.append("| *target* | ≤ 376 per search | | ≥ 0.75 | ≥ 0.5 | | ≥ −0.3 |")
    steps = {"supernet": "the supernet trained for {} steps", "paper": "the preset for {}"}
    spent = [
        f"in {one['seconds']:.0f} s " + steps[name].format(f"{one['steps']:,}")
        for name, one in found["rivals"].items()
        if name in steps
    ]
    if spent:
        lines += prose(f"{', '.join(spent).capitalize()}.")
    return lines


def _cells_row(title: str, one: dict[str, Any]) -> str:
    names = ("direct_spearman", "spearman", "partial_given_madds", "paired_spearman")
    seconds = f"{one['seconds']:.0f}" if "seconds" in one else "–"
    change = with_sign(one["darts_change"]) if "darts_change" in one else "–"
    return f"| {title} | {seconds} | " + " | ".join(with_interval(one[name]) for name in names) + f" | {change} |"


def judged_policies(found: dict[str, Any]) -> str:
    """Policies on fresh cells and on published ones."""
    lines = titled(
        "How good the policies are: new random cells and published ones, CIFAR-10",
        "`python -m experiments judge_policies train --root DIR --runs FOLDER` and `judge`, with the folder of"
        " `images_cells`. The random cells of a round are new to its policies; later rounds also learned from earlier"
        " rounds' training runs. All policies learned from the published cells.",
    )
    for number, one in found["rounds"].items():
        if one.get("methods"):
            agreement = one["agreement"]
            lines += [
                *prose(
                    f"**Round {number}.** {one['inputs']} of {one['asked']} random cells and their transformations,"
                    f" trained with the longer recipe ({hardware(one['machine'])}{peak_of(one['groups'])}); one score"
                    " for all methods, strict budget. Validation accuracy, mean ± sd; paired difference to the input"
                    f" with its 95 % bootstrap interval; live costs. The value model (`{agreement['model']}`,"
                    f" {agreement['dear_scores']} longer training runs) has a Spearman correlation of"
                    f" {with_interval(agreement['spearman'])} with the accuracies and"
                    f" {with_interval(agreement['paired_spearman'])} with differences to the inputs, which is how well"
                    " it separates the methods. Among the cells changed by `nat++` and the fixed map alone it is"
                    f" {with_interval(agreement['paired_of_learned'])}."
                ),
                "",
                *methods_table(one, "accuracy", "validation accuracy"),
            ]
        if one.get("harm"):
            lines += [
                "",
                f"Round {number}: published cells with the same recipe; ours is one shot of `nat++`. Target: at most"
                " 0.3 below the original.",
                "",
                *originals_table(one["harm"], "validation accuracy"),
            ]
    return "\n".join(lines) + "\n"


def images_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Agreement of the search in the space of cells."""
    if found.get("spearman") is None or not found["searches"]:
        return []
    rivals = {"supernet": "a supernet", "paper": "the paper's settings", "live MAdds": "MAdds"}
    searches = [("a search alone", one) for one in found["searches"]]
    beside = [*searches, *((title, found["rivals"].get(name, {})) for name, title in rivals.items())]
    return [
        (
            "Thirteen operations, CIFAR-10: Spearman of the predicted score with longer training over"
            f" {found['judged']} unseen cells",
            f"**{found['spearman']['value']:.2f}** in {found['seconds']:.0f} s",
            ", ".join(
                f"{title} {with_sign(one['spearman']['value'], signed=False)}"
                + (f" in {one['seconds']:.0f} s" if "seconds" in one else "")
                for title, one in beside
                if one.get("spearman") is not None
            ),
        )
    ]


def judged_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """All complete rounds of fresh cells."""
    rows = []
    for number, one in found["rounds"].items():
        if one.get("inputs") != one.get("asked", 0):
            continue
        over = {name: with_interval(of["over_input"], signed=True) for name, of in one["methods"].items()}
        madds = {name: per_cent(of["live_madds_change"]) for name, of in one["methods"].items()}
        rows.append(
            (
                f"{one['inputs']} new random cells, one shot of the policy of round {number}, trained for"
                f" {epochs_of(one)} epochs on CIFAR-10, neither parameters nor MAdds may increase: points of validation"
                " accuracy over the inputs (95 % interval)",
                f"**{over['nat++']}**, {madds['nat++']} MAdds",
                f"a fixed map {over['constant']}, {madds['constant']} MAdds; best of 10 random ones"
                f" {over['random best of 10']}, {madds['random best of 10']}",
            )
        )
    return rows


def _three(one: dict[str, float | None], between: str = " | ") -> str:
    names = ("spearman", "partial_given_madds", "paired_spearman")
    return between.join("–" if one[name] is None else f"{one[name]:.2f}".replace("-", "−") for name in names)
