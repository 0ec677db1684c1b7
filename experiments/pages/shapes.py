"""Tables shared by several parts of the results page: methods against inputs, originals against results."""

from __future__ import annotations

from typing import Any

from experiments.pages.words import difference_lines, measured, paragraph, per_cent, with_interval, with_sign

MARK = "†"


def originals_table(found: dict[str, Any], title: str, paper: dict[str, Any] | None = None) -> list[str]:
    """Originals beside their results, with latencies if known, and with the paper's figures."""
    timed = all("latency_ms" in one for kinds in found.values() for one in kinds.values())
    head = ["seeds", title, "change", "parameters", "MAdds"]
    head += ["latency, ms"] * timed + ["the paper's (M parameters, M MAdds)"] * (paper is not None)
    lines = [f"| | {' | '.join(head)} |", "|---|" + "---|" * len(head)]
    for subject, kinds in found.items():
        for kind, one in kinds.items():
            row = [
                f"`{subject}`" if kind == "input" else f"`{subject}`, {kind}",
                str(one["seeds"]),
                measured(one["accuracy"], 2),
                "" if kind == "input" else with_sign(one["change"]),
            ]
            for key in ("live_params", "live_madds"):
                change = "" if kind == "input" else f" ({per_cent(one[key] / kinds['input'][key] - 1)})"
                row.append(f"{one[key] / 1e6:.2f} M{change}")
            if timed:
                row.append(f"{one['latency_ms']:.2f}")
            if paper is not None:
                said = paper[subject].get(kind)
                size = f" ({said['params_m']:g}, {said['madds_m']:g})" if said else ""
                mark = MARK if _two_sizes(paper[subject], kind) else ""
                row.append(f"{said['accuracy']:.2f}{size}{mark}" if said else "")
            lines.append(f"| {' | '.join(row)} |")
    return lines


def _two_sizes(paper: dict[str, Any], kind: str) -> tuple[float, float] | None:
    """The paper's share of the original's MAdds, and the share in one network, if they differ by a tenth."""
    if "madds_of_original" not in paper.get(kind, {}):
        return None
    share, true = paper[kind]["madds_m"] / paper["input"]["madds_m"], paper[kind]["madds_of_original"]
    return (share, true) if abs(share / true - 1) > 0.1 else None


def of_two_sizes(paper: dict[str, Any]) -> list[str]:
    """The rows of the paper that compare networks of different sizes."""
    found = [
        f"`{subject}`, {kind} has {sizes[0]:.2f} of the original's MAdds there and {sizes[1]:.2f} in the same network"
        for subject, kinds in paper.items()
        for kind in kinds
        if (sizes := _two_sizes(kinds, kind))
    ]
    told = f"{MARK} In the paper, original and result differ in network size: {'; '.join(found)}."
    return ["", paragraph(told)] if found else []


def methods_table(found: dict[str, Any], figure: str, title: str) -> list[str]:
    """Methods beside the inputs, and paired differences of ours."""
    timed = "latency_ms" in found["methods"]["input"]
    lines = [
        f"| | {title} | over the input | wins | parameters | MAdds |" + (" latency, ms |" if timed else ""),
        "|---|---|---|---|---|---|" + ("---|" if timed else ""),
    ]
    for name, one in found["methods"].items():
        ours, over = name != "input", one["over_input"]
        costs = [
            f"{one[key]['mean'] / 1e6:.2f} M" + (f" ({per_cent(one[f'{key}_change'])})" if ours else "")
            for key in ("live_params", "live_madds")
        ]
        row = [
            f"`{name}`" if ours else "the inputs",
            measured(one[figure], 2),
            with_interval(over, 2, signed=True) if ours else "",
            f"{over['wins']} of {over['rows']}" if ours else "",
            *costs,
        ]
        lines.append("| " + " | ".join(row + ([f"{one['latency_ms']['mean']:.2f}"] if timed else [])) + " |")
    lines += ["", "Paired differences, 95 % intervals:", ""]
    lines += difference_lines(found["differences"])
    if found.get("later_seeds"):
        lines += ["", "The same without the first seed, which was used to select the best of ten:", ""]
        lines += difference_lines(found["later_seeds"])
    return lines


def answered_by(found: dict[str, Any]) -> str:
    """The policies whose outputs a table contains."""
    return f"policies of [round {found['policies']} of learning](policy.md#how-we-got-there)"
