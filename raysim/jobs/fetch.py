"""Downloads the run folder of a job through the Jobs API alone.

Any user of a cluster can submit a job and write its log. So no file is written outside the one folder that is made for
the download, and everything that is read has a bound.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import secrets
import shlex
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from raysim.common.errors import RunError, ScenarioError
from raysim.common.text import is_name, one_line
from raysim.jobs import archive
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import JobLog, LineBuffer
from raysim.jobs.watch import Job, look, wait

HELPER = "raysim-fetch"
"""The prefix of the ids of helper jobs."""

START_S = 60.0
"""How long a helper job may print nothing, in seconds."""

LONGEST_S = 900.0
"""How long all of a folder may take to arrive, in seconds; the helper itself waits for no more than `archive.WAIT_S`
once it has printed it."""

LINE = archive.WIDTH * 4 // 3
"""The most characters of a line of an archive."""

BEFORE = 1 << 20
"""The most characters in a helper's log before the archive."""

MONITOR_S = 2.5
"""How long Ray's monitor, which runs once a second, may record a job again that has ended, in seconds."""


def fetch(
    cluster: Cluster, job: str, output: Path | None, checkpoints: bool, *, through_ray: bool = False
) -> tuple[Path, int]:
    """Download a job's run folder to `output`, by default ./runs/<scenario>/<run id>; returns it and the file count.

    A folder on this machine or a shared disk is copied, unless `through_ray`. Fetching again replaces the files, so a
    run can be fetched while it runs and after it ended.

    Raises `ScenarioError` when there is no such job, it has no run folder, or `output` holds something else; `RunError`
    when the folder did not arrive whole; then `output` is unchanged.
    """
    found, log = look(cluster, job)
    source = _source(found, log)
    target = output or _default(found, log)
    try:
        _check_target(target, log.run_id)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
            part = Path(temporary) / "run"
            part.mkdir()
            if not through_ray and _run_id(Path(source)) == log.run_id:
                _copy(Path(source), checkpoints, part)
            else:
                with tempfile.TemporaryFile() as file:
                    receive(cluster, source, checkpoints, file)
                    unpack(file, part)
            return target, _move(part, target)
    except OSError as error:
        raise RunError(f"{error.filename or target}: {(error.strerror or str(error)).lower()}") from None


def _default(job: Job, log: JobLog) -> Path:
    name = job.name or PurePosixPath(log.run_folder).parent.name
    if not is_name(name):
        raise ScenarioError(f"{job.id}: its scenario is unknown; name a folder for it with -o FOLDER")
    return Path("runs") / name / log.run_id


def _source(job: Job, log: JobLog) -> str:
    if log.run_folder:
        if "://" in log.run_folder:
            raise ScenarioError(f"{job.id}: its results are at {log.run_folder}: read them from there")
        return log.run_folder
    if job.ended:
        raise ScenarioError(f"{job.id}: {job.state} before it had a run folder (`raysim logs {job.id}` shows why)")
    raise ScenarioError(
        f"{job.id}: {job.state}, and its run has no folder yet; try again when `raysim logs` shows rounds"
    )


def _check_target(target: Path, run_id: str) -> None:
    if target.exists() and not target.is_dir():
        raise ScenarioError(f"-o: {target} is a file; allowed: a new or empty folder, or one that holds this run")
    if target.is_dir() and any(target.iterdir()) and _run_id(target) != run_id:
        raise ScenarioError(f"-o: {target} holds something else; allowed: a new or empty folder, or one with this run")


def _run_id(folder: Path) -> str | None:
    """The run that a folder holds; None where there is none, or it cannot be read."""
    try:
        return str(json.loads((folder / "summary.json").read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _copy(source: Path, checkpoints: bool, into: Path) -> None:
    for file in archive.list_files(source, checkpoints):
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # as in archive.send
            shutil.copyfile(source / file, into / file)


def _move(part: Path, target: Path) -> int:
    """Move `part` to `target` if that is new, else its files into `target`; returns their number."""
    files = [file.relative_to(part) for file in part.rglob("*") if file.is_file()]
    if not target.exists() or not any(target.iterdir()):
        part.replace(target)
        return len(files)
    for file in files:  # checked before the first move: either all are moved or none
        for place in (target / file, *(target / above for above in file.parents[:-1])):
            if place.is_symlink() or (place.exists() and place.is_dir() == (place == target / file)):
                raise ScenarioError(f"-o: {place} is in the way of the run's files; allowed: a new or empty folder")
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (part / file).replace(target / file)
    return len(files)


def receive(cluster: Cluster, folder: str, checkpoints: bool, file: IO[bytes]) -> None:
    """Let a helper job on the head node print `folder`, and write the archive to `file`.

    Raises `ScenarioError` when the folder does not exist or is too large, `RunError` when it did not arrive whole.
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
                raise RunError(_cut(receiver, "the helper job ended early")) from None
            except TimeoutError:
                raise RunError(_cut(receiver, f"nothing came for {START_S:.0f} s")) from None
            except Exception:  # those of Ray and of aiohttp
                raise RunError(_cut(receiver, "the connection broke")) from None
            receiver.feed(piece)
            if time.monotonic() > until:
                raise RunError(_cut(receiver, f"it had not arrived after {LONGEST_S / 60:.0f} min"))


def _cut(receiver: Receiver, reason: str) -> str:
    last = f": {receiver.last}" if receiver.last else ""
    return f"the run folder did not arrive ({reason}{last}); fetch again"


def _remove(cluster: Cluster, helper: str) -> None:
    """Stop the helper job, which then empties its log, and delete it from Ray's list."""
    with contextlib.suppress(RunError):  # it ends by itself in minutes, and the folder has arrived
        cluster.call("stop_job", helper)
        wait(cluster, helper, 10.0)
        time.sleep(MONITOR_S)
        cluster.call("delete_job", helper)


class Receiver:
    """Reads the helper's log in pieces and writes the archive in it to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.whole = False
        self.last = ""  # the last line outside the archive
        self._file, self._sha, self._size, self._lines = file, hashlib.sha256(), 0, LineBuffer(2 * LINE)
        self._before = BEFORE  # characters left before the archive must begin
        self._most: int | None = None  # the most bytes of the archive; None before it begins

    def feed(self, text: str) -> None:
        """Read a piece. Raises `ScenarioError` with the helper's error, `RunError` for a damaged archive."""
        if self._most is None:
            self._before -= len(text)
        for line in self._lines.feed(text):
            self._line(line)
        if self._most is None and self._before < 0:
            raise RunError("the run folder did not arrive (the helper job printed something else); fetch again")

    def _line(self, line: str) -> None:
        if self.whole:
            return
        if line.startswith(archive.REFUSED):
            raise ScenarioError(one_line(line.removeprefix(archive.REFUSED)))
        if line.startswith(archive.BEGIN) and self._most is None:
            self._begin(_object(line.removeprefix(archive.BEGIN)))
        elif line.startswith(archive.END):
            self._check(_object(line.removeprefix(archive.END)))
        elif self._most is None:
            self.last = one_line(line)
        elif len(line) > LINE:
            raise RunError("the run folder arrived damaged (a line is too long); fetch again")
        else:
            self._take(line)

    def _begin(self, header: Mapping[str, Any]) -> None:
        size = header.get("bytes")
        if not isinstance(size, int) or not 0 <= size <= archive.LIMIT:
            raise RunError(f"the run folder did not arrive (its size is given as {one_line(repr(size), 40)})")
        self._most = 2 * size + (16 << 20)  # files may grow while they are packed

    def _take(self, line: str) -> None:
        try:
            data = base64.b64decode(line, validate=True)
        except ValueError:
            raise RunError("the run folder arrived damaged (a line is not base64); fetch again") from None
        self._sha.update(data)
        self._size += len(data)
        if self._size > (self._most or 0):
            raise RunError("the run folder did not arrive (it is larger than announced); fetch again")
        self._file.write(data)

    def _check(self, trailer: Mapping[str, Any]) -> None:
        if trailer != {"sha256": self._sha.hexdigest(), "bytes": self._size}:
            announced = one_line(repr(trailer.get("bytes")), 40)
            raise RunError(f"the run folder arrived damaged ({self._size} of {announced} bytes); fetch again")
        self.whole = True


def _object(text: str) -> Mapping[str, Any]:
    """The mapping in a JSON text; empty for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def unpack(file: IO[bytes], into: Path, limit: int = archive.LIMIT, most: int = archive.FILES) -> None:
    """Unpack a tar.gz into the new folder `into`: at most `most` files with `limit` bytes.

    Python's tarfile reads extended headers into memory, whatever length they claim. So this reads the headers itself;
    `archive.send` writes plain ones only.

    Raises `RunError` for a name outside of the folder, a link or device (before it is written), and for an archive that
    is damaged or too large.
    """
    file.seek(0)
    files, left = 0, limit
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            while (block := packed.read(tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
                member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
                if not member.isreg() or member.size < 0 or not archive.is_plain(member.name):
                    what = one_line(repr(member.name), 200)
                    raise RunError(f"the archive holds {what}, which is no file of a run folder; nothing was fetched")
                files, left = files + 1, left - member.size
                if files > most:
                    raise RunError(f"the archive holds more than {most} files; nothing was fetched")
                if left < 0:
                    raise RunError(f"the archive is larger than {limit} bytes; nothing was fetched")
                target = into / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as out:
                    _copy_bytes(packed, out, member.size)
                packed.read(-member.size % tarfile.BLOCKSIZE)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise RunError(
            f"the archive cannot be unpacked ({one_line(str(error)).lower()}); nothing was fetched"
        ) from None


def _copy_bytes(source: gzip.GzipFile, target: IO[bytes], size: int) -> None:
    while size:
        piece = source.read(min(size, 1 << 20))
        if not piece:
            raise EOFError("it is cut off")
        target.write(piece)
        size -= len(piece)
