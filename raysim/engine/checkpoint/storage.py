"""Where checkpoints are: a folder of this machine, or any address that fsspec knows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from raysim.common.text import expanded


class Storage(Protocol):
    """Named files. A method that fails raises `OSError`, with the file's address as its `filename`. Picklable."""

    @property
    def where(self) -> str:
        """The address, for messages."""

    @property
    def is_shared(self) -> bool:
        """Whether other machines reach the same bytes under the same address."""

    def make(self) -> None:
        """Make the folder, once: one that vanishes later is an error, and is not made again without its files."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which survives a power cut only after `fsync`."""

    def fsync(self, names: Iterable[str]) -> None:
        """Wait until files that were written are safe from a power cut."""

    def publish(self, name: str, data: bytes) -> None:
        """Write a file as a whole or not at all; it is safe when this returns."""

    def read(self, name: str) -> bytes:
        """All bytes of a file."""

    def size(self, name: str) -> int:
        """Length in bytes."""

    def names(self) -> list[str]:
        """All files, sorted; none if the folder does not exist yet."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""


def local_folder(address: str) -> Path | None:
    """The folder of this machine that a path or `file://` address means, absolute; None for any other protocol."""
    protocol, separator, path = address.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    return expanded(path if separator else address).absolute()


def is_process_memory(address: str) -> bool:
    """Whether an address means memory of this process, also behind one of fsspec's caches."""
    return any(part.startswith("memory://") for part in address.split("::"))


def open_storage(address: str | Path) -> Storage:
    """A path or `file://` address: `LocalStorage`; any other protocol: `RemoteStorage`.

    Raises `OSError` when the address is none that fsspec knows.
    """
    text = str(address)
    if folder := local_folder(text):
        return LocalStorage(folder)
    remote = RemoteStorage(text.rstrip("/"))
    try:
        _ = remote.location
    except Exception as error:  # fsspec: ValueError for unknown protocols, ImportError for missing packages
        raise OSError(None, str(error) or type(error).__name__, text) from error
    return remote


@dataclass(frozen=True)
class LocalStorage:
    """A folder of this machine."""

    path: Path

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def is_shared(self) -> bool:
        return False

    def make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        place = self.path / name
        try:
            place.write_bytes(data)
        except OSError as error:  # a full disk's does not name the file
            raise OSError(error.errno, error.strerror, str(place)) from error

    def fsync(self, names: Iterable[str]) -> None:
        for place in [*(self.path / name for name in names), self.path]:
            handle = os.open(place, os.O_RDONLY)
            try:
                os.fsync(handle)
                # A checkpoint is not read again, and a container pays for the memory of the system's cache.
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)

    def publish(self, name: str, data: bytes) -> None:
        part = self.path / f".{name}.part"
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        self.fsync([])

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as found:
                return sorted(entry.name for entry in found if not entry.is_dir())
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class RemoteStorage:
    """An address such as `s3://bucket/runs`; the file system's own package must be installed, for example s3fs."""

    address: str

    @cached_property
    def location(self) -> tuple[Any, str]:
        """(file system, path in it)."""
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.address)
        return fs, root

    def __getstate__(self) -> dict[str, str]:
        return {"address": self.address}

    @property
    def where(self) -> str:
        return self.address

    @property
    def is_shared(self) -> bool:
        return True

    def make(self) -> None:
        with self._errors("") as (fs, _):
            fs.makedirs(self.location[1], exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        with self._errors(name) as (fs, path):
            fs.pipe_file(path, data)

    def fsync(self, names: Iterable[str]) -> None:
        """An object store acknowledges a write when it is safe."""

    def publish(self, name: str, data: bytes) -> None:
        self.write(name, data)

    def read(self, name: str) -> bytes:
        with self._errors(name) as (fs, path):
            return bytes(fs.cat_file(path))

    def size(self, name: str) -> int:
        with self._errors(name) as (fs, path):
            return int(fs.size(path))

    def names(self) -> list[str]:
        with self._errors("") as (fs, _):
            fs.invalidate_cache()
            root = self.location[1]
            found = fs.ls(root, detail=False) if fs.exists(root) else []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def remove(self, name: str) -> None:
        with self._errors(name) as (fs, path):
            if fs.exists(path):
                fs.rm_file(path)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Any:
        fs, root = self.location
        try:
            yield fs, f"{root}/{name}"
        except FileNotFoundError:
            raise
        except Exception as error:  # each protocol has errors of its own
            raise OSError(None, str(error) or type(error).__name__, f"{self.address}/{name}") from error
