"""The plot of a run: accuracy over rounds, over communication, and over virtual time if the run has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.common import names
from raysim.report.units import per_cent

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes

# Four colours that are distinct for all types of colour vision, and in print.
_LINES = {
    "accuracy/participants": ("participants", "#d97a35", 1.0),
    "accuracy/all": ("all clients", "#0b5fa5", 2.2),
    "accuracy/all_current": ("all, current message", "#00806a", 1.6),
    "accuracy/worst_decile": ("worst tenth", "#7a4a9e", 1.6),
}
_GREY = "#666666"
_PANELS = (
    ("round", "round", 1.0),
    ("comm/total_bytes", "MiB sent, both directions", 2.0**20),
    ("time/virtual_total_s", "virtual seconds", 1.0),
)
"""The horizontal axes: metric, label, unit; the last one is only used if the run has virtual time."""


def plot_accuracy(rounds: pa.Table | Sequence[Mapping[str, Any]], path: Path | str, title: str = "") -> Path:
    """Draw accuracy over rounds, MiB sent and virtual seconds into the PNG `path`, and create its folder.

    rounds: the table of `read_rounds`, or a list with a dict per round: "round" and metrics, accuracies in [0, 1],
    `comm/total_bytes` in bytes. Values that were not measured, or that overflowed, are left out. Raises `OSError`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows: list[Mapping[str, Any]] = list(rounds) if isinstance(rounds, Sequence) else rounds.to_pylist()
    virtual = any(row.get("time/virtual_total_s") is not None for row in rows)
    panels = _PANELS if virtual else _PANELS[:2]
    figure = Figure(figsize=(2 + 4 * len(panels), 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, *others = figure.subplots(1, len(panels), sharey=True, width_ratios=(3, *[2] * (len(panels) - 1)))
    if title:
        figure.suptitle(names.picture(title, 200), x=0.01, ha="left", fontsize=11, fontweight="bold", color="#222222")
    for axes, (x, label, scale) in zip([left, *others], panels, strict=True):
        _style(axes, label)
        series = {m: _series(rows, x, m, scale) for m in _LINES}
        axes.set_ylim(0, _top(rows))
        if axes is left:
            _band(axes, rows)
        for metric, (_, colour, width) in _LINES.items():
            xs, ys = series[metric]
            if axes is not left and metric == "accuracy/participants":
                continue  # it varies with the participants, and would hide the other two lines in the narrow panels
            # A single measurement would not be visible as a line.
            marker = "o" if len(xs) == 1 else None
            axes.plot(xs, ys, color=colour, linewidth=width, marker=marker, clip_on=False, zorder=3)
        axes.set_xlim(0, max([1.0 if x == "round" else 1e-3, *(max(xs) for xs, _ in series.values() if xs)]))
        if axes is left:
            _label(axes, series)
    left.set_ylabel("test accuracy")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")
    return path


def _series(rows: Sequence[Mapping[str, Any]], x: str, y: str, scale: float = 1.0) -> tuple[list[float], list[float]]:
    points = [(row.get(x), row.get(y)) for row in rows]
    known = [
        (a / scale, b) for a, b in points if a is not None and b is not None and abs(a) < 1e300 and math.isfinite(b)
    ]
    return [a for a, _ in known], [b for _, b in known]


def _top(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the end of the accuracy axis: above all lines, but at least 0.2, so that chance does not look good."""
    drawn = [row.get(metric) or 0.0 for row in rows for metric in _LINES]
    drawn += [(row.get("accuracy/all") or 0.0) + (row.get("accuracy/all_std") or 0.0) for row in rows]
    return min(1.0, max([0.2, *(1.05 * a for a in drawn if math.isfinite(a))]))


def _band(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    both = [r for r in rows if r.get("accuracy/all") is not None and r.get("accuracy/all_std") is not None]
    if len(both) < 2:
        return
    xs = [r["round"] for r in both]
    low = [max(0.0, r["accuracy/all"] - r["accuracy/all_std"]) for r in both]
    high = [min(1.0, r["accuracy/all"] + r["accuracy/all_std"]) for r in both]
    axes.fill_between(xs, low, high, color=_LINES["accuracy/all"][1], alpha=0.13, linewidth=0, zorder=1)
    note = "band: one standard deviation over clients"
    axes.annotate(note, (1, 0), (-4, 5), "axes fraction", "offset points", ha="right", fontsize=8, color=_GREY)


def _label(axes: Axes, series: Mapping[str, tuple[list[float], list[float]]]) -> None:
    """Label each line at its right end with name and last value, and move labels apart if they are close."""
    ends = sorted((ys[-1], xs[-1], metric) for metric, (xs, ys) in series.items() if ys)
    low, high = axes.get_ylim()
    gap = (high - low) * 0.065
    place = -math.inf
    for y, x, metric in ends:
        place = max(y, place + gap)
        name, colour, _ = _LINES[metric]
        axes.annotate(
            f"{name} {per_cent(y)}",
            (x, place),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def _style(axes: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_xlabel(label, color=_GREY)
    axes.yaxis.label.set_color(_GREY)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=label == "round"))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.tick_params(colors=_GREY, length=0)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#bbbbbb")
