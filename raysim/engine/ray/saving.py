"""Transfer of checkpoints between the actors and the storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raysim.common.errors import RaysimError
from raysim.engine.checkpoint.format import read_file
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.ray.calls import ActorCalls
from raysim.engine.ray.pool import ActorPool, ActorRecord
from raysim.engine.records import CheckpointFile, LostError, Pending, SavedFiles


def begin_save(t: int, storage: Storage, pool: ActorPool) -> Pending[SavedFiles]:
    """Queue the saving of all clients and the server after round `t`, before the actors begin the next round.

    An actor that reaches the storage writes its files itself; the driver writes the files of all others.
    """
    where, calls = f"the checkpoint of round {t}", pool.calls
    written: list[Any] = []
    forwarded: list[Any] = []
    for worker in pool.clients:
        if reaches(pool, worker, storage):
            written.append(worker.actor.save.remote(t, storage))
        else:
            # Only a few files are forwarded at a time, because all clients of a node may exceed the object store.
            some = {"num_returns": "streaming", "_generator_backpressure_num_objects": 4}
            forwarded.append(worker.actor.forward.options(**some).remote(t))
    reached = reaches(pool, pool.server, storage)
    server = pool.server.actor.save.remote(t, storage if reached else None)

    def result() -> SavedFiles:
        # Forwarded files come first: an actor blocks until they are taken, while other actors may wait for its clients.
        files = _written_by_driver(forwarded, storage, calls, where)
        files += [file for part in calls.get(written, where) for file in part]
        return sorted(files, key=lambda file: file.name), _written(calls.get(server, where), storage)

    return Pending(result)


def _written_by_driver(streams: Sequence[Any], storage: Storage, calls: ActorCalls, where: str) -> list[CheckpointFile]:
    """Write the files that actors forward.

    Even after a failure, all files are taken, so that no actor blocks; the error is raised afterwards.
    """
    files: list[CheckpointFile] = []
    failed: Exception | None = None
    for stream in streams:
        try:
            with calls.translate_errors(where):
                for ref in stream:
                    saved = ray.get(ref)
                    try:
                        files += [] if failed else [_written(saved, storage)]
                    except OSError as error:
                        failed = error
        except (LostError, RaysimError, OSError) as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return files


def _written(saved: tuple[CheckpointFile, bytes | None], storage: Storage) -> CheckpointFile:
    """Write a file whose content an actor returned; None: the actor has written it."""
    file, data = saved
    if data is not None:
        storage.write(file.name, data)
    return file


@dataclass(frozen=True)
class Forwarded:
    """A storage with a single file, which the driver read for an actor that cannot reach the real storage."""

    where: str
    data: bytes

    def read(self, name: str) -> bytes:
        """Return the content of the file."""
        return self.data


def restore(
    clients: Mapping[ActorRecord, Sequence[CheckpointFile]], server: CheckpointFile, storage: Storage, pool: ActorPool
) -> None:
    """Make every actor load its files. The driver reads them for actors that cannot reach the storage.

    Raises `DamageError` if a file is damaged.
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
            # Files are read one at a time, because a checkpoint may be larger than the object store.
            calls.get(worker.actor.restore.remote([file], forwarded(file)), where)
    source = storage if reaches(pool, pool.server, storage) else forwarded(server)
    loading.append(pool.server.actor.restore.remote(server, source))
    calls.get(loading, where)


def reaches(pool: ActorPool, worker: ActorRecord, storage: Storage) -> bool:
    """Return whether an actor reaches a storage. Other machines cannot reach a local folder of the driver's machine."""
    return storage.is_shared or worker.node == pool.driver_node
