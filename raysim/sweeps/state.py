"""State of each cell of a sweep, read from the cell's folder; nothing else records it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from raysim.common.errors import ScenarioError
from raysim.common.files import is_locked, write_bytes
from raysim.common.results import LOCK, Summary
from raysim.report.load import read_summary, rounds_done
from raysim.scenario.data import data_digests, input_digests
from raysim.sweeps.cells import Cell, Sweep

State = Literal["done", "running", "closing", "interrupted", "failed", "waiting"]
"""State of a cell. "closing": its rounds are done, and its process writes plots and MLflow data."""

ORDER: tuple[State, ...] = get_args(State)

FAILURE = "failure.json"
"""A file in a cell's folder with the reason, if the cell failed before it had a run folder."""


@dataclass(frozen=True)
class CellState:
    """A cell and its state."""

    cell: Cell
    state: State
    folder: Path | None = None  # the run folder
    rounds: int = 0  # finished rounds
    reason: str = ""  # why the cell is not done, if known

    @property
    def resumable(self) -> Path | None:
        """The run that can be resumed, if it wrote `run.json`."""
        return self.folder if self.folder is not None and (self.folder / "run.json").exists() else None


def state_of(cell: Cell, output: Path) -> CellState:
    """A cell's state in the sweep's folder `output`: that of its finished run if it has one, else of its latest run.

    A cell that is interrupted after a round (`Cell.until`) is done once its run has that round, even if the run has
    gone on since.
    """
    if cell.pending:
        return CellState(cell, "waiting", reason="tuning has not chosen the values of this cell yet")
    folder = output / cell.folder_name
    runs = sorted(path.parent for path in folder.glob("*/summary.json"))
    states = [_of_run(cell, run) for run in runs]
    if done := next((one for one in states if one.state == "done"), None):
        return done
    if states:
        return states[-1]
    try:
        reason = str(json.loads((folder / FAILURE).read_text())["reason"])
    except (OSError, ValueError, LookupError, TypeError):
        return CellState(cell, "waiting")
    return CellState(cell, "failed", reason=reason)


def _changed(cell: Cell, summary: Summary) -> str:
    """Name the files that have changed since a run; empty if none has, or it is not known."""
    had = summary.get("dataset", {}).get("digest"), summary.get("public_digest")
    if had[0] is not None and data_digests(cell.scenario) not in (None, had):
        return "the data"
    try:
        inputs = input_digests(cell.scenario)
    except ScenarioError:  # a file is missing here
        return ""
    digests = [*summary.get("inputs", inputs).values()]
    return ", ".join(path for path, digest in inputs.items() if digest not in digests)


def _of_run(cell: Cell, run: Path) -> CellState:
    try:
        summary = read_summary(run)
        is_closing = summary.get("status") == "closing" and is_locked(run / LOCK)
        if summary.get("status") == "closing" and not is_closing:
            summary = read_summary(run)  # the run may have ended between the two checks
    except ScenarioError as error:
        return CellState(cell, "failed", run, reason=str(error))
    if summary.get("status") != "running" and not is_closing and (changed := _changed(cell, summary)):
        reason = f"{changed} changed after the last run, which is kept but no longer counts"
        return CellState(cell, "waiting", reason=reason)
    states: dict[object, State] = {"finished": "done", "running": "running", "failed": "failed"}
    rounds = rounds_done(run, summary)
    state = states.get(summary.get("status"), "interrupted")
    if cell.until is not None and state != "done" and rounds >= cell.until:
        return CellState(cell, "done", run, rounds)
    state = "closing" if is_closing else state
    return CellState(cell, state, run, rounds, str(summary.get("error") or ""))


def states_of(sweep: Sweep) -> list[CellState]:
    """The states of all cells, in the sweep's order."""
    return [state_of(cell, sweep.output) for cell in sweep.cells]


def note_failure(cell: Cell, output: Path, reason: str) -> None:
    """Record why a cell without a run folder failed. Raises `OSError`."""
    folder = output / cell.folder_name
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / FAILURE, json.dumps({"reason": reason}).encode())


def tally(states: Iterable[State]) -> dict[State, int]:
    """State -> number of cells, without states that no cell has."""
    found = Counter(states)
    return {state: found[state] for state in ORDER if found[state]}


def in_words(tallied: Mapping[State, int]) -> str:
    """Return numbers of cells in words, such as "5 done, 1 failed, 2 waiting"."""
    return ", ".join(f"{number} {state}" for state, number in tallied.items()) or "no cells"


def counts(states: Iterable[CellState]) -> str:
    """Count states, such as "5 done, 1 failed, 2 waiting"."""
    return in_words(tally(one.state for one in states))
