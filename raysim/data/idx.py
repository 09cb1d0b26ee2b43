"""Read IDX files, in which MNIST and Fashion-MNIST are published: a header, then one byte per pixel or label.

The header is the type (0x08: bytes), the number of dimensions, and the dimensions as big-endian 32-bit integers. It is
compared with the data set and the file before the content is read, so a forged header reserves no memory.

Shapes: M images of one data set, H x W pixels, C channels.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError
from raysim.common.files import reason
from raysim.data.specs import DatasetSpec

_NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def find_idx(folder: Path) -> tuple[Path, ...]:
    """Return the four IDX files in a folder: train images, train labels, test images, test labels; () if none exists.

    A file may be compressed (`.gz`); if both exist, the other one is returned. Raises `ScenarioError` if some are
    missing.
    """
    found = {name: _file(folder, name) for name in _NAMES}
    files = tuple(path for path in found.values() if path is not None)
    if files and len(files) < len(_NAMES):
        missing = ", ".join(f"{name}-ubyte" for name, path in found.items() if path is None)
        raise ScenarioError(f"{folder}: lacks {missing} (or .gz); restore all four IDX files")
    return files


def _file(folder: Path, name: str) -> Path | None:
    written = (f"{name}-ubyte", f"{name.replace('-idx', '.idx')}-ubyte")  # the second: as an unpacked archive has it
    paths = (folder / f"{stem}{end}" for stem in written for end in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def read_images(path: Path, spec: DatasetSpec, most: int) -> NDArray[np.uint8]:
    """Return the images [M, H, W, 1] of a file. most: greatest M. Raises `ScenarioError`, which names the file."""
    _, height, width = spec.input_spec.shape
    return _read(path, spec, most, (height, width))[..., None]


def read_labels(path: Path, spec: DatasetSpec, most: int) -> NDArray[np.int64]:
    """Return the labels [M] of a file. most: greatest M. Raises `ScenarioError`, which names the file."""
    return _read(path, spec, most, ()).astype(np.int64)


def _read(path: Path, spec: DatasetSpec, most: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the content [M, *shape] of a file."""
    what = "images" if shape else "labels"
    rank = 1 + len(shape)
    with _opened(path) as file:
        head = file.read(4 + 4 * rank)
        if len(head) < 4 + 4 * rank or head[:4] != bytes((0, 0, 8, rank)):
            raise ScenarioError(f"{path}: is not an IDX file of {what}; replace it by the published file")
        count, *stated = struct.unpack(f">{rank}I", head[4:])
        if tuple(stated) != shape:
            sizes = "x".join(map(str, stated))
            wanted = "x".join(map(str, shape))
            raise ScenarioError(
                f"{path}: according to its header, its images have {sizes} pixels, but those of {spec.name} have "
                f"{wanted}; replace it by the published file"
            )
        if count > most:
            raise ScenarioError(
                f"{path}: according to its header, it has {count} {what}, but the published file has {most}; replace "
                "it by the published file"
            )
        size = count * int(np.prod(shape))
        content = file.read(size + 1)
    if len(content) != size:
        held = "more bytes" if len(content) > size else f"only {len(content)} bytes"
        raise ScenarioError(
            f"{path}: according to its header, it has {count} {what} ({size} bytes), but {held} follow the header; "
            "replace it by the published file"
        )
    return np.frombuffer(content, np.uint8).reshape(count, *shape)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    try:
        with path.open("rb") as raw:
            if path.suffix != ".gz":
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield unpacked
    except (OSError, EOFError, zlib.error) as error:
        why = reason(error) if isinstance(error, OSError) else str(error).rstrip(".")
        raise ScenarioError(f"{path}: cannot be read ({why}); replace it by the published file") from None
