"""Results page: random architectures, and agreement of scores with test accuracy."""

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
            " `images_cells`. Target: `nat++` better than the inputs, a fixed map and both random controls (the 95 %"
            " interval of the difference above 0), with fewer parameters and MAdds than the inputs. If a round misses"
            " it, we change what the policy learns on ([after the first table](policy.md#after-the-first-table)) and"
            " draw twenty new cells; all rounds stay on this page. Random changes within the same budget save far more"
            " than the other methods, so part of their loss is due to size; for hand-crafted networks (below) they are"
            " cut as much as ours.",
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
                f"{one['inputs']} of {one['asked']} sampled cells, {one['trainings']} training runs ({one['distinct']}"
                f" distinct functions) of {epochs_of(one)} epochs with a full cosine, {recipe['cells']} cells,"
                f" {recipe['channels']} channels, all {one['images']:,} training images, {_seeds(one)},"
                f" {sum(group['seconds'] for group in one['groups']):,.0f} s on {hardware(one['machine'])}"
                f"{peak_of(one['groups'])}. One-shot results come from the {answered_by(one)}; one score for all,"
                " strict budget. Test accuracy, read once, mean ± sd. Paired difference to the originals, over the"
                " seeds that both have, with its 95 % bootstrap interval over cells (there is one learned policy and"
                " one random change per cell, and the interval does not cover their variation). Costs are live costs:"
                f" only what reaches the output. Latency of one image on {one['latency_on']}, the minimum of several"
                " passes."
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
        paragraph(f"The paper's results, on twenty cells of its own, after its longer training: {told}."),
        "",
        "![Accuracy against parameters, from each original to the output of every method](pictures/random.svg)",
        "",
        "![Training loss by epoch: originals and outputs of `nat++`](pictures/convergence.svg)",
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
        told.append(f"`{name}` {'misses ' + ' and '.join(missed) if missed else 'meets the target'}")
    if found.get("shortlist"):
        told[-1] += ", using short training runs of its ten and full ones of two, which the fixed map does not get"
    return "; ".join(told) + "."


def _shortlist(found: dict[str, Any] | None) -> list[str]:
    """The part of short trainings in picking the best of ten."""
    if found is None:
        return []
    recipe, fit = found["recipe"], found["fit"]
    text = (
        f"Best of ten: all {found['candidates']} candidates, both of `nat++` and random, were trained for"
        f" {recipe['config']['steps']:,} steps in {recipe['cells']} cells ({found['trainings']} distinct functions,"
        f" {sum(group['seconds'] for group in found['groups']):,.0f} s on {hardware(found['machine'])}). They are"
        f" ranked by {fit['weights'][0]:.2f} times the value model's prediction minus {fit['weights'][1]:.2f} times the"
        f" logarithm of the {found['losses']} loss."
    )
    if finals := found["finals"]:
        spent = sum(group["seconds"] for group in finals["groups"])
        text += (
            f" The best {finals['finalists']} of each were trained with the table's own recipe ({finals['candidates']},"
            f" {spent:,.0f} s), and the one with the lower training loss was selected; this run is the first seed of"
            " its row."
        )
    text += " One-shot results and the fixed map are not selected this way."
    if fit["cells"]:
        text += (
            f" These weights are fitted to the accuracies of {fit['cells']} cells of {fit['families']} families."
            " Correlations within families, with accuracies and losses of longer training runs; the value model had not"
            " seen them, and the weights are fitted on the other families:"
        )
    return [paragraph(text), "", *_agreement_table(fit.get("agreement", {}))]


def _agreement_table(found: dict[str, Any]) -> list[str]:
    """Correlations of the value model, of short trainings, and of both."""
    if not found:
        return []
    lines = ["| truth | cells | value model | short run | both |", "|---|---|---|---|---|"]
    for name, one in found.items():
        figures = " | ".join(f"{one[key]:.2f}" for key in ("value_model", "short_training", "both"))
        lines.append(f"| {name.replace('close', 'inputs, `nat++` and map')} | {one['cells']} | {figures} |")
    return [*lines, ""]


def _by_default(found: dict[str, Any] | None) -> list[str]:
    """The default policy beside others, on the cells it was trained on."""
    if found is None or not found["inputs"]:
        return []
    name = list(found["methods"])[-1]
    seeds = "one seed" if len(found["seeds"]) == 1 else f"{len(found['seeds'])} seeds"
    text = (
        f"`{name}`: one shot of the default policy, from an earlier round, trained on {found['inputs']} of"
        f" {found['asked']} of these cells ({seeds},"
        f" {sum(group['seconds'] for group in found['groups']):,.0f} s on {hardware(found['machine'])}), assigned by"
        " size. All rows cover the same cells and seeds:"
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
        "### Scores against test accuracy",
        *prose(
            f"Spearman with test accuracy over {found['networks']} trained networks that compute different functions,"
            " mean over seeds: those of all rounds, and all trained NAS cells (below). Each score is evaluated on the"
            " networks it is available for: the value model of a table on those it was not fitted on, a short training"
            f" run on those that had one with the schedule of searches. Common networks: the {found['common']} for"
            " which all our scores are available, most of them selected with the help of short training runs. Random"
            " changes are small and bad, which size alone reveals. So the last column is among the other outputs for"
            f" each of {found['inputs']} inputs, minus their mean: this is what a search has to tell apart. 95 %"
            " bootstrap intervals."
        ),
        *table("| score | networks | Spearman | common networks | among outputs for one input |"),
    ]
    for name, one in found["scores"].items():
        figures = " | ".join(with_interval(one[key]) for key in ("spearman", "common", "among_answers"))
        lines.append(f"| {name} | {one['networks']} | {figures} |")
    return lines


def _bias(found: dict[str, Any]) -> str:
    """Skips and early losses of all cells of a round."""
    skips = ", ".join(
        f"{one['skips']:.2f} in {'the inputs' if name == 'input' else f'the outputs of `{name}`'}"
        for name, one in found.items()
    )
    ahead = ", ".join(f"`{name}` {one['ahead']} of {one['changed']}" for name, one in found.items() if name != "input")
    return (
        f"Live skips, mean over all cells: {skips}. Of the cells that a method changed, how many have a lower training"
        f" loss than their input after a quarter of the training: {ahead}. All with the first seed; the first cells"
        " that `nat++` changed:"
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
        picked = ", selected by short and full training runs," if one.get("shortlist") else ""
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
