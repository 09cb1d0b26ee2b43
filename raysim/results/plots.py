"""Plots of runs: accuracy over rounds, bytes and time; clients' accuracies; confusion matrices."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.text import shortened
from raysim.results.accuracies import DRAWABLE, OWN, Accuracy
from raysim.results.figures import (
    INCHES,
    OVER,
    Over,
    Width,
    area_look,
    band,
    legend,
    legend_columns,
    line_look,
    make_figure,
    per_cent_axis,
    plain_numbers,
    save,
    style,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

NUMBERED = 10
"""Maximum number of classes for which a confusion matrix shows a number in each cell."""
NAMED = 20
"""Maximum number of classes whose names a confusion matrix shows."""
SEPARATE_BARS = 60
"""Maximum number of clients whose bars have gaps between them."""


def architecture_names(models: Iterable[str]) -> dict[str, str]:
    """Return architecture -> name in figures. A custom one has the name of its class, unless two have the same name."""
    short = {model: model.rpartition(":")[2] for model in models}
    times = Counter(short.values())
    return {model: name if times[name] == 1 else model for model, name in short.items()}


@dataclass(frozen=True)
class Curve:
    """Accuracies over an axis, in the unit of the data. low, high: ends of an interval around each accuracy."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def longest_label(width: Width) -> int:
    """Return the maximum number of characters of a legend's label."""
    return 46 if width == "one-column" else 80


@style()
def draw_curves(
    curves: Mapping[str, Sequence[Curve | None]],
    label: str,
    width: Width = "one-column",
) -> Figure:
    """Draw accuracy over each of these axes, with one panel per axis and at most two panels side by side.

    curves: key of `OVER` -> curves. A curve has the same look in all panels by its place; None: it has no data there.
    """
    per_row = min(len(curves), 2 if width == "one-column" else 4)
    rows = -(-len(curves) // per_row)
    height = {"one-column": 2.1 if per_row > 1 else 2.3, "two-columns": 2.6}[width]
    lines = max(len(one) for one in curves.values())
    figure, panels = make_figure(rows, per_row, width, height * rows + 0.17 * _legend_rows(curves, width), sharey=True)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    for place, (axes, (over, drawn)) in enumerate(zip(panels, curves.items(), strict=False)):
        _draw_panel(axes, OVER[over], drawn, width)
        per_cent_axis(axes.yaxis)
        if place % per_row == 0:
            axes.set_ylabel(label)
    top = max((value for drawn in curves.values() for one in drawn if one for value in (one.high or one.y)), default=1)
    panels[0].set_ylim(0, min(1.02, max(0.2, 1.05 * top)))
    if lines > 1 or any(one and one.label for drawn in curves.values() for one in drawn):
        fullest = max(panels[: len(curves)], key=lambda axes: len(axes.lines))
        legend(figure, fullest)
    return figure


def _legend_rows(curves: Mapping[str, Sequence[Curve | None]], width: Width) -> int:
    labels = [one.label[: longest_label(width)] for one in next(iter(curves.values())) if one]
    return -(-len(labels) // legend_columns(labels, INCHES[width]))


def _draw_panel(axes: Axes, over: Over, curves: Sequence[Curve | None], width: Width) -> None:
    """Draw curves into a panel, whose axis has a suitable unit."""
    unit = over.unit(value for one in curves if one for value in one.x)
    axes.set_xlabel(over.title(unit))
    plain_numbers(axes, whole=over.metric == "round", ticks=4)
    for place, one in enumerate(curves):
        if one is None or not len(one.x):
            continue
        x = [value / unit.size for value in one.x]
        look = line_look(place, len(x))
        axes.plot(x, one.y, label=shortened(one.label, longest_label(width)), **look)
        if one.low is not None and one.high is not None:
            axes.fill_between(x, one.low, one.high, color=look["color"], alpha=0.15, linewidth=0)


@style()
def draw_boxes(groups: Mapping[str, Floats], accuracy: Accuracy, width: Width = "one-column") -> Figure:
    """Draw a box plot of the clients' accuracies of each group: median, quartiles, whiskers at 1.5 interquartile
    ranges, and the mean as a dot.
    """
    labels = ["\n".join(shortened(line, 32) for line in textwrap.wrap(label, 32)[:3]) for label in groups]
    longest = max(len(line) for label in labels for line in label.split("\n"))
    flat = len(labels) * longest * 0.075 <= INCHES[width] - 0.6
    figure, (axes,) = make_figure(width=width, height=2.6 if flat else 3.1)
    drawn = axes.boxplot(
        list(groups.values()),
        patch_artist=True,
        widths=0.6,
        showmeans=True,
        flierprops={"markersize": 2, "markeredgewidth": 0.5},
        medianprops={"color": "black"},
        meanprops={"marker": "o", "markersize": 3, "markerfacecolor": "black", "markeredgecolor": "black"},
    )
    for place, box in enumerate(drawn["boxes"]):
        box.set(facecolor=area_look(place)["facecolor"], alpha=0.45)
    for part in ("boxes", "whiskers", "caps", "medians"):
        for line in drawn[part]:
            line.set_linewidth(0.7)
    axes.set_xticks(range(1, len(labels) + 1), labels, rotation=0 if flat else 30, ha="center" if flat else "right")
    low, high = axes.get_ylim()
    low, high = max(0.0, min(low, 0.9)), min(high, 1.0)  # shows equal accuracies as such, not magnified
    margin = 0.03 * (high - low)  # leaves room for whole markers and caps at 0 and 100 %
    axes.set_ylim(low - margin, high + margin)
    per_cent_axis(axes.yaxis)
    axes.set_ylabel(f"{accuracy.kind} of a\nclient's {accuracy.network}")
    axes.set_xlabel("each box: the clients of all seeds; dot: mean")
    return figure


@style()
def draw_clients(
    runs: Mapping[str, Sequence[tuple[int, str, float]]], accuracy: Accuracy, width: Width = "one-column"
) -> Figure:
    """Draw one bar per client and one panel per run. The dashed line is the mean over clients.

    runs: label -> (client, architecture, accuracy), by client. Bars differ by architecture.
    """
    figure, panels = make_figure(len(runs), 1, width, 1.35 * len(runs) + 0.75, sharey=True)
    places = {model: i for i, model in enumerate(dict.fromkeys(one[1] for run in runs.values() for one in run))}
    called = architecture_names(places)
    for axes, (label, clients) in zip(panels, runs.items(), strict=True):
        mean = float(np.mean([value for _, _, value in clients]))
        for model, place in places.items():
            look = area_look(place)
            here = [(k, value) for k, of, value in clients if of == model]
            if not here:
                continue
            k, value = zip(*here, strict=True)
            if len(clients) <= SEPARATE_BARS:
                axes.bar(k, value, 0.8, label=shortened(called[model], 30), **look)
            else:  # thousands of hatched bars would look black, and take minutes
                axes.vlines(k, 0, value, look["facecolor"], linewidth=0.8, label=shortened(called[model], 30))
        axes.axhline(mean, color="black", linewidth=0.8, linestyle="--", label=None)
        axes.set_title(shortened(label, longest_label(width)), loc="left")
        axes.set_xlim(clients[0][0] - 0.7, clients[-1][0] + 0.7)
        plain_numbers(axes, whole=True, ticks=8)
        per_cent_axis(axes.yaxis)
        axes.set_ylabel(accuracy.kind)
    panels[0].set_ylim(0, 1.03)
    panels[-1].set_xlabel(f"client, {accuracy.network} (dashed: mean over clients)")
    if len(places) > 1:
        legend(figure, max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[1])))
    return figure


@style()
def draw_confusion(
    runs: Mapping[str, NDArray[np.int64]], class_names: Sequence[str], width: Width = "one-column"
) -> Figure:
    """Draw confusion matrices in per cent of each true class, with one panel per run, in two columns.

    runs: label -> counts [C, C] by true class (row) and predicted class (column).
    """
    from matplotlib.colors import LinearSegmentedColormap

    per_row = min(len(runs), {"one-column": 1, "two-columns": 2}[width])
    rows = -(-len(runs) // per_row)
    each = min(2.9, INCHES[width] / per_row)
    figure, panels = make_figure(rows, per_row, width, (0.93 * each + 0.1) * rows)
    blues = LinearSegmentedColormap.from_list("raysim", ["#ffffff", "#9dc3e2", "#1d5494", "#0b2b5a"])
    for axes in panels[len(runs) :]:
        axes.set_axis_off()
    for axes, (label, count_CC) in zip(panels, runs.items(), strict=False):
        classes = len(count_CC)
        share_CC = 100 * count_CC / np.maximum(count_CC.sum(1, keepdims=True), 1)
        image = axes.imshow(share_CC, cmap=blues, vmin=0, vmax=100, interpolation="nearest")
        axes.grid(visible=False)
        axes.set_title(shortened(label, longest_label("one-column")))
        axes.set_xlabel("predicted class (in % of the true class)")
        axes.set_ylabel("true class")
        if classes <= NAMED:
            ticks = [shortened(class_names[c], 12) for c in range(classes)]
            long = max(map(len, ticks)) > 2
            axes.set_xticks(range(classes), ticks, rotation=90 if long else 0)
            axes.set_yticks(range(classes), ticks)
        if classes <= NUMBERED:
            for true, predicted in zip(*np.nonzero(count_CC), strict=True):
                share = share_CC[true, predicted]
                text = f"{share:.0f}" if share >= 0.5 else "<1"
                colour = "white" if share > 50 else "black"
                axes.text(predicted, true, text, ha="center", va="center", fontsize=6, color=colour)
        else:
            bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
            bar.set_label("%")
            bar.outline.set_linewidth(0.5)
    return figure


def plot_accuracy(rounds: pa.Table | Sequence[Mapping[str, Any]], path: Path | str, title: str = "") -> Path:
    """Draw accuracy over rounds, sent bytes and virtual time into the PNG `path`; create its folder if needed.

    rounds: the table of `read_rounds`, or a list with a dict per round: "round" and metrics, accuracies in [0, 1],
    `comm/total_bytes` in bytes. Values that were not measured, or that overflowed, are left out. Raises `OSError`.
    """
    rows: list[Mapping[str, Any]] = list(rounds) if isinstance(rounds, Sequence) else rounds.to_pylist()
    virtual = any(row.get(OVER["virtual-time"].metric) is not None for row in rows)
    axes = ["round", "bytes", *(["virtual-time"] if virtual else [])]
    figure = draw_curves({over: run_curves(rows, over) for over in axes}, f"mean {OWN.kind}", "two-columns")
    figure.suptitle(shortened(title, 200), x=0.01, ha="left", fontweight="bold", fontsize=8)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path, format="png")
    return path


def run_curves(rows: Sequence[Mapping[str, Any]], over: str, accuracy: Accuracy = OWN) -> list[Curve]:
    """Return the curves of one run over an axis: mean and standard deviation over clients, the worst tenth of the
    clients, and participants. With own networks, also return current networks, if they were tested.

    over: a key of `OVER`. accuracy: one with `std`.
    """
    x_of = OVER[over].metric
    x, y = series_of(rows, x_of, accuracy.metric)
    spread = dict(zip(*series_of(rows, x_of, accuracy.std), strict=True))
    ends = [band(mean, mean - spread.get(at, 0.0), mean + spread.get(at, 0.0)) for at, mean in zip(x, y, strict=True)]
    low, high = [low for low, _ in ends], [high for _, high in ends]
    others = {accuracy.worst_decile: "worst tenth of them", "accuracy/participants": "participants"}
    if accuracy is OWN:
        others["accuracy/all_current"] = DRAWABLE["accuracy/all_current"].whose
    found = [Curve(name, *series_of(rows, x_of, metric)) for metric, name in others.items()]
    return [Curve(f"{accuracy.whose}, ± one std", x, y, low, high), *(one for one in found if one.x)]


def series_of(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    """Return the values of two metrics in the rounds in which both are finite."""
    points = [(row.get(x), row.get(y)) for row in rows]
    known = [(a, b) for a, b in points if a is not None and b is not None and abs(a) < 1e300 and math.isfinite(b)]
    return [a for a, _ in known], [b for _, b in known]
