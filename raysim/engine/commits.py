"""Commits: the state of a run after a round, written so that any death leaves a whole one behind.

A commit is a manifest, `commit-<round>.json`, that names files which hold tensors (safetensors) with their sizes and
CRC-32. Files are never changed: a client's file is written when the client has changed, and later commits name the same
file for as long as the client has not. The manifest is written last, in one step; without one, files are nothing.
The two latest commits are kept, and no file that neither names.

    clients-000012-00007.safetensors   the state after round 12 of client 7 (and of small clients after it, together)
    server-000012.safetensors          what the server keeps after round 12
    commit-000012.json                 the manifest
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from raysim.core.algorithm import ClientId
from raysim.core.errors import RunError
from raysim.core.messages import Weights
from raysim.core.state import Frozen
from raysim.engine.store import Buffer, Store, page_aligned, viewed

Bytes = NDArray[np.uint8]
"""A file's content."""

FORMAT = 2
KEPT = 2
"""Commits that stay, so that a damaged one has a predecessor."""

_BLOCK = 4096
"""Bytes of which a checksum takes the sum."""

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

_OURS = re.compile(r"\.?(?:commit|clients|server)-(\d{6,})")
"""How our files' names begin, which say the round."""

_MANIFEST = re.compile(r"commit-\d{6,18}\.json")
_PART = re.compile(r"(?:clients-\d{6,18}-\d{5,18}|server-\d{6,18})\.safetensors")
"""The names that a manifest may hold: it may come from elsewhere, and what it names is read and removed."""

PART_BYTES = 1 << 20
"""Clients smaller than this share a file: a file of its own for each of a hundred would cost a hundred fsyncs."""


class CommitError(RunError):
    """A commit could not be written or read."""


@dataclass(frozen=True)
class Part:
    """A file with the state of some clients, or of the server."""

    name: str
    size: int  # bytes
    checksum: int
    clients: tuple[ClientId, ...] = ()


@dataclass(frozen=True)
class Commit:
    """A whole run after a round, in files."""

    round: int
    parts: tuple[Part, ...]  # which clients' states to take from which file; clients in none are untouched
    server: Part
    facts: Mapping[str, Any]  # what else a run that goes on must know

    @property
    def files(self) -> list[Part]:
        """Every file that this commit needs."""
        return [*self.parts, self.server]


def client_parts(t: int, states: Iterable[tuple[ClientId, Weights]]) -> Iterator[tuple[Part, Bytes]]:
    """The files for clients' states after round `t`, one after another, with their content."""
    held: dict[str, Tensor] = {}
    clients: list[ClientId] = []
    size = 0
    for k, state in states:
        clients.append(k)
        for name, tensor in state.items():
            held[f"{k}/{name}"] = tensor
            size += tensor.nbytes
        if size >= PART_BYTES:
            yield _client_part(t, held, clients)
            held, clients, size = {}, [], 0
    if clients:
        yield _client_part(t, held, clients)


def _client_part(t: int, held: Mapping[str, Tensor], clients: Sequence[ClientId]) -> tuple[Part, Bytes]:
    data = safetensors_file(held)
    return Part(f"clients-{t:06d}-{clients[0]:05d}.safetensors", len(data), checksum(data), tuple(clients)), data


def safetensors_file(tensors: Mapping[str, Tensor]) -> Bytes:
    """A safetensors file. The library's `save` copies everything twice, which takes as long as all else of a commit."""
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


def server_part(t: int, frozen: Frozen, facts: Mapping[str, Any]) -> tuple[Part, Bytes]:
    """The file for the server's state after round `t`. facts: what its host must know besides, JSON."""
    metadata = {"tree": json.dumps(frozen.tree), "facts": json.dumps(facts)}
    data = np.frombuffer(save(frozen.tensors, metadata), np.uint8)
    return Part(f"server-{t:06d}.safetensors", len(data), checksum(data)), data


def read_clients(data: bytes, wanted: Collection[ClientId]) -> dict[ClientId, Weights]:
    """The states of some of the clients in a file of `client_parts`."""
    found: dict[ClientId, Weights] = {k: {} for k in wanted}
    for name, tensor in load(data).items():
        k, _, inner = name.partition("/")
        if int(k) in found:
            found[int(k)][inner] = tensor
    return found


def read_server(data: bytes) -> tuple[Frozen, dict[str, Any]]:
    """What `server_part` wrote: (state taken apart, facts)."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header["__metadata__"]
    return Frozen(json.loads(metadata["tree"]), load(data)), json.loads(metadata["facts"])


@dataclass
class Commits:
    """A run's commits in a store."""

    store: Store
    kept: list[Commit] = field(default_factory=list)  # oldest first; all of them were whole when last looked at
    damage: list[str] = field(default_factory=list)  # a sentence for each commit that cannot be used
    litter: bool = True  # whether there may be files that no commit needs, as after a death

    @classmethod
    def open(cls, store: Store) -> Commits:
        """What is there, after a run that may have ended in any way. Only looks; what no commit needs goes with `add`.

        Raises `CommitError` when the place cannot be read.
        """
        commits = cls(store)
        try:
            for name in store.names():
                if _MANIFEST.fullmatch(name):
                    try:
                        commits.kept.append(_manifest(name, store.read(name)))
                    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                        commits.damage.append(f"{store.where}/{name} is damaged")
        except OSError as error:
            raise CommitError(f"the commits in {store.where} cannot be read ({_reason(error)})") from error
        return commits

    def latest(self) -> Commit | None:
        """The newest commit all of whose files are whole; every byte is looked at. `damage` tells of others."""
        while self.kept:
            wrong = next((problem for part in self.kept[-1].files if (problem := self._problem(part))), None)
            if wrong is None:
                return self.kept[-1]
            self.damage.append(f"the commit of round {self.kept.pop().round} cannot be used: {wrong}")
        return None

    def add(self, t: int, changed: Sequence[Part], server: Part, facts: Mapping[str, Any]) -> Commit:
        """Commit round `t`: `changed` and `server` are written, the clients in no part of `changed` are as before.

        Raises `CommitError` when that fails; the commits before are not touched.
        """
        now = {k for part in changed for k in part.clients}
        before = self.kept[-1].parts if self.kept else ()
        older = [Part(p.name, p.size, p.checksum, tuple(k for k in p.clients if k not in now)) for p in before]
        commit = Commit(t, (*(part for part in older if part.clients), *changed), server, facts)
        try:
            self.store.settle([part.name for part in (*changed, server)])
            self.store.publish(_name(t), _manifest_bytes(commit))
        except OSError as error:
            raise self.failure(t, error) from error
        gone, self.kept = self.kept[: 1 - KEPT], [*self.kept[1 - KEPT :], commit]
        try:
            self._remove(t, gone)
        except OSError as error:
            raise CommitError(f"an old commit in {self.store.where} cannot be removed ({_reason(error)})") from error
        return commit

    def _remove(self, t: int, gone: Sequence[Commit]) -> None:
        """Let go of what no kept commit needs; manifests first, so that none is left without its files."""
        needed = {part.name for commit in self.kept for part in commit.files} | {_name(c.round) for c in self.kept}
        found = [name for c in gone for name in (_name(c.round), *(part.name for part in c.files))]
        if self.litter:
            ours = {name: int(match[1]) for name in self.store.names() if (match := _OURS.match(name))}
            # Files of later rounds may be those of the next commit, which is being written already.
            found = [name for name, of in ours.items() if of <= t]
            self.litter = len(found) < len(ours)
        for name in sorted(set(found) - needed, key=lambda name: (not name.startswith("commit-"), name)):
            self.store.remove(name)

    def clients(self, commit: Commit) -> Iterator[dict[ClientId, Weights]]:
        """The states of a commit's clients, a file at a time. Raises `CommitError` when one is damaged."""
        for part in commit.parts:
            yield self._whole(part, lambda data, part=part: read_clients(data, part.clients))

    def server(self, commit: Commit) -> bytes:
        """The file with the server's state, for `read_server`. Raises `CommitError` when it is damaged."""
        data: bytes = self._whole(commit.server, bytes)
        return data

    def failure(self, t: int, error: OSError) -> CommitError:
        """The sentence about a commit that could not be written."""
        last = f"the last whole commit is that of round {self.kept[-1].round}" if self.kept else "there is none before"
        place = error.filename or self.store.where
        return CommitError(f"the commit of round {t} could not be written to {place} ({_reason(error)}); {last}")

    def _problem(self, part: Part) -> str | None:
        """What is wrong with a file, in a few words."""
        try:
            size = self.store.size(part.name)
            if size != part.size:
                return f"{self.store.where}/{part.name} has {size} bytes instead of {part.size}"
            if checksum(self.store.read(part.name)) != part.checksum:
                return f"{self.store.where}/{part.name} does not hold what was written"
        except OSError as error:
            return f"{self.store.where}/{part.name} cannot be read ({_reason(error)})"
        return None

    def _whole(self, part: Part, read: Any) -> Any:
        try:
            data = self.store.read(part.name)
            if checksum(data) != part.checksum:
                raise ValueError("it does not hold what was written")
            return read(data)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            reason = _reason(error) if isinstance(error, OSError) else str(error)
            raise CommitError(f"{self.store.where}/{part.name} cannot be read ({reason})") from error


def _name(t: int) -> str:
    return f"commit-{t:06d}.json"


def _manifest_bytes(commit: Commit) -> bytes:
    body = {
        "format": FORMAT,
        "round": commit.round,
        "parts": [[p.name, p.size, p.checksum, list(p.clients)] for p in commit.parts],
        "server": [commit.server.name, commit.server.size, commit.server.checksum],
        "facts": dict(commit.facts),
    }
    text = json.dumps(body)
    return json.dumps({"crc32": zlib.crc32(text.encode()), "commit": text}).encode()


def _manifest(name: str, data: bytes) -> Commit:
    """Raises ValueError, KeyError or TypeError when this is not what `_manifest_bytes` made for that name."""
    outer = json.loads(data)
    if zlib.crc32(outer["commit"].encode()) != outer["crc32"]:
        raise ValueError("damaged")
    body = json.loads(outer["commit"])
    if body["format"] != FORMAT or name != _name(body["round"]):
        raise ValueError("of another version")
    parts = tuple(Part(file, size, crc, tuple(clients)) for file, size, crc, clients in body["parts"])
    commit = Commit(body["round"], parts, Part(*body["server"]), body["facts"])
    for part in commit.files:
        numbers = (commit.round, part.size, part.checksum, *part.clients)
        if not _PART.fullmatch(part.name) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError("not as raysim writes it")
    if not isinstance(commit.facts, dict):
        raise ValueError("not as raysim writes it")
    return commit


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
