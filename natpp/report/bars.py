"""What each operation costs at a place, as bars: the chart of the paper's section on complexity."""

from __future__ import annotations

import io

from natpp.arch.ops import PAPER_OPS, Place
from natpp.registry import OPS


def op_costs(place: Place) -> list[tuple[str, int, int]]:
    """The thirteen operations with parameters and multiply-adds, dearest first."""
    rows = [(name, *OPS[name].cost(place)) for name in PAPER_OPS]
    return sorted(rows, key=lambda row: row[1:], reverse=True)


def cost_bars_text(place: Place, width: int = 50) -> str:
    """Bars of multiply-adds in the terminal, the dearest operation `width` long."""
    rows = op_costs(place)
    most = max(madds for _, _, madds in rows) or 1
    lines = [f"{'operation':<14}{'params':>10}{'MAdds':>15}"]
    for name, params, madds in rows:
        bar = "█" * round(width * madds / most) or ("▏" if madds else "")
        lines.append(f"{name:<14}{params:>10,}{madds:>15,}  {bar}".rstrip())
    return "\n".join(lines)


def cost_bars_picture(place: Place, suffix: str) -> bytes:
    """The chart as SVG or PNG: parameters and multiply-adds, side by side for each operation."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = op_costs(place)
    positions = range(len(rows))
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for shift, column, unit, label, color in (
        (-0.2, 1, 1e3, "parameters (thousands)", "#4a7bc0"),
        (0.2, 2, 1e6, "MAdds (millions)", "#c9a227"),
    ):
        heights = [int(row[column]) / unit for row in rows]
        bars = axes.bar([position + shift for position in positions], heights, 0.4, label=label, color=color)
        axes.bar_label(bars, labels=[f"{height:.3g}" for height in heights], fontsize=7, padding=1)
    axes.set_xticks(list(positions), [row[0] for row in rows], rotation=35, ha="right", fontsize=9)
    axes.set_yscale("symlog", linthresh=1)
    axes.spines[["top", "right"]].set_visible(False)
    height, width = place.size
    axes.set_title(f"{place.channels_in} channels, {height} x {width}, stride {place.stride}", fontsize=10)
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "natpp"}):
        metadata = {"Date": None} if suffix == ".svg" else None  # the same picture, the same bytes
        figure.savefig(buffer, format=suffix.lstrip("."), dpi=160, metadata=metadata)
    return buffer.getvalue()
