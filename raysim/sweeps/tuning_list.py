"""Lists of a sweep's tuning: a line per tuned variant."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.common.text import one_line
from raysim.report.units import human_seconds, plural
from raysim.sweeps.state import in_words
from raysim.sweeps.status import TuningStatus
from raysim.sweeps.tuning import Standing, Tuning


def print_tuning(statuses: Sequence[TuningStatus]) -> None:
    """Print a line per tuned variant: what it has chosen, or how far its trials are."""
    for one in statuses:
        name = one.variant.label
        text = f"{name}: {one.reason}"
        if one.state == "tuned":
            text = one_line(one.variant.sentence)
        elif one.state == "tuning":
            trials = f"{plural(one.planned_trials, 'trial')}, {one.variant.rounds} of {one.planned_rounds} rounds"
            until = "" if one.until is None else f"until round {one.until}: "
            text = f"{name}: {trials}; {until}{in_words(one.counts)}"
        print(f"{one.state:<11} {text}")


def seconds_left(tuning: Tuning, standings: Sequence[Standing], costs: Sequence[float | None]) -> float:
    """Return the seconds of the trials' rounds that are left.

    costs: seconds of a cell of each candidate with all its rounds.
    """
    left_s = 0.0
    for standing, cost in zip(standings, costs, strict=True):
        if standing.open and cost is not None:
            candidate = standing.candidate
            rounds = max(tuning.planned_rounds(candidate) - standing.rounds, 0)
            left_s += cost / candidate.rounds * rounds
    return left_s


def print_tuning_plan(tuning: Tuning, standings: Sequence[Standing], costs: Sequence[float | None]) -> None:
    """Print a line per tuned variant with the rounds and seconds of its trials. costs: as in `seconds_left`.

    A full search gives every trial all rounds.
    """
    for standing, cost in zip(standings, costs, strict=True):
        candidate = standing.candidate
        planned, full = tuning.planned_rounds(candidate), tuning.full_rounds(candidate)
        seconds = None if cost is None else cost / candidate.rounds
        shown = "?" if seconds is None else human_seconds(seconds * planned)
        share = f" (without halving: {full:,})" if planned < full else ""
        rounds = f"{plural(candidate.trials, 'trial')}, {standing.rounds} of {planned:,} rounds{share}"
        print(f"{standing.state:<11} {shown:>22}  {candidate.name}: {rounds}")
