"""`raysim plot`: one figure of one or several runs, finished or not, from what their folders hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raysim.common.errors import ScenarioError
from raysim.common.results import Scalar
from raysim.common.text import distinct
from raysim.report.accuracies import DRAWABLE, OWN, Accuracy
from raysim.report.figures import OVER, Width, picture_file, save_picture
from raysim.report.load import read_clients, read_rounds, read_summary
from raysim.report.plots import (
    MOST_RUNS,
    Curve,
    Floats,
    draw_boxes,
    draw_clients,
    draw_confusion,
    draw_curves,
    series_of,
    spread_curve,
)
from raysim.report.units import plural
from raysim.runs.find import find_run
from raysim.scenario.schema import short_overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Runs = Mapping[str, "PlottedRun"]
    Draw = Callable[[Runs, Width, Accuracy], Figure]


@dataclass(frozen=True)
class PlottedRun:
    """A run folder, read when it is drawn."""

    folder: Path
    variant: str = ""  # the name of the run's variant in its sweep

    @cached_property
    def parts(self) -> dict[str, str]:
        """Key -> part of the run's name: the method, the seed, and the overrides that affect the result.

        The name of a variant stands for its method and overrides.
        """
        summary = read_summary(self.folder)
        if self.variant:
            return {"": self.variant, "seed": f"seed={summary.get('seed')}"}
        method = str(summary.get("method") or summary.get("algorithm") or "run")
        overrides = {
            str(key): value for key, value in summary.get("overrides", {}).items() if isinstance(value, Scalar)
        }
        return {"": method, "seed": f"seed={summary.get('seed')}", **short_overrides(overrides)}

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The rows of rounds.parquet. Raises `ScenarioError` if no round is done."""
        rows: list[dict[str, Any]] = read_rounds(self.folder).to_pylist()
        if not rows:
            raise ScenarioError(f"{self.folder}: no round is done yet; try again later")
        return rows

    def last_tests(self, accuracy: Accuracy) -> pa.Table:
        """Return one row per client; the column `accuracy` has the client's last value of the chosen accuracy.

        Raises `ScenarioError` if there is none.
        """
        table = accuracy.of_clients(read_clients(self.folder))
        if not table.num_rows:
            text = "no client has been tested yet" if accuracy is OWN else f"no client has a value of {accuracy.metric}"
            raise ScenarioError(f"{self.folder}: {text}; {_instead(accuracy)}")
        return table

    def series(self, over: str, accuracy: Accuracy) -> tuple[list[float], list[float]]:
        """Return the values on the x axis and the mean accuracies. Raises `ScenarioError` if they are missing."""
        metric = OVER[over].metric
        x, y = series_of(self.rounds, metric, accuracy.metric)
        if not x:
            raise ScenarioError(f"{self.folder}: {_missing(metric, self.rounds, accuracy)}")
        return x, y


def labels(runs: Sequence[PlottedRun]) -> list[str]:
    """Each run's variant or method, and the parts of its name in which the runs differ, such as "FedGH seed=2".

    All are distinct.
    """
    keys = dict.fromkeys(key for run in runs for key in run.parts)
    differing = [key for key in keys if len({run.parts.get(key) for run in runs}) > 1 and key]
    texts = (" ".join(run.parts[key] for key in ["", *differing] if key in run.parts) for run in runs)
    return distinct(texts)


def _missing(metric: str, rows: Sequence[Mapping[str, Any]], accuracy: Accuracy) -> str:
    if metric == "time/virtual_total_s" and all(row.get(metric) is None for row in rows):
        return "this run has no virtual time; choose a run whose scenario has a section `system`"
    return f"no round with {accuracy.metric}; {_instead(accuracy)}"


def _instead(accuracy: Accuracy) -> str:
    return f"choose a run {accuracy.needs}"


def _curves(runs: Runs, width: Width, accuracy: Accuracy) -> Figure:
    """Accuracy over rounds; of one run, where it is of all its clients, also of participants and of the worst tenth."""
    if len(runs) > 1 or not accuracy.std:
        return _over("round")(runs, width, accuracy)
    (run,) = runs.values()
    run.series("round", accuracy)
    label = f"{accuracy.whose}, ± one std"
    curves = [replace(spread_curve(run.rounds, accuracy), label=label)]
    for metric, name in ((accuracy.worst_decile, "worst tenth of them"), ("accuracy/participants", "participants")):
        curves.append(Curve(name, *series_of(run.rounds, "round", metric)))
    return draw_curves({"round": curves}, f"mean {accuracy.kind}", width)


def _over(axis: str) -> Draw:
    """Mean accuracy over an axis, a curve per run."""

    def drawn(runs: Runs, width: Width, accuracy: Accuracy) -> Figure:
        curves = [Curve(name, *run.series(axis, accuracy)) for name, run in runs.items()]
        return draw_curves({axis: curves}, accuracy.mean_label, width)

    return drawn


def _boxes(runs: Runs, width: Width, accuracy: Accuracy) -> Figure:
    values = {name: _accuracies(run, accuracy) for name, run in runs.items()}
    counts = {len(of_run) for of_run in values.values()}
    pooled = plural(counts.pop(), "client") if len(counts) == 1 else "all clients of a run"
    return draw_boxes(values, accuracy, pooled, width)


def _accuracies(run: PlottedRun, accuracy: Accuracy) -> Floats:
    values = run.last_tests(accuracy)["accuracy"].cast(pa.float64()).to_numpy()
    finite: Floats = values[np.isfinite(values)]
    if not len(finite):
        raise ScenarioError(f"{run.folder}: no client has a finite {accuracy.kind}; choose another run")
    return finite


def _clients(runs: Runs, width: Width, accuracy: Accuracy) -> Figure:
    tables = {name: run.last_tests(accuracy) for name, run in runs.items()}
    for name, table in tables.items():
        if missing := {"client", "model", "accuracy"} - set(table.column_names):
            raise ScenarioError(f"{runs[name].folder}: clients.parquet is damaged: it has no column {min(missing)}")
    bars = {}
    for name, table in tables.items():
        rows = table.select(["client", "model", "accuracy"]).to_pylist()
        bars[name] = [(row["client"], str(row["model"]), row["accuracy"]) for row in rows]
    return draw_clients(bars, accuracy, width)


def _confusion(runs: Runs, width: Width, accuracy: Accuracy) -> Figure:
    """Confusion matrices: networks of the last checkpoint, each client's own on its own test samples, pooled.

    With accuracy/all_current, each network after it received the server's current message.
    """
    from raysim.runs.opened import OpenedRun  # here, so that figures without networks do without torch

    counts = {}
    current = accuracy is not OWN
    first: OpenedRun | None = None
    for name, run in runs.items():
        opened = OpenedRun.of(run.folder)
        opened.refuse_other_classes(first := first or opened)
        checkpoint = opened.checkpoint()
        title = f"{name}, after round {checkpoint.round}{', current' if current else ''}"
        counts[title] = opened.confusion("test", checkpoint, current)
    assert first is not None
    return draw_confusion(counts, first.data.dataset.class_names, width)


KINDS: Mapping[str, Draw] = {
    "curves": _curves,
    "bytes": _over("bytes"),
    "virtual-time": _over("virtual-time"),
    "boxes": _boxes,
    "clients": _clients,
    "confusion": _confusion,
}
"""Kind of figure -> how it is drawn."""

OF_CLIENTS = ("boxes", "clients")
"""Kinds of single clients' accuracies."""

CURVES = ("curves", "bytes", "virtual-time")
"""Kinds with accuracy over an axis."""

CONFUSED = ("accuracy/all", "accuracy/all_current")
"""Metrics whose networks a confusion matrix can test."""


def _drawable(metric: str, kind: str) -> Accuracy:
    """The accuracy of a metric. Raises `ScenarioError` if this kind of figure cannot show it."""
    if metric not in DRAWABLE:
        raise ScenarioError(f"--metric: {metric} given; allowed: {', '.join(DRAWABLE)}")
    accuracy = DRAWABLE[metric]
    if kind in OF_CLIENTS and not accuracy.has_clients:
        having = ", ".join(one.metric for one in DRAWABLE.values() if one.has_clients)
        text = f"--kind {kind} needs a value for each client, but this metric is only a mean; choose one of {having}"
        raise ScenarioError(f"--metric: {metric} given, but {text}")
    if kind == "confusion" and metric not in CONFUSED:
        needs = "an accuracy of all clients on their test samples"
        text = f"--kind confusion needs {needs}; choose one of {', '.join(CONFUSED)}"
        raise ScenarioError(f"--metric: {metric} given, but {text}")
    return accuracy


def draw(
    runs: Sequence[Path | str],
    kind: str,
    width: Width = "one-column",
    metric: str = OWN.metric,
    variants: Sequence[str] = (),
) -> Figure:
    """Draw one figure of these runs, folders or ids below ./runs.

    kind: a key of `KINDS`. metric: the accuracy that it shows, a key of `DRAWABLE`. variants: the name of each run's
    variant in its sweep, or "", for the legend. Raises `ScenarioError` if a run does not exist, is damaged or lacks the
    data, or this kind cannot show the metric.
    """
    accuracy = _drawable(metric, kind)
    if len(runs) > MOST_RUNS:
        raise ScenarioError(f"{len(runs)} runs given; at most {MOST_RUNS} fit into one figure")
    named = zip(runs, variants or [""] * len(runs), strict=True)
    plotted = [PlottedRun(find_run(str(run)), variant) for run, variant in named]
    return KINDS[kind](dict(zip(labels(plotted), plotted, strict=True)), width, accuracy)


def output_file(output: Path | str, kind: str, ymin: float) -> Path:
    """Return the file of a figure: .png, .svg or .pdf. Raises `ScenarioError` if it cannot be written, or if ymin is
    given for a kind without curves.
    """
    if ymin and kind not in CURVES:
        raise ScenarioError(
            f"--ymin: {ymin:g} given, but --kind {kind} has no curves; choose one of {', '.join(CURVES)}"
        )
    return picture_file(output)


def save(figure: Figure, file: Path, ymin: float = 0.0) -> Path:
    """Write a figure to a file of `output_file`, and return the file.

    ymin: the start of the accuracy axis of curves, in per cent. Raises `ScenarioError` if it is above all accuracies,
    or if the file cannot be written.
    """
    if ymin:
        axes = figure.axes[0]
        best = max((float(np.nanmax(line.get_ydata(), initial=0.0)) for line in axes.lines), default=0.0)
        if not ymin < 100 * best:
            raise ScenarioError(
                f"--ymin: {ymin:g} given, but the greatest accuracy is {100 * best:.4g}%; choose a smaller value"
            )
        axes.set_ylim(bottom=ymin / 100)
    return save_picture(figure, file)
