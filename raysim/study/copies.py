"""Copies of a sweep's folder at an address that fsspec supports, for an `output` such as `s3://bucket/runs`.

Runs write to a local folder. Each run that ends is uploaded, and a sweep that begins downloads the runs that its local
folder lacks: the next cluster may have another disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.results import LOCK
from raysim.common.text import cause
from raysim.engine.checkpoint.storage import open_storage

if TYPE_CHECKING:
    from raysim.study.cells import Sweep

SUMMARY = "summary.json"

STATES = ("clients.arrows", "clients.parquet", "checkpoints/")
"""Files of a run's state. An upload removes outdated ones at the address."""


def download(sweep: Sweep) -> None:
    """Download the runs that exist only at the address. Does nothing if the sweep has no address.

    Raises `ScenarioError` if the address cannot be read.
    """
    if not sweep.address:
        return
    try:
        fs, root = _location(sweep)
        names = _sizes(fs, root)
        for run in [name.removesuffix(f"/{SUMMARY}") for name in names if name.count("/") == 2 and SUMMARY in name]:
            if not (sweep.output / run / SUMMARY).exists():
                inside = [name.removeprefix(f"{run}/") for name in names if name.startswith(f"{run}/")]
                with replaced(sweep.output / run) as new:
                    for name in inside:
                        (new / name).parent.mkdir(parents=True, exist_ok=True)
                    fs.get([f"{root}/{run}/{name}" for name in inside], [str(new / name) for name in inside])
    except Exception as error:  # each protocol raises errors of its own
        text = "correct the address, install its fsspec package, or set its credentials in the environment"
        raise ScenarioError(f"output: {sweep.address} cannot be read ({cause(error)}); {text}") from error


def upload(sweep: Sweep, run: Path | None = None) -> None:
    """Copy the files of an ended run to the address; without `run`, all files that are not copied yet.

    Old client rows and checkpoints of the run, which must not be mixed with new ones, are deleted from the copy. Raises
    `RunError`. Does nothing if the sweep has no address.
    """
    if not sweep.address:
        return
    folder = run or sweep.output
    files = {file.relative_to(folder).as_posix(): file for file in _files(folder)}
    try:
        fs, root = _location(sweep)
        root = f"{root}/{folder.relative_to(sweep.output).as_posix()}".removesuffix("/.")
        sizes = _sizes(fs, root)
        if run is None:  # files outside of runs are always copied, because they may change without changing their size
            files = {
                name: file
                for name, file in files.items()
                if name.count("/") < 2 or sizes.get(name) != file.stat().st_size
            }
        old = [name for name in sizes if run and name.startswith(STATES) and name not in files]
        _put(fs, root, {name: file for name, file in files.items() if file.name != SUMMARY})
        # Old files are removed after the upload: if it fails, the checkpoints in the old summary must still exist.
        for name in old:
            fs.rm_file(f"{root}/{name}")  # `rm` would treat characters such as * in the address as patterns
        _put(fs, root, {name: file for name, file in files.items() if file.name == SUMMARY})
    except Exception as error:
        text = f"output: the results in {folder} could not be copied to {sweep.address} ({cause(error)})"
        raise RunError(f"{text}; run the same command to try again") from error


def _files(folder: Path) -> list[Path]:
    """Return all files below a folder, except hidden files (such as locks) and files in hidden folders."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _put(fs: Any, root: str, files: Mapping[str, Path]) -> None:
    for parent in sorted({f"{root}/{name}".rpartition("/")[0] for name in files}):
        fs.makedirs(parent, exist_ok=True)
    if files:
        fs.put([str(file) for file in files.values()], [f"{root}/{name}" for name in files])


def _location(sweep: Sweep) -> tuple[Any, str]:
    fs, root = open_storage(sweep.address).location
    fs.invalidate_cache()
    return fs, str(root).rstrip("/")


def _sizes(fs: Any, root: str) -> dict[str, int]:
    """Return path relative to `root` -> size, for each file at the address."""
    found = fs.find(root, detail=True) if fs.exists(root) else {}
    return {str(name)[len(root) + 1 :]: int(facts["size"]) for name, facts in found.items()}


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yield a new run folder, which replaces `folder` at the end of the block."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".received-", dir=folder.parent) as temporary:
        new = Path(temporary, "new")
        (new / LOCK).parent.mkdir(parents=True)
        (new / LOCK).touch()  # archives omit this hidden file; without it, a killed run would count as running
        yield new
        if folder.exists():
            # Deleted with the temporary folder, after the new one has replaced it.
            folder.rename(Path(temporary, "old"))
        new.rename(folder)
