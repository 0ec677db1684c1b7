"""Learning on the results page: losses, crossed halves, shipped policies, finals."""

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
    """The shipped policies, judged by their value model."""
    lines = titled(
        "The policies that ship",
        "`python -m experiments ship_policies learn --runs FOLDER --round NUMBER` and `ship`, with the folder of"
        " `images_cells`. An improvement counts less a part of its standard deviations, and a saving counts a"
        " little. On fresh inputs, by the value model: expected improvement (1 is a standard deviation of all"
        " accuracies), the same less the doubt, edges that change, MAdds.",
    )
    for name, one in found.items():
        lines += ["", *_shipped(name, one)]
    return "\n".join(lines) + "\n"


def _shipped(title: str, found: dict[str, Any]) -> list[str]:
    """The policies of a name, and other degrees of caution."""
    losses = f"; training losses of {found['loss_scores']}" if found.get("loss_scores") else ""
    lines = [
        paragraph(
            f"**`{title}`**, round {found['round']}: value model `{found['model']}` on {found['cheap_scores']} short"
            f" and {found['dear_scores']} longer trainings{losses}; caution {found['caution']}, and all living MAdds"
            f" are worth {' and '.join(f'{price} (`{rule}`)' for rule, price in found['prices'].items())} standard"
            f" deviations of accuracies; {found['pool']:,} inputs, {found['learn']['steps']:,} steps."
        ),
        *table("| | improvement | less the doubt | edges changed | MAdds | cells of the zoo changed | seconds |"),
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
            "How much caution: what climbing finds for fresh inputs under `nat++`, where it is kept only if the value"
            " model is that sure of it."
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
    """Policies learned on half of the trainings, judged by the other half."""
    lines = titled(
        "What a policy should learn on",
        "`python -m experiments crossed --runs FOLDER --round NUMBER`, with the folder of `images_cells`. A"
        " policy finds what its value model is wrong about, so what it expects of its own changes says little. Here"
        " it learns on half of the longer trainings that there are before a round, whole families together, and"
        " value models that were fitted on the other half say what its changes are worth. Of `nat++` and, after the"
        " stroke, of a fixed map that was fitted with as much caution, below also of maps that were fitted without"
        " any: improvement of fresh random cells in standard deviations, mean of both halves. As in a round: by its"
        " value model, caution and price. Beside cost: the value model sees what flows through a graph and what it"
        " costs at once. `places`: it sees where operations stand and how far they see, walks, and costs. `losses`"
        " sees the same and is fitted on training losses; `losses by flow` sees flow, walks and costs. `together`:"
        " the mean of these three and of `mixture beside cost`.",
    )
    for number, one in found["rounds"].items():
        lines += ["", *_crossed_round(number, one)]
    return "\n".join(lines) + "\n"


def _crossed_round(number: str, found: dict[str, Any]) -> list[str]:
    learned, settings = found["learn"], found["settings"]
    judges = list(next(iter(settings.values()))["constant"]["judges"]) if settings else []
    lines = [
        paragraph(
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
            + " | ".join(" / ".join(with_sign(value) for value in values) for values in figures)
            + f" | {' / '.join(per_cent(each['madds_change']) for each in some)} |"
        )
    return lines


def losses(found: dict[str, Any]) -> str:
    """What a training tells, and its agreement with value models."""
    seeds, fresh = found["seeds"], found["fresh"]
    lines = [
        *titled(
            "What a training tells: accuracy and training loss",
            "`python -m experiments losses --runs FOLDER`, with the folder of `images_cells`. Over"
            f" {seeds['networks']} networks of the longer recipe, validation accuracies differ by a standard deviation"
            f" of {seeds['accuracy_sd']:.2f} points, from seed to seed (of {seeds['with_several_seeds']} of them) by"
            f" {seeds['accuracy_by_seeds']:.2f}. Training losses at the end differ by {seeds['loss_sd']:.4f}, from seed"
            f" to seed by {seeds['loss_by_seeds']:.4f}. Where the loss is known,"
            f" {seeds['left_of_accuracy']:.2f} points are left of the accuracies;"
            f" seeds alone would leave {seeds['left_by_seeds_alone']:.2f}. So the loss of one training, worth"
            f" {abs(seeds['points_per_loss']) / 100:.2f} points a hundredth, says more of what an architecture reaches"
            " than its accuracy.",
            f"The first table of [random architectures](#random-architectures-cifar-10) by it: {fresh['inputs']} inputs"
            " and what learned methods made of them, which no value model here was fitted on (what `places` and"
            " `losses` see was picked with a look at them, though). Correlation of value models"
            f" with losses, less the means of each input's; all are fitted on the same {fresh['trainings']} longer"
            " trainings, the first, which that table's policies had learned on, and the last on short ones too"
            " ([what they see](#what-a-policy-should-learn-on)). 95 % intervals by bootstrap over inputs.",
        ),
        *table("| value model | correlation |"),
        *(f"| `{name}` | {with_interval(one)} |" for name, one in fresh["agreement"].items()),
        "",
        "Differences of that table by training losses, in points of accuracy:",
        "",
        *difference_lines(fresh["differences"]),
    ]
    return "\n".join(lines) + "\n"


def finals(found: dict[str, Any]) -> str:
    """Simulated finals of several sizes."""
    best = " | ".join("best of 10 by the score" if one == 1 else f"final of {one}" for one in found["finalists"])
    lines = [
        *titled(
            "How many of ten meet in a final",
            "`python -m experiments finals --runs FOLDER`, with the folder of `images_cells`: simulated, no network"
            f" is trained. {found['inputs']} fresh random cells, the policy of the second table of [random"
            f" architectures](#random-architectures-cifar-10), {found['draws']} draws each of what value models hold"
            " possible; those fitted on training losses, and after the stroke those fitted on accuracies. A short"
            f" training shows it with a noise of {found['short']['noise']:.2f} deviations, as in cells that have a"
            " longer one too, and the ten are ordered by it and the value model as in that table. Improvement over the"
            " inputs in standard deviations. Distinct: of ten, how many compute different things.",
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
            f"among those of `{method}` the first by the score won {one['first_won']} of {one['finals']}, and the"
            f" winner's loss is {one['loss_below_first']:.4f} below that of the first"
            for method, one in found["shown"].items()
        )
        lines += prose(f"What the finals of that table showed, by training losses: {told}.")
    return "\n".join(lines) + "\n"
