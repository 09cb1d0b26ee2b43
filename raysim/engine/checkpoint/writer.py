"""Writes the files of a checkpoint behind the work of its process."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition

from raysim.engine.checkpoint.format import Bytes, CheckpointFile
from raysim.engine.checkpoint.storage import Storage

IN_FLIGHT = 64 << 20
"""Bytes that may wait to be written; who brings more waits until there is room, so memory stays bounded."""


@dataclass
class BackgroundWriter:
    """One thread: the disk is waited for there, and work goes on."""

    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="writer"))
    begun: dict[int, list[Future[CheckpointFile]]] = field(default_factory=dict)  # round -> its files
    waiting: int = 0  # bytes
    changed: Condition = field(default_factory=Condition)

    def write(self, t: int, storage: Storage, part: CheckpointFile, data: Bytes) -> None:
        """Begin to write a file of the checkpoint of round `t`; nobody may change `data` any more."""
        with self.changed:
            self.changed.wait_for(lambda: not self.waiting or self.waiting + part.size <= IN_FLIGHT)
            self.waiting += part.size
        self.begun.setdefault(t, []).append(self.thread.submit(self._write, storage, part, data))

    def _write(self, storage: Storage, part: CheckpointFile, data: Bytes) -> CheckpointFile:
        try:
            storage.write(part.name, data)
        finally:
            with self.changed:
                self.waiting -= part.size
                self.changed.notify()
        return part

    def written(self, t: int) -> list[CheckpointFile]:
        """The files of the checkpoint of round `t`, once they are all written. Raises `OSError` if one cannot be."""
        return [one.result() for one in self.begun.pop(t, [])]

    def wait(self) -> None:
        """Until nothing is being written any more, whatever came of it."""
        for files in self.begun.values():
            for one in files:
                with contextlib.suppress(OSError):
                    one.result()
        self.begun.clear()
