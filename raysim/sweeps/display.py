"""Lists of a sweep's cells, and its progress: a live table on a terminal, otherwise lines."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import TextIO

from raysim.common.logs import show_logs
from raysim.common.text import one_line
from raysim.report.load import read_rounds
from raysim.report.units import human_seconds, per_cent, plural
from raysim.sweeps.cells import Sweep, chosen_cells, written
from raysim.sweeps.choice import TuningProgress, score
from raysim.sweeps.loop import ComparisonError, SweepProgress, run_sweep
from raysim.sweeps.state import CellState, State, counts, in_words, tally
from raysim.sweeps.status import TuningStatus

logger = logging.getLogger(__name__)

LINE_EVERY_S = 10.0

LONG = 20
"""The most cells of a list with a line for each; a longer one has a line per variant or method."""


def _groups(states: Sequence[CellState]) -> dict[str, list[int]]:
    """Name -> positions of its cells: variants, that is, the cells that differ only in their seed.

    Methods instead, if there are several and more than `LONG` variants.
    """
    by_label: dict[str, list[int]] = {}
    by_method: dict[str, list[int]] = {}
    for place, state in enumerate(states):
        by_label.setdefault(state.cell.variant, []).append(place)
        by_method.setdefault(state.cell.scenario.method, []).append(place)
    return by_method if len(by_label) > LONG and len(by_method) > 1 else by_label


def _collapsed(states: Sequence[CellState], costs: Sequence[float | None] | None) -> list[str]:
    """Return a line per group: how many of its cells are in each state, and the rounds done or the mean seconds.

    Reasons why cells are not done follow in lines of their own, equal ones once.
    """
    lines = []
    for name, places in _groups(states).items():
        cells = [states[place] for place in places]
        seeds = "seeds" if len({one.cell.variant for one in cells}) == 1 else "cells"
        tallied = tally(cells)
        text = f"{name}: {tallied.pop('done', 0)} of {len(cells)} {seeds} done"
        rounds, total = sum(one.rounds for one in cells), sum(one.cell.rounds for one in cells)
        if tallied:
            text += f", {in_words(tallied)}"
        if costs is not None:
            known = [one for one in (costs[place] for place in places) if one is not None]
            text += f"; {_shown_s(mean(known) if known else None)} each"
        elif tallied:
            text += f"; {rounds} of {total} rounds"
        lines.append(one_line(text))
        reasons = Counter((one.state, one_line(one.reason)) for one in cells if one.reason)
        lines += [f"    {count} {state}: {reason}" for (state, reason), count in reasons.items()]
    return lines


def _shown_s(seconds: float | None) -> str:
    return "?" if seconds is None else human_seconds(seconds)


def print_states(
    states: Sequence[CellState],
    file: TextIO | None = None,
    every: bool = False,
    costs: Sequence[float | None] | None = None,
) -> None:
    """Print titles, and a line per cell with its state, rounds and, if known, why it is not done; then the counts.

    every: also in a long list, which otherwise has a line per variant. costs: also print each cell's seconds.
    """
    if not every and len(states) > LONG and len(_groups(states)) < len(states):
        for line in _collapsed(states, costs):
            print(line, file=file)
        print("(a line per cell: --all)", file=file)
    else:
        title = "" if costs is None else f" {'time':>12}"
        print(f"{'state':<11} {'rounds':>9}{title}  cell", file=file)
        for place, one in enumerate(states):
            rounds = f"{one.rounds}/{one.cell.rounds}"
            cost = "" if costs is None else f" {_shown_s(costs[place]):>12}"
            reason = f"  {one_line(one.reason)}" if one.reason else ""
            print(f"{one.state:<11} {rounds:>9}{cost}  {one.cell.name}{reason}", file=file)
    print(counts(states), file=file)


def print_plan(
    states: Sequence[CellState],
    costs: Sequence[float | None],
    parallel: int,
    *,
    every: bool = False,
    before_s: float = 0.0,
    retry_failed: bool = False,
) -> None:
    """Print the cells with their seconds; then the time left.

    before_s: seconds of the trials that are left. retry_failed: whether failed cells run again.
    """
    print_states(states, every=every, costs=costs)
    ended = ("done",) if retry_failed else ("done", "failed")
    left = [(one, cost) for one, cost in zip(states, costs, strict=True) if one.state not in ended]
    if not before_s and not left:
        return
    rest_s = [(seconds or 0.0) * (1 - one.rounds / one.cell.rounds) for one, seconds in left]
    rounds_s = max(sum(rest_s, before_s) / parallel, max(rest_s, default=0.0))
    run = f"{plural(parallel, 'cell')} {'runs' if parallel == 1 else 'run'} at a time"
    unknown = sum(seconds is None for _, seconds in left)
    besides = f", and {plural(unknown, 'cell')} of unknown length" if unknown else ""
    print(
        f"estimated time, if {run} on an idle machine: about {human_seconds(rounds_s)}. Not included: the start of "
        f"each cell{besides}."
    )


class PlainProgress:
    """Prints a line whenever a cell begins or ends, and the overall progress every ten seconds."""

    def __init__(self, sweep: Sweep, stream: TextIO) -> None:
        self.sweep, self.stream = sweep, stream
        self.states: dict[str, str] = {}
        self.shown_s = 0.0
        self.phase: list[tuple[str, int]] = []  # the cells: tuning runs other cells, or the same for more rounds
        self.began: tuple[float, int] | None = None  # when the first cell reported a round, and the rounds done then

    def print(self, text: str) -> None:
        """Print one line."""
        print(text, file=self.stream, flush=True)

    def show(self, progress: SweepProgress) -> None:
        """Print changed states and, when due, the overall progress."""
        if (phase := [(one.cell.name, one.cell.rounds) for one in progress.states]) != self.phase:
            self.phase, self.states = phase, {}
        running = dict(progress.running)
        for one in progress.states:
            state = "running" if one.cell.name in running else one.state
            if self.states.setdefault(one.cell.name, one.state) != state:
                self.states[one.cell.name] = state
                self.print(f"{state:<11} {one.cell.name}{self._result(one) if state == 'done' else ''}")
        if time.monotonic() - self.shown_s >= LINE_EVERY_S:
            self.shown_s = time.monotonic()
            self.print(self.line(progress))

    def close(self) -> None:
        """Do nothing; `LiveProgress` ends its display."""

    def _result(self, state: CellState) -> str:
        """Return the accuracy of a finished cell; of a trial, its values and the score by which it is judged."""
        tuning = self.sweep.tuning
        if not state.cell.values or tuning is None:
            return _accuracy(state)
        values = ", ".join(f"{key}={written(value)}" for key, value in state.cell.values)
        metric = tuning.settings.select
        reached = score(state, metric)
        if math.isfinite(reached):
            judged = f"{metric} {reached:.4g} after round {state.cell.rounds}"
        else:
            judged = f"ranks last, because {metric} was not measured or a loss was NaN or infinite"
        return f"  {judged}; {values}"

    def line(self, progress: SweepProgress) -> str:
        """The number of cells in each state, the rounds done and planned of the whole sweep, and the time left."""
        running = dict(progress.running)
        now = [replace(one, state=_shown_state(one, running)) for one in progress.states]
        done, total = progress.earlier, progress.earlier + progress.later
        for one in progress.states:
            ran = one.cell.rounds if one.state == "done" else one.rounds
            reported = running.get(one.cell.name, -1)
            done += ran if reported < 0 else reported  # a cell that is being resumed has reported no round yet
            total += ran if _shown_state(one, running) == "failed" else one.cell.rounds  # the others are not planned
        if progress.stopping:
            cells = plural(len(running), "cell")
            ends = f"ending: {cells} will end after this round" if running else "ending"
            return f"{ends}; {done} of {total} rounds are done"
        if self.began is None and max(running.values(), default=-1) >= 0:
            self.began = time.monotonic(), done
        left = ""
        if self.began is not None and self.began[1] < done < total:
            left_s = (time.monotonic() - self.began[0]) / (done - self.began[1]) * (total - done)
            left = f", about {human_seconds(left_s)} left"
        phase = "trials: " if any(one.cell.values for one in progress.states) else ""
        return f"{phase}{counts(now)}; {done} of {total} rounds{left}"


class LiveProgress(PlainProgress):
    """Shows the counts and the running cells in a table that is updated in place."""

    def __init__(self, sweep: Sweep, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(sweep, stream)
        self.live = Live(console=Console(file=stream), refresh_per_second=2)
        self.live.start()

    def print(self, text: str) -> None:
        self.live.console.print(text, markup=False, highlight=False)

    def show(self, progress: SweepProgress) -> None:
        from rich.table import Table
        from rich.text import Text

        self.shown_s = time.monotonic()  # the table has the line that `super().show` would print
        super().show(progress)
        table = Table.grid(padding=(0, 2))
        rounds = {one.cell.name: one.cell.rounds for one in progress.states}
        for name, done in progress.running:
            shown = f"round {max(done, 0)}/{rounds[name]}"
            table.add_row(Text(f"  {name}"), Text(shown if done >= 0 else "starting", style="dim"))
        table.add_row(Text(self.line(progress), style="bold"))
        self.live.update(table)

    def close(self) -> None:
        self.live.stop()


def _shown_state(state: CellState, running: Mapping[str, int]) -> State:
    """Return a cell's state while the sweep runs: a trial that halving paused waits until it continues."""
    if state.cell.name in running:
        return "running"
    return "waiting" if state.state == "interrupted" and state.cell.values else state.state


def _accuracy(state: CellState) -> str:
    if state.folder is None:
        return ""
    column = read_rounds(state.folder).to_pydict().get("accuracy/all", [])
    known = [value for value in column if value is not None]
    return f"  accuracy {per_cent(known[-1])} (all clients' own networks)" if known else ""


@contextlib.contextmanager
def shown_progress(sweep: Sweep) -> Iterator[PlainProgress]:
    """Show progress and the sweep's log records on standard error, without the log records of its runs.

    Live on a terminal, plain lines elsewhere.
    """
    live = sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
    progress = LiveProgress(sweep, sys.stderr) if live else PlainProgress(sweep, sys.stderr)
    try:
        with show_logs(progress.print, "raysim.sweeps"):
            yield progress
    finally:
        progress.close()


def run_and_show(
    sweep: Sweep,
    parallel: int | None = None,
    retry_failed: bool = False,
    only: Sequence[str] = (),
    every: bool = False,
) -> int:
    """Run a sweep and show its progress and result; returns the exit code, 1 if a cell or the comparison is missing.

    only: of `run_sweep`; the cells that it leaves out do not count as missing. every: of `print_states`.
    """
    problems = []
    with shown_progress(sweep) as progress:
        try:
            states = run_sweep(sweep, parallel=parallel, retry_failed=retry_failed, only=only, show=progress.show)
        except KeyboardInterrupt:
            logger.info("the sweep was stopped; run the same command to resume it")
            raise
        except ComparisonError as error:
            states = error.states
            problems.append(str(error))
    print_states(states, every=every)
    print(f"Compare the cells:  raysim compare {sweep.output}", flush=True)
    if sweep.address and not problems:
        print(f"Copied to:  {sweep.address}", flush=True)
    chosen = {cell.name for cell in chosen_cells(sweep, only)}
    if rest := sum(state.state != "done" and state.cell.name not in chosen for state in states):
        are = "is" if rest == 1 else "are"
        print(f"{plural(rest, 'other cell')} {are} not done; to run all cells, leave out --only", flush=True)
    states = [state for state in states if state.cell.name in chosen]
    if left := sum(state.state != "done" for state in states):
        how = "run the same command to continue, with --retry-failed to repeat failed cells too"
        problems.insert(0, f"{left} of {len(states)} cells are not done; {how}")
    for problem in problems:
        print(f"raysim: {problem}", file=sys.stderr, flush=True)
    return 1 if problems else 0


def print_tuning(statuses: Sequence[TuningStatus]) -> None:
    """Print a line per tuned variant: what it has chosen, or how far its trials are."""
    for one in statuses:
        text = one_line(one.variant.sentence)
        if one.state == "tuning":
            trials = f"{plural(one.planned_trials, 'trial')}, {one.variant.rounds} of {one.planned_rounds} rounds"
            until = "" if one.until is None else f"until round {one.until}: "
            text = f"{one.variant.label}: {trials}; {until}{in_words(one.counts)}"
        print(f"{one.state:<11} {text}")


def print_tuning_plan(progress: Sequence[TuningProgress], costs: Sequence[float | None]) -> float:
    """Print a line per tuned variant with the rounds and seconds of its trials; return the seconds that are left.

    costs: seconds of a cell of each candidate with all its rounds.
    """
    left_s = 0.0
    for one, cost in zip(progress, costs, strict=True):
        shown = "?"
        if cost is not None:
            round_s = cost / one.candidate.rounds
            shown = human_seconds(round_s * one.planned_rounds)
            left_s += round_s * max(one.planned_rounds - one.rounds, 0) if one.open else 0.0
        rounds = f"{plural(one.candidate.trials, 'trial')}, {one.rounds} of {one.planned_rounds:,} rounds"
        print(f"{one.state:<11} {shown:>22}  {one.candidate.name}: {rounds}")
    return left_s
