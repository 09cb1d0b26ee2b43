"""Files without a name for clients' states, in memory and on a disk. All processes of a machine share them.

The system frees a file when the last process that has it open ends, for whatever reason.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import RunError
from raysim.common.files import reason
from raysim.common.memory import usable_memory

Row = NDArray[np.uint8]
"""A client's state as bytes."""

PAGE = 4096
LARGE = 1 << 16  # rows of at least this many bytes share no page with other rows


class StatesError(RunError):
    """Clients' states cannot be read or stored. This does not count as a failure of the client."""


@dataclass(frozen=True)
class StateLimits:
    """Limits for storing clients' states on each machine."""

    # Maximum size in memory; larger states are on a disk; None: half of the usable memory.
    memory_gb: float | None = None
    folder: str | None = None  # folder on the disk; if None or missing: that of temporary files

    @property
    def memory_bytes(self) -> int:
        """Maximum size of all states in memory, in bytes."""
        return int(self.memory_gb * 1e9) if self.memory_gb is not None else usable_memory() // 2


AUTO = StateLimits()


class Handle(NamedTuple):
    """A handle with which another process of this machine can open a file without a name."""

    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, file: IO[bytes]) -> Handle:
        """Return the handle of a file that this process has open."""
        status = os.fstat(file.fileno())
        return cls(f"/proc/{os.getpid()}/fd/{file.fileno()}", status.st_dev, status.st_ino)


Handles = tuple[Handle, ...]


class StateFiles:
    """A file in memory and a file on a disk. A run uses only one of them; the other stays empty and takes no space.

    Attributes:
        handles: handles of the files, for other processes.
        on_disk_mb: size of all rows in MiB if they are on the disk, else 0.
    """

    def __init__(self, limits: StateLimits = AUTO) -> None:
        self.limits, self.joined, self.on_disk_mb = limits, False, 0.0
        self._use((_memory_file(), _disk_file(limits.folder)))
        self.handles = tuple(map(Handle.of, self.files))

    def join(self, handles: Handles) -> None:
        """Use the files of another process, if it runs on this machine and the files can be opened."""
        if handles == self.handles:
            return
        with ExitStack() as opened:
            try:
                files = [opened.enter_context(Path(handle.path).open("r+b")) for handle in handles]
            except OSError:  # /proc is missing, or permission is denied
                return
            # In a container with other process ids, the path leads to another file.
            if any(Handle.of(file)[1:] != handle[1:] for file, handle in zip(files, handles, strict=True)):
                return
            opened.pop_all()
        self.close()
        self._use(files)
        self.handles, self.joined = handles, True

    def rows(self, size: int) -> Rows:
        """Return the file for rows of `size` bytes in total: in memory if they fit, otherwise on the disk."""
        limit = self.limits.memory_bytes
        memory, disk = self.files
        self.on_disk_mb = size / 2**20 if size > limit else 0.0
        return Rows(memory) if size <= limit else Rows(disk, limit // (2 * (os.cpu_count() or 1)))

    @property
    def memory_mb(self) -> float:
        """Size in memory of the file that this process created, in MiB; 0 after `join`."""
        return 0.0 if self.joined else os.fstat(self.files[0].fileno()).st_blocks * 512 / 2**20

    def _use(self, files: Iterable[IO[bytes]]) -> None:
        self.files = tuple(files)
        self.close = weakref.finalize(self, _close, self.files)


class Rows:
    """Access to a file's rows by their position. Rows on a disk leave the page cache if they were not used lately."""

    def __init__(self, file: IO[bytes], cached: int | None = None) -> None:
        """cached: maximum bytes of the file in the page cache; None: the file is in memory."""
        self.file, self.cached = file, cached
        self.used: deque[tuple[int, int]] = deque()  # (begin, bytes) of rows in the page cache, the last used one last
        self.used_bytes = 0

    def read(self, begin: int, into: Row) -> None:
        """Read the row at position `begin` into `into`."""
        if not _in_pieces(lambda piece, at: os.preadv(self.file.fileno(), [piece], at), into.data, begin):
            raise StatesError("cannot read the client states: their file is truncated")
        self._note(begin, len(into))

    def write(self, begin: int, row: Row) -> None:
        """Write a row at position `begin`."""
        try:
            written = _in_pieces(partial(os.pwrite, self.file.fileno()), row.data, begin)
        except OSError as error:
            where = "in memory" if self.cached is None else "on the disk"
            change = "set a smaller" if self.cached is None else "free some space, or set a greater"
            raise StatesError(
                f"cannot store the client states {where} ({reason(error)}); {change} resources.memory_gb"
            ) from error
        if not written:
            raise StatesError("cannot store the client states: the disk is full; free some space, and resume the run")
        if self.cached is not None and len(row) >= LARGE:
            # This starts writing to the disk; the row stays in the page cache.
            os.posix_fadvise(self.file.fileno(), begin, len(row), os.POSIX_FADV_DONTNEED)
        self._note(begin, len(row))

    def read_ahead(self, spans: Iterable[tuple[int, int]]) -> None:
        """Start reading rows from the disk. spans: (begin, bytes) of each row."""
        if self.cached is not None:
            for begin, size in spans:
                os.posix_fadvise(self.file.fileno(), begin, size, os.POSIX_FADV_WILLNEED)

    def _note(self, begin: int, size: int) -> None:
        if self.cached is None:
            return
        self.used.append((begin, size))
        self.used_bytes += size
        while self.used_bytes > self.cached:
            begin, size = self.used.popleft()
            self.used_bytes -= size
            first = begin // PAGE * PAGE  # whole pages, because the system keeps partial pages
            os.posix_fadvise(self.file.fileno(), first, padded(begin + size - first, PAGE), os.POSIX_FADV_DONTNEED)


def padded(size: int, to: int) -> int:
    """Return `size`, rounded up to a multiple of `to`."""
    return -(-size // to) * to


def _memory_file() -> IO[bytes]:
    return os.fdopen(os.memfd_create("raysim-states"), "w+b") if hasattr(os, "memfd_create") else _disk_file(None)


def _disk_file(folder: str | None) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:  # the folder does not exist on this machine
        if folder is None:
            raise
        return _disk_file(None)


def _close(files: Iterable[IO[bytes]]) -> None:
    for file in files:
        file.close()


def _in_pieces(transfer: Callable[[memoryview, int], int], data: memoryview, begin: int) -> bool:
    """Call `transfer(piece, position)` until all bytes are moved, since Linux moves at most 2 GiB per call.

    Returns False if a call moves nothing.
    """
    done = 0
    while done < len(data):
        moved = transfer(data[done:], begin + done)
        if moved == 0:
            return False
        done += moved
    return True
