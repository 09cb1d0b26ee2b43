"""Runs of a tuned sweep: those of earlier settings or an earlier choice are left out."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.common.errors import ScenarioError
from raysim.comparison.runs import RunRecord
from raysim.report.units import plural


def without_outdated(runs: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs without those that are no longer cells of their tuned sweep, and a note on them.

    Raises `ScenarioError` if no run is left.
    """
    kept = [run for run in runs if not _is_outdated(run)]
    left = len(runs) - len(kept)
    changed = "the sweep's settings or the values that tuning chose have changed since"
    if left and not kept:
        text = f"all runs are outdated: {changed} they ran; run the sweep again"
        raise ScenarioError(f"{runs[0].folder.parent.parent}: {text}")
    note = f"left out {plural(left, 'outdated run')}: {changed} {'it' if left == 1 else 'they'} ran"
    return kept, [note] if left else []


def _is_outdated(run: RunRecord) -> bool:
    return run.sweep is not None and run.cell_folder.name not in run.sweep.current
