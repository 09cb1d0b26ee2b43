"""A request to end a run, from a signal or another thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Stop:
    """A request to end a run after its current round is done and saved."""

    possible: bool = False  # whether rounds are running
    requested: bool = False
    closing: bool = False  # whether all rounds are done and results are being written
    saved_round: Callable[[], bool] = lambda: True  # whether the last round that is done is saved already
