"""Read IDX files, the published format of MNIST and Fashion-MNIST: a header, then one byte per pixel or label.

The header is the type (0x08: bytes), the number of dimensions, and the dimensions as big-endian 32-bit integers.
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysim.common.errors import ScenarioError

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
    written = (f"{name}-ubyte", f"{name.replace('-idx', '.idx')}-ubyte")  # an unpacked archive has the second form
    paths = (folder / f"{stem}{end}" for stem in written for end in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of bytes in a file."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    begin = 4 + 4 * content[3]
    shape = struct.unpack(f">{content[3]}I", content[4:begin])
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
