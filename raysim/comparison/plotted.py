"""The runs that `raysim plot` draws: found in folders as `raysim compare` finds them, with the names of their sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from raysim.common.errors import ScenarioError
from raysim.common.text import expanded
from raysim.comparison.runs import find_runs
from raysim.comparison.sweep_card import SweepCard
from raysim.comparison.tuned_runs import without_outdated
from raysim.runs.find import find_run


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
