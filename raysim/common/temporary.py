"""Temporary folders that do not outlive their process, not even one that is killed: the next such folder removes them.

The process that makes a folder holds a lock in it. The system ends the lock with the process, so that no process of
another boot, or with the same number, is taken for it. The lock may be unknown on another machine that shares the
disk, so that only folders of this machine are removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from raysim.common.files import hold, lock

PREFIX = "raysim-"
HELD = ".held"
"""A file in the folder, which the process that made the folder has locked as long as it lives."""


def make_folder(kind: str = "", place: str | None = None) -> tuple[Path, int]:
    """A new folder in `place` (default: the system's) that its owner alone can enter, and the descriptor of its lock.

    Folders whose process was killed are removed. Raises `OSError` when the folder cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}", dir=place))
    handle = hold(folder / HELD)
    remove_abandoned(folder.parent)
    return folder, handle


@contextlib.contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """An empty folder that is removed when the block ends or, where the process is killed, later."""
    folder, handle = make_folder(kind)
    try:
        (folder / "content").mkdir()
        yield folder / "content"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _is_regular(path: Path) -> bool:
    """Whether it is a file, not a link or a pipe, whose opening could wait for ever."""
    return stat.S_ISREG(path.lstat().st_mode)


def remove_abandoned(place: Path) -> None:
    """Remove this user's folders in `place` whose process was killed, and so could not remove them."""
    if os.name == "nt":
        return
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # no lock file, or its process lives
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not _is_regular(folder / HELD):
                continue
            with (folder / HELD).open(encoding="utf-8") as file:
                lock(file.fileno())
                # A process that has made the file, but not yet locked it, has written nothing.
                if file.read().strip().endswith(f" on {socket.gethostname()}"):
                    # The lock file is removed last: where processes of a Ray still write, a later start tries again.
                    for inner in (one for one in folder.iterdir() if one.name != HELD):
                        shutil.rmtree(inner, ignore_errors=True)
                    if [one.name for one in folder.iterdir()] == [HELD]:
                        shutil.rmtree(folder, ignore_errors=True)
