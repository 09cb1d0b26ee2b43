"""A cache of decoded samples on disk, so that every start after the first takes less than a second.

A data set is stored as two files in `<cache>/decoded`: the samples as .npy, which is mapped into memory instead of
read, and everything else as .npz. Neither is ever unpickled. Without a usable cache, a start only takes longer.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import fields

import numpy as np

from raysim.common.files import replace
from raysim.common.folders import cache_root
from raysim.data.sources import Decoded, Source
from raysim.data.specs import Files

_VERSION = "4"  # increase this number when the decoding changes


def cache_key(name: str, source: Source, settings: Files | None = None) -> str:
    """Return a file name that depends on the settings, and on the path, size and time stamp of each source file."""
    sha = hashlib.sha256(f"{_VERSION}\n{name}\n{source.format}\n{settings or ''}\n{len(source.train)}\n".encode())
    for path in source.files:  # there may be 110,000 files
        stat = path.stat()
        # RAYSIM_DATA may name a folder whose name is not UTF-8.
        sha.update(f"{path}\n{stat.st_size}\n{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return f"{name}-{sha.hexdigest()[:16]}"


def load(key: str, verify: bool = True) -> tuple[Decoded, str] | None:
    """Load the files of `save`, with the samples as a read-only map; None if a file is missing or damaged.

    Returns the data and its digest. verify: whether to compare the digest, which requires reading all samples.
    """
    base = cache_root() / "decoded" / key
    try:
        with base.with_suffix(".npz").open("rb") as file, np.load(file, allow_pickle=False) as rest:
            digest = str(rest["digest"])
            kept = {name: rest[name] for name in (one.name for one in fields(Decoded)) if name != "raw_M"}
        names = {name: tuple(map(str, kept[name])) for name in ("class_names", "owners")}
        numbers = {name: int(kept[name]) for name in ("num_train", "vocabulary")}
        raw_M = np.asarray(np.load(base.with_suffix(".npy"), mmap_mode="r", allow_pickle=False))
        decoded = Decoded(raw_M, **{**kept, **names, **numbers})
        return (decoded, digest) if not verify or digest_of(decoded) == digest else None
    except Exception:  # the caller then decodes the data again
        return None


def save(key: str, decoded: Decoded) -> None:
    """Write both files atomically. Errors of a full or read-only disk are ignored."""
    base = cache_root() / "decoded" / key
    rest = {name: np.asarray(value) for name, value in vars(decoded).items() if name != "raw_M"}
    rest["digest"] = np.asarray(digest_of(decoded))
    with suppress(OSError):
        base.parent.mkdir(parents=True, exist_ok=True)
        # The files need no fsync: `load` compares digests, so files that a power cut damaged are decoded again.
        replace(base.with_suffix(".npy"), lambda file: np.save(file, decoded.raw_M, allow_pickle=False), fsync=False)
        replace(
            base.with_suffix(".npz"),
            lambda file: np.savez(file, allow_pickle=False, **rest),
            fsync=False,
        )


def digest_of(decoded: Decoded) -> str:
    """Return the SHA-256, in hex, of samples, labels, ids, their order, and the beginning of the test part."""
    sha = hashlib.sha256(f"{decoded.raw_M.shape} {decoded.num_train}".encode())
    sha.update(np.ascontiguousarray(decoded.raw_M).data)
    sha.update(np.ascontiguousarray(decoded.label_M, dtype="<i8").data)
    if decoded.owners:
        sha.update("\n".join(decoded.owners).encode())
        sha.update(np.ascontiguousarray(decoded.owner_M, dtype="<i8").data)
    return sha.hexdigest()
