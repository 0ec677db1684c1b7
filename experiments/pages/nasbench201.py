"""Results page: NAS-Bench-201. From images to a policy, schedules, and methods on true scores."""

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
            "the same, when neither parameters nor MAdds may increase",
            f"**{shown(strict, 'nat++')}**, {cut['madds_change']:+.0%} MAdds".replace("-", "−"),
            f"a fixed map {shown(strict, 'constant')}, best possible {found[strict]['found']['oracle_by_reward']:.2f}",
        ),
        (
            "as the first row, with 100 scores and the rest predicted",
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
            f"From CIFAR-10 images to a policy, {measured(found['evaluations'], 0)} short training runs on one"
            f" {first['machine']['gpu']}: share of the best possible gain",
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
            f" Training: {network['cells']} cells a stage, {network['channels']} channels, batch {schedule['batch']},"
            f" {schedule['steps']} steps, learning rate {schedule['learning_rate']} after {schedule['warm_up']} of"
            f" warm-up, {schedule['together']} at a time;"
            f" {first['at_random']} random architectures and {first['evaluations'] - first['at_random']} chosen by the"
            f" prediction in {counted(settings['search']['predict']['rounds'], 'round')}; then a policy. The clock runs"
            " from images on the device to the written policy file, including warm-up and graph capture.",
            "The schedule was picked on 64 architectures by `val_200` ([Searches](search.md)). Some settings of policy"
            " and prediction were picked after looking at the table; [this page](nasbench201.md) says which. Neither"
            " search nor prediction uses the table.",
            f"direct: Spearman of the score with `test_200` over {spread_of([run['drawn'] for run in runs['seed']], 0)}"
            " random architectures, excluding those the schedule was picked on. all, equal MAdds, equal ops: Spearman"
            " of the predicted score with `test_200` over the 15,284 architectures with a live path, within groups of"
            " equal live MAdds, and within groups with equal counts of every live operation. share: of the gain of the"
            " oracle by `val_200` on 2,000 held-out inputs, in one shot. Mean ± sd, or one seed if there is no sd; –"
            " means not applicable.",
        ),
        *table("| | seconds | trained | direct | `val_12` on the same | all | equal MAdds | equal ops | share |"),
        _row("**short training runs**", found),
    ]
    titles = {
        "constant": "`constant` on the same prediction",
        "random-best-of-10": "`random-best-of-10` on the same prediction",
        "live MAdds": "live MAdds as the score",
        "supernet": "a fast supernet in the same time"
        if _as_long(found, "supernet")
        else "a fast supernet in less time",
        "paper": "preset `paper`, stopped at the same time",
    }
    lines += [_row(title, found["rivals"][name]) for name, title in titles.items() if name in found["rivals"]]
    lines += [
        "| *target* | ≤ 376 | | ≥ 0.88 | | ≥ 0.85 | ≥ 0.70 | ≥ 0.33 | ≥ 0.95 |",
        *prose(
            f"Seconds by phase: {', '.join(f'{name} {spent}' for name, spent in phases.items())}. Images a second:"
            f" {spread_of([_trained_images(run) / run['phases']['training'] for run in runs['seed']], 0)} in training,"
            f" {spread_of([run['images_per_second'] for run in runs['seed']], 0)} including all other parts of"
            f" scoring{memory_used(runs['seed'])}."
        ),
    ]
    notes = {f"Seed {run['seed']}: {run['policy_note']}." for run in runs["seed"] if "policy_note" in run}
    lines += [paragraph(note) for note in sorted(notes)]
    for name, what in (
        ("supernet", "the supernet trained for {steps:,}"),
        ("paper", "the preset trained for {steps:,}"),
    ):
        for run in runs.get(name, []):
            lines.append(f"In {run['seconds']:.0f} s {what.format(**run)} weight steps{memory_used([run])}.")
    lines += prose(
        "Possible next steps: other group sizes, since this many networks side by side use only part of the memory"
        " bandwidth ([speed](#speed-of-training)); then fewer and larger launches, such as both convolutions of a node"
        " in one, and capturing a group while the previous one is still running."
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
            "Schedules of short training runs",
            "`python -m experiments schedules --root DIR --table FILE`. Schedules compared on one named set of 64"
            " architectures (listed in the script) by agreement with `val_200`: Spearman, and in brackets the partial"
            " correlation given live MAdds. From the second row on, rows differ from the first in what they name. The"
            " score uses the validation loss, the loss of the last training steps, or the mean of both. Searches use"
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
