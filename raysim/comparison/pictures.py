"""Figures of a comparison: curves with intervals, clients' accuracies, performance profiles, accuracy over a key."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raysim.common import names
from raysim.comparison.compare import Comparison, Variant
from raysim.comparison.measures import MIB
from raysim.comparison.statistics import estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c00")
"""Okabe and Ito's colours, which colour-blind readers can distinguish; after the last, the line style changes."""
STYLES = ("-", "--", ":", "-.")

AXES = {"round": ("round", 1.0), "comm/total_bytes": ("MiB in both directions", MIB)}
AXES |= {"compute/total_flops": ("floating-point operations", 1.0), "time/virtual_total_s": ("virtual seconds", 1.0)}


class Picture(NamedTuple):
    """A figure of a comparison."""

    kind: str  # such as "curves"
    task: str  # the task that the figure shows; empty: all tasks
    figure: Figure

    @property
    def name(self) -> str:
        """The file name, without suffix."""
        return names.file(f"{self.kind}-{self.task}" if self.task else self.kind)


def pictures(comparison: Comparison) -> list[Picture]:
    """Every figure that the runs have data for; with more variants than colours, one figure per task."""
    parts = {"": comparison}
    if len(comparison.variants) > len(COLOURS):
        parts = comparison.by_task
    drawn: list[tuple[str, str, Figure | None]] = []
    for kind, draw_kind in {
        "curves": curves,
        "clients": boxes,
        "profile": profile,
        "architectures": architectures,
    }.items():
        drawn += [(kind, task, draw_kind(part)) for task, part in parts.items()]
    drawn += [(f"over_{key}", "", over_key(comparison, key)) for key in swept(comparison)]
    for _, task, figure in drawn:
        if figure is not None and task:
            figure.suptitle(names.picture(task), fontsize=10)
    return [Picture(kind, task, figure) for kind, task, figure in drawn if figure is not None]


def draw(comparison: Comparison, folder: Path, suffixes: Sequence[str] = (".svg", ".png")) -> list[Path]:
    """Save every figure that the runs have data for in a folder, created if missing; returns the files.

    Raises `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    drawn = pictures(comparison)
    for picture, name in zip(drawn, names.apart((one.name for one in drawn), str), strict=True):
        for suffix in suffixes:
            path = folder / f"{name}{suffix}"
            save(picture.figure, path, format=suffix[1:], facecolor="white")
            files.append(path)
    return files


def save(figure: Figure, file: Path | IO[Any], **options: Any) -> None:
    """Save a figure as `Figure.savefig` does, without a warning for every character that the font lacks."""
    # Without the date, two drawings of the same runs have the same bytes.
    metadata = {"Date": None} if options["format"] == "svg" else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, metadata=metadata, **options)


def _figure(columns: int = 1, width: float = 7.0, height: float = 4.2) -> tuple[Figure, list[Axes]]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "raysim"  # ids in SVG files are random without it
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, columns, sharey=True, squeeze=False)
    for axes in grid[0]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
    return figure, list(grid[0])


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place // len(COLOURS) % len(STYLES)]}


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def curves(comparison: Comparison) -> Figure | None:
    """Mean accuracy of all clients over each measured axis in `AXES`; the band is the 95 % interval over seeds."""
    runs = [run for variant in comparison.variants for run in variant.runs]
    measured = [metric for metric in AXES if metric == "round" or any(len(run.series(metric)[0]) for run in runs)]
    figure, grid = _figure(len(measured), width=4.0 * len(measured), height=4.6)
    for axes, metric in zip(grid, measured, strict=True):
        label, unit = AXES[metric]
        axes.set_xlabel(label, fontsize=9)
        for place, variant in enumerate(comparison.variants):
            if metric != "round" and not all(len(run.series(metric)[0]) for run in variant.runs):
                continue
            points = _mean_curve(variant, metric, unit)
            if not len(points):
                continue
            x, mean, low, high = points.T
            look = _look(place)
            marker = "o" if len(x) == 1 else None
            axes.plot(x, mean, label=names.picture(variant.name), linewidth=1.6, marker=marker, **look)
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    grid[0].set_ylabel("mean test accuracy of all clients", fontsize=9)
    grid[0].set_ylim(0, min(1.02, grid[0].get_ylim()[1]))
    _legend(figure, grid[0])
    return figure


def _mean_curve(variant: Variant, metric: str, unit: float) -> np.ndarray[Any, Any]:
    """The mean curve [points, (x, mean, low, high)] over the rounds that all runs of a variant measured."""
    by_round: dict[int, list[tuple[float, float]]] = {}
    for run in variant.runs:
        t, accuracy = run.series("accuracy/all")
        xs = dict(zip(*run.series(metric), strict=True)) if metric != "round" else dict(zip(t, t, strict=True))
        for one, value in zip(t, accuracy, strict=True):
            by_round.setdefault(int(one), []).append((float(xs.get(one, 0.0)), float(value)))
    points = []
    for _, at_round in sorted(by_round.items()):
        if len(at_round) == len(variant.runs):
            over = estimate([value for _, value in at_round])
            x = sum(x for x, _ in at_round) / len(at_round) / unit
            points.append((x, over.mean, *(over.mean if end is None else end for end in (over.low, over.high))))
    return np.array(points)


def _of_clients(variant: Variant) -> np.ndarray[Any, Any]:
    """The last accuracy of every client of every run."""
    values = [run.last_clients()["accuracy"].to_numpy() for run in variant.runs if run.last_clients().num_rows]
    return np.concatenate(values) if values else np.empty(0)


def boxes(comparison: Comparison) -> Figure | None:
    """Box plots of clients' accuracies: median, quartiles, whiskers at 1.5 interquartile ranges, mean as a dot."""
    accuracies = {variant.name: _of_clients(variant) for variant in comparison.variants}
    accuracies = {name: values for name, values in accuracies.items() if len(values)}
    if not accuracies:
        return None
    figure, (axes,) = _figure(width=max(4.0, 1.1 * len(accuracies) + 2.0))
    dot = {"marker": "o", "markersize": 4, "markerfacecolor": "black"}
    drawn = axes.boxplot(
        list(accuracies.values()),
        patch_artist=True,
        widths=0.6,
        flierprops={"markersize": 2},
        showmeans=True,
        meanprops=dot,
    )
    for place, box in enumerate(drawn["boxes"]):
        box.set(facecolor=COLOURS[place % len(COLOURS)], alpha=0.4)
    axes.set_xticks(
        range(1, len(accuracies) + 1), [*map(names.picture, accuracies)], rotation=30, ha="right", fontsize=8
    )
    axes.set_ylabel("test accuracy of a client", fontsize=9)
    return figure


def profile(comparison: Comparison) -> Figure | None:
    """The performance profile: the share of clients, over all seeds, with an accuracy greater than x."""
    figure, (axes,) = _figure()
    at = np.linspace(0, 1, 201)
    for place, variant in enumerate(comparison.variants):
        values = _of_clients(variant)
        if len(values):
            share, label = (values[None] > at[:, None]).mean(1), names.picture(variant.name)
            axes.plot(at, share, label=label, linewidth=1.6, **_look(place))
    axes.set_xlabel("accuracy x", fontsize=9)
    axes.set_ylabel("share of clients above x", fontsize=9)
    axes.set_ylim(0, 1.02)
    _legend(figure, axes)
    return figure if axes.lines else None


def architectures(comparison: Comparison) -> Figure | None:
    """Mean accuracy of the clients of each architecture; error bars are 95 % intervals over seeds."""
    by_variant: dict[str, dict[str, list[float]]] = {}
    for variant in comparison.variants:
        for run in variant.runs:
            table = run.last_clients()
            if table.num_rows:
                of_client, accuracy = np.array(table["model"].to_pylist()), table["accuracy"].to_numpy()
                for model in dict.fromkeys(table["model"].to_pylist()):
                    values = by_variant.setdefault(variant.name, {}).setdefault(model, [])
                    values.append(float(accuracy[of_client == model].mean()))
    models = sorted({model for of_variant in by_variant.values() for model in of_variant})
    if len(models) < 2:
        return None
    figure, (axes,) = _figure(width=max(6.0, 1.2 * len(models) + 2.0))
    width = 0.8 / len(by_variant)
    for place, (name, of_model) in enumerate(by_variant.items()):
        each = [estimate(of_model[model]) if model in of_model else None for model in models]
        x = [i + (place - (len(by_variant) - 1) / 2) * width for i, one in enumerate(each) if one]
        errors = [one.half_width or 0.0 for one in each if one]
        axes.bar(x, [one.mean for one in each if one], width, yerr=errors if any(errors) else None,
                 label=names.picture(name), color=COLOURS[place % len(COLOURS)], alpha=0.85,
                 error_kw={"linewidth": 0.8})  # fmt: skip
    axes.set_xticks(range(len(models)), [*map(names.picture, models)], fontsize=8)
    axes.set_ylabel("mean test accuracy", fontsize=9)
    _legend(figure, axes)
    return figure


def swept(comparison: Comparison) -> list[str]:
    """The differing keys with at least three values, all of them numbers."""
    values: dict[str, set[Any]] = {}
    for variant in comparison.variants:
        for key, value in variant.keys.items():
            values.setdefault(key, set()).add(value)
    numbers = {key: {v for v in of_key if v is not None} for key, of_key in values.items()}
    return [key for key, of_key in numbers.items() if len(of_key) >= 3 and all(map(_is_number, of_key))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # excludes infinity


def over_key(comparison: Comparison, key: str) -> Figure | None:
    """Accuracy of all clients in the last round over a swept key, a line for each combination of the other keys."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for variant in comparison.variants:
        estimated = comparison.estimate(variant.name, "last")
        if variant.keys.get(key) is not None and estimated is not None:
            rest = {name: value for name, value in variant.keys.items() if name != key}
            name = replace(variant, keys=rest, label="").name
            lines.setdefault(name, []).append((variant.keys[key], estimated.mean, estimated.half_width or 0.0))
    figure, (axes,) = _figure()
    for place, (name, points) in enumerate(lines.items()):
        x, y, error = np.array(sorted(points)).T
        axes.errorbar(x, y, yerr=error if error.any() else None, label=names.picture(name), marker="o", markersize=4,
                      capsize=2, linewidth=1.4, **_look(place))  # fmt: skip
    axes.set_xlabel(names.picture(key), fontsize=9)
    axes.set_ylabel("mean test accuracy of all clients", fontsize=9)
    if all(point[0] > 0 for points in lines.values() for point in points):
        values = [point[0] for points in lines.values() for point in points]
        if max(values) >= 50 * min(values):
            axes.set_xscale("log")
    _legend(figure, axes)
    return figure
