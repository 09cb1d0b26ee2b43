"""Files that are whole or not there, whatever happens to the process or the machine; and one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

# What file systems answer that know no locks, or no fsync of folders.
_UNKNOWN = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_BLOCK = 4096  # bytes; less may fit on a disk that is full
_LEFTOVER = re.compile(r"\..*\.\w+\.[a-z0-9_]{8}")  # `.<name>.<random>`, as `replacing` makes them


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that becomes `path` when the block ends well, and is removed when it does not.

    `path` is then what the block wrote as a whole, even if the machine stops half-way. The file stays open: whoever
    wrote it may go on writing, or closes it.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    file = os.fdopen(handle, "wb")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read; results are for sharing.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of a full disk, which was told already
            file.close()
        raise


def replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `path` be what `write` writes, as a whole or not at all."""
    with replacing(path) as file:
        write(file)
    file.close()


def set_aside(path: Path) -> Path | None:
    """Give a damaged file another name, such as `rounds.damaged.parquet`; None if there is no file."""
    names = (f"{path.stem}.damaged{number}{path.suffix}" for number in ("", *range(2, 1000)))
    aside = next(free for name in names if not (free := path.with_name(name)).exists())
    try:
        return path.rename(aside)
    except FileNotFoundError:
        return None


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed within `replacing` left in `folder`."""
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Let what was created, renamed and removed in `folder` outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with _if_known():
            os.fsync(handle)
    finally:
        os.close(handle)


def hold(path: Path) -> int:
    """Lock the file `path` and name this process in it; the lock lasts until the returned descriptor is closed.

    The end of the process, however it comes, closes it. The file stays: to remove one that somebody else is about to
    lock would undo the lock. Where the file system knows no locks, there is none.

    Raises:
        BlockingIOError: another process holds it, or this one does.
        OSError: it cannot be written.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with _if_known():
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
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)  # whoever reads the summary at this moment looks at the lock for some microseconds
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def holder(path: Path) -> str:
    """Who locked the file `path`, for people."""
    return path.read_text(encoding="utf-8").strip() or "another process"


@contextlib.contextmanager
def _if_known() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
