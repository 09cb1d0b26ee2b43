"""Downloads the run folder of a job, using only the Jobs API.

A run folder has a lock, files that grow and files that are replaced atomically, so it is on the head node's disk, not
at an fsspec address. MLflow receives neither checkpoints nor the files of a run in progress, and the user's machine may
not reach its server. The Jobs API cannot return files. So the only channel that every cluster has is a job's log.

Any user of a cluster can submit a job and write its log. So the download writes only inside its own new folder, and
bounds everything that it reads.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import secrets
import shlex
import tempfile
import time
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from raysim.common.errors import RunError, ScenarioError
from raysim.common.text import is_name, one_line
from raysim.jobs import archive
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import JobLog
from raysim.jobs.watch import Job, look, wait

FETCHED = ".fetched"
"""A file in the folder of a downloaded sweep, with the sweep's folder on the cluster."""
HELPER = "raysim-fetch"
"""The prefix of the ids of helper jobs."""

START_S = 60.0
"""The longest pause in a helper job's output, in seconds."""

LONGEST_S = archive.WAIT_S
"""The time limit of a download, in seconds: the helper job empties its log `archive.WAIT_S` after it has printed it."""

LINE = archive.WIDTH * 4 // 3
"""The most characters per line of an archive."""

BEFORE = 1 << 20
"""The most characters in a helper job's log before the archive."""

MONITOR_S = 2.5
"""How long Ray's monitor, which runs once a second, may still record a job that has ended, in seconds."""


def fetch(cluster: Cluster, job: str, output: Path | None, checkpoints: bool) -> tuple[Path, int]:
    """Download a job's run folder to `output`; returns the folder and the number of files.

    The default of `output` is ./runs/<scenario>/<run id>. For a sweep the folder contains all cells, and the default is
    ./runs/<sweep>. Fetching again replaces the files, so a run can be fetched while it runs and again after its end.

    Raises `ScenarioError` if there is no such job, it has no run folder, or `output` contains other files; `RunError`
    if the folder did not arrive complete, and then `output` is unchanged.
    """
    status, log = look(cluster, job)
    source = _source(status, log)
    target = output or _default(status, log)
    try:
        _check_target(target, log)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
            part = Path(temporary) / "run"
            with tempfile.TemporaryFile() as file:
                receive(cluster, source, checkpoints, file)
                unpack(file, part)
            number = _move(part, target)
            if log.sweep:
                (target / FETCHED).write_text(log.run_folder, encoding="utf-8")
            return target, number
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RunError(
            f"{error.filename or target}: cannot be written ({why}); free some space, or choose another folder with -o"
        ) from None


def _default(job: Job, log: JobLog) -> Path:
    if log.sweep:
        return Path("runs") / log.run_id
    name = job.name or PurePosixPath(log.run_folder).parent.name
    if not is_name(name):
        raise ScenarioError(
            f"{job.id}: the scenario of this job is unknown, so there is no default folder; choose a folder with "
            "-o FOLDER"
        )
    return Path("runs") / name / log.run_id


def _source(job: Job, log: JobLog) -> str:
    if log.run_folder:
        return log.run_folder
    if job.ended:
        raise ScenarioError(
            f"{job.id}: the job ended ({job.state}) before it created a run folder (`raysim logs {job.id}` shows why)"
        )
    raise ScenarioError(
        f"{job.id}: the job is {job.state} and has no run folder yet; try again when `raysim logs {job.id}` shows "
        "rounds"
    )


def _check_target(target: Path, log: JobLog) -> None:
    if target.exists() and not target.is_dir():
        raise ScenarioError(
            f"-o: {target} is a file; choose a new or empty folder, or the folder of an earlier download of this run"
        )
    same = target.is_dir() and (_sweep_folder(target) == log.run_folder if log.sweep else _run_id(target) == log.run_id)
    if target.is_dir() and any(target.iterdir()) and not same:
        raise ScenarioError(
            f"-o: {target} contains other files; choose a new or empty folder, or the folder of an earlier download of "
            "this run"
        )


def _sweep_folder(folder: Path) -> str | None:
    """The folder on the cluster from which a sweep was downloaded to `folder`; None if it was not downloaded."""
    try:
        return (folder / FETCHED).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _run_id(folder: Path) -> str | None:
    """The id of the run in a folder; None if there is no run, or it cannot be read."""
    try:
        return str(json.loads((folder / "summary.json").read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _move(part: Path, target: Path) -> int:
    """Move `part` to `target` if that is new or empty, else move its files into `target`; returns their number."""
    files = [file.relative_to(part) for file in part.rglob("*") if file.is_file()]
    if not target.exists() or not any(target.iterdir()):
        part.replace(target)
        return len(files)
    for file in files:  # check all before the first move, so that either all are moved or none
        for place in (target / file, *(target / above for above in file.parents[:-1])):
            if place.is_symlink():
                problem = "is a symbolic link, which a download neither follows nor replaces"
            elif place == target / file and place.is_dir():
                problem = "is a folder, but the download has a file of that name"
            elif place != target / file and place.exists() and not place.is_dir():
                problem = "is a file, but the download has a folder of that name"
            else:
                continue
            raise ScenarioError(f"-o: {place} {problem}; choose a new or empty folder")
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (part / file).replace(target / file)
    for file in files:
        # While a run is running, its client rows are in clients.arrows; after its end, they are in clients.parquet.
        other = {"clients.arrows": "clients.parquet", "clients.parquet": "clients.arrows"}.get(file.name)
        if other is not None and file.with_name(other) not in files:
            (target / file).with_name(other).unlink(missing_ok=True)
    return len(files)


def receive(cluster: Cluster, folder: str, checkpoints: bool, file: IO[bytes]) -> None:
    """Start a helper job on the head node that prints `folder` as an archive, and write the archive to `file`.

    Raises `ScenarioError` if the folder does not exist or is too large, `RunError` if it did not arrive complete.
    """
    program = Path(archive.__file__).read_text(encoding="utf-8")
    words = ["python", "-c", program, folder, *(["--checkpoints"] if checkpoints else [])]
    helper = f"{HELPER}-{secrets.token_hex(6)}"
    cluster.call("submit_job", entrypoint=f"exec {shlex.join(words)}", submission_id=helper)
    try:
        asyncio.run(_receive(cluster, helper, Receiver(file)))
    finally:
        _remove(cluster, helper)


async def _receive(cluster: Cluster, helper: str, receiver: Receiver) -> None:
    until = time.monotonic() + LONGEST_S
    async with contextlib.aclosing(cluster.client.tail_job_logs(helper)) as pieces:
        while not receiver.whole:
            try:
                piece = await asyncio.wait_for(anext(pieces), START_S)
            except StopAsyncIteration:
                raise RunError(_cut(receiver, "the job that sends it ended early")) from None
            except TimeoutError:
                raise RunError(_cut(receiver, f"no data for {START_S:.0f} s")) from None
            except Exception:  # exceptions of Ray and aiohttp
                raise RunError(_cut(receiver, "the connection broke")) from None
            receiver.feed(piece)
            if time.monotonic() > until:
                raise RunError(
                    f"the run folder was not received within {LONGEST_S / 60:.0f} min; copy it from the head node with "
                    "scp or rsync"
                )


def _cut(receiver: Receiver, reason: str) -> str:
    last = f": {receiver.last}" if receiver.last else ""
    return f"the run folder was not received ({reason}{last}); fetch again"


def _remove(cluster: Cluster, helper: str) -> None:
    """Stop the helper job, which then empties its log, and delete it from Ray's list."""
    with contextlib.suppress(RunError):  # the helper would end by itself, and the download is over
        cluster.call("stop_job", helper)
        wait(cluster, helper, 10.0)
        time.sleep(MONITOR_S)
        cluster.call("delete_job", helper)


class Receiver:
    """Reads a helper job's log in pieces, and writes the archive in it to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.whole = False
        self.last = ""  # the last line outside the archive
        self._file, self._rest = file, ""
        self._before = BEFORE  # characters left before the archive must begin
        self._missing: int | None = None  # bytes of the archive; None before it begins

    def feed(self, text: str) -> None:
        """Read a piece of the log. Raises `ScenarioError` with the helper's error, `RunError` for a damaged archive."""
        if self._missing is None:
            self._before -= len(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line)
        if self._missing is None and self._before < 0:
            raise RunError("the run folder was not received (the job that sends it printed other text); fetch again")
        if self._missing is not None and len(self._rest) > LINE:
            raise RunError("the run folder arrived damaged (a line is too long); fetch again")

    def _line(self, line: str) -> None:
        if self.whole:
            return
        if line.startswith(archive.REFUSED):
            raise ScenarioError(one_line(line.removeprefix(archive.REFUSED)))
        if self._missing is not None:
            self._take(line)
        elif line.startswith(archive.BEGIN):
            self._begin(line.removeprefix(archive.BEGIN))
        else:
            self.last = one_line(line)

    def _begin(self, size: str) -> None:
        if not re.fullmatch("[0-9]{1,10}", size) or int(size) > 2 * archive.LIMIT:
            announced = one_line(repr(size), 40)
            raise RunError(f"the run folder was not received (the announced size {announced} is invalid); fetch again")
        self._missing = int(size)

    def _take(self, line: str) -> None:
        assert self._missing is not None
        try:
            data = b"" if line == archive.END else base64.b64decode(line, validate=True)
        except ValueError:
            raise RunError("the run folder arrived damaged (a line is not base64); fetch again") from None
        self._missing -= len(data)
        if self._missing < 0 or (line == archive.END and self._missing):
            raise RunError("the run folder arrived damaged (its size is not the one announced); fetch again")
        self._file.write(data)
        self.whole = line == archive.END


def unpack(file: IO[bytes], into: Path, limit: int = archive.LIMIT, most: int = archive.FILES) -> None:
    """Unpack a zip file into the new folder `into`: at most `most` files, with at most `limit` bytes in total.

    Members are written as files or folders, never as links. Raises `RunError`: before anything is written if a name is
    not `archive.is_plain` or a limit is exceeded, and also if the archive is damaged.
    """
    try:
        with zipfile.ZipFile(file) as packed:
            members = packed.infolist()
            for member in members:
                # Other compression methods may need gigabytes of memory.
                known = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                if not known or not archive.is_plain(member.filename):
                    what = one_line(repr(member.filename), 200)
                    raise RunError(
                        f"the archive contains {what}, which does not belong in a run folder; no file was saved"
                    )
            if len(members) > most:
                raise RunError(f"the archive contains more than {most} files; no file was saved")
            if sum(member.file_size for member in members) > limit:
                raise RunError(f"the archive exceeds {limit} bytes; no file was saved")
            packed.extractall(into)
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error, ValueError, RuntimeError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(f"the archive cannot be unpacked ({one_line(str(error)).lower()}); no file was saved") from None
