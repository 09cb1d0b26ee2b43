"""The server's inbox in an asynchronous run: uploads on their way, with the messages that their clients received."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raysim.core.algorithm import ClientId
from raysim.core.messages import unpack
from raysim.engine.records import Broadcast


class Arrived(NamedTuple):
    """An upload with the message that its client had received."""

    up: Any
    down: Any  # None: the client received no message
    t: int  # the round in which the client received it


@dataclass
class Inbox:
    """Uploads by client, and each server message that a client with an upload received."""

    ups: dict[ClientId, tuple[int, int | None, Any]] = field(default_factory=dict)
    """Client -> (round t, position of the client's message in `downs[t]`, upload)."""
    downs: dict[int, list[Any]] = field(default_factory=dict)

    def add(self, t: int, ups: Mapping[ClientId, Any], broadcast: Broadcast) -> None:
        """Add the uploads of clients that trained in round `t`."""
        self.ups |= {k: (t, broadcast.of.get(k), up) for k, up in ups.items()}
        self.downs[t] = list(unpack(broadcast.messages))

    def take(self, held: Collection[ClientId]) -> dict[ClientId, Arrived]:
        """Remove and return all uploads, in client-id order, except those of the clients in `held`."""
        taken = {k: self.ups.pop(k) for k in sorted(self.ups) if k not in held}
        arrived = {
            k: Arrived(up, None if position is None else self.downs[t][position], t)
            for k, (t, position, up) in taken.items()
        }
        needed = {t for t, _, _ in self.ups.values()}
        self.downs = {t: messages for t, messages in self.downs.items() if t in needed}
        return arrived

    def state(self) -> dict[str, Any]:
        """Return the content for checkpoints and digests; `Inbox(**state)` restores it."""
        return {"ups": dict(self.ups), "downs": dict(self.downs)}
