"""Archive of a run folder. `python -c <this file> FOLDER [--checkpoints]` prints the archive as text.

The Jobs API returns only the output of a job. So the program prints the folder as a zip file in base64, between the
lines `BEGIN` and `END`. Ray would keep that output in its log folder, so the program waits until `fetch` stops its job,
at most `WAIT_S`, and then empties its own log.

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
from pathlib import Path
from typing import IO

BEGIN, END = "raysim-archive-begin", "raysim-archive-end"
WIDTH = 48 * 1024  # bytes per line, 64 Ki characters as base64, because Ray forwards logs in pieces of about that size
WAIT_S = 3600.0


def write(folder: Path, file: IO[bytes], checkpoints: bool) -> None:
    """Write the files of a folder, except hidden ones, as an archive to `file`."""
    # A low level is enough, because Parquet, PNG and weights are already compressed.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for parent, _, names in os.walk(folder):  # `rglob` would fail if a folder is removed at the same time
            inside = Path(parent).relative_to(folder)
            if "checkpoints" in inside.parts and not checkpoints:
                continue
            for name in names:
                if not name.startswith("."):
                    # A file may be removed at the same time, as clients.arrows at the end of a run.
                    with contextlib.suppress(FileNotFoundError):
                        archive.write(Path(parent, name), inside / name)


def send(folder: Path, checkpoints: bool) -> None:
    """Print the archive of a folder."""
    with tempfile.TemporaryFile() as file:
        write(folder, file, checkpoints)
        file.seek(0)
        print(BEGIN)
        while piece := file.read(WIDTH):
            print(base64.b64encode(piece).decode())
    print(END, flush=True)


def main() -> None:
    """Print the archive of the folder in the command line, wait for SIGTERM, and empty the log."""
    folder = Path(sys.argv[1])
    if not folder.is_dir():
        sys.exit(f"there is no folder {folder} on the head node")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    try:
        send(folder, "--checkpoints" in sys.argv[2:])
        time.sleep(WAIT_S)
    finally:
        os.ftruncate(1, 0)


if __name__ == "__main__":
    main()
