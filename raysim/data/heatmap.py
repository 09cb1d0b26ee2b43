"""Draw a heatmap of a partition: samples per class and client.

Shapes: N clients, C classes, M samples of the data set.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raysim.common.text import shortened
from raysim.data.partition_counts import Ints
from raysim.data.shards import Partition

_INK, _FAINT, _BAR = "#1f2a37", "#8a94a3", "#3b6ea8"
_ROOM_FOR_NUMBERS = 300
_ROOM_FOR_LINES = 1200
_ROOM_FOR_GAPS = 60
_ROOM_FOR_NAMES = 20


def draw_heatmap(
    partition: Partition, label_M: Ints, class_names: Sequence[str], path: str | Path, title: str = ""
) -> None:
    """Write a PNG with a title, the training samples per class and client, and each client's total above."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    count_CN = partition.count_NC(label_M, len(class_names)).T
    classes, clients = count_CN.shape
    # Cells shrink with the number of clients: 0.38 inch for few clients, a few pixels for many.
    width = float(np.clip(0.38 * clients, 4.5, 13.0))
    height = float(np.clip(min(0.38, max(width / clients, 0.05)) * classes, 2.6, 8.0))
    figure = Figure(figsize=(width + 1.7, height + 2.0), dpi=160, layout="constrained", facecolor="white")
    bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=[0.9, height])

    blues = LinearSegmentedColormap.from_list("raysim", ["#e3edf7", "#9dc3e2", "#4a8cc3", "#1d5494", "#0b2b5a"])
    colors = blues.with_extremes(bad="white")  # cells without samples are white, so that a single sample is visible
    most = max(int(count_CN.max(initial=0)), 1)
    shown = np.ma.masked_equal(count_CN, 0)
    # A square-root scale makes small numbers visible: in a skewed partition, most cells are far below the largest.
    image = cells.imshow(shown, cmap=colors, norm=PowerNorm(0.5, 0, most), aspect="auto", interpolation="nearest")
    if classes * clients <= _ROOM_FOR_LINES:
        cells.set_xticks(np.arange(clients + 1) - 0.5, minor=True)
        cells.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
        cells.grid(which="minor", color="#e8ebef", linewidth=0.8)
        cells.tick_params(which="minor", length=0)
    if classes * clients <= _ROOM_FOR_NUMBERS and most < 10_000:
        size = 7 if most < 1000 else 6
        for cls, client in zip(*np.nonzero(count_CN), strict=True):
            color = "white" if count_CN[cls, client] > 0.3 * most else _INK
            number = f"{count_CN[cls, client]}"
            cells.text(client, cls, number, ha="center", va="center", fontsize=size, color=color)
    cells.set_xlabel("client", color=_INK)
    cells.set_ylabel("class", color=_INK)
    for axis, length in ((cells.xaxis, clients), (cells.yaxis, classes)):
        if length <= _ROOM_FOR_NAMES:
            axis.set_ticks(range(length))
        else:
            axis.set_major_locator(MaxNLocator(10, integer=True))
    if classes <= _ROOM_FOR_NAMES:
        cells.set_yticks(range(classes), [shortened(name, 12) for name in class_names])
    scale = figure.colorbar(image, ax=cells, pad=0.015, fraction=0.04, aspect=4 * height)
    scale.set_label("training samples", color=_INK)
    scale.outline.set_visible(False)

    if clients <= _ROOM_FOR_GAPS:
        bars.bar(np.arange(clients), count_CN.sum(0), width=0.72, color=_BAR)
    else:  # one bar each for 100,000 clients would take minutes
        total_N = count_CN.sum(0)
        edges = np.arange(clients + 1) - 0.5
        bars.fill_between(edges, np.append(total_N, total_N[-1]), step="post", linewidth=0, color=_BAR)
        bars.set_ylim(bottom=0)
    bars.set_ylabel("total", color=_INK)
    bars.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    bars.tick_params(axis="x", which="both", length=0, labelbottom=False)
    for side in ("top", "right", "bottom"):
        bars.spines[side].set_visible(False)
    for axes in (bars, cells, scale.ax):
        axes.tick_params(which="major", colors=_INK, labelsize=8, length=0 if axes is bars else 2.5)
        for spine in axes.spines.values():
            spine.set_color(_FAINT)
    bars.set_xlim(-0.5, clients - 0.5)
    holders_C = (count_CN > 0).sum(1)
    held_N = (count_CN > 0).sum(0)
    spread = f"{_range(held_N)} classes per client, {_range(holders_C)} clients per class"
    if title:
        figure.suptitle(shortened(title, 200), x=0.01, ha="left", fontsize=11, fontweight="bold", color=_INK)
    counts = f"{clients} clients, {classes} classes: {spread}"
    bars.set_title(counts, fontsize=10, color=_INK, loc="left")
    with warnings.catch_warnings():  # Matplotlib warns about characters that its fonts lack
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, format="png")


def _range(values: Ints) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low} to {high}"
