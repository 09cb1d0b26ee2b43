"""Decoded samples kept on disk, so that every start but the first takes less than a second.

One data set is two files in `<cache>/decoded`: the samples as .npy, mapped into memory rather than read, and
everything else as .npz. Neither is ever unpickled. A cache that cannot be written or read is only slower.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

import numpy as np

from raysim.common.files import replace
from raysim.common.folders import cache_root
from raysim.data.sources import Decoded, Source
from raysim.data.specs import Files

_VERSION = "2"  # raise when the decoding changes


def cache_key(name: str, source: Source, settings: Files | None = None) -> str:
    """A file name that changes with the path, size or time stamp of any file of the source, and how it is read."""
    sha = hashlib.sha256(f"{_VERSION}\n{name}\n{source.format}\n{settings or ''}\n{len(source.train)}\n".encode())
    for path in source.files:  # up to 110,000 of them
        stat = path.stat()
        sha.update(f"{path}\n{stat.st_size}\n{stat.st_mtime_ns}\n".encode())
    return f"{name}-{sha.hexdigest()[:16]}"


def load(key: str, verify: bool = True) -> Decoded | None:
    """What `save` wrote, its samples a read-only map of the file; None if it is not there or is damaged.

    verify: whether to compare the digest, for which all samples are read.
    """
    base = cache_root() / "decoded" / key
    try:
        with base.with_suffix(".npz").open("rb") as file, np.load(file, allow_pickle=False) as rest:
            digest = str(rest["digest"])
            kept = {name: rest[name] for name in Decoded._fields if name != "raw_M"}
        names = {name: tuple(map(str, kept[name])) for name in ("class_names", "owners")}
        numbers = {name: int(kept[name]) for name in ("num_train", "vocabulary")}
        raw_M = np.asarray(np.load(base.with_suffix(".npy"), mmap_mode="r", allow_pickle=False))
        decoded = Decoded(raw_M, **{**kept, **names, **numbers})
        return decoded if not verify or digest_of(decoded) == digest else None
    except Exception:  # however it is damaged, the answer is to decode again
        return None


def save(key: str, decoded: Decoded) -> None:
    """Write both files, each complete or not at all. Silent when the disk is full or read-only."""
    base = cache_root() / "decoded" / key
    rest = {name: np.asarray(value) for name, value in decoded._asdict().items() if name != "raw_M"}
    rest["digest"] = np.asarray(digest_of(decoded))
    with suppress(OSError):
        base.parent.mkdir(parents=True, exist_ok=True)
        # Without fsync: `load` compares the digest, and decodes again where a power cut left less.
        replace(base.with_suffix(".npy"), lambda file: np.save(file, decoded.raw_M, allow_pickle=False), fsync=False)
        replace(
            base.with_suffix(".npz"),
            lambda file: np.savez(file, allow_pickle=False, **rest),
            fsync=False,
        )


def digest_of(decoded: Decoded) -> str:
    """SHA-256, in hex, of samples, labels and any ids, their order, and where the test part begins."""
    sha = hashlib.sha256(f"{decoded.raw_M.shape} {decoded.num_train}".encode())
    sha.update(np.ascontiguousarray(decoded.raw_M).data)
    sha.update(np.ascontiguousarray(decoded.label_M, dtype="<i8").data)
    if decoded.owners:
        sha.update("\n".join(decoded.owners).encode())
        sha.update(np.ascontiguousarray(decoded.owner_M, dtype="<i8").data)
    return sha.hexdigest()
