"""Atomic replacement of files, which survives a stop of the process or machine, and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from raysim.common.errors import ScenarioError

# Error numbers of file systems that support no locks, or no fsync of folders.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_BLOCK = 4096  # bytes of a lock file, because a shorter write may succeed on a full disk


@contextlib.contextmanager
def replacing(path: Path, fsync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a new file. It replaces `path` after the block, or is removed if the block raises.

    If the machine stops, `path` holds all of the old or of the new content, unless `fsync` is false. To be sure of the
    new content, call `sync_folder` afterwards.
    The file stays open after the block: the caller may write more, and must close it.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    file = os.fdopen(handle, "wb")
    try:
        yield file
        file.flush()
        if fsync:
            os.fsync(file.fileno())
        # Files of mkstemp can only be read by their owner, but results should be shared.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the first error already reports a full disk
            file.close()
        raise


def replace(path: Path, write: Callable[[IO[bytes]], object], fsync: bool = True) -> None:
    """Replace `path` atomically by the file that `write` writes."""
    if path.exists() and not path.is_file():  # a rename would destroy a device such as /dev/null
        with path.open("wb") as device:
            write(device)
        return
    with replacing(path, fsync) as file:
        write(file)
    file.close()


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` atomically by this content."""
    replace(path, lambda file: file.write(content))


def reason(error: OSError) -> str:
    """Return why an operation failed, in a few lower-case words."""
    return (error.strerror or str(error) or type(error).__name__).lower()


def check_format(path: Path, content: Any, newest: int) -> None:
    """Raise `ScenarioError` if a later raysim wrote the JSON file `path`. newest: the format of this version."""
    given = content.get("format", 1)
    if given > newest:
        raise ScenarioError(
            f"{path} has format {given}, but this version of raysim reads formats up to {newest}; use the version of "
            "raysim that wrote it, or a later one"
        )


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed files in `folder` survive a power cut, if the file system can do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with if_supported():
            os.fsync(handle)
    finally:
        os.close(handle)


def hold(path: Path) -> int:
    """Lock the file `path`, and name this process in it. The lock ends when the returned descriptor is closed.

    The descriptor closes at the latest when the process ends. The file stays: removing a file that another process is
    about to lock would undo that lock. On a file system without locks, the file is written but not locked.

    Raises:
        BlockingIOError: another process, or this process, holds the lock.
        OSError: the file cannot be written.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with if_supported():
            _lock(handle)
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode().ljust(_BLOCK))
        os.fsync(handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _lock(handle: int) -> None:
    try:
        lock(handle)
    except BlockingIOError:
        time.sleep(0.05)  # readers of the summary hold the lock for microseconds
        lock(handle)


def lock(handle: int, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed, exclusively or, if `shared`, together with other shared locks.

    Raises:
        BlockingIOError: another process holds a conflicting lock and `wait` is false.
        OSError: the system or the file system supports no locks.
    """
    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def is_locked(path: Path) -> bool:
    """Return whether a process locks the file `path`; False if the file does not exist or locks are not supported."""
    try:
        with path.open("rb") as file:
            lock(file.fileno(), shared=True)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def holder(path: Path) -> str:
    """Return the process that locks the file `path`, as `hold` described it."""
    return path.read_text(encoding="utf-8").strip() or "another process"


@contextlib.contextmanager
def if_supported() -> Iterator[None]:
    """Ignore errors inside a block of file systems that support no locks, or no fsync of folders."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
