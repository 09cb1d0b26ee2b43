"""What `raysim plot` draws: runs, found in folders as `raysim compare` finds them, or means of variants over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.text import expanded
from raysim.comparison.compare import compare
from raysim.comparison.pictures import boxes, curves, measured_axes
from raysim.comparison.runs import find_runs, without_outdated
from raysim.comparison.sweep_card import SweepCard
from raysim.report.figures import Width
from raysim.report.plots import MOST_RUNS
from raysim.runs.find import find_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = {"curves": "round", "bytes": "bytes", "virtual-time": "virtual-time"}
"""Kind of figure with curves -> its axis."""


class NamedRun(NamedTuple):
    """A run folder, and the name of its variant in its sweep; empty without a sweep, or if the sweep has no names."""

    folder: Path
    variant: str


def runs_to_plot(given: Iterable[str]) -> list[NamedRun]:
    """The runs of these arguments, in their order.

    given: folders or ids of runs below ./runs, or folders that contain runs, such as those of a sweep or a cell. Of a
    folder's runs, those without a round and those of an earlier tuning are left out, and the last of a cell counts.

    Raises:
        ScenarioError: an argument without a run, or a damaged run.
    """
    return [run for text in given for run in _runs_of(text)]


def draw_variants(runs: Sequence[NamedRun], kind: str, width: Width, metric: str) -> Figure | None:
    """Draw a colour per variant: the mean curve with a 95 % interval over seeds, or a box of all clients of all seeds.

    None if the kind shows single runs, or if no run has measured the axis or the clients. Raises `ScenarioError` as
    `compare` does, or if there are too many variants.
    """
    if kind not in (*AXES, "boxes"):
        return None
    comparison = compare(*(run.folder for run in runs), targets=[], metric=metric)
    if len(comparison.variants) > MOST_RUNS:
        raise ScenarioError(f"{len(comparison.variants)} variants given; at most {MOST_RUNS} fit into one figure")
    if kind == "boxes":
        return boxes(comparison, width)
    return curves(comparison, width, [AXES[kind]]) if AXES[kind] in measured_axes(comparison) else None


def _runs_of(text: str) -> Sequence[NamedRun]:
    path = expanded(text)
    if not path.is_dir() or (path / "summary.json").exists():
        folder = find_run(text)
        card = SweepCard.read(folder.parent.parent)
        cell = card.cells.get(folder.parent.name) if card is not None else None
        return [NamedRun(folder, cell.label if cell is not None else "")]
    measured = [run for run in find_runs([path]) if run.summary.get("rounds")]
    if not measured:
        raise ScenarioError(f"{path}: no run has finished a round; give runs with results")
    current, _ = without_outdated(measured)
    counted = {run.cell_folder if run.cell else run.folder: run for run in current}
    in_order = sorted(counted.values(), key=lambda run: run.place)
    return [NamedRun(run.folder.absolute(), run.cell.label if run.cell else "") for run in in_order]
