"""Decoded images kept on disk, so that every start but the first takes less than a second.

One data set is two files in `<cache>/decoded`: the pixels as .npy, mapped into memory rather than read, and
everything else as .npz. Neither is ever unpickled. A cache that cannot be written or read is only slower.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

import numpy as np

from raysim.common.files import replace
from raysim.common.folders import cache_root
from raysim.data.sources import Decoded, Source

_VERSION = "1"  # raise when the decoding changes


def cache_key(name: str, source: Source) -> str:
    """A file name that changes with the path, size or time stamp of any file of the source."""
    sha = hashlib.sha256(f"{_VERSION}\n{name}\n{source.format}\n".encode())
    for path in source.files:  # up to 110,000 of them
        stat = path.stat()
        sha.update(f"{path}\n{stat.st_size}\n{stat.st_mtime_ns}\n".encode())
    return f"{name}-{sha.hexdigest()[:16]}"


def load(key: str) -> Decoded | None:
    """What `save` wrote, its pixels a read-only map of the file; None if it is not there or is damaged."""
    base = cache_root() / "decoded" / key
    try:
        with base.with_suffix(".npz").open("rb") as file, np.load(file, allow_pickle=False) as rest:
            label_M, names, num_train = rest["label_M"], rest["class_names"], int(rest["num_train"])
            digest = str(rest["digest"])
        raw_M = np.asarray(np.load(base.with_suffix(".npy"), mmap_mode="r", allow_pickle=False))
        decoded = Decoded(raw_M, label_M, num_train, tuple(map(str, names)))
        return decoded if digest_of(decoded) == digest else None
    except Exception:  # however it is damaged, the answer is to decode again
        return None


def save(key: str, decoded: Decoded) -> None:
    """Write both files, each complete or not at all. Silent when the disk is full or read-only."""
    base = cache_root() / "decoded" / key
    with suppress(OSError):
        base.parent.mkdir(parents=True, exist_ok=True)
        # Without fsync: `load` compares the digest, and decodes again where a power cut left less.
        replace(base.with_suffix(".npy"), lambda file: np.save(file, decoded.raw_M, allow_pickle=False), fsync=False)
        replace(
            base.with_suffix(".npz"),
            lambda file: np.savez(
                file,
                label_M=decoded.label_M,
                num_train=np.int64(decoded.num_train),
                class_names=np.array(decoded.class_names, dtype=np.str_),
                digest=np.array(digest_of(decoded)),
            ),
            fsync=False,
        )


def digest_of(decoded: Decoded) -> str:
    """SHA-256, in hex, of pixels and labels, their order, and where the test part begins."""
    sha = hashlib.sha256(f"{decoded.raw_M.shape} {decoded.num_train}".encode())
    sha.update(np.ascontiguousarray(decoded.raw_M).data)
    sha.update(np.ascontiguousarray(decoded.label_M, dtype="<i8").data)
    return sha.hexdigest()
