"""The style of all figures: print sizes, colours, lines, axes in per cent and in units, and saving with fonts.

A figure is as wide as a column of a paper, or as two columns with the gap between them, and its text has 7 or 8 points,
so that LaTeX can include it at its natural size. Curves differ in colour, line style and marker, and areas in colour
and hatching: they stay apart in grey and for colour-blind readers.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.files import replace
from raysim.results.units import BYTES, FLOP, TIME, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Width = Literal["one-column", "two-columns"]
INCHES: dict[Width, float] = {"one-column": 3.5, "two-columns": 7.16}
"""Widths of figures in inches. They are IEEE's, and fit the columns of ACM and, with two columns, most other texts."""

SUFFIXES = (".png", ".svg", ".pdf")

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00")
"""The colours of Okabe and Ito, which colour-blind readers can distinguish."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), (0, (3, 1)))
MARKERS = "os^Dv*Px>"
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")
LINE = 1.1
"""Width of lines in points."""

_STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,  # embeds TrueType fonts, because many publishers refuse Type 3, the default
    "ps.fonttype": 42,
    "svg.hashsalt": "raysim",  # without it, ids in SVG files are random
    "font.family": "DejaVu Sans",  # this font comes with Matplotlib
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "figure.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.4,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-6, 12),  # shows no factor such as 1e10 beside an axis
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Apply the style to figures that are drawn and saved inside the block. Can decorate functions."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


@style()
def make_figure(
    rows: int = 1, columns: int = 1, width: Width = "one-column", height: float = 2.4, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels, row by row, without using the global state of Matplotlib's pyplot.

    height: in inches. options: of `Figure.subplots`. What is drawn into it needs the `style`, too.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(INCHES[width], height), dpi=200, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
    return figure, list(panels.flat)


def save(figure: Figure, file: Path | IO[Any], **options: Any) -> None:
    """Save a figure as `Figure.savefig` does, with embedded fonts, and without warnings about missing characters.

    Two drawings of the same data have the same bytes.
    """
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, metadata=date.get(options["format"]), **{"facecolor": "white", **options})


def save_picture(figure: Figure, path: Path | str) -> Path:
    """Write the picture for an option `-o` atomically; return its path.

    Raises `ScenarioError` for an unknown suffix, `OSError` if the file cannot be written.
    """
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise ScenarioError(f"-o: {path} given; give a file that ends in {', '.join(SUFFIXES)}")
    replace(file.resolve(), lambda out: save(figure, out, format=file.suffix[1:]))
    return file


def line_look(place: int, points: int) -> dict[str, Any]:
    """Return colour, line style and marker of a curve by its position. points: of the curve; about six get a marker.

    No two of the first 504 curves look the same, and no two of the first 63 in grey.
    """
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": STYLES[place % len(STYLES)],
        "marker": MARKERS[place % len(MARKERS)],
        "markevery": max(1, round(points / 6)),
        "linewidth": LINE,
    }


def area_look(place: int) -> dict[str, Any]:
    """Return colour and hatching of the bars or boxes at this position."""
    hatch = HATCHES[place % len(HATCHES)]
    return {"facecolor": COLOURS[place % len(COLOURS)], "hatch": hatch, "edgecolor": "black", "linewidth": 0.5}


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """Return how many of these labels fit into one row of a legend, at most 4."""
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    return max(1, min(int(inches / (0.42 + 0.06 * longest)), 4, len(labels)))


@style()
def legend(figure: Figure, axes: Axes) -> None:
    """Put the legend of these axes below the figure, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    columns = legend_columns(labels, figure.get_size_inches()[0])
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def per_cent_axis(axis: Axis) -> None:
    """Label an axis with fractions in per cent, with as many decimals as its ticks need."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:.6g}%"))


def band(mean: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the ends of an interval around an accuracy, limited to [0, 1]; without an interval, the mean twice."""
    # The mean stays inside the interval even if a damaged file has a mean outside of [0, 1].
    return (mean if low is None else min(mean, max(0.0, low))), (mean if high is None else max(mean, min(1.0, high)))


class Over(NamedTuple):
    """A horizontal axis for accuracy curves."""

    metric: str  # the column of rounds.parquet
    label: str
    units: Sequence[Unit] = (Unit("", 1),)

    def unit(self, values: Iterable[float]) -> Unit:
        """Return the largest unit in which the greatest value is at least 1 (minutes, hours and days: at least 2)."""
        greatest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        least = 2 if self.units is TIME else 1
        return next((unit for unit in reversed(self.units) if greatest >= least * unit.size), self.units[0])

    def title(self, unit: Unit) -> str:
        """Return the axis label."""
        return f"{self.label} ({unit.name})" if unit.name else self.label


OVER = {
    "round": Over("round", "round"),
    "bytes": Over("comm/total_bytes", "sent, both directions", BYTES),
    "operations": Over("compute/total_flops", "operations", FLOP),
    "virtual-time": Over("time/virtual_total_s", "virtual time", TIME),
}
"""The possible horizontal axes of accuracy curves."""


@style()
def plain_numbers(axes: Axes, whole: bool = False, ticks: int = 5) -> None:
    """Give the horizontal axis a few ticks with plain numbers. whole: only whole numbers, for example of rounds."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=whole))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
