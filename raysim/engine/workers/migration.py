"""Moving clients from one worker to another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raysim.core.algorithm import ClientId
from raysim.engine.records import ClientState
from raysim.engine.workers.states import ClientStates


def release(states: ClientStates, ids: Iterable[ClientId], shared: bool) -> dict[ClientId, ClientState]:
    """Remove clients and return their states for another worker. shared: whether it uses the same state files."""
    released = {k: ClientState(None if shared else states.row(k), k in states.unsaved) for k in ids if k in states.held}
    states.held.difference_update(released)
    states.unsaved.difference_update(released)
    return released


def adopt(states: ClientStates, moved: Mapping[ClientId, ClientState]) -> None:
    """Add clients that another worker released."""
    for k, client in moved.items():
        if client.row is None:
            states.held.add(k)
        else:
            states.put(k, client.row)
        if client.unsaved:
            states.unsaved.add(k)
