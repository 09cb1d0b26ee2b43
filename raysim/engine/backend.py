"""The door between the round loop and whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights
from raysim.engine.host import Measured, Turn
from raysim.engine.server import ServerReport
from raysim.engine.world import World


@dataclass(frozen=True)
class RoundReport:
    """What a backend says of a round."""

    turns: Mapping[ClientId, Turn]  # in client-id order
    measured: Mapping[ClientId, Measured]  # the participants, where asked for
    server: ServerReport
    moved: int = 0  # clients whose state moved to another actor


def measured_in_turn(turns: Mapping[ClientId, Turn]) -> dict[ClientId, Measured]:
    """What was measured before clients trained."""
    return {k: turn.measured for k, turn in turns.items() if turn.measured is not None}


class Backend(Protocol):
    """Runs clients and the server somewhere. All backends give bit-identical results."""

    def start(self, world: World, image_MHWC: NDArray[np.uint8]) -> None:
        """Bring everything up: hosts, server, hellos, the server's first state."""

    def round(self, t: int, cohort: Sequence[ClientId], evaluate: bool, progress: Callable[[int], None]) -> RoundReport:
        """One round. `progress` hears how many of the cohort are done, now and then."""

    def measure(self, ids: Sequence[ClientId]) -> Mapping[ClientId, Measured]:
        """Test clients' models as they are, in id order."""

    def states(self) -> tuple[dict[ClientId, Weights], Weights]:
        """A copy of the state of every client that had a turn, and of the server's."""

    def digests(self) -> tuple[dict[ClientId, str], str]:
        """SHA-256 of every client's state and of the server's."""

    def memory(self) -> tuple[float, float]:
        """(resident memory of the run's processes, greatest GPU memory of any), in MiB."""

    def close(self) -> None:
        """Let everything go; safe to call twice."""
