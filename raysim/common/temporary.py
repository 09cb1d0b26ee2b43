"""Temporary folders that are removed even if their process is killed: making a new folder removes abandoned ones.

The process that makes a folder locks a file in it. The system releases the lock when the process ends, so a later
process with the same id cannot be mistaken for it. Another machine that shares the disk may not see the lock, so only
folders of this machine are removed.
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
"""Name of the file in the folder that its process keeps locked."""
LONGEST = 19
"""Bytes of the name of a folder in which Ray can create sockets: their names have 84 bytes below it, with the largest
process id, and macOS allows 103 in all (Linux 107)."""


def folder_of_ray() -> str:
    """Return the folder for Ray's temporary files: RAY_TMPDIR, else the system's, or /tmp if that name is too long."""
    system = tempfile.gettempdir()
    return os.environ.get("RAY_TMPDIR") or (system if len(os.fsencode(system)) <= LONGEST else "/tmp")


def make_folder(kind: str = "", place: str | None = None) -> tuple[Path, int]:
    """Make a folder that only its owner can enter, and return it with the descriptor of its lock.

    place: the parent folder; None: the system's folder for temporary files. Abandoned folders in it are removed.
    Raises `OSError` if the folder cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}", dir=place))
    handle = hold(folder / HELD)
    remove_abandoned(folder.parent)
    return folder, handle


@contextlib.contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """Yield an empty folder that is removed after the block or, if the process is killed, by a later process."""
    folder, handle = make_folder(kind)
    try:
        (folder / "content").mkdir()
        yield folder / "content"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file: opening a pipe could block for ever."""
    return stat.S_ISREG(path.lstat().st_mode)


def remove_abandoned(place: Path) -> None:
    """Remove this user's folders in `place` that were left behind by killed processes of this machine."""
    if os.name == "nt":
        return
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # no lock file, or its process is alive
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not _is_regular(folder / HELD):
                continue
            with (folder / HELD).open(encoding="utf-8") as file:
                lock(file.fileno())
                # An empty file belongs to a process that has made it but not yet locked it.
                if file.read().strip().endswith(f" on {socket.gethostname()}"):
                    # The lock file is removed last: a later start tries again if Ray processes still write.
                    for inner in (one for one in folder.iterdir() if one.name != HELD):
                        shutil.rmtree(inner, ignore_errors=True)
                    if [one.name for one in folder.iterdir()] == [HELD]:
                        shutil.rmtree(folder, ignore_errors=True)
