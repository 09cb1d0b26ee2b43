"""Shows the progress of a sweep, live in a terminal and otherwise as lines, and then its result."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from raysim.common.errors import RunError
from raysim.common.logs import show_logs
from raysim.results.progress import Screen
from raysim.results.units import human_seconds
from raysim.study.cells import Sweep, chosen_cells, counts, states_of
from raysim.study.choice import with_choices
from raysim.study.loop import run_sweep
from raysim.study.status import print_status
from raysim.study.workers import SweepProgress

logger = logging.getLogger(__name__)

LINE_EVERY_S = 10.0


class SweepDisplay:
    """Prints a line whenever a cell begins or ends, and shows the progress of the sweep and, live, the running cells.

    stream: default: standard error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.screen = Screen(stream or sys.stderr, LINE_EVERY_S)
        self.states: dict[str, str] = {}
        # (name, rounds) of the cells, which change when tuning starts other cells or more rounds
        self.phase: list[tuple[str, int]] = []
        self.began: tuple[float, int] | None = None  # time of the first reported round, and the rounds done by then

    def show(self, progress: SweepProgress) -> None:
        """Print states that have changed, and show the progress."""
        if (phase := [(one.cell.name, one.cell.rounds) for one in progress.states]) != self.phase:
            self.phase, self.states, self.began = phase, {}, None
        running = dict(progress.running)
        for one in progress.states:
            state = "running" if one.cell.name in running else one.state
            if self.states.setdefault(one.cell.name, one.state) != state:
                self.states[one.cell.name] = state
                self.screen.print(f"{state:<11} {one.cell.name}")
        rounds = dict(self.phase)
        cells = [f"  {name}  round {max(done, 0)}/{rounds[name]}" for name, done in progress.running]
        self.screen.show([*(cells if self.screen.is_live else []), self.line(progress)])

    def line(self, progress: SweepProgress) -> str:
        """Return the line with the number of cells per state, the done and planned rounds, and the remaining time."""
        running = dict(progress.running)
        now = [replace(one, state="running") if one.cell.name in running else one for one in progress.states]
        done = total = 0
        for one in now:
            ran = one.cell.rounds if one.state == "done" else one.rounds
            reported = running.get(one.cell.name, -1)
            done += ran if reported < 0 else reported  # a cell that is being resumed has not reported a round yet
            # The remaining rounds of a failed cell are not planned.
            total += ran if one.state == "failed" else one.cell.rounds
        if progress.stopping:
            return f"ending after this round; {done} of {total} rounds are done"
        if self.began is None and max(running.values(), default=-1) >= 0:
            self.began = time.monotonic(), done
        left = ""
        if self.began is not None and self.began[1] < done < total:
            left_s = (time.monotonic() - self.began[0]) / (done - self.began[1]) * (total - done)
            left = f", about {human_seconds(left_s)} left"
        return f"{counts(now)}; {done} of {total} rounds{left}"


@contextlib.contextmanager
def shown_progress() -> Iterator[SweepDisplay]:
    """Show progress and the sweep's log records on standard error, but not the log records of its runs."""
    progress = SweepDisplay()
    progress.screen.start()
    try:
        with show_logs(progress.screen.print, "raysim.study"):
            yield progress
    finally:
        progress.screen.stop()


def run_and_show(
    sweep: Sweep, parallel: int | None = None, retry_failed: bool = False, only: Sequence[str] = ()
) -> int:
    """Run a sweep, show progress and result; return the exit code, 1 if a cell or a copy is missing.

    only: of `run_sweep`; the cells that it leaves out do not count as missing.
    """
    problems = []
    with shown_progress() as progress:
        try:
            states = run_sweep(sweep, parallel=parallel, retry_failed=retry_failed, only=only, show=progress.show)
        except KeyboardInterrupt:
            logger.info("the sweep was stopped; run the same command to resume it")
            raise
        except RunError as error:
            states = states_of(with_choices(sweep))
            problems.append(str(error))
    print_status(states)
    print(f"Compare the cells:  raysim compare {sweep.output}", flush=True)
    if sweep.address and not problems:
        print(f"Copied to:  {sweep.address}", flush=True)
    chosen = {cell.name for cell in chosen_cells(sweep, only)}
    states = [state for state in states if state.cell.name in chosen]
    if left := sum(state.state != "done" for state in states):
        how = "run the same command to continue, with --retry-failed to repeat failed cells too"
        problems.insert(0, f"{left} of {len(states)} cells are not done; {how}")
    for problem in problems:
        print(f"raysim: {problem}", file=sys.stderr, flush=True)
    return 1 if problems else 0
