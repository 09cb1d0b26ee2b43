"""The file format of checkpoints: safetensors files with the states of clients or of the server."""

from __future__ import annotations

import errno
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from raysim.common.errors import RunError
from raysim.common.files import reason
from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights
from raysim.core.state import Serialized
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.records import CheckpointFile
from raysim.engine.tensor_files import contiguous_copies, metadata_of

MIN_FILE_BYTES = 1 << 20
"""Clients with smaller states share a file, because a hundred files would need a hundred calls of fsync."""

LOST = (errno.ENOENT, errno.ENOTDIR, errno.EIO)
"""Errors of a file that is missing or whose disk is broken. Any other error, such as a lost connection, may end."""


class CheckpointError(RunError):
    """A checkpoint could not be written or read. Exit code 1.

    >>> import raysim
    >>> def resume_or_wait(run):
    ...     try:
    ...         return run.resume(quiet=True)
    ...     except raysim.CheckpointError as error:  # for example, the disk is full, or the storage does not answer
    ...         print(error)
    """


class DamageError(CheckpointError):
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
    """Return the file for the server's state after round `t`. facts: further state of its worker, as JSON."""
    metadata = {"tree": json.dumps(serialized.tree), "facts": json.dumps(facts)}
    data = save(serialized.tensors, metadata)
    return CheckpointFile(f"server-{t:06d}.safetensors", len(data), zlib.crc32(data)), data


def read_file(storage: Storage, file: CheckpointFile) -> bytes:
    """Return the content of a file.

    Raises `DamageError` if it is missing or differs from what was written, another `CheckpointError` if it may be
    readable later.
    """
    try:
        data = storage.read(file.name)
    except OSError as error:
        text = f"{storage.where}/{file.name} cannot be read ({reason(error)})"
        if error.errno in LOST:
            raise DamageError(text) from error
        raise CheckpointError(
            f"{text}; nothing was changed; make the checkpoints readable from every node, then resume the run"
        ) from error
    if len(data) != file.size or zlib.crc32(data) != file.checksum:
        raise DamageError(f"{storage.where}/{file.name} is damaged: its content has changed")
    return data


def read_clients(data: bytes, wanted: Collection[ClientId]) -> dict[ClientId, Weights]:
    """Return the states of the wanted clients from a file of `client_files`."""
    tensors: dict[ClientId, Weights] = {k: {} for k in wanted}
    for name, tensor in load(data).items():
        k, _, inner = name.partition("/")
        if int(k) in tensors:
            tensors[int(k)][inner] = tensor
    return tensors


def read_server(data: bytes) -> tuple[Serialized, dict[str, Any]]:
    """Return (state, facts) from a file of `server_file`."""
    metadata = metadata_of(data)
    return Serialized(json.loads(metadata["tree"]), load(data)), json.loads(metadata["facts"])
