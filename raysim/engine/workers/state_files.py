"""Files without a name for clients' states, in memory and on a disk. All processes of a machine share them.

The system frees a file when the last process that has it open ends, for whatever reason.
"""

from __future__ import annotations

import os
import tempfile
import weakref
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
    """

    def __init__(self, limits: StateLimits = AUTO) -> None:
        self.limits, self.joined = limits, False
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
        memory, disk = self.files
        return Rows(memory if size <= self.limits.memory_bytes else disk)

    @property
    def memory_mb(self) -> float:
        """Size in memory of the file that this process created, in MiB; 0 after `join`."""
        return 0.0 if self.joined else os.fstat(self.files[0].fileno()).st_blocks * 512 / 2**20

    def _use(self, files: Iterable[IO[bytes]]) -> None:
        self.files = tuple(files)
        self.close = weakref.finalize(self, _close, self.files)


@dataclass(frozen=True)
class Rows:
    """Access to a file's rows by their position."""

    file: IO[bytes]

    def read(self, begin: int, into: Row) -> None:
        """Read the row at position `begin` into `into`."""
        _in_pieces(lambda piece, at: os.preadv(self.file.fileno(), [piece], at), into.data, begin)

    def write(self, begin: int, row: Row) -> None:
        """Write a row at position `begin`."""
        _in_pieces(partial(os.pwrite, self.file.fileno()), row.data, begin)


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


def _in_pieces(transfer: Callable[[memoryview, int], int], data: memoryview, begin: int) -> None:
    """Call `transfer(piece, position)` until all bytes are moved, since Linux moves at most 2 GiB per call."""
    done = 0
    while done < len(data):
        try:
            moved = transfer(data[done:], begin + done)
        except OSError as error:
            raise StatesError(
                f"cannot read or store the client states ({reason(error)}); set a smaller resources.memory_gb to keep "
                "them on the disk, or free some space there, and resume the run"
            ) from error
        if moved == 0:
            raise StatesError("cannot read the client states: their file is truncated")
        done += moved
