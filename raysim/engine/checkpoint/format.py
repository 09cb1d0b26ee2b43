"""The files of a checkpoint: safetensors with the states of clients, or of the server."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from raysim.core.algorithm import ClientId
from raysim.core.messages import Weights
from raysim.core.state import Serialized
from raysim.engine.checkpoint.storage import Buffer, page_aligned, viewed

Bytes = NDArray[np.uint8]
"""A file's content."""

_BLOCK = 4096
"""Bytes of which a checksum takes the sum."""

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

MIN_FILE_BYTES = 1 << 20
"""Clients smaller than this share a file: a file of its own for each of a hundred would cost a hundred fsyncs."""


@dataclass(frozen=True)
class CheckpointFile:
    """A file with the state of some clients, or of the server."""

    name: str
    size: int  # bytes
    checksum: int
    clients: tuple[ClientId, ...] = ()


PendingFiles = Callable[[], tuple[list[CheckpointFile], CheckpointFile]]
"""Waits until the files of a checkpoint are written: (clients', server's). Raises `OSError` or `LostError`."""


def client_files(t: int, states: Iterable[tuple[ClientId, Weights]]) -> Iterator[tuple[CheckpointFile, Bytes]]:
    """The files for clients' states after round `t`, one after another, with their content."""
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


def _client_file(t: int, held: Mapping[str, Tensor], clients: Sequence[ClientId]) -> tuple[CheckpointFile, Bytes]:
    data = safetensors_file(held)
    return CheckpointFile(
        f"clients-{t:06d}-{clients[0]:05d}.safetensors", len(data), checksum(data), tuple(clients)
    ), data


def safetensors_file(tensors: Mapping[str, Tensor]) -> Bytes:
    """A safetensors file. The library's `save` copies everything twice, which takes as long as the rest."""
    header: dict[str, Any] = {}
    end = 0
    # Wide numbers first, so that each begins where processors like it.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    data = page_aligned(len(head) + end)
    data[: len(head)] = np.frombuffer(head, np.uint8)
    left = torch.from_numpy(data)[len(head) :]
    for _, tensor in ordered:
        here, left = left[: tensor.nbytes], left[tensor.nbytes :]
        here.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
    return data


def checksum(data: Buffer) -> int:
    """CRC-32 of the sums of every 4 KiB, taken as 64-bit numbers: a tenth of the time of a CRC-32 of everything.

    Shows any flipped bit, any block that is missing, stale or in another's place. Guards against damage, not malice.
    """
    view = viewed(data)
    whole = view.nbytes // _BLOCK * _BLOCK
    sum_K = np.frombuffer(view[:whole], "<u8").reshape(-1, _BLOCK // 8).sum(axis=1, dtype="<u8")
    return zlib.crc32(view[whole:], zlib.crc32(sum_K))


def server_file(t: int, frozen: Serialized, facts: Mapping[str, Any]) -> tuple[CheckpointFile, Bytes]:
    """The file for the server's state after round `t`. facts: what its host must know besides, JSON."""
    metadata = {"tree": json.dumps(frozen.tree), "facts": json.dumps(facts)}
    data = np.frombuffer(save(frozen.tensors, metadata), np.uint8)
    return CheckpointFile(f"server-{t:06d}.safetensors", len(data), checksum(data)), data


def read_clients(data: bytes, wanted: Collection[ClientId]) -> dict[ClientId, Weights]:
    """The states of some of the clients in a file of `client_files`."""
    found: dict[ClientId, Weights] = {k: {} for k in wanted}
    for name, tensor in load(data).items():
        k, _, inner = name.partition("/")
        if int(k) in found:
            found[int(k)][inner] = tensor
    return found


def read_server(data: bytes) -> tuple[Serialized, dict[str, Any]]:
    """What `server_file` wrote: (state taken apart, facts)."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header["__metadata__"]
    return Serialized(json.loads(metadata["tree"]), load(data)), json.loads(metadata["facts"])
