"""Prints a run folder as text, on the head node: `python -c <this file> FOLDER [--checkpoints]`.

The Jobs API returns only what a job prints, so the program prints the folder as a tar.gz in base64, between a line with
its size and one with its SHA-256. The output would stay in Ray's log folder, so the program waits for SIGTERM (or some
minutes) and then empties its own log.

`fetch` sends this file's text, because the cluster may have removed the code of a job that ended; so it imports only
the standard library.
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
WIDTH = 48 * 1024  # bytes per line, 64 Ki as base64; Ray forwards a log in pieces of about that size
WAIT_S = 300.0
LIMIT = 4 << 30
"""The largest folder to send, in bytes: it passes through the log of a job, on the disk of the head node."""

FILES = 10_000
"""The most files to send."""


def is_plain(name: str) -> bool:
    """Whether a file of a run folder may have this path, relative to the folder.

    It has no hidden part and no `..`, is printable, and fits into a tar header without an extension.
    """
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or len(name.encode()) > 155:
        return False
    return all(part and not part.startswith(".") and len(part.encode()) <= 100 for part in parts)


def list_files(folder: Path, checkpoints: bool) -> list[Path]:
    """The files of a run folder to send, relative to it, without links and paths that are not `is_plain`."""
    found = []
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        linked = any((folder / part).is_symlink() for part in [*inside.parents][:-1]) or file.is_symlink()
        if (
            is_plain(inside.as_posix())
            and file.is_file()
            and not linked
            and (checkpoints or inside.parts[0] != "checkpoints")
        ):
            found.append(inside)
    return found


class Base64Writer(io.RawIOBase):
    """A writable file that prints its bytes as lines of base64."""

    def __init__(self, print_line: Callable[[str], object]) -> None:
        self.print_line, self.sha, self.size, self._rest = print_line, hashlib.sha256(), 0, b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha.update(data)
        self.size += len(data)
        self._rest += data
        while len(self._rest) >= WIDTH:
            self._print(WIDTH)
        return len(data)

    def finish(self) -> None:
        """Print the last bytes."""
        if self._rest:
            self._print(len(self._rest))

    def _print(self, count: int) -> None:
        self.print_line(base64.b64encode(self._rest[:count]).decode())
        self._rest = self._rest[count:]


def send(folder: Path, checkpoints: bool, print_line: Callable[[str], object], limit: int = LIMIT) -> None:
    """Print the folder, or the reason why not."""
    if not folder.is_dir():
        print_line(f"{REFUSED}there is no folder {folder} on the head node")
        return
    files = list_files(folder, checkpoints)
    total = sum((folder / file).stat().st_size for file in files)
    if total > limit:
        gib = f"{total / 2**30:.1f} GiB, more than the {limit / 2**30:.1f} that go through Ray"
        print_line(f"{REFUSED}{folder} on the head node holds {gib}: copy it from there, or leave checkpoints out")
        return
    if len(files) > FILES:
        many = f"{len(files)} files, more than the {FILES} that go through Ray"
        print_line(f"{REFUSED}{folder} on the head node holds {many}: copy it from there, or leave checkpoints out")
        return
    print_line(BEGIN + json.dumps({"files": len(files), "bytes": total}))
    lines = Base64Writer(print_line)
    # Parquet, PNG and weights are compressed already; a higher level would take longer and save nothing.
    with (
        gzip.GzipFile(fileobj=lines, mode="wb", compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT, encoding="utf-8") as tar,
    ):
        for file in files:
            try:
                # A run in progress replaces files and appends to them: each is sent with its length at this moment.
                with (folder / file).open("rb") as source:
                    tar.addfile(_member(file, os.fstat(source.fileno()).st_size), source)
            except FileNotFoundError:
                continue  # replaced meanwhile, as clients.arrows is when a run ends
    lines.finish()
    print_line(END + json.dumps({"sha256": lines.sha.hexdigest(), "bytes": lines.size}))


def _member(file: Path, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(file.as_posix())
    member.size = size
    return member


def main() -> None:
    """Send, wait, and empty the log."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with open(1, "wb", buffering=0, closefd=False) as out:
        try:
            send(Path(sys.argv[1]), "--checkpoints" in sys.argv[2:], lambda line: out.write(line.encode() + b"\n"))
            time.sleep(WAIT_S)
        finally:
            os.ftruncate(1, 0)


if __name__ == "__main__":
    main()
