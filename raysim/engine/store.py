"""Where commits are kept: a folder of this machine, or any address that fsspec knows. Named bytes, nothing more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

Buffer = bytes | memoryview
"""Bytes, perhaps in memory that somebody else owns."""


class Store(Protocol):
    """Named bytes. Everything raises `OSError`, with the file's address as its `filename`, when it fails. Picklable."""

    @property
    def where(self) -> str:
        """The address, for people."""

    @property
    def everywhere(self) -> bool:
        """Whether other machines reach the same bytes under the same address."""

    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Put bytes there, one piece after another; only after `settle` do they outlive the machine."""

    def settle(self, names: Iterable[str]) -> None:
        """Wait until what was written is safe from a power cut."""

    def publish(self, name: str, data: bytes) -> None:
        """Put bytes there as a whole or not at all, safe when it returns."""

    def read(self, name: str) -> bytes:
        """All bytes of a file."""

    def size(self, name: str) -> int:
        """Length in bytes."""

    def names(self) -> list[str]:
        """All files, sorted; none if there is no such folder yet."""

    def remove(self, name: str) -> None:
        """Let a file go; one that is gone already is fine."""


def open_store(address: str | Path) -> Store:
    """A path or `file://` address: `LocalStore`; any other protocol: `RemoteStore`.

    Raises `OSError` when the address is none that fsspec knows.
    """
    text = str(address)
    if text.startswith("file://"):
        return LocalStore(Path(text.removeprefix("file://")))
    if "://" in text:
        remote = RemoteStore(text.rstrip("/"))
        try:
            _ = remote.place
        except Exception as error:  # fsspec: ValueError for unknown protocols, ImportError for missing packages
            raise OSError(None, str(error) or type(error).__name__, text) from error
        return remote
    return LocalStore(Path(text).expanduser().absolute())


@dataclass(frozen=True)
class LocalStore:
    """A folder of this machine."""

    path: Path

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def everywhere(self) -> bool:
        return False

    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / name).open("wb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while left.nbytes:
                    left = left[file.write(left) :]

    def settle(self, names: Iterable[str]) -> None:
        for place in [*(self.path / name for name in names), self.path]:
            handle = os.open(place, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def publish(self, name: str, data: bytes) -> None:
        part = self.path / f".{name}.part"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        self.settle([])

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.path))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class RemoteStore:
    """An address such as `s3://bucket/runs`; the file system's own package must be installed, for example s3fs."""

    address: str

    @cached_property
    def place(self) -> tuple[Any, str]:
        """(file system, path there)."""
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.address)
        return fs, root

    def __getstate__(self) -> dict[str, str]:
        return {"address": self.address}

    @property
    def where(self) -> str:
        return self.address

    @property
    def everywhere(self) -> bool:
        return True

    def write(self, name: str, pieces: Sequence[Buffer]) -> None:
        with self._told(name) as (fs, path):
            fs.makedirs(self.place[1], exist_ok=True)
            fs.pipe_file(path, b"".join(pieces))

    def settle(self, names: Iterable[str]) -> None:
        """Object stores have it when they say so."""

    def publish(self, name: str, data: bytes) -> None:
        self.write(name, [data])

    def read(self, name: str) -> bytes:
        with self._told(name) as (fs, path):
            return bytes(fs.cat_file(path))

    def size(self, name: str) -> int:
        with self._told(name) as (fs, path):
            return int(fs.size(path))

    def names(self) -> list[str]:
        with self._told("") as (fs, _):
            fs.invalidate_cache()
            root = self.place[1]
            found = fs.ls(root, detail=False) if fs.exists(root) else []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def remove(self, name: str) -> None:
        with self._told(name) as (fs, path):
            if fs.exists(path):
                fs.rm_file(path)

    @contextlib.contextmanager
    def _told(self, name: str) -> Any:
        fs, root = self.place
        try:
            yield fs, f"{root}/{name}"
        except FileNotFoundError:
            raise
        except Exception as error:  # each protocol has errors of its own
            raise OSError(None, str(error) or type(error).__name__, f"{self.address}/{name}") from error
