"""Runs of a tuned sweep: those of an earlier choice are left out."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.common.errors import ScenarioError
from raysim.comparison.runs import RunRecord
from raysim.report.units import plural


def without_outdated(runs: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs without those of values that their sweep's tuning no longer chooses, and a note on them.

    Raises `ScenarioError` if no run is left.
    """
    kept = [run for run in runs if not _is_outdated(run)]
    left = len(runs) - len(kept)
    if left and not kept:
        text = "all runs have values that an earlier tuning chose; run the sweep again"
        raise ScenarioError(f"{runs[0].folder.parent.parent}: {text}")
    note = f"left out {plural(left, 'run')}, whose values were chosen by an earlier tuning"
    return kept, [note] if left else []


def _is_outdated(run: RunRecord) -> bool:
    return run.sweep is not None and run.folder.resolve().parent.name not in run.sweep.current
