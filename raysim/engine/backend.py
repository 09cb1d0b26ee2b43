"""The door between the round loop and whoever runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights
from raysim.engine.commits import Part
from raysim.engine.host import Failed, Measured, Turn
from raysim.engine.pressure import Pressure
from raysim.engine.server import ServerReport
from raysim.engine.store import Store
from raysim.engine.world import World

Files = Callable[[], tuple[list[Part], Part]]
"""Waits until the files of a commit are written: (clients', server's). Raises `OSError`, or `LostError` as any call."""


@dataclass(frozen=True)
class RoundReport:
    """What a backend says of a round."""

    turns: Mapping[ClientId, Turn]  # in client-id order
    measured: Mapping[ClientId, Measured]  # the participants, where asked for
    server: ServerReport
    moved: int = 0  # clients whose state moved to another actor
    failed: Mapping[ClientId, Failed] = field(default_factory=dict)  # whom the round went on without
    files: Files | None = None  # of the round's commit, if it is to be one


@dataclass(frozen=True)
class Startup:
    """How long client actors took to come up when a run began."""

    actors: int
    seconds: float  # from asking for the first until all had answered
    slowest_s: float  # the longest that one took

    @property
    def per_actor_s(self) -> float:
        """Seconds for each: what one more costs where as many start at a time."""
        return self.seconds / self.actors

    def facts(self) -> dict[str, float]:
        """As `summary.json` has it."""
        return {**asdict(self), "per_actor_s": self.per_actor_s}

    @classmethod
    def of(cls, asked_s: Sequence[float], up_s: Sequence[float]) -> Startup:
        """From the moments at which each was asked for, and at which it had answered."""
        each = [up - asked for asked, up in zip(asked_s, up_s, strict=True)]
        return cls(len(each), max(up_s) - min(asked_s), max(each))


class LostError(Exception):
    """A part of the run is gone: an actor, a node, an object. Nothing is lost that could not be computed again."""


def sorted_out(
    cohort: Sequence[ClientId], turns: Mapping[ClientId, Turn | Failed]
) -> tuple[dict[ClientId, Turn], dict[ClientId, Failed]]:
    """(turns that were taken, those that failed), in id order."""
    taken = {k: turn for k in cohort if isinstance(turn := turns[k], Turn)}
    return taken, {k: turn for k in cohort if isinstance(turn := turns[k], Failed)}


def measured_in_turn(turns: Mapping[ClientId, Turn]) -> dict[ClientId, Measured]:
    """What was measured before clients trained."""
    return {k: turn.measured for k, turn in turns.items() if turn.measured is not None}


class Backend(Protocol):
    """Runs clients and the server somewhere. All backends give bit-identical results.

    Any call but `close` may raise `LostError`; then `recover`, `restore` and repeating the rounds since make it good.
    """

    def start(self, world: World, images: Callable[[], NDArray[np.uint8]]) -> None:
        """Bring everything up: hosts, server, hellos, the server's first state. `images` reads them, [M, H, W, C]."""

    def startup(self) -> Startup | None:
        """What `start` waited for, the first time; None: nothing, or something died meanwhile."""

    def recover(self) -> list[str]:
        """Replace what died and forget all state, as after `start`. Returns what a user should know, in sentences."""

    def restore(self, clients: Iterable[Mapping[ClientId, Weights]], server: bytes) -> None:
        """After `start` or `recover`: take in a commit's states."""

    def round(
        self,
        t: int,
        cohort: Sequence[ClientId],
        evaluate: bool,
        progress: Callable[[int], None],
        without: Collection[ClientId] = (),
        store: Store | None = None,
    ) -> RoundReport:
        """One round. `progress` hears how many of the cohort are done, now and then.

        without: participants that are treated as failed unheard, because they failed when this round ran before.
        store: where to write the state after the round; whoever is done writes while others still work.
        """

    def measure(self, ids: Sequence[ClientId]) -> Mapping[ClientId, Measured]:
        """Test clients' models as they are, in id order."""

    def save(self, t: int, store: Store) -> Files:
        """Begin to write what changed since the last time, as files of the commit of round `t`, which is over."""

    def digests(self) -> tuple[dict[ClientId, str], str]:
        """SHA-256 of every client's state and of the server's."""

    def fingerprints(self, ids: Sequence[ClientId]) -> tuple[dict[ClientId, dict[str, str]], dict[str, str]]:
        """SHA-256 of every tensor of these clients, and of the server's state."""

    def hurry(self, patience_s: float) -> None:
        """The run ends early: `Files` that wait for the busy raise `LostError` after so many seconds."""

    def memory(self) -> tuple[float, float]:
        """(resident memory of the run's processes, greatest GPU memory of any), in MiB."""

    def pressure(self) -> Mapping[str, tuple[Pressure, Pressure | None]]:
        """How full machines are that were looked at lately: name -> (its memory, the fullest GPU used)."""

    def close(self) -> None:
        """Let everything go; safe to call twice."""
