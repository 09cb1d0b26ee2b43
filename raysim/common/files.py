"""Files that appear whole or not at all, even if the process or the machine stops; and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

from raysim.common.errors import ScenarioError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# What file systems answer that support no locks, or no fsync of folders.
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_BLOCK = 4096  # bytes; less may fit on a disk that is full
_LEFTOVER = re.compile(r"\..*\.\w+\.[a-z0-9_]{8}")  # `.<name>.<random>`, as `replacing` makes them


@contextlib.contextmanager
def replacing(path: Path, fsync: bool = True) -> Iterator[IO[bytes]]:
    """A new file that becomes `path` when the block ends well, and is removed when it does not.

    `path` then holds all that the block wrote, even if the machine stops half-way, unless `fsync` is off. The file
    stays open: the caller may write more, and closes it.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    file = os.fdopen(handle, "wb")
    try:
        yield file
        file.flush()
        if fsync:
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read; results are for sharing.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk, which was the first error
            file.close()
        raise


def replace(path: Path, write: Callable[[IO[bytes]], object], fsync: bool = True) -> None:
    """Let `path` hold what `write` writes, as a whole or not at all."""
    with replacing(path, fsync) as file:
        write(file)
    file.close()


def refuse_special(path: Path, key: str = "", origin: str = "") -> None:
    """Raise `ScenarioError` where `path` is a pipe, a socket or a device: reading one may wait or go on for ever.

    Every reader of a file that a user names, or that lies in a folder that a user names, calls this before it opens
    the file. A missing file passes, since the reader has its own sentence for that, and so does a folder.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise ScenarioError(f"{path} is {kind}, not a regular file; give a regular file", key=key, origin=origin)


def reason(error: OSError) -> str:
    """Why an operation failed, in a few words."""
    return (error.strerror or str(error) or type(error).__name__).lower()


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
    """Let what was created, renamed and removed in `folder` outlive a power cut, where a folder can be opened."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with if_supported():
            os.fsync(handle)
    finally:
        os.close(handle)


def hold(path: Path) -> int:
    """Lock the file `path` and name this process in it; the lock lasts until the returned descriptor is closed.

    The end of the process closes it. The file stays: removing one that another process is about to lock would undo
    that lock. Where the file system supports no locks, there is none.

    Raises:
        BlockingIOError: another process holds it, or this one does.
        OSError: it cannot be written.
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
        time.sleep(0.05)  # a reader of the summary holds the lock for some microseconds
        lock(handle)


def lock(handle: int, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed, against all other processes or (shared) those that lock it alone.

    Raises:
        BlockingIOError: another process holds it, unless this is to wait.
        OSError: the system or the file system supports no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def holder(path: Path) -> str:
    """The process that locked the file `path`, as `hold` wrote it."""
    return path.read_text(encoding="utf-8").strip() or "another process"


@contextlib.contextmanager
def if_supported() -> Iterator[None]:
    """Go on where the file system supports no locks, or no fsync of folders."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
