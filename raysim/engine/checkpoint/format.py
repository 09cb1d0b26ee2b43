"""The file format of checkpoints: safetensors files with the states of clients or of the server."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from raysim.common.errors import RunError
from raysim.common.files import reason
from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights
from raysim.core.state import Serialized
from raysim.engine.checkpoint.storage import UNREADABLE, Storage, is_lost
from raysim.engine.records import CheckpointFile
from raysim.engine.tensor_files import contiguous_copies, metadata_of

MIN_FILE_BYTES = 1 << 20
"""Clients with smaller states share a file, because a hundred files would need a hundred calls of fsync."""


class DamageError(RunError):
    """A file of a checkpoint is damaged or missing."""


def client_files(t: int, states: Iterable[tuple[ClientId, Weights]]) -> Iterator[tuple[CheckpointFile, bytes]]:
    """Yield the files, with their content, for clients' states after round `t`."""
    held: dict[str, Tensor] = {}
    clients: list[ClientId] = []
    size = 0
    for k, state in states:
        clients.append(k)
        for name, tensor in state.items():
            held[f"{k}/{name}"] = tensor
            size += tensor.nbytes
        if size >= MIN_FILE_BYTES:
            yield _client_file(t, held, clients)
            held, clients, size = {}, [], 0
    if clients:
        yield _client_file(t, held, clients)


def _client_file(t: int, held: Mapping[str, Tensor], clients: Sequence[ClientId]) -> tuple[CheckpointFile, bytes]:
    data = save(contiguous_copies(held))
    name = f"clients-{t:06d}-{clients[0]:05d}.safetensors"
    return CheckpointFile(name, len(data), zlib.crc32(data), tuple(clients)), data


def server_file(t: int, serialized: Serialized, facts: Mapping[str, Any]) -> tuple[CheckpointFile, bytes]:
    """Return the file for the server's state after round `t`. facts: further state of its worker, as JSON.

    Raises `RunError` if the state does not fit into the format, whose header has at most 100 MB.
    """
    metadata = {"tree": json.dumps(serialized.tree), "facts": json.dumps(facts)}
    try:
        data = save(serialized.tensors, metadata)
    except SafetensorError as error:
        raise RunError(
            f"the server's state after round {t} cannot be saved ({error}); keep fewer separate tensors and numbers in "
            "server.state, for example one tensor in place of many"
        ) from error
    return CheckpointFile(f"server-{t:06d}.safetensors", len(data), zlib.crc32(data)), data


def read_file(storage: Storage, file: CheckpointFile) -> bytes:
    """Return the content of a file.

    Raises `DamageError` if it is missing or differs from what was written, `RunError` if it may be readable later.
    """
    try:
        data = storage.read(file.name)
    except OSError as error:
        text = f"{storage.where}/{file.name} cannot be read ({reason(error)})"
        if is_lost(error):
            raise DamageError(text) from error
        raise RunError(f"{text}; {UNREADABLE}") from error
    if len(data) != file.size or zlib.crc32(data) != file.checksum:
        raise DamageError(f"{storage.where}/{file.name} is damaged: its content has changed")
    return data


def read_clients(data: bytes, wanted: Collection[ClientId]) -> dict[ClientId, Weights]:
    """Return the states of the wanted clients from a file of `client_files`. Raises `DamageError` for another file."""
    tensors: dict[ClientId, Weights] = {k: {} for k in wanted}
    with _malformed():
        for name, tensor in load(data).items():
            k, _, inner = name.partition("/")
            if int(k) in tensors:
                tensors[int(k)][inner] = tensor
    return tensors


def read_server(data: bytes) -> tuple[Serialized, dict[str, Any]]:
    """Return (state, facts) from a file of `server_file`. Raises `DamageError` for another file."""
    with _malformed():
        metadata = metadata_of(data)
        return Serialized(json.loads(metadata["tree"]), load(data)), json.loads(metadata["facts"])


@contextlib.contextmanager
def _malformed() -> Iterator[None]:
    """Raise `DamageError` for a file with a valid checksum whose content is not raysim's."""
    try:
        yield
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamageError(f"a checkpoint file has an invalid format ({type(error).__name__}: {error})") from error
