"""A request to end a run, from a signal or another thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stop:
    """A request to end a run after its current round is done and saved."""

    possible: bool = False  # whether rounds are running
    requested: bool = False
    closing: bool = False  # whether the rounds have ended, however they ended, and results are being written
    after: int | None = None  # also end the run after this round; None: after its last
    quiet: bool = False  # whether a signal that ends the run is not confirmed on standard error

    def due(self, t: int) -> bool:
        """Return whether a run with round `t` done ends now."""
        return self.requested or (self.after is not None and t >= self.after)
