"""`raysim plot`: one figure of runs, finished or not: a curve or box per variant of a folder's runs, or per run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from raysim.common.errors import ScenarioError
from raysim.common.text import distinct, expanded
from raysim.comparison.compare import Comparison, compare
from raysim.comparison.measures import main_measure
from raysim.comparison.pictures import boxes, curves
from raysim.comparison.runs import RunRecord, find_runs, without_outdated
from raysim.comparison.variants import Variant, group_runs
from raysim.report.accuracies import DRAWABLE, OWN
from raysim.report.figures import OVER, Width
from raysim.report.plots import MOST_RUNS, draw_clients, draw_confusion, draw_curves, run_curves
from raysim.runs.find import find_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {"curves": "round", "bytes": "bytes", "virtual-time": "virtual-time"}
"""Kind of figure with curves -> its axis."""

CONFUSED = ("accuracy/all", "accuracy/all_current")
"""Metrics whose networks a confusion matrix can test."""


def draw(given: Sequence[str], kind: str, width: Width = "one-column", metric: str = OWN.metric) -> Figure:
    """Draw one figure of these runs.

    given: folders or ids of runs below ./runs, or folders that contain runs. Curves and boxes show the variants of such
    a folder; all other figures show single runs. kind: a key of `KINDS`. metric: a key of `DRAWABLE`.

    Raises:
        ScenarioError: a run does not exist, is damaged or lacks the data, or this kind cannot show the metric.
    """
    accuracy = DRAWABLE[metric]
    if kind == "confusion" and metric not in CONFUSED:
        raise ScenarioError(f"--metric: {metric} given, but --kind confusion needs one of {', '.join(CONFUSED)}")
    runs = [run for text in given for run in _runs_of(text)]
    one_by_one = len(runs) == len(given) or kind not in (*AXES, "boxes")
    if one_by_one:
        shown = Comparison(_one_by_one(runs), [], main=main_measure(metric, "last"))
    else:
        shown = compare(*(run.folder for run in runs), targets=[], metric=metric)
    if len(shown.variants) > MOST_RUNS:
        raise ScenarioError(f"{len(shown.variants)} curves or panels; at most {MOST_RUNS} fit into one figure")
    lacking = [str(run.folder) for run in runs if not _has_values(run, kind, shown)]
    figure = None if lacking and one_by_one else KINDS[kind](shown, width)
    if figure is None:
        needs = f"{accuracy.needs}{', and whose scenario has `system`' if kind == 'virtual-time' else ''}"
        raise ScenarioError(f"{lacking[0]}: no values of {metric} for --kind {kind}; choose a run {needs}")
    return figure


def _runs_of(text: str) -> Sequence[RunRecord]:
    """The runs of an argument. Of a folder's runs, those without a round and those of an earlier tuning are left out.

    The last run of a cell counts. Raises `ScenarioError` for a folder without runs, or for a damaged run.
    """
    path = expanded(text)
    if not path.is_dir() or (path / "summary.json").exists():
        return find_runs([find_run(text)])
    measured = [run for run in find_runs([path]) if run.summary.get("rounds")]
    if not measured:
        raise ScenarioError(f"{path}: no run has finished a round; give runs with results")
    current, _ = without_outdated(measured)
    counted = {run.cell_folder if run.cell else run.folder: run for run in current}
    return sorted(counted.values(), key=lambda run: run.place)


def _one_by_one(runs: Sequence[RunRecord]) -> list[Variant]:
    """A variant per run, named by its cell of a sweep or by its settings, and by its seed if the seeds differ."""
    name_of = {run.folder: variant.name for variant in group_runs(runs) for run in variant.runs}
    name_of |= {run.folder: run.cell.label for run in runs if run.cell and run.cell.label}
    seeds = len({run.seed for run in runs}) > 1
    names = distinct(f"{name_of[run.folder]} seed={run.seed}" if seeds else name_of[run.folder] for run in runs)
    return [Variant({}, [run], run.method, label=name) for run, name in zip(runs, names, strict=True)]


def _has_values(run: RunRecord, kind: str, shown: Comparison) -> bool:
    """Return whether a run has measured what the figure shows."""
    if kind in AXES:
        return all(len(run.series(metric)[0]) for metric in (shown.accuracy.metric, OVER[AXES[kind]].metric))
    return kind == "confusion" or run.clients_of(shown.main).num_rows > 0


def _curves(kind: str, shown: Comparison, width: Width) -> Figure:
    """Accuracy over an axis; over rounds, a single run also has the curves of its participants and worst clients."""
    runs, accuracy = list(shown.variants[0].counted.values()), shown.accuracy
    if kind == "curves" and len(shown.variants) == len(runs) == 1 and accuracy.std:
        drawn = run_curves(runs[0].rounds.to_pylist(), "round", accuracy)
        return draw_curves({"round": drawn}, f"mean {accuracy.kind}", width)
    return curves(shown, width, [AXES[kind]])


def _clients(shown: Comparison, width: Width) -> Figure:
    bars = {}
    for variant in shown.variants:
        rows = variant.runs[0].clients_of(shown.main).to_pylist()
        bars[variant.name] = [(row["client"], str(row["model"]), row["accuracy"]) for row in rows]
    return draw_clients(bars, shown.accuracy, width)


def _confusion(shown: Comparison, width: Width) -> Figure:
    """Confusion matrices: networks of the last checkpoint, each client's own on its own test samples, pooled.

    With accuracy/all_current, each network after it received the server's current message.
    """
    from raysim.runs.opened import OpenedRun  # here, so that figures without networks do without torch

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


def start_at(figure: Figure, kind: str, ymin: float) -> None:
    """Start the accuracy axis of curves at `ymin`, in per cent. Raises `ScenarioError` if it is above all accuracies,
    or if the figure has no curves.
    """
    if kind not in AXES:
        raise ScenarioError(f"--ymin: {ymin:g} given, but --kind {kind} has no curves; choose one of {', '.join(AXES)}")
    axes = figure.axes[0]
    best = max((float(np.nanmax(line.get_ydata(), initial=0.0)) for line in axes.lines), default=0.0)
    if not ymin < 100 * best:
        text = f"--ymin: {ymin:g} given, but the greatest accuracy is {100 * best:.4g}%; choose a smaller value"
        raise ScenarioError(text)
    axes.set_ylim(bottom=ymin / 100)
