"""Checkpoints: the state of a run after a round. Whenever a process dies, a whole checkpoint is left.

A checkpoint is a manifest, `checkpoint-<round>.json`, that names safetensors files with their sizes and checksums. A
file never changes: a client's file is written when the client has changed, and later checkpoints name the same file
for as long as the client has not. The manifest is written last, in one step; files that no manifest names are ignored.
The two latest checkpoints are kept, and no file that neither names.

    clients-000012-00007.safetensors   the state after round 12 of client 7 (and of small clients after it, together)
    server-000012.safetensors          what the server keeps after round 12
    checkpoint-000012.json             the manifest
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raysim.common.errors import RunError
from raysim.common.files import reason
from raysim.core.algorithm import ClientId
from raysim.engine.checkpoint.format import DamageError
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.records import CheckpointFile, LostError, SavedFiles

FORMAT = 3
KEPT = 2
"""Checkpoints that stay, so that a damaged one has a predecessor."""

_OURS = re.compile(r"\.?(?:checkpoint|clients|server)-(\d{6,})")
"""How the names of checkpoints' files begin, with the round."""

_MANIFEST = re.compile(r"checkpoint-\d{6,18}\.json")
_PART = re.compile(r"(?:clients-\d{6,18}-\d{5,18}|server-\d{6,18})\.safetensors")
"""The names that a manifest may hold: it may be forged, and the files that it names are read and removed."""


class CheckpointError(RunError):
    """A checkpoint could not be written or read."""


class DamagedCheckpointError(LostError):
    """The checkpoint that was being restored has a damaged file; its store holds it no longer."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole run after a round, in files."""

    round: int
    client_files: tuple[CheckpointFile, ...]  # a client in none of them never took part
    server: CheckpointFile
    facts: Mapping[str, Any]  # of `Progress`

    @property
    def files(self) -> list[CheckpointFile]:
        """Every file that this checkpoint needs."""
        return [*self.client_files, self.server]


@dataclass
class CheckpointStore:
    """A run's checkpoints in a storage."""

    storage: Storage
    kept: list[Checkpoint] = field(default_factory=list)  # oldest first
    damage: list[str] = field(default_factory=list)  # a sentence for each checkpoint that cannot be used

    @classmethod
    def open(cls, storage: Storage) -> CheckpointStore:
        """The checkpoints in `storage`, however the run ended. Only reads; `add` removes orphan files.

        Raises `CheckpointError` when the storage cannot be read.
        """
        store = cls(storage)
        try:
            for name in storage.names():
                if _MANIFEST.fullmatch(name):
                    try:
                        store.kept.append(_manifest(name, storage.read(name)))
                    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                        store.damage.append(f"{storage.where}/{name} is damaged")
        except OSError as error:
            raise CheckpointError(f"the checkpoints in {storage.where} cannot be read ({reason(error)})") from error
        return store

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint all of whose files have their size; `restore` checks their content.

        A checkpoint with a file of another size goes to `damage`.
        """
        while self.kept:
            wrong = next((problem for file in self.kept[-1].files if (problem := self._problem(file))), None)
            if wrong is None:
                return self.kept[-1]
            self.damage.append(f"the checkpoint of round {self.kept.pop().round} cannot be used: {wrong}")
        return None

    def take_damage(self) -> list[str]:
        """The sentences in `damage`, which then holds none."""
        damage, self.damage = self.damage, []
        return damage

    def add(
        self, t: int, changed: Sequence[CheckpointFile], server: CheckpointFile, facts: Mapping[str, Any]
    ) -> Checkpoint:
        """Make a checkpoint of round `t` from files that are written; clients in none of `changed` are as before.

        Raises `CheckpointError` when that fails; the checkpoints before are not touched.
        """
        now = {k for file in changed for k in file.clients}
        before = self.kept[-1].client_files if self.kept else ()
        older = [_without(now, file) for file in before]
        checkpoint = Checkpoint(t, (*(file for file in older if file.clients), *changed), server, facts)
        try:
            self.storage.fsync([file.name for file in (*changed, server)])
            self.storage.publish(_name(t), _manifest_bytes(checkpoint))
        except OSError as error:
            raise self.failure(t, error) from error
        self.kept = [*self.kept[1 - KEPT :], checkpoint]
        try:
            self._remove_others(t)
        except OSError as error:
            raise CheckpointError(
                f"an old checkpoint in {self.storage.where} cannot be removed ({reason(error)})"
            ) from error
        return checkpoint

    def _remove_others(self, t: int) -> None:
        """Remove files that no kept checkpoint needs; manifests first, so that none is left without its files."""
        needed = {file.name for checkpoint in self.kept for file in checkpoint.files} | {
            _name(c.round) for c in self.kept
        }
        # Files of later rounds may be those of the next checkpoint, which is being written already.
        old = [name for name in self.storage.names() if (match := _OURS.match(name)) and int(match[1]) <= t]
        for name in sorted(set(old) - needed, key=lambda name: (not name.startswith("checkpoint-"), name)):
            self.storage.remove(name)

    def restore(self, checkpoint: Checkpoint, read: Callable[[SavedFiles, Storage], None]) -> None:
        """Let `read` read a checkpoint's files, each of which it checks.

        Raises `DamagedCheckpointError` when one is damaged: `latest` is then the checkpoint before.
        """
        try:
            read((checkpoint.client_files, checkpoint.server), self.storage)
        except DamageError as error:
            self.kept.remove(checkpoint)
            raise DamagedCheckpointError(
                f"the checkpoint of round {checkpoint.round} cannot be used: {error}"
            ) from None

    def failure(self, t: int, error: OSError) -> CheckpointError:
        """The error for a checkpoint that could not be written."""
        last = (
            f"the last whole checkpoint is that of round {self.kept[-1].round}" if self.kept else "there is none before"
        )
        place = error.filename or self.storage.where
        return CheckpointError(f"the checkpoint of round {t} could not be written to {place} ({reason(error)}); {last}")

    def _problem(self, file: CheckpointFile) -> str | None:
        """Why a file cannot be used, if it cannot."""
        try:
            size = self.storage.size(file.name)
            if size != file.size:
                return f"{self.storage.where}/{file.name} has {size} bytes instead of {file.size}"
        except OSError as error:
            return f"{self.storage.where}/{file.name} cannot be read ({reason(error)})"
        return None


def _without(clients: set[ClientId], file: CheckpointFile) -> CheckpointFile:
    """`file` for its other clients; the same object, with its text in the manifest, where it has no other."""
    if clients.isdisjoint(file.clients):
        return file
    return replace(file, clients=tuple(k for k in file.clients if k not in clients))


def _name(t: int) -> str:
    return f"checkpoint-{t:06d}.json"


def _manifest_bytes(checkpoint: Checkpoint) -> bytes:
    server = checkpoint.server
    body = {
        "format": FORMAT,
        "round": checkpoint.round,
        "server": [server.name, server.size, server.checksum],
        "facts": dict(checkpoint.facts),
    }
    parts = ", ".join(file.text for file in checkpoint.client_files)
    text = f'{json.dumps(body)[:-1]}, "parts": [{parts}]}}'
    return json.dumps({"crc32": zlib.crc32(text.encode()), "checkpoint": text}).encode()


def _manifest(name: str, data: bytes) -> Checkpoint:
    """Raises ValueError, KeyError or TypeError when `_manifest_bytes` did not make this for that name."""
    outer = json.loads(data)
    if zlib.crc32(outer["checkpoint"].encode()) != outer["crc32"]:
        raise ValueError("damaged")
    body = json.loads(outer["checkpoint"])
    if body["format"] != FORMAT or name != _name(body["round"]):
        raise ValueError("of another version")
    files = tuple(CheckpointFile(file, size, crc, tuple(clients)) for file, size, crc, clients in body["parts"])
    checkpoint = Checkpoint(body["round"], files, CheckpointFile(*body["server"]), body["facts"])
    for file in checkpoint.files:
        numbers = (checkpoint.round, file.size, file.checksum, *file.clients)
        if not _PART.fullmatch(file.name) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError("not as raysim writes it")
    if not isinstance(checkpoint.facts, dict):
        raise ValueError("not as raysim writes it")
    return checkpoint
