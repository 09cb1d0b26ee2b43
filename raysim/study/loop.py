"""Runs every cell of a sweep once. Interrupted cells are resumed; a failed cell does not stop the others."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from raysim.common.errors import ScenarioError
from raysim.common.files import hold, reason
from raysim.data import datasets
from raysim.results.store import check_uri
from raysim.runs.signals import interruptible, sigterm_kept
from raysim.scenario.trackers import check_packages
from raysim.study.cells import CellState, Sweep, chosen_cells, states_of
from raysim.study.choice import TRIALS, Tuning, TuningProgress, trials_frame, write_journal
from raysim.study.copies import download, upload
from raysim.study.sweep_card import SWEEP_LOCK
from raysim.study.workers import Show, run_cell, run_cells

if TYPE_CHECKING:
    from raysim.engine.ray.tasks import Tasks

logger = logging.getLogger(__name__)


def run_sweep(
    sweep: Sweep,
    *,
    parallel: int | None = None,
    retry_failed: bool = False,
    only: Sequence[str] = (),
    show: Show = lambda progress: None,
) -> list[CellState]:
    """Run every cell that is not done; return the states of all cells.

    parallel: cells at the same time; default: one per CPU of the machine, or of the cluster at RAY_ADDRESS.
    retry_failed: run failed cells again. only: run only cells with these names, see `chosen_cells`; the others stay as
    they are, and variants without any of them are not tuned. show: called often with the progress.

    Raises:
        ScenarioError: another process runs this sweep, its folder cannot be used, or no cell has a name in `only`.
        KeyboardInterrupt: after Ctrl-C, once every running cell has finished its round.
        RunError: results could not be copied to the address.
    """
    chosen = {cell.name for cell in chosen_cells(sweep, only)}
    datasets.forget()
    uri = check_uri(sweep.cells[0].scenario.tracking.uri)
    for cell in sweep.cells:
        check_packages(cell.scenario)
    from raysim.engine.ray.tasks import Tasks  # imported here, because importing Ray takes a second

    # SIGTERM must also end a sweep before its first cell.
    with interruptible(), sigterm_kept(), contextlib.ExitStack() as cleanup:
        lock(sweep, cleanup)
        download(sweep)
        tasks = cleanup.enter_context(Tasks(run_cell, parallel))
        if sweep.tuning is not None:
            sweep = _tune(sweep, sweep.tuning.of_cells(chosen), uri, tasks, retry_failed, show)
        sweep.card().write(sweep.output)
        states = {one.cell.name: one for one in states_of(sweep)}
        shown = {name: one for name, one in states.items() if name in chosen}
        left = [one for one in _left(shown.values(), retry_failed) if not one.cell.pending]
        run_cells(left, shown, sweep, uri, tasks, show)
        states |= shown
        # States are read again, because data files may have changed during the runs, and runs of two data sets must not
        # both count as done.
        datasets.forget()
        now = states_of(sweep)
        states |= {one.cell.name: one for one in now if "done" in (one.state, states[one.cell.name].state)}
        upload(sweep)
        if sweep.tuning is not None:
            upload(sweep.tuning.sweep)
        return list(states.values())


def _left(states: Iterable[CellState], retry_failed: bool) -> list[CellState]:
    return [one for one in states if one.state != "done" and (retry_failed or one.state != "failed")]


def _tune(sweep: Sweep, tuning: Tuning, uri: str, tasks: Tasks, retry_failed: bool, show: Show) -> Sweep:
    """Run the remaining trials, and return the sweep with the values that they choose.

    Each pass runs the cells that must end before the next decision of each candidate. A cell that fails or is lost is
    not tried twice; one that is lost, or fails before it has a run folder, leaves its candidate without a choice.
    """
    progress = [TuningProgress(tuning, candidate) for candidate in tuning.candidates]
    with contextlib.ExitStack() as cleanup:
        lock(tuning.sweep, cleanup)
        download(tuning.sweep)
        active = [one for one in progress if one.advance(retry_failed)]
        while active:
            states = {state.cell.name: state for one in active for state in one.open}
            cells = tuple(state.cell for state in states.values())
            trials = replace(tuning.sweep, cells=cells)
            trials.card().write(trials.output)
            run_cells(_left(states.values(), retry_failed), states, trials, uri, tasks, show)
            active = [one for one in active if one.advance(retry_failed, ran=True)]
    for one in progress:
        logger.log(logging.WARNING if one.chosen is None else logging.INFO, one.tuned.sentence)
    everything = sweep.tuning or tuning  # includes cells that the user did not select for this command
    progress = everything.progress()
    cells = tuple(state.cell for one in progress for trial in one.trials.values() for state in trial.states)
    replace(tuning.sweep, cells=cells).card().write(tuning.sweep.output)
    trials_frame(progress).to_csv(tuning.sweep.output / TRIALS, index=False)
    write_journal(everything, progress)
    return everything.resolved(sweep, progress)


def lock(sweep: Sweep, cleanup: contextlib.ExitStack) -> None:
    """Prevent other processes from running the same sweep. Raises `ScenarioError`."""
    try:
        sweep.output.mkdir(parents=True, exist_ok=True)
        handle = hold(sweep.output / SWEEP_LOCK)
    except BlockingIOError:
        text = f"{sweep.output}: another process is running this sweep; see its progress with --status"
        raise ScenarioError(text) from None
    except OSError as error:
        raise ScenarioError(f"{sweep.output} cannot be written ({reason(error)}); choose a writable folder") from None
    cleanup.callback(os.close, handle)
