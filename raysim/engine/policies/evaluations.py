"""Which rounds are followed by tests of clients, and on which samples: a pure function of the scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Coverage = Literal["own", "whole"]
"""Samples of a test: only the client's own, or also the whole published test set."""


@dataclass(frozen=True)
class EvaluationSchedule:
    """The rounds after which clients are tested. All kinds of tests also follow the last round."""

    rounds: int = 1
    every: int = 1  # rounds between tests
    global_every: int | None = None  # rounds between tests on the whole published test set; None: `every`
    # Rounds between tests of all clients with the server's current message; None: no such tests.
    all_every: int | None = None

    def coverage(self, t: int) -> Coverage | None:
        """Return the samples for the test of clients in round `t`; None: no test."""
        is_last = t == self.rounds
        if not is_last and t % self.every:
            return None
        return "whole" if is_last or t % (self.global_every or 1) == 0 else "own"

    def extra(self, t: int) -> bool:
        """Return whether clients are tested in round `t` only because it is the last round."""
        return t == self.rounds and t % self.every > 0

    def tests_all(self, t: int) -> bool:
        """Return whether round `t` (0: the start) is followed by a test of all clients with the server's message."""
        if self.all_every is None or self.coverage(t) is None:
            return False
        return t == self.rounds or t % self.all_every == 0

    def watches(self, t: int) -> bool:
        """Return whether the stopping rule is applied in round `t`: in rounds that have all kinds of tests by schedule.

        A run that is resumed for more rounds thus ends in the same round as a run that had them from the start.
        """
        return all(t % every == 0 for every in (self.every, self.global_every or 1, self.all_every or 1))
