"""NAS-Bench-201 on the results page: from images to a policy, schedules, and methods on true scores."""

from __future__ import annotations

from typing import Any

from experiments.pages.words import counted, measured, memory_used, paragraph, prose, spread_of, table, titled

FIGURES = (
    *("seconds", "evaluations", "direct_spearman", "direct_spearman_val_12", "spearman"),
    *("within_equal_madds", "within_equal_ops", "share_of_oracle"),
)


def table_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Methods on the true scores of NAS-Bench-201."""

    def shown(setting: str, method: str) -> str:
        return measured(found[setting]["found"]["methods"][method]["one_shot"], 2)

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


def images_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """From images to a policy."""
    first = found["runs"]["seed"][0]
    rivals = found["rivals"]
    return [
        (
            f"From CIFAR-10 images to a policy, {measured(found['evaluations'], 0)} short trainings on one"
            f" {first['machine']['gpu']}: share of what the best possible gains",
            f"**{measured(found['share_of_oracle'], 3)}** in {measured(found['seconds'], 0)} s",
            f"a fixed map {measured(rivals['constant']['share_of_oracle'], 3)}, best of 10 random ones"
            f" {measured(rivals['random-best-of-10']['share_of_oracle'], 3)} on the same prediction; MAdds as the score"
            f" {measured(rivals['live MAdds']['share_of_oracle'], 3)}",
        )
    ]


def images(found: dict[str, Any]) -> str:
    """The search with short trainings, beside rivals."""
    runs = found["runs"]
    first = runs["seed"][0]
    settings = first["settings"]
    schedule, network = settings["schedule"], settings["network"]
    phases = {name: spread_of([run["phases"].get(name, 0.0) for run in runs["seed"]]) for name in first["phases"]}
    lines = [
        *titled(
            "From images to a policy: NAS-Bench-201, CIFAR-10",
            "`python -m experiments images_nasbench201 search --root DIR --runs FOLDER`, then `direct`, `rival --name"
            " supernet`, `rival --name paper` and `judge --table FILE` with the same folder.",
            f"{counted(len(runs['seed']), 'seed')} on {first['machine']['gpu']}, torch {first['machine']['torch']}."
            f" Trainings: {network['cells']} cells a stage, {network['channels']} channels, batch {schedule['batch']},"
            f" {schedule['steps']} steps, learning rate {schedule['learning_rate']} after {schedule['warm_up']} of"
            f" warm-up, {schedule['together']} at a time;"
            f" {first['at_random']} architectures at random and {first['evaluations'] - first['at_random']} chosen by"
            f" the prediction in {counted(settings['search']['predict']['rounds'], 'round')}; then a policy."
            " The clock starts with the images on the device and ends with the closed policy file; warm-up and capture"
            " are in it."
            " The schedule was picked on 64 architectures by `val_200` ([Searches](search.md)); of the settings of"
            " policy and prediction some were picked with a look at the table, and [that page](nasbench201.md) says"
            " which. Neither search nor prediction sees it.",
            f"direct: Spearman of the score with `test_200` over {spread_of([run['drawn'] for run in runs['seed']], 0)}"
            " random architectures, those left out that the schedule was picked on. all, equal MAdds, equal ops:"
            " Spearman of the predicted score with `test_200` over the 15,284 architectures with a live path, within"
            " groups of equal live MAdds, within groups with equal counts of every live operation. share: of what the"
            " oracle by `val_200` gains on 2,000 held-out inputs, by one shot. Mean ± sd, of one seed where there is"
            " no sd; – does not apply.",
        ),
        *table("| | seconds | trained | direct | `val_12` on the same | all | equal MAdds | equal ops | share |"),
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
        *prose(
            f"Seconds by phase: {', '.join(f'{name} {spent}' for name, spent in phases.items())}. Images a second:"
            f" {spread_of([_trained_images(run) / run['phases']['training'] for run in runs['seed']], 0)} in training,"
            f" {spread_of([run['images_per_second'] for run in runs['seed']], 0)} with all that scoring"
            f" takes{memory_used(runs['seed'])}."
        ),
    ]
    notes = {f"Seed {run['seed']}: {run['policy_note']}." for run in runs["seed"] if "policy_note" in run}
    lines += [paragraph(note) for note in sorted(notes)]
    for name, what in (("supernet", "the supernet took {steps:,} steps"), ("paper", "the preset took {steps:,} steps")):
        for run in runs.get(name, []):
            lines.append(f"In {run['seconds']:.0f} s {what.format(**run)} of its weights{memory_used([run])}.")
    lines += prose(
        "What would come next: other sizes of groups, since so many side by side use a part of the memory's"
        " bandwidth only ([their speed](#speed-of-trainings)); then fewer and larger launches, such as both"
        " convolutions of a node in one, and capturing a group of trainings while the one before it still runs."
    )
    return "\n".join(lines) + "\n"


def _trained_images(run: dict[str, Any]) -> float:
    """Number of images in all trainings of a run."""
    schedule = run["settings"]["schedule"]
    return float(run["evaluations"] * schedule["steps"] * schedule["batch"])


def _as_long(found: dict[str, Any], rival: str) -> bool:
    """Whether a rival had at least 95 % of the seconds of the search."""
    seconds = found["rivals"].get(rival, {}).get("seconds")
    return seconds is None or seconds["mean"] >= 0.95 * found["seconds"]["mean"]


def schedules(found: dict[str, Any]) -> str:
    """The schedules that were compared."""
    machine = next(iter(found.values()))["machine"]
    picked = next((name for name, one in found.items() if one["picked"]), "none of them")
    lines = [
        *titled(
            "The schedule of short trainings",
            "`python -m experiments schedules --root DIR --table FILE`. Schedules on one named set of 64"
            " architectures (the script says which), by agreement with `val_200`: Spearman, and in brackets its part"
            " given live MAdds. Rows from the second on differ from the first in what they name. The loss is that of"
            " the validation images, that of the last training steps, or the mean of both. Searches use"
            f" *{picked}*, and both losses. On {machine['gpu']}, torch {machine['torch']}.",
        ),
        *table("| schedule | validation loss | training loss | both | mean accuracy | seconds for 64 |"),
    ]
    for name, one in found.items():
        figures = " | ".join(
            f"{of['spearman']:.3f} ({of['partial_given_madds']:.3f})" for of in one["agreement"].values()
        )
        lines.append(f"| {name} | {figures} | {one['mean_accuracy']:.1f} | {one['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def _row(title: str, figures: dict[str, Any]) -> str:
    cells = [measured(figures[name], 0 if name in ("seconds", "evaluations") else 3) for name in FIGURES]
    return f"| {title} | " + " | ".join(cells) + " |"
