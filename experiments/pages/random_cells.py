"""Random architectures on the results page, and agreement of scores with test accuracy."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from experiments.pages.shapes import answered_by, methods_table
from experiments.pages.words import (
    epochs_of,
    hardware,
    paragraph,
    peak_of,
    per_cent,
    prose,
    table,
    titled,
    with_interval,
)

ASKED_ABOVE = ("the inputs", "`constant`", "`random`", "`random best of 10`")


def table_random(found: dict[str, Any]) -> str:
    """Random architectures and the answers of each method."""
    lines = [
        *titled(
            "Random architectures, CIFAR-10",
            "`python -m experiments table_random train --root DIR --runs FOLDER` and `judge`, with the folder of"
            " `images_cells`. Asked for: `nat++` above the inputs, a fixed map and both random controls, the 95 %"
            " interval of the difference above 0, with fewer parameters and MAdds than the inputs. A round that misses"
            " it is a reason to change what the policy learns on ([what the first one led"
            " to](policy.md#after-the-first-table)) and to take twenty fresh cells; all rounds stay here. Random"
            " changes within the same budget save far more than any other, so part of what they lose is size; beside"
            " hand-crafted networks (below) they are cut as far as ours.",
        ),
        "",
        *(f"- Round {number}: {_verdict(one)}" for number, one in found["rounds"].items()),
    ]
    for number, one in found["rounds"].items():
        recipe = one["recipe"]
        lines += [
            "",
            f"### Round {number}",
            *prose(
                f"{one['inputs']} of {one['asked']} sampled cells, {one['trainings']} trainings ({one['distinct']} that"
                f" compute different things) of {epochs_of(one)} epochs with a full cosine, {recipe['cells']} cells,"
                f" {recipe['channels']} channels, all {one['images']:,} training images, {_seeds(one)},"
                f" {sum(group['seconds'] for group in one['groups']):,.0f} s of {hardware(one['machine'])}"
                f"{peak_of(one['groups'])}. One shots are of the {answered_by(one)}; one score for all, strict budget."
                " Test accuracy, read once, mean ± sd; the paired difference to the originals, over the seeds that both"
                " have, with its 95 % bootstrap interval over cells (there is one learned policy and one random change"
                " of each cell, and no interval over these); live costs: of what reaches the output; latency of one"
                f" image on {one['latency_on']}, the least of several passes."
            ),
            "",
            *_shortlist(one.get("shortlist")),
            *methods_table(one, "test_accuracy", "test accuracy"),
            *_by_default(one.get("default")),
            "",
            paragraph(_bias(one["bias"])),
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
        paragraph(f"The paper's, on twenty cells of its own, after its longer training: {told}."),
        "",
        "![Accuracy against parameters: from each original to what every method makes of it](pictures/random.svg)",
        "",
        "![Training loss by epoch: originals and what `nat++` makes of them](pictures/convergence.svg)",
        "",
        *_scores_against_truth(found["agreement"]),
    ]
    return "\n".join(lines) + "\n"


def _verdict(found: dict[str, Any]) -> str:
    """Which of the goals a round has reached."""
    told = []
    for name in ("nat++", "nat++ best of 10"):
        beside = {other: found["differences"][f"`{name}` over {other}"] for other in ASKED_ABOVE}
        missed = [f"{other} ({with_interval(one, signed=True)})" for other, one in beside.items() if one["low"] <= 0]
        costs = [found["methods"][name][f"{key}_change"] for key in ("live_params", "live_madds")]
        missed += [] if max(costs) < 0 else ["fewer parameters and MAdds"]
        told.append(f"`{name}` {'misses ' + ' and '.join(missed) if missed else 'reaches it'}")
    if found.get("shortlist"):
        told[-1] += ", with short trainings of its ten and whole ones of two, which the fixed map has not"
    return "; ".join(told) + "."


def _shortlist(found: dict[str, Any] | None) -> list[str]:
    """The part of short trainings in picking the best of ten."""
    if found is None:
        return []
    recipe, fit = found["recipe"], found["fit"]
    text = (
        f"Best of ten: all {found['candidates']}, of `nat++` and random ones alike, were trained for"
        f" {recipe['config']['steps']:,} steps in {recipe['cells']} cells ({found['trainings']} that compute different"
        f" things, {sum(group['seconds'] for group in found['groups']):,.0f} s of {hardware(found['machine'])})."
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
    return [paragraph(text), "", *_agreement_table(fit.get("agreement", {}))]


def _agreement_table(found: dict[str, Any]) -> list[str]:
    """Correlations of the value model, of short trainings, and of both."""
    if not found:
        return []
    lines = ["| truth | cells | value model | short training | both |", "|---|---|---|---|---|"]
    for name, one in found.items():
        figures = " | ".join(f"{one[key]:.2f}" for key in ("value_model", "short_training", "both"))
        lines.append(f"| {name.replace('close', 'inputs, `nat++` and map')} | {one['cells']} | {figures} |")
    return [*lines, ""]


def _by_default(found: dict[str, Any] | None) -> list[str]:
    """The default policy beside others, as far as it is trained."""
    if found is None or not found["inputs"]:
        return []
    name = list(found["methods"])[-1]
    seeds = "one seed" if len(found["seeds"]) == 1 else f"{len(found['seeds'])} seeds"
    text = (
        f"`{name}`: one shot of the policy that answers where none is named, an earlier one, trained on"
        f" {found['inputs']} of {found['asked']} of these cells ({seeds},"
        f" {sum(group['seconds'] for group in found['groups']):,.0f} s of {hardware(found['machine'])}), which were"
        " dealt out by size. All over the same cells and seeds:"
    )
    return ["", paragraph(text), "", *methods_table(found, "test_accuracy", "test accuracy")]


def _seeds(found: dict[str, Any]) -> str:
    """The number of seeds."""
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
    """Spearman of each score with test accuracy."""
    lines = [
        "### Scores against truth",
        *prose(
            f"Spearman with test accuracy over {found['networks']} trained networks that compute different things:"
            " those of all rounds, and NAS cells (below) as far as they are trained, their mean over seeds. Every score"
            " over the networks it knows, the value model of a table over those that it was not fitted on, a short"
            " training over those that had one by the schedule of searches. Over the same: the"
            f" {found['common']} that all of ours know, most of them picked with the help of their short trainings."
            " Random changes are small and bad, which size tells; so the last column is among the other answers to each"
            f" of {found['inputs']} inputs, less what these have in common: what a search has to tell apart. 95 %"
            " bootstrap intervals."
        ),
        *table("| score | networks | Spearman | over the same | among the answers to an input |"),
    ]
    for name, one in found["scores"].items():
        figures = " | ".join(with_interval(one[key]) for key in ("spearman", "common", "among_answers"))
        lines.append(f"| {name} | {one['networks']} | {figures} |")
    return lines


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
        " cells that `nat++` changed:"
    )


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


def random_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """All rounds of random architectures."""
    rows = []
    for number, one in found["rounds"].items():
        told = {
            name: f"{of['test_accuracy']['mean']:.2f} ({per_cent(of['live_madds_change'])} MAdds)"
            for name, of in one["methods"].items()
        }
        over = with_interval(one["differences"]["`nat++` over `constant`"], signed=True)
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
