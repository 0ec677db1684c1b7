"""NAS cells and hand-crafted networks on the results page."""

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
COUNTED = "blocks that go with a dropped branch are counted"
REPLACED = {  # why natpp now changes these hand-crafted networks differently
    "resnet20": COUNTED,
    "resnet56": COUNTED,
    "vgg16": "natpp meets budgets by what the policy prefers, which began with a look at these figures",
    "shufflenet": "convolutions in groups may change too, which began with a look at these figures: before, only those"
    " that see beyond a pixel could, and nearly all of them had to, to save 3 %",
}


def table_cells(found: dict[str, Any]) -> str:
    """Published cells, their published results, and ours."""
    lines = titled(
        "NAS cells, CIFAR-10",
        "`python -m experiments table_cells train --root DIR --runs FOLDER` and `judge`, with the folder of"
        " `images_cells`. Same recipe, width and depth for everyone. Test accuracy, read once, mean ± sd over"
        " seeds; changes are over the seeds that both have. Costs are live ones: of what reaches the output. Last"
        " column: what the paper has, after its own longer training, at its own sizes. The published cells, and the"
        " authors' NAT++ results, are among those whose trainings our policies learned from; ours save little or"
        " nothing here, so differences of their size are also what seeds do.",
    )
    for number, one in found["rounds"].items():
        recipe = one["recipe"]
        lines += [
            "",
            f"### NAS cells, round {number}",
            *prose(
                f"Ours is one shot of the {answered_by(one)}, strict budget. {one['trainings']} trainings, those of"
                f" earlier rounds among them, of {epochs_of(one)} epochs with a full cosine, {recipe['cells']} cells,"
                f" {recipe['channels']} channels, all {one['images']:,} training images; new ones took"
                f" {sum(group['seconds'] for group in one['groups']):,.0f} s of {hardware(one['machine'])}. Latency of"
                f" one image on {one['latency_on']}."
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
            f" `images_cells`. {found['trainings']} of {found['asked']} trainings{replaced}, {epochs_of(found)}"
            f" epochs with a full cosine from fresh weights, all {found['images']:,} training images,"
            f" {found['seconds']:,.0f} s of {hardware(found['machine'])}. Test accuracy, read once for each training,"
            f" mean ± sd over seeds; latency of one image on {found['latency_on']}, the least of several passes. Cut to"
            f" {found['share']:g} of the MAdds, or to what lies next below it, by the {answered_by(found)}, without"
            " data, and at random, anew for each seed (its costs are means). Last column: what the paper has, after its"
            f" own longer training. {_seen_before()}",
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
    verdict = f" This table does not tell {' and '.join(unsure)} from random changes." if unsure else ""
    return (
        "Over the random change, in the mean over networks with its 95 % bootstrap interval over them, and how many"
        f" trainings are above that of the same seed: {told}.{verdict}"
    )


def _twins(found: dict[str, Any]) -> str:
    """Networks that both rules change in the same way."""
    same = [
        f"`{name}`"
        for name, kinds in found.items()
        if {"nat", "nat++"} <= kinds.keys()
        and all(kinds["nat"][key] == kinds["nat++"][key] for key in ("live_params", "live_madds", "accuracy"))
    ]
    return f" Of {', '.join(same)} both rules make what computes the same." if same else ""


def _seen_before() -> str:
    """Networks trained again after their figures had led to changes of natpp."""
    names = " and ".join(f"`{name}`" for name in REPLACED if REPLACED[name] is not COUNTED)
    return f"Earlier test figures of {names} (below the table) led to changes of natpp, so those here are not blind."


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
        why = REPLACED.get(subject, "natpp makes others now")
        told = f"`{subject}`, made and tested earlier, and replaced: {'; '.join(found)}. By now {why}."
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
            f"Published cells ({names}), which the policy learned from too, trained from scratch on CIFAR-10, one shot,"
            " strict budget: points of test accuracy over the originals, in the mean",
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
            " scratch on CIFAR-10: points of test accuracy over the originals, in the mean (two of them were looked at"
            " before, see there)",
            f"{_mean_change(models, 'nat++')}, `nat` {_mean_change(models, 'nat')}",
            f"a random change {_mean_change(models, CONTROL)}; `nat++` over it"
            f" {with_interval(found['over_random']['nat++'], signed=True)}",
        )
    ]
