"""Copies of a sweep's folder at an address that fsspec supports: an `output` such as `s3://bucket/runs`.

Runs write to a local folder. Each run that ends is uploaded, and a sweep that begins downloads the runs that its local
folder lacks: the next cluster may have another disk.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.files import reason
from raysim.common.results import LOCK
from raysim.common.text import holds_secret
from raysim.engine.checkpoint.storage import is_process_memory, local_folder, open_storage
from raysim.report.load import read_summary, rounds_done
from raysim.scenario.parse import ParsedScenario

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
        runs: dict[PurePosixPath, list[PurePosixPath]] = defaultdict(list)
        for name in _sizes(fs, root):
            path = PurePosixPath(name)
            hidden = any(part.startswith(".") for part in path.parts)
            if len(path.parts) > 2 and not path.is_absolute() and not hidden:  # an object store allows `//` in a key
                runs[PurePosixPath(*path.parts[:2])].append(path)
        for run, files in runs.items():
            if run / SUMMARY in files and _is_newer(fs, root, sweep.output / run, run):
                _download_run(fs, root, sweep.output, run, files)
    except ScenarioError:  # a damaged file in the local folder
        raise
    except Exception as error:  # each protocol has its own errors
        text = "correct the address, install its fsspec package, or set its credentials in the environment"
        raise ScenarioError(f"output: {sweep.address} cannot be read ({_words(error)}); {text}") from error


def upload_run(sweep: Sweep, folder: Path) -> None:
    """Make the copy of a run's folder equal to the folder, after the run has ended.

    Raises `RunError`. Does nothing if the sweep has no address.
    """
    if sweep.address:
        _upload(sweep, _files(folder), folder)


def upload(sweep: Sweep) -> None:
    """Upload the comparison, the files beside it, and all others that are missing there or have another size.

    Raises `RunError`. Does nothing if the sweep has no address.
    """
    if not sweep.address:
        return
    try:
        there = _sizes(*_location(sweep))
    except Exception as error:
        raise _failure(sweep, error) from error
    _upload(sweep, [file for file in _files(sweep.output) if _differs(file, sweep.output, there)])


def _differs(file: Path, folder: Path, there: dict[str, int]) -> bool:
    inside = file.relative_to(folder)
    whole = inside.parts[0] == "comparison" or len(inside.parts) == 1  # may change without another size
    return whole or there.get(inside.as_posix()) != file.stat().st_size


def _files(folder: Path) -> list[Path]:
    """All files below a folder, except hidden ones such as locks, and except those in hidden folders."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    shown = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return sorted(shown)


def _upload(sweep: Sweep, files: Collection[Path], run: Path | None = None) -> None:
    """Upload files. run: a run's folder; old client rows and checkpoints that it lacks are deleted from its copy."""
    try:
        fs, root = _location(sweep)
        old: list[str] = []
        if run is not None:
            copied = f"{root}/{run.relative_to(sweep.output).as_posix()}"
            kept = {file.relative_to(run).as_posix() for file in files}
            old = [f"{copied}/{name}" for name in _sizes(fs, copied) if _is_state(name) and name not in kept]
        _put(fs, root, sweep, [file for file in files if file.name != SUMMARY])
        # Not earlier: if the upload fails, the copy must still have the checkpoints that its summary names.
        for name in old:
            fs.rm_file(name)  # `rm` would expand characters such as * in the address
        _put(fs, root, sweep, [file for file in files if file.name == SUMMARY])
    except Exception as error:
        raise _failure(sweep, error) from error


def _is_state(name: str) -> bool:
    """Whether a file holds client rows or a checkpoint: a run must not be resumed with old and new ones of these."""
    return name in ("clients.arrows", "clients.parquet") or name.startswith("checkpoints/")


def _put(fs: Any, root: str, sweep: Sweep, files: Collection[Path]) -> None:
    names = [f"{root}/{file.relative_to(sweep.output).as_posix()}" for file in files]
    for parent in sorted({name.rpartition("/")[0] for name in names}):
        fs.makedirs(parent, exist_ok=True)
    if files:
        fs.put([str(file) for file in files], names)


def _failure(sweep: Sweep, error: Exception) -> RunError:
    return RunError(
        f"output: the results in {sweep.output} could not be copied to {sweep.address} ({_words(error)}); run the same "
        "command to copy them again"
    )


def _location(sweep: Sweep) -> tuple[Any, str]:
    fs, root = open_storage(sweep.address).location
    fs.invalidate_cache()
    return fs, str(root).rstrip("/")


def _sizes(fs: Any, root: str) -> dict[str, int]:
    """Path of each file at the address, relative to `root` -> its size."""
    found = fs.find(root, detail=True) if fs.exists(root) else {}
    return {str(name)[len(root) + 1 :]: int(facts["size"]) for name, facts in found.items()}


def _is_newer(fs: Any, root: str, local: Path, run: PurePosixPath) -> bool:
    """Whether the local folder lacks a run, or the run has come further at the address."""
    if not (local / SUMMARY).exists():
        return True
    here = read_summary(local)
    if here.get("status") in ("finished", "closing", "running"):
        return False
    try:
        there = json.loads(fs.cat_file(f"{root}/{run}/{SUMMARY}"))
        rounds = there.get("rounds")
        return there.get("status") == "finished" or (isinstance(rounds, int) and rounds > rounds_done(local, here))
    except (ValueError, TypeError, AttributeError):  # the file at the address is damaged
        return False


def _download_run(fs: Any, root: str, output: Path, run: PurePosixPath, files: Iterable[PurePosixPath]) -> None:
    place = output / run
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".received-", dir=place.parent) as temporary:
        new = Path(temporary) / "content"
        names = [file.relative_to(run) for file in files]
        for name in names:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
        (new / LOCK).parent.mkdir(exist_ok=True)
        (new / LOCK).touch()  # not locked: without the file, a run that was killed would count as running
        fs.get([f"{root}/{run}/{name}" for name in names], [str(new / name) for name in names])
        if place.exists():
            shutil.rmtree(place)
        new.rename(place)


def _words(error: Exception) -> str:
    text = reason(error) if isinstance(error, OSError) else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]
