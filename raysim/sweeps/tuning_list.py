"""Lists of a sweep's tuning: a line per tuned variant."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.common.text import one_line
from raysim.report.units import human_seconds, plural
from raysim.sweeps.estimate import Cost
from raysim.sweeps.state import counts
from raysim.sweeps.tuning import Standing, Tuning


def print_tuning(tuning: Tuning, standings: Sequence[Standing]) -> None:
    """Print a line per tuned variant: what it has chosen, or how far its trials are."""
    for standing in standings:
        candidate = standing.candidate
        if standing.chosen is not None:
            print(f"tuned       {one_line(tuning.tuned(standing).sentence)}")
        elif standing.open:
            until = f"until round {candidate.steps[standing.step]}: " if len(candidate.steps) > 1 else ""
            what = (
                f"{plural(candidate.trials, 'trial')}, {standing.rounds} of {tuning.planned_rounds(candidate)} rounds"
            )
            print(f"tuning      {candidate.name}: {what}; {until}{counts(standing.open)}")
        else:
            print(f"failed      {candidate.name}: {standing.reason}")


def print_tuning_plan(tuning: Tuning, standings: Sequence[Standing], costs: Sequence[Cost]) -> tuple[float, int]:
    """Print a line per tuned variant with the rounds and seconds of its trials.

    costs: of a cell of each candidate with all its rounds. A full search gives every trial all rounds. Returns the
    seconds of the rounds that are left, and how often cells still start or resume for them.
    """
    left_s = 0.0
    for standing, cost in zip(standings, costs, strict=True):
        candidate = standing.candidate
        planned, full = tuning.planned_rounds(candidate), tuning.full_rounds(candidate)
        seconds = None if cost.seconds is None else cost.seconds / candidate.rounds
        shown = "?" if seconds is None else human_seconds(seconds * planned)
        share = f" (without halving: {full:,})" if planned < full else ""
        state = "tuned" if standing.chosen is not None else "tuning"
        rounds = f"{plural(candidate.trials, 'trial')}, {standing.rounds} of {planned:,} rounds{share}"
        print(f"{state:<11} {shown:>22}  {candidate.name}: {rounds}")
        if standing.open:
            left_s += (seconds or 0.0) * max(planned - standing.rounds, 0)
    return left_s, sum(map(tuning.starts_left, standings))
