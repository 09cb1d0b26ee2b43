"""Where checkpoints are kept: a folder of this machine, or any address that fsspec knows. Named bytes, nothing more."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.common.text import expanded

PAGE = 4096
"""Bytes; a multiple of the blocks of nearly every disk, as direct writing demands."""

DIRECT_BYTES = 1 << 18
"""Files smaller than this are not worth a wait for the disk."""

_NOT_DIRECT = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What file systems say that cannot write directly, or not with these blocks."""

Buffer = bytes | NDArray[np.uint8]
"""Bytes, perhaps in memory that somebody else owns."""


def viewed(data: Buffer) -> memoryview:
    """The same bytes, to be cut without a copy."""
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


class Storage(Protocol):
    """Named bytes. Everything raises `OSError`, with the file's address as its `filename`, when it fails. Picklable."""

    @property
    def where(self) -> str:
        """The address, for people."""

    @property
    def is_shared(self) -> bool:
        """Whether other machines reach the same bytes under the same address."""

    def make(self) -> None:
        """Make the place, once: a folder that vanishes later is missed, not made again without what it held."""

    def write(self, name: str, data: Buffer) -> None:
        """Put bytes there; only after `fsync` do they outlive the machine."""

    def fsync(self, names: Iterable[str]) -> None:
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
        _ = remote.place
    except Exception as error:  # fsspec: ValueError for unknown protocols, ImportError for missing packages
        raise OSError(None, str(error) or type(error).__name__, text) from error
    return remote


def page_aligned(size: int) -> NDArray[np.uint8]:
    """Uninitialised memory that begins where a page does: what can be written past the system's cache."""
    room = np.empty(size + PAGE, np.uint8)
    begin = -room.ctypes.data % PAGE
    return room[begin : begin + size]


def _write(place: Path, left: memoryview) -> None:
    """Make a file of these bytes, past the system's cache if they are many and page-aligned.

    A checkpoint is not read again, so the cache would only grow by it: memory that a container pays for, and 0.3 to
    3 ms of a processor per MB, most where a virtual machine gets new pages from its host. While data is written
    directly, the processor is free for other work.
    """
    direct = getattr(os, "O_DIRECT", 0) if left.nbytes >= DIRECT_BYTES and not _address(left) % PAGE else 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        handle = os.open(place, flags | direct, 0o666)
    except OSError as error:
        if not direct or error.errno not in _NOT_DIRECT:
            raise
        handle, direct = os.open(place, flags, 0o666), 0
    try:
        while left.nbytes:
            whole = left.nbytes // PAGE * PAGE
            if direct and not whole:
                direct = _through_cache(handle)  # the last part of a page
            try:
                left = left[os.write(handle, left[:whole] if direct else left) :]
            except OSError as error:
                if not direct or error.errno not in _NOT_DIRECT:
                    raise
                direct = _through_cache(handle)
    finally:
        os.close(handle)


def _through_cache(handle: int) -> int:
    """From here on, write to this file as usual."""
    fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)
    return 0


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


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

    def write(self, name: str, data: Buffer) -> None:
        place = self.path / name
        try:
            _write(place, viewed(data))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(place)) from error

    def fsync(self, names: Iterable[str]) -> None:
        for place in [*(self.path / name for name in names), self.path]:
            handle = os.open(place, os.O_RDONLY)
            try:
                os.fsync(handle)
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
    def is_shared(self) -> bool:
        return True

    def make(self) -> None:
        with self._errors("") as (fs, _):
            fs.makedirs(self.place[1], exist_ok=True)

    def write(self, name: str, data: Buffer) -> None:
        with self._errors(name) as (fs, path):
            fs.pipe_file(path, bytes(data))

    def fsync(self, names: Iterable[str]) -> None:
        """Object stores have it when they say so."""

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
            root = self.place[1]
            found = fs.ls(root, detail=False) if fs.exists(root) else []
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in found)

    def remove(self, name: str) -> None:
        with self._errors(name) as (fs, path):
            if fs.exists(path):
                fs.rm_file(path)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Any:
        fs, root = self.place
        try:
            yield fs, f"{root}/{name}"
        except FileNotFoundError:
            raise
        except Exception as error:  # each protocol has errors of its own
            raise OSError(None, str(error) or type(error).__name__, f"{self.address}/{name}") from error
