"""A request to end a run, from a signal or another thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stop:
    """A request to end a run after its current round is done and saved."""

    possible: bool = False  # whether rounds are running, which can be ended
    requested: bool = False
    closing: bool = False  # whether the rounds have ended, for any reason, and results are being written
    after: int | None = None  # the round after which the run also ends; None: the last round
    quiet: bool = False  # whether no confirmation of a signal is printed on standard error

    def due(self, t: int) -> bool:
        """Return whether a run ends now, after round `t`."""
        return self.requested or (self.after is not None and t >= self.after)
