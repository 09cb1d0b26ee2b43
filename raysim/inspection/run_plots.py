"""`raysim plot`: one figure of one or several runs, finished or not, from what their folders hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raysim.common import names
from raysim.common.errors import ScenarioError
from raysim.common.results import Scalar, written
from raysim.report.figures import OVER, Width, picture_file, save_picture
from raysim.report.load import last_measured, read_clients, read_rounds, read_summary
from raysim.report.plots import (
    ALL,
    LINES,
    Curve,
    Floats,
    draw_boxes,
    draw_clients,
    draw_confusion,
    draw_curves,
    series_of,
    spread_curve,
)
from raysim.runs.opened import OpenedRun
from raysim.runs.resume import find_run
from raysim.scenario.schema import decides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_RUNS = 40
"""The most runs in one figure."""


@dataclass(frozen=True)
class PlottedRun:
    """A run folder, read when it is drawn."""

    folder: Path

    @cached_property
    def parts(self) -> dict[str, str]:
        """Key -> part of the run's name: the method, the seed, and the overrides that affect the result."""
        summary = read_summary(self.folder)
        overrides = {str(key): value for key, value in summary.get("overrides", {}).items()}
        parts = {"": str(summary.get("method") or summary.get("algorithm") or "run")}
        parts["seed"] = f"seed={summary.get('seed')}"
        for key, value in overrides.items():
            if key not in ("algorithm.name", "seed") and isinstance(value, Scalar) and decides(key):
                short = key.removesuffix(".name").rpartition(".")[2]
                parts[key] = " ".join(written([(short, value)]))
        return parts

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The rows of rounds.parquet. Raises `ScenarioError` if no round is done."""
        rows: list[dict[str, Any]] = read_rounds(self.folder).to_pylist()
        if not rows:
            raise ScenarioError(f"{self.folder}: no round is done yet; try again later")
        return rows

    @cached_property
    def last_tests(self) -> pa.Table:
        """Each client's last row with a test accuracy. Raises `ScenarioError` if there is none."""
        table = last_measured(read_clients(self.folder))
        if not table.num_rows:
            raise ScenarioError(f"{self.folder}: no client has been tested yet; choose a run with a tested client")
        return table

    def series(self, over: str) -> tuple[list[float], list[float]]:
        """Axis and accuracy of all clients. Raises `ScenarioError` if the run has not measured them."""
        metric = OVER[over].metric
        x, y = series_of(self.rounds, metric, "accuracy/all")
        if not x:
            raise ScenarioError(f"{self.folder}: {_missing(metric, self.rounds)}")
        return x, y


def labels(runs: Sequence[PlottedRun]) -> list[str]:
    """Each run's method and the parts of its name in which the runs differ, such as "FedGH seed=2"; all distinct."""
    keys = dict.fromkeys(key for run in runs for key in run.parts)
    differing = [key for key in keys if len({run.parts.get(key) for run in runs}) > 1 and key]
    texts = (" ".join(run.parts[key] for key in ["", *differing] if key in run.parts) for run in runs)
    return names.apart(texts, names.name)


def _missing(metric: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if metric == "time/virtual_total_s" and all(row.get(metric) is None for row in rows):
        return "it has no virtual time; choose a run whose scenario has a section `system`"
    return "no round with accuracy/all yet; choose a run that has tested all clients"


Runs = Mapping[str, PlottedRun]


def _curves(runs: Runs, width: Width) -> Figure:
    """Accuracy over rounds: of several runs the mean over all clients, of one run also participants and worst tenth."""
    if len(runs) > 1:
        return _over("round")(runs, width)
    (run,) = runs.values()
    run.series("round")
    curves = [replace(spread_curve(run.rounds, "round"), label="all clients, ± one standard deviation")]
    for metric in ("accuracy/worst_decile", "accuracy/participants"):
        curves.append(Curve(LINES[metric][0], *series_of(run.rounds, "round", metric)))
    return draw_curves({"round": curves}, "test accuracy", width)


def _over(axis: str) -> Callable[[Runs, Width], Figure]:
    """Mean accuracy of all clients over an axis, a curve per run."""

    def drawn(runs: Runs, width: Width) -> Figure:
        return draw_curves({axis: [Curve(name, *run.series(axis)) for name, run in runs.items()]}, ALL, width)

    return drawn


def _boxes(runs: Runs, width: Width) -> Figure:
    return draw_boxes({name: _accuracies(run) for name, run in runs.items()}, width)


def _accuracies(run: PlottedRun) -> Floats:
    values = run.last_tests["accuracy"].cast(pa.float64()).to_numpy()
    finite: Floats = values[np.isfinite(values)]
    if not len(finite):
        raise ScenarioError(f"{run.folder}: no client has a finite test accuracy; choose another run")
    return finite


def _clients(runs: Runs, width: Width) -> Figure:
    tables = {name: run.last_tests for name, run in runs.items()}
    for name, table in tables.items():
        if missing := {"client", "model", "accuracy"} - set(table.column_names):
            raise ScenarioError(f"{runs[name].folder}: clients.parquet has no column {min(missing)}; it is damaged")
    bars = {}
    for name, table in tables.items():
        rows = table.select(["client", "model", "accuracy"]).to_pylist()
        bars[name] = [(row["client"], str(row["model"]), row["accuracy"]) for row in rows]
    return draw_clients(bars, width)


def _confusion(runs: Runs, width: Width, current: bool = False) -> Figure:
    """Confusion matrices: networks of the last checkpoint, each client's own on its own test samples, pooled.

    current: each network after it received the server's current message.
    """
    counts = {}
    class_names: Sequence[str] = ()
    for name, run in runs.items():
        opened = OpenedRun.of(run.folder)
        checkpoint = opened.checkpoint()
        title = f"{name}, after round {checkpoint.round}{', current' if current else ''}"
        counts[title] = opened.confusion("test", checkpoint, current)
        if class_names and list(opened.assembly.data.class_names) != list(class_names):
            raise ScenarioError(f"{run.folder}: its classes are not those of the first run; draw it on its own")
        class_names = opened.assembly.data.class_names
    return draw_confusion(counts, class_names, width)


KINDS: Mapping[str, tuple[Callable[[Runs, Width], Figure], str]] = {
    "curves": (_curves, "accuracy over rounds; of a single run also that of participants and of the worst tenth"),
    "bytes": (_over("bytes"), "accuracy over the bytes sent in both directions"),
    "virtual-time": (_over("virtual-time"), "accuracy over virtual time, where the scenario has `system`"),
    "boxes": (_boxes, "a box plot of the clients' last accuracies"),
    "clients": (_clients, "a bar per client: its last accuracy"),
    "confusion": (
        _confusion,
        "predicted over true classes, in per cent of each true class: the networks of the last checkpoint, each "
        "client's own on its own test samples, pooled over all clients",
    ),
}
"""Kind of figure -> how it is drawn, and what it shows."""


def plot(
    runs: Sequence[Path | str], kind: str, output: Path | str, width: Width = "one-column", current: bool = False
) -> Path:
    """Draw one figure of these runs, folders or ids below ./runs, and return the file: .png, .svg or .pdf.

    kind: a key of `KINDS`. current: for confusion matrices, see `_confusion`. Raises `ScenarioError` if a run does not
    exist, is damaged or lacks the data, or the file cannot be written.
    """
    file = picture_file(output)
    if len(runs) > MOST_RUNS:
        raise ScenarioError(f"{len(runs)} runs given; at most {MOST_RUNS} fit into one figure")
    plotted = [PlottedRun(find_run(str(run))) for run in runs]
    draw, _ = KINDS[kind]
    if current:
        if kind != "confusion":
            raise ScenarioError(f"--current given for --kind {kind}; it is for --kind confusion")
        draw = partial(_confusion, current=True)
    return save_picture(draw(dict(zip(labels(plotted), plotted, strict=True)), width), file)
