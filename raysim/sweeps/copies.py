"""Copies of a sweep's folder at an address that fsspec supports: an `output` such as `s3://bucket/runs`.

Runs write to a local folder. Each run that ends is uploaded, and a sweep that begins downloads the runs that its local
folder lacks: the next cluster may have another disk.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.files import reason
from raysim.common.results import LOCK
from raysim.common.text import holds_secret
from raysim.engine.checkpoint.storage import is_process_memory, local_folder, open_storage
from raysim.report.load import read_summary, rounds_done
from raysim.scenario.parse import ParsedScenario
from raysim.sweeps.run_cell import replaced

if TYPE_CHECKING:
    from raysim.sweeps.cells import Sweep

SUMMARY = "summary.json"


def check_address(scenario: ParsedScenario, folder: Path) -> None:
    """Raise `ScenarioError` if the address in `output` must not be used. `download` checks whether it can be used.

    folder: the local folder of the sweep, which must not be copied to itself.
    """
    if holds_secret(scenario.output):
        raise scenario.origin.error(
            ("output",),
            "the address contains a user name, password or token; remove it, and set the environment variables that "
            "the fsspec package for this address reads, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    if is_process_memory(scenario.output):
        raise scenario.origin.error(
            ("output",),
            f"{scenario.output} given, but results in the memory of this process are lost when it ends; choose a "
            "folder, or an address of other storage",
        )
    local = local_folder(scenario.output.rpartition("::")[2])
    if local is not None and (local / folder.name).resolve().is_relative_to(folder.resolve()):
        raise scenario.origin.error(
            ("output",),
            f"{scenario.output} given, but the sweep runs in {folder}, so its results cannot be copied there; write "
            f"{folder.parent.name}, or the address of another folder",
        )


def download(sweep: Sweep) -> None:
    """Download the runs that are only at the address, or have come further there.

    Raises `ScenarioError` if the address cannot be read. Does nothing if the sweep has no address.
    """
    if not sweep.address:
        return
    try:
        fs, root = _location(sweep)
        names = _sizes(fs, root)
        for run in [name.removesuffix(f"/{SUMMARY}") for name in names if name.count("/") == 2 and SUMMARY in name]:
            if _is_newer(fs, f"{root}/{run}", sweep.output / run):
                inside = [name.removeprefix(f"{run}/") for name in names if name.startswith(f"{run}/")]
                with replaced(sweep.output / run) as new:
                    for name in (LOCK, *inside):
                        (new / name).parent.mkdir(parents=True, exist_ok=True)
                    (new / LOCK).touch()  # not locked: without the file, a run that was killed would count as running
                    fs.get([f"{root}/{run}/{name}" for name in inside], [str(new / name) for name in inside])
    except ScenarioError:  # a damaged file in the local folder
        raise
    except Exception as error:  # each protocol has its own errors
        text = "correct the address, install its fsspec package, or set its credentials in the environment"
        raise ScenarioError(f"output: {sweep.address} cannot be read ({_words(error)}); {text}") from error


def _is_newer(fs: Any, there: str, local: Path) -> bool:
    """Return whether the local folder lacks a run, or the run has come further at the address."""
    if not (local / SUMMARY).exists():
        return True
    here = read_summary(local)
    if here.get("status") in ("finished", "closing", "running"):
        return False
    copied = json.loads(fs.cat_file(f"{there}/{SUMMARY}"))
    return bool(copied.get("status") == "finished" or (copied.get("rounds") or 0) > rounds_done(local, here))


def upload_run(sweep: Sweep, folder: Path) -> None:
    """Make the copy of a run's folder equal to the folder, after the run has ended.

    Old client rows and checkpoints, which must not be mixed with new ones, are deleted from the copy. Raises
    `RunError`. Does nothing if the sweep has no address.
    """
    if not sweep.address:
        return
    files = _files(folder)
    kept = {file.relative_to(folder).as_posix() for file in files}
    try:
        fs, root = _location(sweep)
        copied = f"{root}/{folder.relative_to(sweep.output).as_posix()}"
        states = ("clients.arrows", "clients.parquet", "checkpoints/")
        old = [name for name in _sizes(fs, copied) if name.startswith(states) and name not in kept]
        _put(fs, root, sweep, [file for file in files if file.name != SUMMARY])
        # Not earlier: if the upload fails, the copy must still have the checkpoints that its summary names.
        for name in old:
            fs.rm_file(f"{copied}/{name}")  # `rm` would expand characters such as * in the address
        _put(fs, root, sweep, [file for file in files if file.name == SUMMARY])
    except Exception as error:
        raise _failure(sweep, error) from error


def upload(sweep: Sweep) -> None:
    """Upload the comparison, the files beside it, and all others that are missing there or have another size.

    Raises `RunError`. Does nothing if the sweep has no address.
    """
    if not sweep.address:
        return
    try:
        fs, root = _location(sweep)
        sizes = _sizes(fs, root)
        names = {file.relative_to(sweep.output): file for file in _files(sweep.output)}
        # The comparison and the files beside it may change without another size.
        changed = [
            file
            for name, file in names.items()
            if len(name.parts) < 3 or sizes.get(name.as_posix()) != file.stat().st_size
        ]
        _put(fs, root, sweep, changed)
    except Exception as error:
        raise _failure(sweep, error) from error


def _files(folder: Path) -> list[Path]:
    """Return all files below a folder, except hidden ones such as locks, and except those in hidden folders."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _put(fs: Any, root: str, sweep: Sweep, files: Collection[Path]) -> None:
    names = [f"{root}/{file.relative_to(sweep.output).as_posix()}" for file in files]
    for parent in sorted({name.rpartition("/")[0] for name in names}):
        fs.makedirs(parent, exist_ok=True)
    if files:
        fs.put([str(file) for file in files], names)


def _failure(sweep: Sweep, error: Exception) -> RunError:
    return RunError(f"output: the results in {sweep.output} could not be copied to {sweep.address} ({_words(error)})")


def _location(sweep: Sweep) -> tuple[Any, str]:
    fs, root = open_storage(sweep.address).location
    fs.invalidate_cache()
    return fs, str(root).rstrip("/")


def _sizes(fs: Any, root: str) -> dict[str, int]:
    """Path of each file at the address, relative to `root` -> its size."""
    found = fs.find(root, detail=True) if fs.exists(root) else {}
    return {str(name)[len(root) + 1 :]: int(facts["size"]) for name, facts in found.items()}


def _words(error: Exception) -> str:
    text = reason(error) if isinstance(error, OSError) else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]
