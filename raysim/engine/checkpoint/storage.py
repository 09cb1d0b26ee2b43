"""Storage of checkpoints: a folder of this machine, or any address that fsspec supports."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from raysim.common.files import sync_folder, write_bytes
from raysim.common.text import expanded


@dataclass(frozen=True)
class Storage:
    """Named files at an address such as `s3://bucket/runs`. fsspec needs the package for the address's protocol.

    A method that fails raises `OSError`, with the file's address as its `filename`. Picklable.
    """

    where: str
    """The absolute address."""

    is_shared: ClassVar[bool] = True
    """Whether other machines find the same files at this address."""

    @cached_property
    def location(self) -> tuple[Any, str]:
        """(file system of fsspec, path in this file system)."""
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(self.where)
        return fs, root

    def __getstate__(self) -> dict[str, str]:
        return {"where": self.where}

    def make(self) -> None:
        """Create the folder. No other method recreates it, because a missing folder means that its files are lost."""
        with self._errors() as (fs, root):
            fs.makedirs(root, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Write a file. It survives a power cut only after `fsync`."""
        with self._errors(name) as (fs, path):
            fs.pipe_file(path, data)

    def fsync(self, names: Iterable[str]) -> None:
        """Wait until written files survive a power cut. An object store guarantees this for every completed write."""

    def publish(self, name: str, data: bytes) -> None:
        """Write a file atomically; it survives a power cut once this returns."""
        self.write(name, data)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._errors(name) as (fs, path):
            return bytes(fs.cat_file(path))

    def names(self) -> list[str]:
        """Return the names of all files and folders, sorted; none if the folder does not exist yet."""
        with self._errors() as (fs, root), contextlib.suppress(FileNotFoundError):
            fs.invalidate_cache()
            return sorted(str(one).rpartition("/")[2] for one in fs.ls(root, detail=False))
        return []

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with self._errors(name) as (fs, path), contextlib.suppress(FileNotFoundError):
            fs.rm_file(path)

    @contextlib.contextmanager
    def _errors(self, *name: str) -> Iterator[tuple[Any, str]]:
        """Yield (file system, path of the file or folder), and convert any exception to `OSError`."""
        fs, root = self.location
        try:
            yield fs, "/".join((root, *name))
        except Exception as error:  # each protocol raises errors of its own
            number, text = getattr(error, "errno", None), getattr(error, "strerror", None)
            if isinstance(error, FileNotFoundError):  # some protocols raise it without an error number
                number = errno.ENOENT
            place = "/".join((self.where, *name))
            raise OSError(number, text or str(error) or type(error).__name__, place) from error


class LocalStorage(Storage):
    """A folder of this machine."""

    is_shared = False

    @cached_property
    def location(self) -> tuple[Any, str]:
        from fsspec.implementations.local import LocalFileSystem

        # `url_to_fs` would take "::" in the name of a folder for a chain of addresses.
        return LocalFileSystem(), self.where

    def fsync(self, names: Iterable[str]) -> None:
        for name in names:
            # Windows cannot fsync a file that was opened for reading only
            handle = os.open(f"{self.where}/{name}", os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(self.where))

    def publish(self, name: str, data: bytes) -> None:
        write_bytes(Path(self.where, name), data)
        sync_folder(Path(self.where))


def local_folder(address: str) -> Path | None:
    """Return the absolute folder for a path or `file://` address; None for any other protocol."""
    protocol, separator, path = address.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    return expanded(path if separator else address).absolute()


def open_storage(address: str | Path) -> Storage:
    """Return a `LocalStorage` for a path or `file://` address, a `Storage` for any other protocol.

    Raises `OSError` if fsspec does not support the address.
    """
    text = str(address)
    if folder := local_folder(text):
        return LocalStorage(str(folder))
    remote = Storage(text.rstrip("/"))
    try:
        _ = remote.location
    # For an unknown protocol, fsspec raises ValueError, and for a missing package ImportError.
    except Exception as error:
        raise OSError(None, str(error) or type(error).__name__, text) from error
    return remote
