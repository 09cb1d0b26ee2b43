"""Where checkpoints are: a folder of this machine, or any address that fsspec knows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from raysim.common.files import replace, sync_folder
from raysim.common.text import expanded


@dataclass(frozen=True)
class Storage:
    """Named files at an address such as `s3://bucket/runs`; the file system's own package must be installed.

    A method that fails raises `OSError`, with the file's address as its `filename`. Picklable.
    """

    where: str
    """The address, absolute."""

    is_shared: ClassVar[bool] = True
    """Whether other machines reach the same bytes under the same address."""

    @cached_property
    def location(self) -> tuple[Any, str]:
        """(fsspec's file system, path in it)."""
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.where)
        return fs, root

    def __getstate__(self) -> dict[str, str]:
        return {"where": self.where}

    def make(self) -> None:
        """Make the folder, once: one that vanishes later is an error, and is not made again without its files."""
        with self._errors() as (fs, root):
            fs.makedirs(root, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which survives a power cut only after `fsync`."""
        with self._errors(name) as (fs, path):
            fs.pipe_file(path, data)

    def fsync(self, names: Iterable[str]) -> None:
        """Wait until files that were written are safe from a power cut: an object store acknowledges safe ones."""

    def publish(self, name: str, data: bytes) -> None:
        """Write a file as a whole or not at all; it is safe when this returns."""
        self.write(name, data)

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        with self._errors(name) as (fs, path):
            return bytes(fs.cat_file(path))

    def size(self, name: str) -> int:
        """Length in bytes."""
        with self._errors(name) as (fs, path):
            return int(fs.size(path))

    def names(self) -> list[str]:
        """All files, sorted; none if the folder does not exist yet."""
        with self._errors() as (fs, root):
            fs.invalidate_cache()
            found = fs.ls(root, detail=True) if fs.exists(root) else []
        return sorted(str(one["name"]).rpartition("/")[2] for one in found if one["type"] != "directory")

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with self._errors(name) as (fs, path):
            if fs.exists(path):
                fs.rm_file(path)

    @contextlib.contextmanager
    def _errors(self, *name: str) -> Iterator[tuple[Any, str]]:
        """(file system, path of the file or the folder); what it raises becomes `OSError`."""
        fs, root = self.location
        try:
            yield fs, "/".join((root, *name))
        except Exception as error:  # each protocol has errors of its own
            number, text = getattr(error, "errno", None), getattr(error, "strerror", None)
            place = "/".join((self.where, *name))
            raise OSError(number, text or str(error) or type(error).__name__, place) from error


class LocalStorage(Storage):
    """A folder of this machine."""

    is_shared = False

    @cached_property
    def location(self) -> tuple[Any, str]:
        from fsspec.implementations.local import LocalFileSystem

        return (
            LocalFileSystem(),
            self.where,
        )  # `url_to_fs` would take a "::" in a folder's name for a chain of addresses

    def names(self) -> list[str]:
        if not Path(self.where).is_dir():
            return []
        with os.scandir(self.where) as found:  # fsspec asks for the size of each of thousands
            return sorted(one.name for one in found if not one.is_dir(follow_symlinks=False))

    def fsync(self, names: Iterable[str]) -> None:
        for name in names:
            handle = os.open(f"{self.where}/{name}", os.O_RDWR)  # Windows syncs no file that is open for reading
            try:
                os.fsync(handle)
                # A checkpoint is not read again, and a container pays for the memory of the system's cache.
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
        sync_folder(Path(self.where))

    def publish(self, name: str, data: bytes) -> None:
        replace(Path(self.where, name), lambda file: file.write(data))
        sync_folder(Path(self.where))


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
    """A path or `file://` address: `LocalStorage`; any other protocol: `Storage`.

    Raises `OSError` when the address is none that fsspec knows.
    """
    text = str(address)
    if folder := local_folder(text):
        return LocalStorage(str(folder))
    remote = Storage(text.rstrip("/"))
    try:
        _ = remote.location
    except Exception as error:  # fsspec: ValueError for unknown protocols, ImportError for missing packages
        raise OSError(None, str(error) or type(error).__name__, text) from error
    return remote
