"""Saving clients' states to checkpoint files, restoring and digesting them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raysim.core.algorithm import ClientId
from raysim.core.state import digest, state_tensors
from raysim.engine.checkpoint.format import client_files, read_clients
from raysim.engine.records import CheckpointFile
from raysim.engine.workers.states import ClientStates


def save(states: ClientStates, t: int) -> Iterator[tuple[CheckpointFile, bytes]]:
    """Yield files with the clients that changed since the last call, after round `t`, for the caller to write."""
    changed = sorted(states.unsaved)
    states.unsaved = set()
    yield from client_files(t, ((k, states.state(k)) for k in changed))


def restore(states: ClientStates, file: CheckpointFile, data: bytes) -> None:
    """Load the states of the clients of `file`. data: its content."""
    for k, state in read_clients(data, file.clients).items():
        states.load(k, state)


def digests(states: ClientStates, ids: Iterable[ClientId]) -> dict[ClientId, str]:
    """Return the SHA-256 of each client's state."""
    untrained: dict[str, str] = {}  # architecture -> digest of a client that never took part

    def of_client(k: ClientId) -> str:
        with states.reading(k) as net:
            return digest(net)

    digests = {}
    for k in ids:
        if not states.is_untrained(k):
            digests[k] = of_client(k)
            continue
        arch = states.arch(k)
        if arch not in untrained:
            untrained[arch] = of_client(k)
        digests[k] = untrained[arch]
    return digests


def fingerprints(states: ClientStates, ids: Iterable[ClientId]) -> dict[ClientId, dict[str, str]]:
    """Return the SHA-256 of each tensor of each client."""
    fingerprints = {}
    for k in ids:
        with states.reading(k) as net:
            fingerprints[k] = {name: digest(value) for name, value in state_tensors(net).items()}
    return fingerprints
