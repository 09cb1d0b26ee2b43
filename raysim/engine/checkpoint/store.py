"""The checkpoints of a run. Whenever a process dies, a complete checkpoint remains.

A checkpoint is a manifest, `checkpoint-<round>.json`, that names safetensors files with their sizes and checksums. A
file never changes: a client's file is written when the client has changed, and later checkpoints name the same file
until the client changes again. The manifest is written last and atomically; files that no manifest names are ignored.
The two latest checkpoints and those that the caller of `add` names are kept, with their files; all others are removed.

    clients-000012-00007.safetensors   the state after round 12 of client 7 (and of small clients after it, together)
    server-000012.safetensors          the server's state after round 12
    checkpoint-000012.json             the manifest
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from raysim.common.files import reason
from raysim.core.algorithm import ClientId
from raysim.engine.checkpoint.format import CheckpointError, DamageError
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.records import CheckpointFile, LostError, Pending, SavedFiles

FORMAT = 3
AUTO_INTERVAL_S = 60.0
"""Seconds between checkpoints if the scenario does not set the interval."""
KEPT = 2
"""Number of latest checkpoints to keep: if the last one is damaged, the one before it remains."""
REQUESTS = 32
"""Number of files removed in parallel, because an object store takes tens of milliseconds for each."""

_OURS = re.compile(r"\.?(?:checkpoint|clients|server)-(\d{6,})")
"""Matches the beginning of the name of a checkpoint file, which contains the round."""

_MANIFEST = re.compile(r"checkpoint-\d{6,}\.json")


class DamagedCheckpointError(LostError):
    """A file of the checkpoint to restore is damaged; the store no longer contains this checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a whole run after a round, as files."""

    round: int
    client_files: tuple[CheckpointFile, ...]  # a client without a file never took part
    server: CheckpointFile
    facts: Mapping[str, Any]  # the result of `Progress.facts`

    @property
    def files(self) -> list[CheckpointFile]:
        """Every file that this checkpoint needs."""
        return [*self.client_files, self.server]


@dataclass
class CheckpointStore:
    """A run's checkpoints in a storage."""

    storage: Storage
    kept: list[Checkpoint] = field(default_factory=list)  # from the oldest to the newest
    damage: list[str] = field(default_factory=list)  # one sentence per damaged manifest

    @classmethod
    def open(cls, storage: Storage) -> CheckpointStore:
        """Open the checkpoints in `storage` without changing any file; `add` removes orphan files.

        Raises `CheckpointError` if the storage cannot be read.
        """
        store = cls(storage)
        try:
            for name in storage.names():
                if _MANIFEST.fullmatch(name):
                    try:
                        store.kept.append(_manifest(name, storage.read(name)))
                    except (ValueError, KeyError, TypeError):
                        store.damage.append(f"{storage.where}/{name} is damaged")
        except OSError as error:
            raise CheckpointError(f"the checkpoints in {storage.where} cannot be read ({reason(error)})") from error
        store.kept.sort(key=lambda one: one.round)  # from round 1,000,000 on, names do not sort by round
        return store

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None; `restore` checks its files."""
        return self.kept[-1] if self.kept else None

    def of_best_val(self) -> Checkpoint | None:
        """Return the checkpoint of the best round by validation, which the latest one names; None if it is lost."""
        best = self.kept[-1].facts.get("best_val_round") if self.kept else None
        return next((one for one in self.kept if one.round == best), None)

    def take_damage(self) -> list[str]:
        """Return the sentences in `damage`, and clear `damage`."""
        damage, self.damage = self.damage, []
        return damage

    def add(
        self,
        t: int,
        changed: Sequence[CheckpointFile],
        server: CheckpointFile,
        facts: Mapping[str, Any],
        keep: Collection[int | None] = (),
    ) -> Checkpoint:
        """Add a checkpoint of round `t` from written files; clients without one in `changed` keep their earlier file.

        keep: rounds whose checkpoints are kept besides the latest ones.
        Raises `CheckpointError` if that fails; earlier checkpoints stay unchanged.
        """
        now = {k for file in changed for k in file.clients}
        before = self.kept[-1].client_files if self.kept else ()
        unchanged = [_without(now, file) for file in before]
        checkpoint = Checkpoint(t, (*(file for file in unchanged if file.clients), *changed), server, facts)
        try:
            self.storage.fsync([file.name for file in (*changed, server)])
            self.storage.publish(_name(t), _manifest_bytes(checkpoint))
        except OSError as error:
            raise self.failure(t, error) from error
        every = [*self.kept, checkpoint]
        latest = len(every) - KEPT  # The checkpoints from this position on are the latest ones.
        self.kept = [one for i, one in enumerate(every) if i >= latest or one.round in keep]
        try:
            self._remove_others(t)
        except OSError as error:
            raise CheckpointError(
                f"an old checkpoint in {self.storage.where} cannot be removed ({reason(error)})"
            ) from error
        return checkpoint

    def _remove_others(self, t: int) -> None:
        """Remove files that no kept checkpoint needs, manifests first, so that no manifest names missing files."""
        needed = {file.name for checkpoint in self.kept for file in checkpoint.files} | {
            _name(c.round) for c in self.kept
        }
        # Files of later rounds are kept, because they may belong to the next checkpoint, which is being written.
        old = [name for name in self.storage.names() if (match := _OURS.match(name)) and int(match[1]) <= t]
        others = sorted(set(old) - needed)
        manifests = [name for name in others if name.startswith("checkpoint-")]
        with ThreadPoolExecutor(REQUESTS) as pool:
            for names in (manifests, [name for name in others if name not in manifests]):
                list(pool.map(self.storage.remove, names))

    def restore(self, checkpoint: Checkpoint, read: Callable[[SavedFiles, Storage], None]) -> None:
        """Call `read`, which reads and checks a checkpoint's files.

        Raises `DamagedCheckpointError` if a file is damaged; `latest` then returns the previous checkpoint.
        """
        try:
            read((checkpoint.client_files, checkpoint.server), self.storage)
        except DamageError as error:
            self.kept.remove(checkpoint)
            raise DamagedCheckpointError(
                f"the checkpoint of round {checkpoint.round} cannot be used: {error}"
            ) from None

    def failure(self, t: int, error: OSError) -> CheckpointError:
        """Return the error for a checkpoint that could not be written."""
        last = (
            f"the last complete checkpoint is that of round {self.kept[-1].round}"
            if self.kept
            else "there is no earlier checkpoint"
        )
        place = error.filename or self.storage.where
        return CheckpointError(f"the checkpoint of round {t} could not be written to {place} ({reason(error)}); {last}")


@dataclass
class CheckpointManager:
    """Decides when a run saves its state, and completes checkpoints."""

    store: CheckpointStore
    every: int | None  # rounds between checkpoints; None: about every `AUTO_INTERVAL_S`
    rounds: int
    # `sync` writes the rows of all rounds so far to the disk, so that they survive a power cut.
    sync: Callable[[], None] = lambda: None
    first: Callable[[int], None] = lambda t: None  # called after the first checkpoint of this process
    keep_best_val: bool = False  # whether to also keep the state after the round with the greatest validation accuracy
    begun_s: float = field(default_factory=perf_counter)  # start of the last checkpoint

    def __post_init__(self) -> None:
        try:
            self.store.storage.make()
        except OSError as error:
            raise self.store.failure(0, error) from error

    def due(self, t: int, is_best_val: bool = False) -> bool:
        """Return whether the state after round `t` should be saved. is_best_val: whether `t` is the best round."""
        if t == self.rounds or (self.keep_best_val and is_best_val):
            return True
        return perf_counter() - self.begun_s >= AUTO_INTERVAL_S if self.every is None else t % self.every == 0

    def begin(self) -> Storage:
        """Begin a checkpoint and return the storage for its files."""
        self.begun_s = perf_counter()
        return self.store.storage

    @property
    def saved_round(self) -> int | None:
        """The round of the last complete checkpoint; None if there is none."""
        return self.store.kept[-1].round if self.store.kept else None

    @property
    def best_val(self) -> Checkpoint | None:
        """The checkpoint of the best round by validation that the last checkpoint names; None if none is kept."""
        return self.store.of_best_val() if self.keep_best_val else None

    def complete(self, t: int, files: Pending[SavedFiles], facts: Mapping[str, Any]) -> None:
        """Complete a checkpoint after its files and the rows of all rounds so far are written.

        Raises `CheckpointError` if that fails, `LostError` if an actor that writes the files died.
        """
        try:
            written = files.result()
        except OSError as error:
            raise self.store.failure(t, error) from error
        self.sync()
        self.store.add(t, *written, facts, [facts.get("best_val_round")] if self.keep_best_val else ())
        first, self.first = self.first, lambda t: None
        first(t)


def _without(clients: set[ClientId], file: CheckpointFile) -> CheckpointFile:
    """Return `file` without these clients."""
    return file._replace(clients=tuple(k for k in file.clients if k not in clients))


def _name(t: int) -> str:
    return f"checkpoint-{t:06d}.json"


def _manifest_bytes(checkpoint: Checkpoint) -> bytes:
    body = {
        "format": FORMAT,
        "round": checkpoint.round,
        "server": checkpoint.server[:3],
        "facts": dict(checkpoint.facts),
        "parts": checkpoint.client_files,
    }
    text = json.dumps(body)
    return json.dumps({"crc32": zlib.crc32(text.encode()), "checkpoint": text}).encode()


def _manifest(name: str, data: bytes) -> Checkpoint:
    """Parse a manifest. Raises `ValueError`, `KeyError` or `TypeError` for content that raysim did not write."""
    outer = json.loads(data)
    if zlib.crc32(outer["checkpoint"].encode()) != outer["crc32"]:
        raise ValueError("damaged")
    body = json.loads(outer["checkpoint"])
    if body["format"] != FORMAT or name != _name(body["round"]):
        raise ValueError("of another version")
    files = tuple(CheckpointFile(file, size, crc, tuple(clients)) for file, size, crc, clients in body["parts"])
    return Checkpoint(body["round"], files, CheckpointFile(*body["server"]), body["facts"])
