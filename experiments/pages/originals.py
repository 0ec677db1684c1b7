"""Results page: NAS cells and hand-crafted networks."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from experiments.pages.shapes import answered_by, of_two_sizes, originals_table
from experiments.pages.words import (
    epochs_of,
    gathered,
    hardware,
    measured,
    per_cent,
    prose,
    titled,
    with_interval,
    with_sign,
)

CONTROL = "random to the same budget"
COUNTED = "natpp now counts blocks that are removed together with a branch"
REPLACED = {  # why natpp now changes these hand-crafted networks differently
    "resnet20": COUNTED,
    "resnet56": COUNTED,
    "vgg16": "natpp now meets budgets by the policy's preferences, a change prompted by these figures",
    "shufflenet": "natpp can now change grouped convolutions, a change prompted by these figures; before, it could only"
    " change those with a kernel above 1x1, and nearly all of them had to go to save 3 %",
}


def table_cells(found: dict[str, Any]) -> str:
    """Published cells, their published results, and ours."""
    lines = titled(
        "NAS cells, CIFAR-10",
        "`python -m experiments table_cells train --root DIR --runs FOLDER` and `judge`, with the folder of"
        " `images_cells`. All networks use the same recipe, width and depth. Test accuracy, read once, mean ± sd over"
        " seeds; changes are over the seeds that both have. Costs are live costs: only what reaches the output. The"
        " last column is the paper's result, after its own longer training, at its own sizes. Our policies learned from"
        " training runs that include the published cells and the authors' NAT++ results. Ours save little or nothing"
        " here, so differences of this size are also within seed noise.",
    )
    for number, one in found["rounds"].items():
        recipe = one["recipe"]
        lines += [
            "",
            f"### NAS cells, round {number}",
            *prose(
                f"Ours is one shot of the {answered_by(one)}, strict budget. {one['trainings']} training runs,"
                f" including those of earlier rounds, of {epochs_of(one)} epochs with a full cosine, {recipe['cells']}"
                f" cells, {recipe['channels']} channels, all {one['images']:,} training images; the new ones took"
                f" {sum(group['seconds'] for group in one['groups']):,.0f} s on {hardware(one['machine'])}. Latency is"
                f" for one image on {one['latency_on']}."
            ),
            "",
            *originals_table(one["cells"], "test accuracy", found["paper"]),
        ]
    return "\n".join([*lines, *of_two_sizes(found["paper"])]) + "\n"


def table_handcrafted(found: dict[str, Any]) -> str:
    """Hand-crafted networks, results of both rules, and a random control."""
    earlier = len(found["earlier"])
    replaced = f" and {earlier} that {'was' if earlier == 1 else 'were'} replaced" if earlier else ""
    lines = [
        *titled(
            "Hand-crafted networks, CIFAR-10",
            "`python -m experiments table_handcrafted train --root DIR --runs FOLDER` and `judge`, with the folder of"
            f" `images_cells`. {found['trainings']} of {found['asked']} training runs{replaced}, {epochs_of(found)}"
            f" epochs with a full cosine from fresh weights, all {found['images']:,} training images,"
            f" {found['seconds']:,.0f} s on {hardware(found['machine'])}. Test accuracy, read once per training run,"
            f" mean ± sd over seeds; latency of one image on {found['latency_on']}, the minimum of several passes. The"
            f" networks are cut to {found['share']:g} of the MAdds, or the next possible value below, without data, by"
            f" the {answered_by(found)}, and at random, differently for each seed (its costs are means). The last"
            f" column is the paper's result, after its own longer training. {_seen_before()}",
        ),
        "",
        *originals_table(found["models"], "test accuracy", found["paper"]),
        *prose(
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
    """Mean change of accuracy by a kind of change."""
    some = [kinds[kind]["change"] for kinds in found.values() if kind in kinds]
    return with_sign(statistics.fmean(some)) if some else "–"


def _mean_madds(found: dict[str, Any], kind: str) -> str:
    """Mean change of multiply-adds."""
    some = [kinds[kind]["live_madds"] / kinds["input"]["live_madds"] - 1 for kinds in found.values() if kind in kinds]
    return per_cent(statistics.fmean(some)) if some else "–"


def _over_random(found: dict[str, Any]) -> str:
    """Differences of the rules to a random change, with intervals."""
    told = ", ".join(
        f"{rule} {with_interval(one, signed=True)}, {one['trainings_above']} of {one['trainings']}"
        for rule, one in found.items()
    )
    unsure = [rule for rule, one in found.items() if one["low"] <= 0 <= one["high"]]
    verdict = f" This table does not separate {' and '.join(unsure)} from random changes." if unsure else ""
    return (
        "Difference to the random change, mean over networks with its 95 % bootstrap interval over them, and the number"
        f" of training runs above that of the same seed: {told}.{verdict}"
    )


def _twins(found: dict[str, Any]) -> str:
    """Networks that both rules change in the same way."""
    same = [
        f"`{name}`"
        for name, kinds in found.items()
        if {"nat", "nat++"} <= kinds.keys()
        and all(kinds["nat"][key] == kinds["nat++"][key] for key in ("live_params", "live_madds", "accuracy"))
    ]
    return f" For {', '.join(same)} both rules give networks that compute the same function." if same else ""


def _seen_before() -> str:
    """Networks trained again after their figures had led to changes of natpp."""
    names = " and ".join(f"`{name}`" for name in REPLACED if REPLACED[name] is not COUNTED)
    return f"Earlier test results of {names} (below the table) led to changes in natpp, so those here are not blind."


def _replaced(rows: list[dict[str, Any]]) -> list[str]:
    """Networks that natpp no longer makes, with their accuracy and the reason."""
    lines = []
    for subject in dict.fromkeys(row["name"].rpartition(", ")[0] for row in rows):
        same: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["name"].rpartition(", ")[0] == subject:
                same[row["name"].rpartition(", ")[2], _counted(row["changes"])].append(row)
        found = [
            f"{kind} ({changes}; {some[0]['live_madds'] / 1e6:.2f} M MAdds) had"
            f" {measured(gathered([row['test_accuracy'] for row in some]), 2)}"
            for (kind, changes), some in same.items()
        ]
        why = REPLACED.get(subject, "natpp now makes different networks")
        told = f"`{subject}`, tested earlier and then replaced: {'; '.join(found)}. Reason: {why}."
        lines += prose(told)
    return lines


def _counted(changes: list[list[str]]) -> str:
    """Changes with counts, and with the layer where there is only one."""
    same: defaultdict[str, list[str]] = defaultdict(list)
    for name, before, after in changes:
        same[f"{before} → {after}"].append(name)
    return ", ".join(
        f"{names[0]} {what}" if len(names) == 1 else f"{len(names)} {what}" for what, names in same.items()
    )


def cells_trained_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Published cells of the last round, and those with published results."""
    every, ours, theirs = list(found["rounds"].values())[-1]["cells"], "ours, `nat++`", "published NAT++"
    shared = {name: kinds for name, kinds in every.items() if theirs in kinds}

    def prose(cells: dict[str, Any], kind: str) -> str:
        return f"{_mean_change(cells, kind)} over {len(cells)} cells, {_mean_madds(cells, kind)} MAdds"

    names = ", ".join(f"`{name}`" for name in every)
    return [
        (
            f"Published cells ({names}), from which the policy also learned, trained from scratch on CIFAR-10, one"
            " shot, strict budget: points of test accuracy over the originals, on average",
            f"{prose(every, ours)}; {prose(shared, ours)}",
            f"the authors' NAT++ results {prose(shared, theirs)}",
        )
    ]


def handcrafted_summary(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Hand-crafted networks, if all are trained."""
    if found["trainings"] < found["asked"]:
        return []
    models = found["models"]
    names = ", ".join(f"`{name}`" for name in models)
    return [
        (
            f"Hand-crafted networks ({names}) cut to {found['share']:g} of their MAdds without data and trained from"
            " scratch on CIFAR-10: points of test accuracy over the originals, on average (two of them not blind,"
            " see there)",
            f"{_mean_change(models, 'nat++')}, `nat` {_mean_change(models, 'nat')}",
            f"a random change {_mean_change(models, CONTROL)}; `nat++` over it"
            f" {with_interval(found['over_random']['nat++'], signed=True)}",
        )
    ]
