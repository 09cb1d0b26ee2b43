"""How far each cell of a sweep is: what its folder on disk says, so that nothing else need be kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysim.common.errors import ScenarioError
from raysim.common.files import refuse_special, replace
from raysim.report.load import read_summary
from raysim.sweeps.definition import Cell, Sweep

State = Literal["done", "running", "interrupted", "failed", "waiting"]
ORDER: tuple[State, ...] = ("done", "running", "interrupted", "failed", "waiting")

FAILURE = "failure.json"
"""In a cell's folder: why it failed before it had a run folder."""


@dataclass(frozen=True)
class CellState:
    """A cell and how far it is."""

    cell: Cell
    state: State
    folder: Path | None = None  # of its run
    rounds: int = 0  # that are done
    reason: str = ""  # why it is not done, as far as that is known

    @property
    def resumable(self) -> bool:
        """Whether it has a run that had begun, and can so be resumed."""
        return self.folder is not None and (self.folder / "run.json").exists()


def state_of(cell: Cell, sweep: Sweep) -> CellState:
    """A cell's state: that of its finished run if there is one, else of its latest."""
    folder = sweep.output / cell.folder_name
    runs = sorted(path.parent for path in folder.glob("*/summary.json"))
    states = [_of_run(cell, run) for run in runs]
    if done := next((one for one in states if one.state == "done"), None):
        return done
    if states:
        return states[-1]
    try:
        refuse_special(folder / FAILURE)
        reason = str(json.loads((folder / FAILURE).read_text())["reason"])
    except (OSError, ValueError, LookupError, TypeError):
        return CellState(cell, "waiting")
    return CellState(cell, "failed", reason=reason)


def _of_run(cell: Cell, run: Path) -> CellState:
    try:
        summary = read_summary(run)
    except ScenarioError as error:
        return CellState(cell, "failed", run, reason=str(error))
    states: dict[object, State] = {"finished": "done", "running": "running", "failed": "failed"}
    rounds = summary.get("rounds")
    state = states.get(summary.get("status"), "interrupted")
    return CellState(cell, state, run, rounds if isinstance(rounds, int) else 0, str(summary.get("error") or ""))


def states_of(sweep: Sweep) -> list[CellState]:
    """Of every cell, in the sweep's order."""
    return [state_of(cell, sweep) for cell in sweep.cells]


def note_failure(cell: Cell, sweep: Sweep, reason: str) -> None:
    """Keep why a cell failed that has no run folder. Raises `OSError`."""
    folder = sweep.output / cell.folder_name
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / FAILURE, lambda file: file.write(json.dumps({"reason": reason}).encode()))


def counts(states: Iterable[CellState]) -> str:
    """Such as "5 done, 1 failed, 2 waiting"."""
    tally = Counter(one.state for one in states)
    return ", ".join(f"{tally[state]} {state}" for state in ORDER if tally[state]) or "no cells"
