"""A checkpoint on its way from the actors to its store, while they go on with the next round."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import ray

from raysim.engine.checkpoint.format import Bytes, CheckpointFile, PendingFiles
from raysim.engine.checkpoint.storage import Storage
from raysim.engine.ray.pool import ActorPool, Worker

PATIENCE_S = 0.2
"""How long a checkpoint waits for the next round to begin, behind whose work it is asked for."""

LONG_ROUND_S = 20.0
"""Rounds that take so long have their checkpoint whole before the next one's work. What an actor has not written by
then (`writer.IN_FLIGHT` at most) costs a second; behind that work the checkpoint would wait for a whole long round."""


class CheckpointWrite:
    """The files of one checkpoint: begun when this is made, written when what `with_server` returns was called.

    An actor that reaches the store writes its clients itself; the files of any other are written here.
    """

    def __init__(self, t: int, storage: Storage, pool: ActorPool) -> None:
        """Have all clients written as they are now, after round `t`."""
        self.t, self.storage, self.pool = t, storage, pool
        self.where = f"the checkpoint of round {t}"
        self._begun: list[tuple[Worker, Any]] = []  # when its files are ready to be written
        self._forwarded: list[Any] = []  # files of those that do not reach the store
        self._asked: list[Any] = []  # answers of the others: the files, written
        self._lock, self._done = threading.Lock(), threading.Event()  # of asking
        for worker in pool.clients:
            if driver_node := self._reachable(worker):
                self._begun.append((worker, worker.actor.save.remote(t, driver_node)))
            elif pool.via_ray_client:
                self._forwarded.append(worker.actor.forward_all.remote(t))
            else:
                # A few files at a time: all clients of a node may be more than the object store can hold.
                some = {"num_returns": "streaming", "_generator_backpressure_num_objects": 4}
                self._forwarded.append(worker.actor.forward.options(**some).remote(t))

    def ask(self) -> None:
        """Ask the actors, once: an answer waits for the disk, so the question is best queued behind other work."""
        with self._lock:
            if not self._done.is_set():
                self._asked = [worker.actor.saved.remote(self.t) for worker, _ in self._begun]
                self._done.set()

    def with_server(self) -> PendingFiles:
        """Have the server written, too, once it has done what it was asked before; what is returned waits for all."""
        return partial(self._files, self.pool.server.actor.save.remote(self.t, self._reachable(self.pool.server)))

    def _files(self, server: Any) -> tuple[list[CheckpointFile], CheckpointFile]:
        calls = self.pool.calls
        parts: list[CheckpointFile] = []
        # First: who relays stands still until its files are taken, and others may wait for a client of its.
        while self._forwarded:
            answer = self._forwarded.pop(0)
            if self.pool.via_ray_client:
                parts += [self._written(one) for one in calls.get(answer, self.where)]
            else:
                with calls.translate_errors(self.where):
                    parts += self._all_written(answer)
        calls.get([begun for _, begun in self._begun], self.where)
        # Called behind the rounds; when no round follows, nobody else asks.
        self._done.wait(PATIENCE_S)
        self.ask()
        calls.wait_all(self._asked, self.where)
        parts += [part for written in calls.get(self._asked, self.where) for part in written]
        return sorted(parts, key=lambda part: part.name), self._written(calls.get(server, self.where))

    def _reachable(self, worker: Worker) -> Storage | None:
        # What is a folder of this machine is not one of another.
        return self.storage if self.storage.is_shared or worker.node == self.pool.driver_node else None

    def _all_written(self, stream: Any) -> list[CheckpointFile]:
        return [self._written(ray.get(ref)) for ref in stream]

    def _written(self, saved: tuple[CheckpointFile, Bytes | None]) -> CheckpointFile:
        """The file of a checkpoint, written here if the actor could not."""
        part, data = saved
        if data is not None:
            self.storage.write(part.name, data)
        return part
