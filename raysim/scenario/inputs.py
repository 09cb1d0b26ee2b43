"""Digests of a scenario's data as its files are now, and of the other files that it names."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from raysim.common.errors import RaysimError
from raysim.common.files import reason
from raysim.scenario.data import files_of, partition_of
from raysim.scenario.origin import Key
from raysim.scenario.parse import ParsedScenario


def input_digests(parsed: ParsedScenario) -> dict[str, str]:
    """Return path -> SHA-256 of `inputs`, of the file of a partition, and of a trace.

    Raises `ScenarioError` if one of them cannot be read.
    """
    resolved = parsed.resolved
    partition = resolved["data"]["partition"]
    given: dict[Key, list[str | None]] = {
        ("inputs",): resolved["inputs"] or [],
        ("data", "partition", "path"): [partition["path"]] if partition["name"] == "listed" else [],
        ("system", "trace"): [(resolved["system"] or {}).get("trace")],
    }
    digests = {}
    for key, paths in given.items():
        for path in filter(None, paths):
            try:
                digests[path] = _digest(Path(path))
            except OSError as error:
                text = f"{path} given, but it cannot be read ({reason(error)}); correct the path, or restore the file"
                raise parsed.origin.error(key, text) from None
    return digests


def data_digests(parsed: ParsedScenario) -> tuple[str, str | None] | None:
    """Return the digests of the data set and of another public data set (None without one).

    Return None if they are not known here, because a file is missing or damaged.
    """
    from raysim.data.datasets import present_digest  # here: it imports Arrow and Pillow

    data = parsed.data
    public = data.public.name if data.public else None
    try:
        parsed.own_code.activate()
        digest = present_digest(data.name, data.root, data.format, files_of(parsed, partition_of(parsed)))
        return digest, None if public is None else present_digest(public, data.root, data.format, None)
    except RaysimError:  # a `HookError` if the user's own loader misses a file
        return None


def _digest(place: Path) -> str:
    """Return the SHA-256 of a file, or that of the names and digests of all files in a folder. Raises `OSError`."""
    if place.is_dir():
        inside = (f"{file.relative_to(place)} {_digest(file)}" for file in sorted(place.rglob("*")) if file.is_file())
        return hashlib.sha256("\n".join(inside).encode(errors="surrogateescape")).hexdigest()
    now = place.stat()
    return _of_file(place, now.st_size, now.st_mtime_ns)


@lru_cache(maxsize=10_000)
def _of_file(path: Path, size: int, changed_ns: int) -> str:
    """Return the SHA-256 of a file, which is read again if its size or time of change differ."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
