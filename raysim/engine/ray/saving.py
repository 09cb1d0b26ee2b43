"""A checkpoint on its way from the actors to its storage, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raysim.engine.checkpoint.format import read_file
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.ray.pool import ActorPool, Worker
from raysim.engine.records import CheckpointFile, Pending, SavedFiles


def begin_save(t: int, storage: Storage, pool: ActorPool) -> Pending[SavedFiles]:
    """Have all clients and the server saved as they are after round `t`, before the actors begin the next round.

    An actor that reaches the storage writes its clients itself; the driver writes the files of any other.
    """
    where, calls = f"the checkpoint of round {t}", pool.calls
    written: list[Any] = []
    forwarded: list[Any] = []
    for worker in pool.clients:
        if reaches(pool, worker, storage):
            written.append(worker.actor.save.remote(t, storage))
        else:
            # A few files at a time: all clients of a node may be more than the object store can hold.
            some = {"num_returns": "streaming", "_generator_backpressure_num_objects": 4}
            forwarded.append(worker.actor.forward.options(**some).remote(t))
    reached = reaches(pool, pool.server, storage)
    server = pool.server.actor.save.remote(t, storage if reached else None)

    def write(saved: tuple[CheckpointFile, bytes | None]) -> CheckpointFile:
        file, data = saved
        if data is not None:
            storage.write(file.name, data)
        return file

    def result() -> SavedFiles:
        files: list[CheckpointFile] = []
        # First: an actor that forwards files stands still until they are taken, and others may wait for its clients.
        for stream in forwarded:
            with calls.translate_errors(where):
                files += [write(ray.get(ref)) for ref in stream]
        files += [file for part in calls.get(written, where) for file in part]
        return sorted(files, key=lambda file: file.name), write(calls.get(server, where))

    return Pending(result)


@dataclass(frozen=True)
class Forwarded:
    """A file of a storage that the driver has read, for an actor that does not reach the storage."""

    where: str
    data: bytes

    def read(self, name: str) -> bytes:
        """All bytes of the file."""
        return self.data


def restore(
    clients: Mapping[Worker, Sequence[CheckpointFile]], server: CheckpointFile, storage: Storage, pool: ActorPool
) -> None:
    """Have every actor load its files: it reads them itself; the driver reads for an actor that does not reach them.

    Raises `DamageError` when a file is damaged.
    """
    where, calls = "going back to a checkpoint", pool.calls

    def forwarded(file: CheckpointFile) -> Forwarded:
        return Forwarded(storage.where, read_file(storage, file))

    reached = {worker: reaches(pool, worker, storage) for worker in clients}
    loading = [
        worker.actor.restore.remote(files if reached[worker] else (), storage) for worker, files in clients.items()
    ]
    for worker, files in clients.items():
        for file in () if reached[worker] else files:
            # One file at a time: a checkpoint may be larger than the object store.
            calls.get(worker.actor.restore.remote([file], forwarded(file)), where)
    source = storage if reaches(pool, pool.server, storage) else forwarded(server)
    loading.append(pool.server.actor.restore.remote(server, source))
    calls.get(loading, where)


def reaches(pool: ActorPool, worker: Worker, storage: Storage) -> bool:
    """Whether an actor reaches a storage: a folder of the driver's machine is not one of another."""
    return storage.is_shared or worker.node == pool.driver_node
