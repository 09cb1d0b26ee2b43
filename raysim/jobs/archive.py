"""Program that prints a run folder as text, on the head node: `python -c <this file> FOLDER [--checkpoints]`.

The Jobs API returns only the output of a job. So the program prints the folder as a zip file in base64, between a line
with its size and a final line. Ray would keep that output in its log folder, so the program waits for SIGTERM, at most
`WAIT_S`, and then empties its own log.

`fetch` sends the text of this file, because the cluster may have removed the code of a job that ended. So this file
imports only the standard library.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

BEGIN, END, REFUSED = "raysim-archive-begin ", "raysim-archive-end", "raysim-archive-refused "
WIDTH = 48 * 1024  # bytes per line, 64 Ki as base64; Ray forwards a log in pieces of about that size
WAIT_S = 3600.0
"""How long the program waits for the end of the download before it empties its log, in seconds."""

LIMIT = 4 << 30
"""The largest folder to send, in bytes: its text is in the log of a job, on the disk of the head node."""

FILES = 10_000
"""The most files to send."""


def is_plain(name: str) -> bool:
    """Whether a file of a run folder may have this path, relative to the folder.

    Such a path has no hidden part and no `..`, is printable, and is short enough for every file system.
    """
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or len(name.encode()) > 155:
        return False
    return all(part and not part.startswith(".") and len(part.encode()) <= 100 for part in parts)


def list_files(folder: Path, checkpoints: bool) -> list[Path]:
    """The files of a run folder to send, relative to it, without links and without paths that are not `is_plain`."""
    files = []
    walk = os.walk(folder)  # not `rglob`, which fails if a folder is removed meanwhile
    for file in sorted(Path(parent, name) for parent, _, names in walk for name in names):
        inside = file.relative_to(folder)
        linked = any((folder / part).is_symlink() for part in [*inside.parents][:-1]) or file.is_symlink()
        if (
            is_plain(inside.as_posix())
            and file.is_file()
            and not linked
            and (checkpoints or "checkpoints" not in inside.parts)
        ):
            files.append(inside)
    return files


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # removed meanwhile
        return 0


def send(folder: Path, checkpoints: bool, print_line: Callable[[str], object], limit: int = LIMIT) -> None:
    """Print the folder as an archive, or the reason why it cannot be sent."""
    if not folder.is_dir():
        print_line(f"{REFUSED}there is no folder {folder} on the head node")
        return
    files = list_files(folder, checkpoints)
    total = sum(_size(folder / file) for file in files)
    if total > limit or len(files) > FILES:
        size = f"{len(files)} files with {total / 2**30:.1f} GiB"
        print_line(
            f"{REFUSED}{folder} on the head node contains {size}, but at most {FILES} files and "
            f"{limit / 2**30:.1f} GiB can be downloaded: omit --checkpoints if you gave it, or copy the folder with "
            "scp or rsync"
        )
        return
    with tempfile.TemporaryFile() as archive:
        # Parquet, PNG and weights are already compressed: a higher level would take longer and save nothing.
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as packed:
            for file in files:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as clients.arrows at the end
                    packed.write(folder / file, file)
        print_line(f"{BEGIN}{archive.tell()}")
        archive.seek(0)
        while piece := archive.read(WIDTH):
            print_line(base64.b64encode(piece).decode())
    print_line(END)


def main() -> None:
    """Send the folder in the command line, wait for SIGTERM, and empty the log."""
    ended = []

    def end(number: int, frame: object) -> None:
        ended.append(number)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    with open(1, "wb", buffering=0, closefd=False) as out:
        try:
            send(Path(sys.argv[1]), "--checkpoints" in sys.argv[2:], lambda line: out.write(line.encode() + b"\n"))
            if not ended:  # Python ignores an exit in a finaliser, such as that of a ZipFile
                time.sleep(WAIT_S)
        finally:
            os.ftruncate(1, 0)


if __name__ == "__main__":
    main()
