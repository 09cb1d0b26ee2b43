"""Runs a sweep: every cell once. Interrupted cells are resumed, and a failed cell does not stop the others."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from raysim.common.errors import RaysimError, RunError, ScenarioError
from raysim.common.files import hold, reason, write_bytes
from raysim.common.text import distinct, mlflow_name
from raysim.comparison.compare import compare
from raysim.comparison.formats import write_tables
from raysim.comparison.pictures import draw
from raysim.comparison.sweep_card import SWEEP_CARD, SWEEP_LOCK
from raysim.engine.stop import Stop
from raysim.report.units import plural
from raysim.runs.signals import interruptible
from raysim.scenario.scenario import forget_data
from raysim.scenario.trackers import check_packages
from raysim.sweeps.cells import Sweep
from raysim.sweeps.copies import download, upload
from raysim.sweeps.large import is_large
from raysim.sweeps.only import chosen_cells
from raysim.sweeps.run_cell import Outcome, run_cell
from raysim.sweeps.state import CellState, states_of
from raysim.sweeps.trials_card import trials_card
from raysim.sweeps.tuning import Standing, Tuning
from raysim.sweeps.workers import Workers, run_in_workers, state_after, task_of
from raysim.tracking.parent import ParentRun
from raysim.tracking.store import check_uri

logger = logging.getLogger(__name__)

ABANDONED_S = 60.0
"""How long cells may still run after their driver was killed, in seconds."""

COMPARISON = "comparison"
"""The folder of tables and pictures, inside the sweep's folder."""

COMPARED = "runs.json"
"""A file in that folder with the runs that were compared, and the hash of `sweep.json`, which names the baseline and
the targets. It is written last, once MLflow has everything."""


class ComparisonError(RunError):
    """The cells have ended, but their comparison could not be written, logged to MLflow, or copied to an address.

    Attributes:
        states: the states of all cells.
    """

    def __init__(self, text: str, states: Sequence[CellState]) -> None:
        super().__init__(text)
        self.states = list(states)


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep at one moment."""

    states: Sequence[CellState]
    running: Sequence[tuple[str, int]]  # (cell's name, last finished round); -1 while the cell is starting
    stopping: bool = False  # whether Ctrl-C was pressed, so that the running cells end after their round
    earlier: int = 0  # rounds of other cells that are done: of trials that ended, and of the result
    later: Mapping[str, int] = field(default_factory=dict)  # method -> rounds of other cells that are still to run


def run_sweep(
    sweep: Sweep,
    *,
    parallel: int | None = None,
    retry_failed: bool = False,
    only: Sequence[str] = (),
    show: Callable[[SweepProgress], None] = lambda progress: None,
) -> list[CellState]:
    """Run every cell that is not done; returns the states afterwards.

    parallel: cells at the same time; default: one per CPU of the machine, or of the cluster at RAY_ADDRESS.
    retry_failed: run failed cells again. only: run only cells with these names, see `chosen_cells`; the others stay as
    they are, and variants without any of them are not tuned. show: called often with the progress.

    Raises:
        ScenarioError: another process runs this sweep, its folder cannot be used, or no cell has a name in `only`.
        RunError: `sweep.json` cannot be written.
        KeyboardInterrupt: after Ctrl-C, once every running cell has finished its round.
        ComparisonError: only the comparison of the cells is missing.
    """
    chosen = {cell.name for cell in chosen_cells(sweep, only)}
    forget_data()
    uri = check_uri(sweep.cells[0].scenario.tracking.uri)
    for cell in sweep.cells:
        check_packages(cell.scenario)
    with interruptible(), contextlib.ExitStack() as cleanup:  # SIGTERM ends a sweep before its first cell, too
        lock(sweep, cleanup)
        download(sweep)
        workers = cleanup.enter_context(Workers(parallel))
        if sweep.tuning is not None:
            tuning = sweep.tuning.of_cells(chosen)
            sweep = _tune(sweep, tuning, chosen, uri, workers, retry_failed, show)
            show = _with_others(show, sum(standing.rounds for standing in tuning.standings()), {})
        show = _of_cells(chosen, show) if only else show
        _write_card(sweep)
        states = {one.cell.name: one for one in _when_abandoned_cells_have_ended(sweep)}
        left = [one for one in states.values() if one.state != "done" and (retry_failed or one.state != "failed")]
        left = [one for one in left if one.cell.name in chosen and not one.cell.pending]
        if not left and _already_compared(sweep, states.values()):
            _upload(sweep, list(states.values()))
            return list(states.values())
        show(SweepProgress(list(states.values()), []))  # MLflow and the workers take seconds to start
        with ParentRun(uri, sweep.name, sweep.output) as parent:
            _run_cells(left, states, sweep, parent, workers, show)
            workers.close()
            forget_data()  # files may have changed while the cells ran: two data sets must not be in one table
            now = states_of(sweep)
            states |= {one.cell.name: one for one in now if "done" in (one.state, states[one.cell.name].state)}
            try:
                _compare(sweep, list(states.values()), parent)
            except RaysimError as error:
                again = "run the same command to compare the cells again"
                raise ComparisonError(f"{str(error).rstrip('.')}; {again}", list(states.values())) from error
        _upload(sweep, list(states.values()))
        return list(states.values())


def _upload(sweep: Sweep, states: Sequence[CellState]) -> None:
    """Copy the folder to the sweep's address, if it has one. Raises `ComparisonError`."""
    try:
        upload(sweep)
        if sweep.tuning is not None:
            upload(sweep.tuning.sweep)
    except RunError as error:
        raise ComparisonError(str(error), states) from error


def _of_cells(names: Collection[str], show: Callable[[SweepProgress], None]) -> Callable[[SweepProgress], None]:
    """Show the progress of these cells only."""
    return lambda progress: show(replace(progress, states=[one for one in progress.states if one.cell.name in names]))


def _with_others(
    show: Callable[[SweepProgress], None], earlier: int, later: Mapping[str, int]
) -> Callable[[SweepProgress], None]:
    """Show the progress together with the rounds of other cells."""
    return lambda progress: show(replace(progress, earlier=earlier, later=later))


def _rounds_of_others(
    sweep: Sweep, tuning: Tuning, standings: Sequence[Standing], chosen: Collection[str]
) -> tuple[int, Mapping[str, int]]:
    """Rounds besides those of the open trials: done by ended trials and cells of the result; left, by method."""
    earlier, later = 0, Counter[str]()
    for standing in standings:
        still = sum(min(state.rounds, state.cell.rounds) for state in standing.open)
        earlier += standing.rounds - still
        later[standing.candidate.finals[0][1].scenario.method] += tuning.later_rounds(standing)
    for state in states_of(tuning.resolved(sweep, standings)):
        if state.cell.name in chosen and state.state != "failed":
            earlier += state.rounds
            later[state.cell.scenario.method] += state.cell.rounds - state.rounds
    return earlier, later


def _write_card(sweep: Sweep) -> None:
    try:
        sweep.card().write(sweep.output)
    except OSError as error:
        raise RunError(
            f"{sweep.output} cannot be written ({reason(error)}); free some space, or choose another folder as `output`"
        ) from error


def _tune(
    sweep: Sweep,
    tuning: Tuning,
    chosen: Collection[str],
    uri: str,
    workers: Workers,
    retry_failed: bool,
    show: Callable[[SweepProgress], None],
) -> Sweep:
    """Run the trials that are left, and return the sweep with the values that they choose.

    chosen: names of the cells of the result that are to run. Each pass runs the cells that must end before the next
    decision of each candidate. A cell that fails or is lost is not tried twice; a lost cell leaves its candidate
    without a choice.
    """
    tried: set[tuple[str, int]] = set()  # (folder, rounds): `tpe` may suggest the values of an earlier trial again
    parent: ParentRun | None = None

    def ended(state: CellState) -> bool:
        retried = not retry_failed or (state.cell.folder_name, state.cell.rounds) in tried
        return state.state == "done" or (state.state == "failed" and retried)

    with contextlib.ExitStack() as cleanup:
        lock(tuning.sweep, cleanup)
        download(tuning.sweep)
        while True:
            standings = tuning.standings(ended)
            cells = {state.cell.name: state.cell for standing in standings for state in standing.open}
            trials = replace(tuning.sweep, cells=tuple(cells.values()), trials=trials_card(tuning, standings))
            states = {one.cell.name: one for one in _when_abandoned_cells_have_ended(trials)}
            left = [one for one in states.values() if not ended(one)]
            left = [one for one in left if (one.cell.folder_name, one.cell.rounds) not in tried]
            if not left:
                break
            tried.update((one.cell.folder_name, one.cell.rounds) for one in left)
            _write_card(trials)
            show_whole = _with_others(show, *_rounds_of_others(sweep, tuning, standings, chosen))
            show_whole(SweepProgress(list(states.values()), []))  # MLflow and the workers take seconds to start
            parent = parent or cleanup.enter_context(ParentRun(uri, trials.name, trials.output))
            _run_cells(left, states, trials, parent, workers, show_whole)
        if parent is not None:
            parent.close(all(standing.chosen for standing in standings), {}, [])
    for standing in standings:
        if standing.chosen is None:
            logger.warning(f"{standing.candidate.name}: {standing.reason}")
        else:
            logger.info(tuning.tuned(standing).sentence)
    everything = sweep.tuning or tuning  # also of cells that are not to run now
    standings = everything.standings()
    _write_card(replace(tuning.sweep, trials=trials_card(everything, standings)))
    return everything.resolved(sweep, standings)


def _run_cells(
    left: Sequence[CellState],
    states: dict[str, CellState],
    sweep: Sweep,
    parent: ParentRun,
    workers: Workers,
    show: Callable[[SweepProgress], None],
) -> None:
    """Run the cells in `left`, and update `states`. Raises `KeyboardInterrupt` after Ctrl-C."""
    again = Counter(one.reason for one in left if one.state == "waiting" and one.reason)
    for why, count in again.items():
        logger.warning(f"{plural(count, 'cell')} to run again: {why}")
    large: list[CellState] = []
    small: list[CellState] = []
    for one in left:
        (large if is_large(one.cell, workers.parallel) else small).append(one)

    def show_running(running: Sequence[tuple[str, int]], stopping: bool) -> None:
        show(SweepProgress(list(states.values()), running, stopping))

    if small:
        run_in_workers(small, states, sweep, parent, workers, show_running)
    if large:
        workers.close()  # client actors start a Ray of their own
        _run_with_actors(large, states, sweep, parent, show)


def _run_with_actors(
    left: Sequence[CellState],
    states: dict[str, CellState],
    sweep: Sweep,
    parent: ParentRun,
    show: Callable[[SweepProgress], None],
) -> None:
    """Run each cell in turn as `raysim launch` does, and update `states`. Raises `KeyboardInterrupt` after Ctrl-C."""
    for state in left:
        name, stop, before = state.cell.name, Stop(), Stop()

        def report(done: int, name: str = name, stop: Stop = stop, before: Stop = before) -> None:
            stopping = stop.requested or before.requested
            show(SweepProgress(list(states.values()), [(name, done)], stopping))

        report(-1)
        with interruptible(before):
            try:
                task = task_of(state, sweep, parent, "ray")
            except ScenarioError as error:  # the cell waits until the cause is gone
                outcome = Outcome(None, str(error), died=True)
            else:
                outcome = run_cell(task, stop, report)
        states[name] = state_after(outcome, state.cell, sweep)
        show(SweepProgress(list(states.values()), []))
        if stop.requested or before.requested:
            raise KeyboardInterrupt


def lock(sweep: Sweep, cleanup: contextlib.ExitStack) -> None:
    """Keep other processes from running the same sweep. Raises `ScenarioError`."""
    try:
        sweep.output.mkdir(parents=True, exist_ok=True)
        handle = hold(sweep.output / SWEEP_LOCK)
    except BlockingIOError:
        text = f"{sweep.output}: another process is running this sweep; see its progress with --status"
        raise ScenarioError(text) from None
    except OSError as error:
        raise ScenarioError(f"{sweep.output} cannot be written ({reason(error)}); choose a writable folder") from None
    cleanup.callback(os.close, handle)


def _when_abandoned_cells_have_ended(sweep: Sweep) -> list[CellState]:
    """Wait until no cell is running, and return the states: workers end some seconds after their driver was killed.

    Raises `ScenarioError` if a cell still runs after a minute, because another process has resumed it.
    """
    until = time.monotonic() + ABANDONED_S
    while True:
        states = states_of(sweep)
        running = [one for one in states if one.state in ("running", "closing")]
        if not running:
            return states
        if time.monotonic() > until:
            text = (
                f"{running[0].folder}: another process is running this cell; wait for that process, or end it. If "
                "there is none (the folder is a copy, or its file system has no locks), run `raysim resume` on it"
            )
            raise ScenarioError(text)
        time.sleep(0.5)


def _already_compared(sweep: Sweep, states: Iterable[CellState]) -> bool:
    done = _done(states)
    compared = sweep.output / COMPARISON / COMPARED
    try:
        return not done or bool(json.loads(compared.read_bytes()) == _inputs(sweep, done))
    except (OSError, ValueError):
        return False


def _inputs(sweep: Sweep, done: Sequence[Path]) -> dict[str, object]:
    """Everything that decides the comparison. Raises `OSError`."""
    card = (sweep.output / SWEEP_CARD).read_bytes()
    return {"runs": [str(folder) for folder in done], "sweep_sha256": hashlib.sha256(card).hexdigest()}


def _done(states: Iterable[CellState]) -> list[Path]:
    return [one.folder for one in states if one.state == "done" and one.folder is not None]


def _compare(sweep: Sweep, states: Sequence[CellState], parent: ParentRun) -> None:
    """Write the comparison of the finished cells, and log it to the parent run of MLflow. Raises `RaysimError`."""
    folders = _done(states)
    metrics: dict[str, float] = {}
    files: list[Path] = []
    place = sweep.output / COMPARISON
    try:
        if folders:
            comparison = compare(*folders)
            files = [*write_tables(comparison, place), *draw(comparison, place)]
            variants = [variant.name for variant in comparison.variants]
            for variant, called in zip(variants, distinct(map(mlflow_name, variants)), strict=True):
                for measure in comparison.measures:
                    if (estimate := comparison.estimate(variant, measure)) is not None:
                        metrics[f"{measure}/{called}"] = estimate.mean
        parent.close(len(folders) == len(states), metrics, files)
        if folders:
            text = json.dumps(_inputs(sweep, folders), indent=1)
            write_bytes(place / COMPARED, text.encode())
    except OSError as error:
        raise RunError(f"{place} cannot be written ({reason(error)})") from error
