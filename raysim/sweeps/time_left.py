"""The time that a running sweep still takes: from the rounds that its cells have done, before that from a few steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raysim.sweeps.cells import Cell
from raysim.sweeps.loop import SweepProgress

PLAN_AFTER_S = 20.0
"""Seconds after which training steps are timed, if no cell has finished a round by then."""

Plan = Callable[[Sequence[Cell]], Mapping[str, float]]
"""Cells -> seconds per round by cell name, for the cells whose steps could be timed."""


@dataclass
class _Running:
    """A cell while it runs."""

    label: str
    began_s: float
    before: int  # rounds that an earlier process did
    done: int
    round_s: float  # when round `done` ended


@dataclass
class TimeLeft:
    """Estimates the time left, from the progress that it receives often.

    A cell's seconds per round are those of the cells with its label; else the planned ones, corrected by the ratio of
    measured to planned seconds of other cells; else the mean of all measured cells. Rounds of
    other cells (`SweepProgress.later`) count with the mean of their method's cells, else of all cells.
    """

    plan: Plan
    clock: Callable[[], float] = time.monotonic
    _began_s: float | None = None
    _running: dict[str, _Running] = field(default_factory=dict)
    _ended: dict[str, tuple[float, int]] = field(default_factory=dict)  # label -> seconds and rounds of ended cells
    _methods: dict[str, str] = field(default_factory=dict)  # label -> method
    _planned: Mapping[str, float] | None = None
    _parallel: int = 1  # the most cells at the same time so far

    def update(self, progress: SweepProgress) -> None:
        """Note which rounds have ended by now."""
        now = self.clock()
        if self._began_s is None:
            self._began_s = now
        self._parallel = max(self._parallel, len(progress.running))
        states = {state.cell.name: state for state in progress.states}
        self._methods.update({state.cell.variant: state.cell.scenario.method for state in progress.states})
        running = dict(progress.running)
        for name, done in running.items():
            one = self._running.get(name)
            if one is None:
                before = states[name].rounds
                one = self._running[name] = _Running(states[name].cell.variant, now, before, before, now)
            if done > one.done:
                one.done, one.round_s = done, now
        for name in self._running.keys() - running.keys():
            one = self._running.pop(name)
            done = max(one.done, states[name].rounds if name in states else 0)
            if done > one.before:
                seconds, rounds = self._ended.get(one.label, (0.0, 0))
                self._ended[one.label] = (seconds + now - one.began_s, rounds + done - one.before)

    def seconds(self, progress: SweepProgress) -> float | None:
        """Return the seconds left, or None if nothing is known yet. Times training steps at most once."""
        left = [state for state in progress.states if state.state not in ("done", "failed")]
        measured = self._measured()
        now = self.clock()
        waited = self._began_s is not None and now - self._began_s >= PLAN_AFTER_S
        if not measured and self._planned is None and waited:
            self._planned = self.plan([state.cell for state in left])
        planned = self._planned or {}
        ratios = [measured[s.cell.variant] / planned[s.cell.name] for s in progress.states
                  if s.cell.variant in measured and planned.get(s.cell.name)]  # fmt: skip
        ratio = sum(ratios) / len(ratios) if ratios else 1.0
        known = [*measured.values()] or [*planned.values()]
        if not known:
            return None
        total_s, longest_s = 0.0, 0.0
        for state in left:
            each_s = measured.get(state.cell.variant)
            if each_s is None:
                each_s = ratio * planned[state.cell.name] if state.cell.name in planned else sum(known) / len(known)
            one = self._running.get(state.cell.name)
            rounds = state.cell.rounds - (one.done if one else state.rounds)
            spent_s = min(each_s, now - one.round_s) if one and rounds > 0 else 0.0
            left_s = max(0.0, each_s * rounds - spent_s)
            total_s, longest_s = total_s + left_s, max(longest_s, left_s)
        of_methods: dict[str, list[float]] = {}
        for name, each_s in measured.items():
            of_methods.setdefault(self._methods[name], []).append(each_s)
        later_s = 0.0
        for method, rounds in progress.later.items():
            like = of_methods.get(method, known)
            later_s += rounds * sum(like) / len(like)
        return max(longest_s, total_s / self._parallel) + later_s / self._parallel

    def _measured(self) -> dict[str, float]:
        """Label -> seconds per round, of its cells that have finished a round."""
        sums = dict(self._ended)
        for one in self._running.values():
            if one.done > one.before:
                seconds, rounds = sums.get(one.label, (0.0, 0))
                sums[one.label] = (seconds + one.round_s - one.began_s, rounds + one.done - one.before)
        return {name: seconds / rounds for name, (seconds, rounds) in sums.items()}
