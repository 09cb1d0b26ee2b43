"""A checkpoint on its way from the actors to its storage."""

from __future__ import annotations

from typing import Any

import ray

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


def reaches(pool: ActorPool, worker: Worker, storage: Storage) -> bool:
    """Whether an actor reaches a storage: a folder of the driver's machine is not one of another."""
    return storage.is_shared or worker.node == pool.driver_node
