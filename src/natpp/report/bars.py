"""Bar chart of the cost of each operation at one place, as in the paper's section on complexity."""

from __future__ import annotations

import io

from natpp.arch.ops import PAPER_OPS, Place
from natpp.registry import OPS


def op_costs(place: Place) -> list[tuple[str, int, int]]:
    """The thirteen operations with parameters and multiply-adds, most expensive first."""
    rows = [(name, *OPS[name].cost(place)) for name in PAPER_OPS]
    return sorted(rows, key=lambda row: row[1:], reverse=True)


def cost_bars_text(place: Place, width: int = 50) -> str:
    """Bars of multiply-adds for the terminal; the most expensive operation has a bar of length `width`."""
    rows = op_costs(place)
    most = max(madds for _, _, madds in rows) or 1
    lines = [f"{'operation':<14}{'params':>10}{'MAdds':>15}"]
    for name, params, madds in rows:
        bar = "█" * round(width * madds / most) or ("▏" if madds else "")
        lines.append(f"{name:<14}{params:>10,}{madds:>15,}  {bar}".rstrip())
    return "\n".join(lines)


def cost_bars_picture(place: Place, suffix: str) -> bytes:
    """The chart as SVG or PNG: parameters and multiply-adds of each operation, next to each other."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = op_costs(place)[::-1]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    columns = ((1, "parameters", "#4a7bc0"), (2, "multiply-adds", "#c9a227"))
    for axes, (column, label, color) in zip(panels, columns, strict=True):
        lengths = [float(row[column]) for row in rows]
        bars = axes.barh([row[0] for row in rows], lengths, color=color)
        axes.bar_label(bars, labels=[f"{length:,.0f}" for length in lengths], fontsize=8, padding=3)
        axes.set_xlim(0, 1.35 * max(*lengths, 1))  # room for the label of the longest bar
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_title(label, fontsize=10)
    height, width = place.size
    figure.suptitle(f"{place.channels_in} channels, {height} x {width}, stride {place.stride}", fontsize=11)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "natpp"}):
        metadata = {"Date": None} if suffix == ".svg" else None  # makes the output reproducible
        figure.savefig(buffer, format=suffix.lstrip("."), dpi=160, metadata=metadata)
    return buffer.getvalue()
