"""Prints a run folder as text, on the head node: `python -c <this file> FOLDER [--checkpoints]`.

The Jobs API brings nothing back but what a job prints, so the folder goes as a tar.gz in base64, between a line that
says how much is coming and one with its SHA-256. What was printed would stay in Ray's log folder: the program waits
until it is told to stop (or some minutes, should nobody do so) and then empties its own log.

It goes to the cluster as text, which may have dropped the code of a job that ended; so it knows only the standard
library.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGIN, END, REFUSED = "raysim-archive-begin ", "raysim-archive-end ", "raysim-archive-refused "
WIDTH = 48 * 1024  # bytes per line, 64 Ki as base64; Ray passes lines on in pieces of about that
WAIT_S = 300.0
LIMIT = 4 << 30
"""Bytes of a folder that are still sent; it passes through the log of a job, on the disk of the head node."""

FILES = 10_000
"""Files of a folder that are still sent."""


def plain(name: str) -> bool:
    """Whether this is a name that a file of a run folder may have, relative to the folder.

    It holds no hidden part and no `..`, can be printed, and fits into a tar header without an extension.
    """
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or len(name.encode()) > 155:
        return False
    return all(part and not part.startswith(".") and len(part.encode()) <= 100 for part in parts)


def listed(folder: Path, checkpoints: bool) -> list[Path]:
    """The files of a run folder to send, relative to it; none with a name that is not `plain`, or reached by a link."""
    found = []
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        linked = any((folder / part).is_symlink() for part in [*inside.parents][:-1]) or file.is_symlink()
        if (
            plain(inside.as_posix())
            and file.is_file()
            and not linked
            and (checkpoints or inside.parts[0] != "checkpoints")
        ):
            found.append(inside)
    return found


class Lines(io.RawIOBase):
    """A file for writing whose bytes leave as lines of base64."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self.say, self.sha, self.size, self._rest = say, hashlib.sha256(), 0, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha.update(data)
        self.size += len(data)
        self._rest += data
        while len(self._rest) >= WIDTH:
            self._say(WIDTH)
        return len(data)

    def finish(self) -> None:
        """Let go of the last bytes."""
        if self._rest:
            self._say(len(self._rest))

    def _say(self, count: int) -> None:
        self.say(base64.b64encode(self._rest[:count]).decode())
        self._rest = self._rest[count:]


def send(folder: Path, checkpoints: bool, say: Callable[[str], object], limit: int = LIMIT) -> None:
    """Print the folder, or a line that says why not."""
    if not folder.is_dir():
        say(f"{REFUSED}there is no folder {folder} on the head node")
        return
    files = listed(folder, checkpoints)
    total = sum((folder / file).stat().st_size for file in files)
    if total > limit:
        gib = f"{total / 2**30:.1f} GiB, more than the {limit / 2**30:.1f} that go through Ray"
        say(f"{REFUSED}{folder} on the head node holds {gib}: copy it from there, or leave checkpoints out")
        return
    if len(files) > FILES:
        many = f"{len(files)} files, more than the {FILES} that go through Ray"
        say(f"{REFUSED}{folder} on the head node holds {many}: copy it from there, or leave checkpoints out")
        return
    say(BEGIN + json.dumps({"files": len(files), "bytes": total}))
    lines = Lines(say)
    # Parquet, PNG and weights are dense already; a better level would take longer and save nothing.
    with (
        gzip.GzipFile(fileobj=lines, mode="wb", compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT, encoding="utf-8") as tar,
    ):
        for file in files:
            try:
                # A run that goes on replaces and appends: what was opened is sent at the length it then has.
                with (folder / file).open("rb") as source:
                    tar.addfile(_member(file, os.fstat(source.fileno()).st_size), source)
            except FileNotFoundError:
                continue  # it has become another file meanwhile, as clients.arrows does when a run ends
    lines.finish()
    say(END + json.dumps({"sha256": lines.sha.hexdigest(), "bytes": lines.size}))


def _member(file: Path, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(file.as_posix())
    member.size = size
    return member


def main() -> None:
    """Send, wait, and leave nothing behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with open(1, "wb", buffering=0, closefd=False) as out:
        try:
            send(Path(sys.argv[1]), "--checkpoints" in sys.argv[2:], lambda line: out.write(line.encode() + b"\n"))
            time.sleep(WAIT_S)
        finally:
            os.ftruncate(1, 0)


if __name__ == "__main__":
    main()
