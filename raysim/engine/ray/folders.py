"""Sends a folder from one process to another through Ray's object store, for nodes that do not share a disk."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from raysim.engine.records import LostError

PIECE = 32 << 20
"""Bytes per object: neither process holds a whole folder with its checkpoints in memory."""


def send(folder: Path) -> tuple[Any, ...]:
    """Put the files of `folder` into Ray's object store, as references that can be part of a task or a result.

    The files are lost with this process, unless the receiver has read them.
    """
    with tempfile.TemporaryFile(dir=folder.parent) as file:
        # Parquet, PNG and weights are already compressed.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, strict_timestamps=False) as packed:
            for path in sorted(folder.rglob("*")):
                packed.write(path, path.relative_to(folder))
        file.seek(0)
        return tuple(ray.put(piece) for piece in iter(lambda: file.read(PIECE), b""))


def receive(pieces: Sequence[Any], folder: Path) -> None:
    """Write the files that `send` read to `folder`, and replace a folder of that name.

    Raises `LostError` if the sender died, `OSError` if the folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".received-", dir=folder.parent) as temporary:
        with tempfile.TemporaryFile(dir=temporary) as file:
            for piece in pieces:
                try:
                    file.write(ray.get(piece))
                except ray.exceptions.RayError as error:
                    raise LostError(f"{folder} was not received: {str(error).splitlines()[0]}") from None
            with zipfile.ZipFile(file) as packed:
                packed.extractall(Path(temporary) / "content")
        if folder.exists():
            folder.rename(Path(temporary) / "before")  # removed with the temporary folder, once the new one is there
        (Path(temporary) / "content").rename(folder)
