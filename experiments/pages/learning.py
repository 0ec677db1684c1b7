"""Results page: training losses, crossed halves, built-in policies and finals."""

from __future__ import annotations

from typing import Any

from experiments.pages.words import (
    difference_lines,
    paragraph,
    per_cent,
    prose,
    table,
    titled,
    with_interval,
    with_sign,
)


def policies(found: dict[str, Any]) -> str:
    """The built-in policies, evaluated by their value model."""
    lines = titled(
        "Built-in policies",
        "`python -m experiments ship_policies learn --runs FOLDER --round NUMBER` and `ship`, with the folder of"
        " `images_cells`. Caution subtracts a part of its standard deviation from each improvement, and savings earn a"
        " small bonus. All figures are on new inputs, by the value model: expected improvement (1 is a standard"
        " deviation of all accuracies), the same minus doubt, edges changed, MAdds.",
    )
    for name, one in found.items():
        lines += ["", *_shipped(name, one)]
    return "\n".join(lines) + "\n"


def _shipped(title: str, found: dict[str, Any]) -> list[str]:
    """The policies of one name, and other values of caution."""
    losses = f"; training losses of {found['loss_scores']}" if found.get("loss_scores") else ""
    lines = [
        paragraph(
            f"**`{title}`**, round {found['round']}: value model `{found['model']}` on {found['cheap_scores']} short"
            f" and {found['dear_scores']} longer training runs{losses}; caution {found['caution']}; saving all live"
            f" MAdds is worth {' and '.join(f'{price} (`{rule}`)' for rule, price in found['prices'].items())} standard"
            f" deviations of accuracies; {found['pool']:,} inputs, {found['learn']['steps']:,} steps."
        ),
        *table("| | improvement | minus doubt | edges changed | MAdds | zoo cells changed | seconds |"),
    ]
    for rule, one in found["policies"].items():
        for name, figures in one["fresh_inputs"].items():
            ours = name == "policy"
            whose = f"`{rule}`" if ours else f"{name}, `{rule}`"
            zoo = f"{sum(row['changes'] > 0 for row in one['zoo'].values())} of {len(one['zoo'])}" if ours else ""
            lines.append(
                f"| {whose} | {with_sign(figures['expected_improvement'])} |"
                f" {with_sign(figures['expected_improvement_less_doubt'])} | {figures['edges_changed']:.0%} |"
                f" {per_cent(figures['madds_change'])} | {zoo} | {format(one['seconds'], '.0f') if ours else ''} |"
            )
    lines += [
        *prose(
            "How much caution: what hill climbing finds for new inputs under `nat++`, keeping only improvements that"
            " the value model is this confident of."
        ),
        *table("| caution | improvement | inputs changed | edges changed | MAdds |"),
    ]
    for caution, figures in found["cautions"].items():
        lines.append(
            f"| {caution} | {with_sign(figures['expected_improvement'])} | {figures['inputs_changed']:.0%} |"
            f" {figures['edges_changed']:.0%} | {per_cent(figures['madds_change'])} |"
        )
    return lines


def crossed(found: dict[str, Any]) -> str:
    """Policies learned on half of the training runs, evaluated by the other half."""
    lines = titled(
        "What a policy should learn on",
        "`python -m experiments crossed --runs FOLDER --round NUMBER`, with the folder of `images_cells`. A policy"
        " exploits the errors of its value model, so its own estimate of its changes says little. Here it learns on"
        " half of the longer training runs available before a round, split by whole families, and value models"
        " fitted on the other half evaluate its changes. Each entry is the improvement of new random cells in"
        " standard deviations, mean of both halves: first for `nat++`, after the slash for a fixed map fitted with the"
        " same caution; the rows below are maps fitted without caution. Value model, caution and price are those of"
        " the round.",
        "Beside cost: the value model sees the flow through a graph and its cost together. `places`: where operations"
        " are and their receptive fields, walks, and costs. `losses`: the same, fitted on training losses. `losses by"
        " flow`: flow, walks and costs, fitted on training losses. `together`: the mean of these three and `mixture"
        " beside cost`.",
    )
    for number, one in found["rounds"].items():
        lines += ["", *_crossed_round(number, one)]
    return "\n".join(lines) + "\n"


def _crossed_round(number: str, found: dict[str, Any]) -> list[str]:
    learned, settings = found["learn"], found["settings"]
    judges = list(next(iter(settings.values()))["constant"]["judges"]) if settings else []
    lines = [
        paragraph(
            f"**Before round {number}**: {' and '.join(map(str, found['dear_scores']))} longer training runs"
            + (f" ({' and '.join(map(str, found['loss_scores']))} with losses)" if "loss_scores" in found else "")
            + f", and {found['cheap_scores']} short ones, also used by `mixture`; {found['fresh']} new cells;"
            f" {learned['steps']} steps of {learned['inputs']} inputs and {learned['samples']} samples with one seed;"
            " rows marked as longer use the settings of round 2."
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
            + " | ".join(" / ".join(with_sign(value) for value in values) for values in figures)
            + f" | {' / '.join(per_cent(each['madds_change']) for each in some)} |"
        )
    return lines


def losses(found: dict[str, Any]) -> str:
    """Variation of accuracy and training loss, and correlation of value models with the loss."""
    seeds, fresh = found["seeds"], found["fresh"]
    lines = [
        *titled(
            "Accuracy and training loss",
            "`python -m experiments losses --runs FOLDER`, with the folder of `images_cells`. Over"
            f" {seeds['networks']} networks of the longer recipe, the standard deviation of validation accuracy is"
            f" {seeds['accuracy_sd']:.2f} points; between seeds (for {seeds['with_several_seeds']} of them) it is"
            f" {seeds['accuracy_by_seeds']:.2f}. For the final training loss it is {seeds['loss_sd']:.4f}, and"
            f" {seeds['loss_by_seeds']:.4f} between seeds. Given the loss, the residual standard deviation of"
            f" accuracy is {seeds['left_of_accuracy']:.2f} points; seed noise alone would leave"
            f" {seeds['left_by_seeds_alone']:.2f}. So the loss of a single run, at"
            f" {abs(seeds['points_per_loss']) / 100:.2f} points per hundredth, says more about what an architecture can"
            " reach than its accuracy.",
            "The first table of [random architectures](#random-architectures-cifar-10) by training loss:"
            f" {fresh['inputs']} inputs and the outputs of learned methods. No value model here was fitted on them, but"
            " the features of `places` and `losses` were picked after looking at them. The correlation is between value"
            " model and loss after subtracting each input's mean. All models are fitted on the same"
            f" {fresh['trainings']} longer training runs; the first, which that table's policies learned on, and the"
            " last also on short ones ([features](#what-a-policy-should-learn-on)). 95 % intervals by bootstrap over"
            " inputs.",
        ),
        *table("| value model | correlation |"),
        *(f"| `{name}` | {with_interval(one)} |" for name, one in fresh["agreement"].items()),
        "",
        "Differences in that table by training loss, converted to points of accuracy:",
        "",
        *difference_lines(fresh["differences"]),
    ]
    return "\n".join(lines) + "\n"


def finals(found: dict[str, Any]) -> str:
    """Simulated finals of several sizes."""
    best = " | ".join("best of 10 by score" if one == 1 else f"final of {one}" for one in found["finalists"])
    lines = [
        *titled(
            "How many of ten to train in a final",
            "`python -m experiments finals --runs FOLDER`, with the folder of `images_cells`. This is a simulation; no"
            f" network is trained. {found['inputs']} new random cells, the policy of the second table of [random"
            f" architectures](#random-architectures-cifar-10), and {found['draws']} draws for each from the value"
            " models' posterior. Each entry shows value models fitted on training losses, then, after the slash, those"
            f" fitted on accuracies. A short training run adds noise of {found['short']['noise']:.2f} standard"
            " deviations, as measured on cells that also have a longer one. It ranks the ten together with the value"
            " model, as in that table. Improvement over the inputs in standard deviations. Distinct: how many of ten"
            " compute different functions.",
        ),
        "",
        f"| temperature of samples | distinct | fixed map | one shot | a sample | {best} |",
        "|---|---|---|---|---|" + "---|" * len(found["finalists"]),
    ]
    for temperature, one in found["temperatures"].items():
        truths = one["losses"], one["accuracies"]
        rows = [[some["map"], some["one_shot"], some["sample"], *some["best"]] for some in truths]
        figures = " | ".join(f"{with_sign(loss)} / {with_sign(accuracy)}" for loss, accuracy in zip(*rows, strict=True))
        lines.append(f"| {temperature} | {one['distinct']:.1f} | {figures} |")
    if found["shown"]:
        told = "; ".join(
            f"among those of `{method}` the first by score won {one['first_won']} of {one['finals']}, and the winner's"
            f" loss is {one['loss_below_first']:.4f} below that of the first"
            for method, one in found["shown"].items()
        )
        lines += prose(f"Results of the finals in that table, by training losses: {told}.")
    return "\n".join(lines) + "\n"
