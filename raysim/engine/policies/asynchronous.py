"""Asynchronous rounds in virtual time: which uploads count in a round, and with which factor if they are stale.

In round t, the server sends its message to as many clients as are idle, and the round ends when enough uploads have
arrived. The others arrive in a later round: they are stale by as many rounds as the server has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raysim.core.fields import NonNegative
from raysim.engine.policies.system import Timing

if TYPE_CHECKING:
    from raysim.core.algorithm import ClientId


class Discount(Protocol):
    """Discount of stale uploads: a frozen dataclass whose fields are the keys of `asynchronous.discount`."""

    def factor(self, rounds: int) -> float:
        """Return the factor for the change in an upload that is stale by this number of rounds, 1 or more."""


@dataclass(frozen=True)
class Polynomial:
    """A change that is stale by s rounds is multiplied by (1 + s)^-a."""

    a: NonNegative = 0.5
    """The exponent; 0: a stale change counts in full."""

    def factor(self, rounds: int) -> float:
        """See `Discount`."""
        return float((1 + rounds) ** -self.a)


@dataclass(frozen=True)
class Hinge:
    """A change of staleness s counts in full up to s = `late`; then it is multiplied by 1 / (a (s - late) + 1)."""

    a: NonNegative = 10.0
    """How fast the factor falls."""
    late: NonNegative = 4.0
    """Maximum staleness, in rounds, up to which a change counts in full."""

    def factor(self, rounds: int) -> float:
        """See `Discount`."""
        return 1.0 if rounds <= self.late else 1 / (self.a * (rounds - self.late) + 1)


DISCOUNTS: dict[str, type] = {"polynomial": Polynomial, "hinge": Hinge}
"""Name in a scenario -> discount. A custom discount is named as `./mine.py:Mine`."""


@dataclass(frozen=True)
class Flight:
    """The clients whose uploads have not arrived yet after a round, and the virtual time."""

    clock_s: float = 0.0
    arrivals: Mapping[ClientId, tuple[float, int]] = field(default_factory=dict)
    """Client -> (virtual time at which its upload arrives, round in which the client got its message)."""


@dataclass(frozen=True)
class UploadBuffer:
    """The number of uploads that end a round, and the discount of stale uploads."""

    buffer: int
    discount: Discount
    rate: float = 1.0

    def factor(self, rounds: int) -> float:
        """Return the factor for the change in an upload that is stale by this number of rounds; 0: not stale."""
        return self.rate * (self.discount.factor(rounds) if rounds else 1.0)

    def timing(self, flight: Flight, t: int, seconds: Mapping[ClientId, float], dropped: int = 0) -> Timing:
        """Return the timing of round `t`. The earliest uploads count; of equal ones, those of lower client ids.

        flight: after the round before. seconds: of each client that the server sent to in this round.
        """
        arrivals = {**flight.arrivals, **{k: (flight.clock_s + needed, t) for k, needed in seconds.items()}}
        order = sorted(arrivals, key=lambda k: (arrivals[k][0], k))
        counted = order[: self.buffer]
        clock_s = arrivals[counted[-1]][0] if counted else flight.clock_s
        held = {k: arrivals[k] for k in sorted(order[self.buffer :])}
        staleness = sum(t - arrivals[k][1] for k in counted) / len(counted) if counted else None
        return Timing(seconds, (), clock_s - flight.clock_s, dropped, Flight(clock_s, held), staleness)
