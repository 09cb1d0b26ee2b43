"""Draw a heatmap of a partition: samples per class and client.

Shapes: N clients, C classes, M samples of the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raysim.common.text import shortened
from raysim.data.partition_counts import Ints
from raysim.data.shards import Partition

_ROOM_FOR_NUMBERS = 300
_ROOM_FOR_NAMES = 20


def draw_heatmap(
    partition: Partition, label_M: Ints, class_names: Sequence[str], path: str | Path, title: str = ""
) -> None:
    """Write a PNG with a title, the training samples per class and client, and each client's total above."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    count_CN = partition.count_NC(label_M, len(class_names)).T
    classes, clients = count_CN.shape
    # Cells shrink with the number of clients: 0.38 inch for few clients, a few pixels for many.
    width = float(np.clip(0.38 * clients, 4.5, 13.0))
    height = float(np.clip(min(0.38, max(width / clients, 0.05)) * classes, 2.6, 8.0))
    figure = Figure(figsize=(width + 1.7, height + 2.0), dpi=160, layout="constrained")
    bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=[0.9, height])

    most = max(int(count_CN.max(initial=0)), 1)
    # A square-root scale makes small numbers visible: in a skewed partition, most cells are far below the largest.
    # Cells without samples are masked, which leaves them white, so that a single sample is visible.
    image = cells.imshow(np.ma.masked_equal(count_CN, 0), cmap="YlGnBu", norm=PowerNorm(0.5, 0, most), aspect="auto")
    if classes * clients <= _ROOM_FOR_NUMBERS and most < 10_000:
        for cls, client in zip(*np.nonzero(count_CN), strict=True):
            color = "white" if count_CN[cls, client] > 0.3 * most else "black"
            cells.text(client, cls, f"{count_CN[cls, client]}", ha="center", va="center", fontsize=6, color=color)
    cells.set_xlabel("client")
    cells.set_ylabel("class")
    cells.xaxis.set_major_locator(MaxNLocator(min(clients, _ROOM_FOR_NAMES), integer=True))
    if classes <= _ROOM_FOR_NAMES:
        cells.set_yticks(range(classes), [shortened(name, 12) for name in class_names])
    figure.colorbar(image, ax=cells, pad=0.015, fraction=0.04, aspect=4 * height).set_label("training samples")

    total_N = count_CN.sum(0)
    # One area: a bar for each of 100,000 clients would take minutes.
    bars.stairs(total_N, np.arange(clients + 1) - 0.5, fill=True)
    bars.set_ylabel("total")
    holders_C, held_N = (count_CN > 0).sum(1), (count_CN > 0).sum(0)
    spread = f"{_range(held_N)} classes per client, {_range(holders_C)} clients per class"
    bars.set_title(f"{clients} clients, {classes} classes: {spread}", fontsize=10, loc="left")
    if title:
        figure.suptitle(shortened(title, 200), x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.savefig(path, format="png")


def _range(values: Ints) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low} to {high}"
