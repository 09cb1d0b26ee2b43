"""Figures of a comparison: curves with intervals, clients' accuracies, performance profiles, accuracy over a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raysim.common.text import distinct, shortened
from raysim.comparison.compare import Comparison
from raysim.comparison.formats import write_csv
from raysim.comparison.statistics import MIN_SEEDS, estimate
from raysim.comparison.variants import Variant
from raysim.report.figures import (
    COLOURS,
    INCHES,
    OVER,
    Width,
    area_look,
    band,
    legend,
    line_look,
    make_figure,
    per_cent_axis,
    plain_numbers,
    save,
    style,
)
from raysim.report.plots import Curve, architecture_names, draw_boxes, draw_curves, longest_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCREEN: Width = "two-columns"
"""The width of figures in SVG and PNG files and in HTML."""

MOST = len(COLOURS)
"""The most variants in one figure; with more, each task has its own."""


class Picture(NamedTuple):
    """A figure of a comparison."""

    kind: str  # such as "curves"
    task: str  # the task that the figure shows; empty: all tasks
    figure: Figure

    @property
    def name(self) -> str:
        """The file name, without suffix."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", f"{self.kind}-{self.task}")[:100] if self.task else self.kind


def pictures(comparison: Comparison, width: Width = SCREEN, file_per_axis: bool = False) -> list[Picture]:
    """Every figure that the runs have data for; with more variants than colours, one figure per task.

    file_per_axis: each panel of the curves is a figure of its own, as papers need them.
    """
    parts = {"": comparison}
    if len(comparison.variants) > MOST:
        parts = comparison.by_task
    drawn: list[tuple[str, str, Figure | None]] = []
    for task, part in parts.items():
        panels = [[over] for over in measured_axes(part)] if file_per_axis else [measured_axes(part)]
        drawn += [
            (f"curves-{shown[0]}" if file_per_axis else "curves", task, curves(part, width, shown)) for shown in panels
        ]
    for kind, draw_kind in {"clients": boxes, "profile": profile, "architectures": architectures}.items():
        drawn += [(kind, task, draw_kind(part, width)) for task, part in parts.items()]
    drawn += [(f"over_{key}", "", over_key(comparison, key, width)) for key in swept(comparison)]
    for _, task, figure in drawn:
        if figure is not None and task:
            figure.suptitle(shortened(task, longest_label(width)), fontsize=8)
    return [Picture(kind, task, figure) for kind, task, figure in drawn if figure is not None]


def draw(
    comparison: Comparison,
    folder: Path,
    suffixes: Sequence[str] = (".svg", ".png", ".pdf"),
    width: Width = "one-column",
) -> list[Path]:
    """Save every figure that the runs have data for in a folder, created if missing; returns the files.

    PDF files are for print, as wide as `width`, with a file per axis of the curves. The others are for the screen.
    Raises `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for in_print in (False, True):
        chosen = [suffix for suffix in suffixes if (suffix == ".pdf") is in_print]
        drawn = pictures(comparison, width if in_print else SCREEN, file_per_axis=in_print) if chosen else []
        for picture, name in zip(drawn, distinct(one.name for one in drawn), strict=True):
            for suffix in chosen:
                path = folder / f"{name}{suffix}"
                save(picture.figure, path, format=suffix[1:])
                files.append(path)
    return files


def measured_axes(comparison: Comparison) -> list[str]:
    """The keys of `OVER` that at least one run has measured."""
    runs = [run for variant in comparison.variants for run in variant.runs]
    return [key for key, over in OVER.items() if key == "round" or any(len(run.series(over.metric)[0]) for run in runs)]


def curves(comparison: Comparison, width: Width = SCREEN, over: Sequence[str] | None = None) -> Figure:
    """The comparison's mean accuracy over these axes, keys of `OVER`; the band is the 95 % interval over seeds.

    over: default: all that the runs have measured.
    """
    axes = measured_axes(comparison) if over is None else over
    accuracy = comparison.accuracy
    drawn = {key: [_mean_curve(comparison, variant, key) for variant in comparison.variants] for key in axes}
    return draw_curves(drawn, accuracy.mean_label, width)


def _mean_curve(comparison: Comparison, variant: Variant, over: str) -> Curve | None:
    """The mean curve over the rounds that all runs of a variant measured; None if a run has not measured the axis."""
    each = [dict(zip(*run.series(OVER[over].metric), strict=True)) for run in variant.counted.values()]
    if not all(each):
        return None
    points = [
        (float(sum(xs.get(t, 0.0) for xs in each)) / len(each), found.mean, *band(found.mean, found.low, found.high))
        for t, found in comparison.means[variant.name].items()
    ]
    if not points:
        return None
    x, mean, low, high = np.array(points).T.tolist()
    return Curve(variant.name, x, mean, low, high)


def write_curves(comparison: Comparison, folder: Path) -> Path:
    """Write the points of the curves into curves.csv in a folder, and return the file. Raises `OSError`.

    Columns: variant, metric (such as accuracy/all), over (a key of `OVER`), x (rounds, bytes, operations or virtual
    seconds), mean, and low and high, the ends of the 95 % interval over seeds, as drawn: cut at 0 and 1, and empty with
    fewer than three seeds.
    """
    import pandas as pd

    columns = ["variant", "metric", "over", "x", "mean", "low", "high"]
    rows: list[tuple[Any, ...]] = []
    metric = comparison.accuracy.metric
    for over in measured_axes(comparison):
        for variant in comparison.variants:
            if curve := _mean_curve(comparison, variant, over):
                ends = zip(curve.x, curve.y, curve.low or (), curve.high or (), strict=True)
                known = len(variant.counted) >= MIN_SEEDS
                rows += [(variant.name, metric, over, x, y, *((low, high) if known else (None, None)))
                         for x, y, low, high in ends]  # fmt: skip
    path = folder / "curves.csv"
    write_csv(pd.DataFrame(rows, columns=columns), path)
    return path


def _of_clients(variant: Variant, measure: str) -> np.ndarray[Any, Any]:
    """A measure's accuracy of every client of every run."""
    tables = [run.clients_of(measure) for run in variant.counted.values()]
    values = [table["accuracy"].to_numpy() for table in tables if table.num_rows]
    return np.concatenate(values) if values else np.empty(0)


def boxes(comparison: Comparison, width: Width = SCREEN) -> Figure | None:
    """Box plots of the clients' accuracies of all seeds."""
    accuracies = {variant.name: _of_clients(variant, comparison.main) for variant in comparison.variants}
    accuracies = {name: values for name, values in accuracies.items() if len(values)}
    return draw_boxes(accuracies, comparison.accuracy, width) if accuracies else None


@style()
def profile(comparison: Comparison, width: Width = SCREEN) -> Figure | None:
    """The performance profile: the share of clients, over all seeds, with an accuracy greater than x."""
    figure, (axes,) = make_figure(width=width, height=2.8)
    at = np.linspace(0, 1, 201)
    for place, variant in enumerate(comparison.variants):
        values = _of_clients(variant, comparison.main)
        if len(values):
            share, label = (values[None] > at[:, None]).mean(1), shortened(variant.name, longest_label(width))
            axes.plot(at, share, label=label, **line_look(place, len(at)))
    axes.set_xlabel(comparison.accuracy.client_label.replace("\n", " ") + ", x")
    axes.set_ylabel("share of clients above x")
    axes.set_ylim(0, 1.02)
    per_cent_axis(axes.xaxis)
    per_cent_axis(axes.yaxis)
    legend(figure, axes)
    return figure if axes.lines else None


@style()
def architectures(comparison: Comparison, width: Width = SCREEN) -> Figure | None:
    """Mean accuracy of the clients of each architecture; error bars are 95 % intervals over seeds."""
    by_variant: dict[str, dict[str, list[float]]] = {}
    for variant in comparison.variants:
        for run in variant.counted.values():
            table = run.clients_of(comparison.main)
            if table.num_rows:
                means = table.to_pandas().groupby("model")["accuracy"].mean()
                for model, mean in means.items():
                    by_variant.setdefault(variant.name, {}).setdefault(model, []).append(mean)
    models = sorted({model for of_variant in by_variant.values() for model in of_variant})
    if len(models) < 2:
        return None
    figure, (axes,) = make_figure(width=width, height=2.6)
    bar = 0.8 / len(by_variant)
    for place, (name, of_model) in enumerate(by_variant.items()):
        each = [estimate(of_model[model]) if model in of_model else None for model in models]
        x = [i + (place - (len(by_variant) - 1) / 2) * bar for i, one in enumerate(each) if one]
        mean = np.array([one.mean for one in each if one])
        low, high = np.array([band(one.mean, one.low, one.high) for one in each if one]).T
        errors = np.stack([mean - low, high - mean])
        axes.bar(x, mean, bar, yerr=errors if errors.any() else None, label=shortened(name, longest_label(width)),
                 error_kw={"linewidth": 0.7}, **area_look(place))  # fmt: skip
    texts = [shortened(name, 24) for name in architecture_names(models).values()]
    long = sum(map(len, texts)) * 0.08 > INCHES[width]
    axes.set_xticks(range(len(models)), texts, rotation=30 if long else 0, ha="right" if long else "center")
    per_cent_axis(axes.yaxis)
    axes.set_ylabel(comparison.accuracy.mean_label)
    legend(figure, axes)
    return figure


def swept(comparison: Comparison) -> list[str]:
    """The differing keys with at least three values, all of them numbers; a tuned value does not count."""
    values: dict[str, set[Any]] = {}
    for variant in comparison.variants:
        for key, value in variant.keys.items():
            if key not in variant.tuned_keys:
                values.setdefault(key, set()).add(value)
    numbers = {key: {v for v in of_key if v is not None} for key, of_key in values.items()}
    return [key for key, of_key in numbers.items() if len(of_key) >= 3 and all(map(_is_number, of_key))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300  # excludes infinity


@style()
def over_key(comparison: Comparison, key: str, width: Width = SCREEN) -> Figure | None:
    """The main measure over a swept key, a line for each combination of the other keys that were not tuned."""
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for variant in comparison.variants:
        found = comparison.estimate(variant.name, comparison.main)
        if variant.keys.get(key) is not None and found is not None:
            rest = {name: v for name, v in variant.keys.items() if name != key and name not in variant.tuned_keys}
            name = replace(variant, keys=rest, label="").name
            low, high = band(found.mean, found.low, found.high)
            lines.setdefault(name, []).append((variant.keys[key], found.mean, found.mean - low, high - found.mean))
    figure, (axes,) = make_figure(width=width, height=2.6)
    for place, (name, points) in enumerate(lines.items()):
        x, y, *errors = np.array(sorted(points)).T
        axes.errorbar(x, y, yerr=errors if np.any(errors) else None, label=shortened(name, longest_label(width)),
                      capsize=2, elinewidth=0.7, **{**line_look(place, len(x)), "markevery": 1})  # fmt: skip
    axes.set_xlabel(shortened(key, longest_label(width)))
    axes.set_ylabel(comparison.accuracy.mean_label)
    per_cent_axis(axes.yaxis)
    plain_numbers(axes)
    values = [point[0] for points in lines.values() for point in points]
    if values and min(values) > 0 and max(values) >= 50 * min(values):
        axes.set_xscale("log")
    legend(figure, axes)
    return figure
