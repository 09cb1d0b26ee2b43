"""Where commits are kept: a folder of this machine, or any address that fsspec knows. Named bytes, nothing more."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | NDArray[np.uint8]
"""Bytes, perhaps in memory that somebody else owns."""


def viewed(data: Buffer) -> memoryview:
    """The same bytes, to be cut without a copy."""
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


class Store(Protocol):
    """Named bytes. Everything raises `OSError`, with the file's address as its `filename`, when it fails. Picklable."""

    @property
    def where(self) -> str:
        """The address, for people."""

    @property
    def everywhere(self) -> bool:
        """Whether other machines reach the same bytes under the same address."""

    def write(self, name: str, data: Buffer) -> None:
        """Put bytes there; only after `settle` do they outlive the machine."""

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

    def recycle(self, names: Sequence[str], keep: int) -> None:
        """Let files go; up to `keep` of those that went may be kept for a later `write` to use their space."""

    def tidy(self) -> None:
        """Nothing will be written for a while: keep no space that is not used."""


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
    """A folder of this machine.

    What is recycled waits in a folder `spare` and is overwritten by what comes next, as databases do with their logs:
    its pages are in memory and its blocks on the disk already. On a virtual machine, pages that are new to it cost up
    to 3 ms per MB; overwriting takes 0.2.
    """

    path: Path

    @property
    def spare(self) -> Path:
        """Where recycled files wait."""
        return self.path / "spare"

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def everywhere(self) -> bool:
        return False

    def write(self, name: str, data: Buffer) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._reuse(self.path / name, len(data))
        handle = os.open(self.path / name, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            left = viewed(data)
            while left.nbytes:
                left = left[os.write(handle, left) :]
            os.ftruncate(handle, len(data))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from error
        finally:
            os.close(handle)

    def _reuse(self, place: Path, size: int) -> None:
        """Let a spare file of about this size be the one that is about to be written, if there is one."""
        for entry in self._spares():
            # Several processes write at once; each file goes to whoever renames it first.
            with contextlib.suppress(FileNotFoundError):
                if abs(entry.stat().st_size - size) <= size // 8:
                    Path(entry.path).rename(place)
                    return

    def _spares(self) -> list[os.DirEntry[str]]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.spare) as found:
            return list(found)
        return []

    def settle(self, names: Iterable[str]) -> None:
        for place in [*(self.path / name for name in names), self.path]:
            handle = os.open(place, os.O_RDONLY)
            try:
                # Of a file that was overwritten, only the data and perhaps its length are new.
                os.fsync(handle) if place == self.path else os.fdatasync(handle)
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
            with os.scandir(self.path) as found:
                return sorted(entry.name for entry in found if not entry.is_dir())
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def recycle(self, names: Sequence[str], keep: int) -> None:
        self.spare.mkdir(parents=True, exist_ok=True)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (self.path / name).rename(self.spare / name)
        # Names begin with what is in the file and then the round: those that waited longest go.
        waiting = sorted(self._spares(), key=lambda entry: entry.name.split("-")[1])
        for entry in waiting[: max(0, len(waiting) - keep)]:
            with contextlib.suppress(FileNotFoundError):
                Path(entry.path).unlink()

    def tidy(self) -> None:
        shutil.rmtree(self.spare, ignore_errors=True)


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

    def write(self, name: str, data: Buffer) -> None:
        with self._told(name) as (fs, path):
            fs.makedirs(self.place[1], exist_ok=True)
            fs.pipe_file(path, bytes(data))

    def settle(self, names: Iterable[str]) -> None:
        """Object stores have it when they say so."""

    def publish(self, name: str, data: bytes) -> None:
        self.write(name, data)

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

    def recycle(self, names: Sequence[str], keep: int) -> None:
        for name in names:
            self.remove(name)

    def tidy(self) -> None:
        """There is nothing to keep ready."""

    @contextlib.contextmanager
    def _told(self, name: str) -> Any:
        fs, root = self.place
        try:
            yield fs, f"{root}/{name}"
        except FileNotFoundError:
            raise
        except Exception as error:  # each protocol has errors of its own
            raise OSError(None, str(error) or type(error).__name__, f"{self.address}/{name}") from error
