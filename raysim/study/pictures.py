"""Figures: those of a comparison, and one figure of any runs (`raysim plot`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raysim.common.errors import ScenarioError
from raysim.common.text import distinct, expanded, shortened
from raysim.results.accuracies import DRAWABLE, OWN
from raysim.results.figures import (
    COLOURS,
    INCHES,
    OVER,
    Width,
    area_look,
    band,
    legend,
    make_figure,
    per_cent_axis,
    save,
    style,
)
from raysim.results.plots import (
    Curve,
    architecture_names,
    draw_boxes,
    draw_clients,
    draw_confusion,
    draw_curves,
    longest_label,
    run_curves,
)
from raysim.runs.find import find_run
from raysim.study.compare import Comparison, compare
from raysim.study.measures import main_measure
from raysim.study.runs import RunRecord, counted_runs, find_runs
from raysim.study.statistics import estimate
from raysim.study.variants import Variant, group_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = len(COLOURS)
"""Maximum number of variants in one figure; if there are more, each task has its own figure."""


class Picture(NamedTuple):
    """A figure of a comparison."""

    kind: str  # such as "curves"
    task: str  # the task that the figure shows; empty: all tasks
    figure: Figure

    @property
    def name(self) -> str:
        """The file name, without suffix."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", f"{self.kind}-{self.task}")[:100] if self.task else self.kind


def pictures(comparison: Comparison, width: Width) -> list[Picture]:
    """Every figure that the runs have data for; with more variants than colours, one figure per task."""
    parts = comparison.by_task if len(comparison.variants) > MOST else {"": comparison}
    found = []
    for kind, draw_kind in {"curves": curves, "clients": boxes, "architectures": architectures}.items():
        for task, part in parts.items():
            if (figure := draw_kind(part, width)) is not None:
                if task:
                    figure.suptitle(shortened(task, longest_label(width)), fontsize=8)
                found.append(Picture(kind, task, figure))
    return found


def draw(
    comparison: Comparison,
    folder: Path,
    suffixes: Sequence[str] = (".svg", ".png", ".pdf"),
    width: Width = "two-columns",
) -> list[Path]:
    """Save every figure that the runs have data for in a folder, which is created if missing; return the files.

    Raises `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    drawn = pictures(comparison, width)
    for picture, name in zip(drawn, distinct(one.name for one in drawn), strict=True):
        for suffix in suffixes:
            path = folder / f"{name}{suffix}"
            save(picture.figure, path, format=suffix[1:])
            files.append(path)
    return files


def measured_axes(comparison: Comparison) -> list[str]:
    """The keys of `OVER` that at least one run has measured."""
    runs = [run for variant in comparison.variants for run in variant.runs]
    measured = [key for key, over in OVER.items() if any(len(run.series(over.metric)) for run in runs)]
    return measured or ["round"]


def curves(comparison: Comparison, width: Width, over: Sequence[str] | None = None) -> Figure:
    """The comparison's mean accuracy over these axes, keys of `OVER`; the band is the 95 % interval over seeds.

    over: default: all that the runs have measured.
    """
    axes = measured_axes(comparison) if over is None else over
    accuracy = comparison.accuracy
    drawn = {key: [_mean_curve(comparison, variant, key) for variant in comparison.variants] for key in axes}
    return draw_curves(drawn, accuracy.mean_label, width)


def _mean_curve(comparison: Comparison, variant: Variant, over: str) -> Curve | None:
    """Return a variant's mean curve over the rounds that all its runs measured; None if a run lacks the axis."""
    each = [run.series(OVER[over].metric).to_dict() for run in variant.counted.values()]
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


def boxes(comparison: Comparison, width: Width) -> Figure | None:
    """Box plots of the clients' accuracies of all seeds."""
    accuracies: dict[str, np.ndarray[Any, Any]] = {}
    for variant in comparison.variants:
        tables = [run.clients_of(comparison.main) for run in variant.counted.values()]
        values = [table["accuracy"].to_numpy() for table in tables if table.num_rows]
        if values:
            accuracies[variant.name] = np.concatenate(values)
    return draw_boxes(accuracies, comparison.accuracy, width) if accuracies else None


@style()
def architectures(comparison: Comparison, width: Width) -> Figure | None:
    """Mean accuracy of the clients of each architecture; error bars are 95 % intervals over seeds."""
    means: dict[tuple[str, str], list[float]] = {}  # (variant, architecture) -> the mean of each run
    for variant in comparison.variants:
        for table in (run.clients_of(comparison.main) for run in variant.counted.values()):
            if table.num_rows:
                for model, mean in table.to_pandas().groupby("model")["accuracy"].mean().items():
                    means.setdefault((variant.name, model), []).append(mean)
    models = sorted({model for _, model in means})
    if len(models) < 2:
        return None
    figure, (axes,) = make_figure(width=width, height=2.6)
    bar = 0.8 / len(comparison.variants)
    for place, variant in enumerate(comparison.variants):
        found = [(x, estimate(means[key])) for x, model in enumerate(models) if (key := (variant.name, model)) in means]
        spread = [one.half_width or 0.0 for _, one in found]
        x = [x + (place - (len(comparison.variants) - 1) / 2) * bar for x, _ in found]
        axes.bar(x, [one.mean for _, one in found], bar, yerr=spread if any(spread) else None,
                 label=shortened(variant.name, longest_label(width)), error_kw={"linewidth": 0.7},
                 **area_look(place))  # fmt: skip
    texts = [shortened(name, 24) for name in architecture_names(models).values()]
    long = sum(map(len, texts)) * 0.08 > INCHES[width]
    axes.set_xticks(range(len(models)), texts, rotation=30 if long else 0, ha="right" if long else "center")
    per_cent_axis(axes.yaxis)
    axes.set_ylabel(comparison.accuracy.mean_label)
    legend(figure, axes)
    return figure


AXES = {"curves": "round", "bytes": "bytes", "virtual-time": "virtual-time"}
"""Kind of figure with curves -> its axis."""

CONFUSED = ("accuracy/all", "accuracy/all_current")
"""Metrics for which `--kind confusion` can draw a confusion matrix, because it can test their networks."""


def plot(given: Sequence[str], kind: str, width: Width = "one-column", metric: str = OWN.metric) -> Figure:
    """Draw one figure of these runs, finished or not, as `raysim plot` does.

    given: folders or ids of runs below ./runs, or folders that contain runs. Curves and boxes show the variants of such
    a folder; all other figures show single runs. kind: a key of `KINDS`. metric: a key of `DRAWABLE`.

    Raises:
        ScenarioError: a run does not exist, is damaged or lacks the data, or this kind cannot show the metric.
    """
    if kind == "confusion" and metric not in CONFUSED:
        raise ScenarioError(f"--metric: {metric} given, but --kind confusion needs one of {', '.join(CONFUSED)}")
    runs = [run for text in given for run in _runs_of(text)]
    one_by_one = len(runs) == len(given) or kind not in (*AXES, "boxes")
    if one_by_one:
        shown = Comparison(_one_by_one(runs), [], main=main_measure(metric, "last"))
    else:
        shown = compare(*(run.folder for run in runs), targets=[], metric=metric)
    figure = KINDS[kind](shown, width)
    if figure is None:
        needs = f"{DRAWABLE[metric].needs}{', and whose scenario has `system`' if kind == 'virtual-time' else ''}"
        raise ScenarioError(f"{', '.join(given)}: no values of {metric} for --kind {kind}; choose a run {needs}")
    return figure


def _runs_of(text: str) -> Sequence[RunRecord]:
    """Return the runs of a path or sweep; skip runs without a finished round and runs of an earlier tuning.

    The last run of a cell counts. Raises `ScenarioError` for a folder without runs, or for a damaged run.
    """
    path = expanded(text)
    if not path.is_dir() or (path / "summary.json").exists():
        return find_runs([find_run(text)])
    current = counted_runs(find_runs([path]))
    counted = {run.cell_folder if run.cell else run.folder: run for run in current}
    return sorted(counted.values(), key=lambda run: run.place)


def _one_by_one(runs: Sequence[RunRecord]) -> list[Variant]:
    """Make one variant per run, named by its cell of a sweep or its settings, and by its seed if seeds differ."""
    name_of = {run.folder: variant.name for variant in group_runs(runs) for run in variant.runs}
    name_of |= {run.folder: run.cell.label for run in runs if run.cell and run.cell.label}
    seeds = len({run.seed for run in runs}) > 1
    names = distinct(f"{name_of[run.folder]} seed={run.seed}" if seeds else name_of[run.folder] for run in runs)
    return [Variant({}, [run], label=name) for run, name in zip(runs, names, strict=True)]


def _curves(kind: str, shown: Comparison, width: Width) -> Figure | None:
    """Draw accuracy over an axis. Over rounds, a single run also has curves for participants and worst clients."""
    runs, accuracy = list(shown.variants[0].counted.values()), shown.accuracy
    if kind == "curves" and len(shown.variants) == len(runs) == 1 and accuracy.std:
        drawn = run_curves(runs[0].rounds.to_pylist(), "round", accuracy)
        return draw_curves({"round": drawn}, f"mean {accuracy.kind}", width)
    has_values = any(_mean_curve(shown, variant, AXES[kind]) for variant in shown.variants)
    return curves(shown, width, [AXES[kind]]) if has_values else None


def _clients(shown: Comparison, width: Width) -> Figure | None:
    bars = {}
    for variant in shown.variants:
        if rows := variant.runs[0].clients_of(shown.main).to_pylist():
            bars[variant.name] = [(row["client"], str(row["model"]), row["accuracy"]) for row in rows]
    return draw_clients(bars, shown.accuracy, width) if bars else None


def _confusion(shown: Comparison, width: Width) -> Figure:
    """Draw confusion matrices, pooled over clients: the last checkpoint's networks on their clients' test samples.

    With accuracy/all_current, each network after it received the server's current message.
    """
    from raysim.runs.opened import OpenedRun  # imported here, so that figures without networks do not import torch

    current = shown.accuracy is not OWN
    opened = {variant.name: OpenedRun.of(variant.runs[0].folder) for variant in shown.variants}
    first = next(iter(opened.values()))
    counts = {}
    for name, one in opened.items():
        one.refuse_other_classes(first)
        checkpoint = one.checkpoint()
        title = f"{name}, after round {checkpoint.round}{', current' if current else ''}"
        counts[title] = one.confusion("test", checkpoint, current)
    return draw_confusion(counts, first.data.dataset.class_names, width)


KINDS: Mapping[str, Callable[[Comparison, Width], Figure | None]] = {
    **{kind: partial(_curves, kind) for kind in AXES},
    "boxes": boxes,
    "clients": _clients,
    "confusion": _confusion,
}
"""Kind of figure -> how it is drawn."""
