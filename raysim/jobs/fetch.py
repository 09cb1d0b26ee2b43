"""Brings the run folder of a job here, through the Jobs API alone."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import secrets
import shlex
import shutil
import tarfile
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import IO, Any

from raysim.core.errors import RunError, ScenarioError
from raysim.jobs import archive
from raysim.jobs.cluster import Cluster
from raysim.jobs.marks import Told
from raysim.jobs.watch import Job, look, wait

HELPER = "raysim-fetch"
"""How the ids of helper jobs begin."""

START_S = 60.0
"""How long a helper job may take to begin to print, in seconds."""

MONITOR_S = 2.5
"""How long Ray's monitor, which looks once a second, may write a job down again that has ended, in seconds."""


def fetch(
    cluster: Cluster, job: str, output: Path | None, checkpoints: bool, *, through_ray: bool = False
) -> tuple[Path, int]:
    """Bring a job's run folder to `output`, by default ./runs/<scenario>/<run id>; returns it and the number of files.

    A folder that can be seen from here (the same machine, a shared disk) is copied, unless `through_ray`. Fetching
    again replaces the files, so a run can be fetched while it goes on and when it has ended.

    Raises `ScenarioError` when there is no such job, it has no run folder, or `output` holds something else; `RunError`
    when the folder did not arrive whole, in which case nothing is changed here.
    """
    found, told = look(cluster, job)
    source = _source(found, told)
    target = output or Path("runs") / (found.name or PurePosixPath(source).parent.name) / told.run_id
    _check_target(target, told.run_id)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
        part = Path(place)
        if not through_ray and _run_id(Path(source)) == told.run_id:
            _copy(Path(source), checkpoints, part)
        else:
            with tempfile.TemporaryFile() as file:
                receive(cluster, source, checkpoints, file)
                unpack(file, part)
        return target, _move(part, target)


def _source(job: Job, told: Told) -> str:
    if told.run_folder:
        if "://" in told.run_folder:
            raise ScenarioError(f"{job.id}: its results are at {told.run_folder}: read them from there")
        return told.run_folder
    if job.ended:
        raise ScenarioError(f"{job.id}: {job.state} before it had a run folder (`raysim logs {job.id}` shows why)")
    raise ScenarioError(f"{job.id}: {job.state}, and its run has no folder yet; try again when rounds are shown")


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
    for file in archive.listed(source, checkpoints):
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # as in archive.send
            shutil.copyfile(source / file, into / file)


def _move(part: Path, target: Path) -> int:
    files = [file.relative_to(part) for file in part.rglob("*") if file.is_file()]
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (part / file).replace(target / file)
    return len(files)


def receive(cluster: Cluster, folder: str, checkpoints: bool, file: IO[bytes]) -> None:
    """Let a helper job on the head node print `folder`, and put the archive into `file`.

    Raises `ScenarioError` when the folder is not there or too large, `RunError` when it did not arrive whole.
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
    async with contextlib.aclosing(cluster.client.tail_job_logs(helper)) as pieces:
        while not receiver.whole:
            try:
                receiver.feed(await asyncio.wait_for(anext(pieces), START_S))
            except StopAsyncIteration:
                raise RunError(_cut(receiver, "the helper job ended early")) from None
            except TimeoutError:
                raise RunError(_cut(receiver, f"nothing came for {START_S:.0f} s")) from None
            except (OSError, RuntimeError) as error:
                if isinstance(error, RunError | ScenarioError):
                    raise
                raise RunError(_cut(receiver, "the connection broke")) from None


def _cut(receiver: Receiver, reason: str) -> str:
    last = f": {receiver.last}" if receiver.last else ""
    return f"the run folder did not arrive ({reason}{last}); fetch again"


def _remove(cluster: Cluster, helper: str) -> None:
    """Stop the helper job, which makes it empty its log, and make Ray forget it."""
    with contextlib.suppress(RunError):  # it ends by itself in minutes; the folder is here
        cluster.call("stop_job", helper)
        wait(cluster, helper, 10.0)
        time.sleep(MONITOR_S)
        cluster.call("delete_job", helper)


class Receiver:
    """Takes the helper's log in pieces and writes the archive in it to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.whole = False
        self.last = ""  # the last line that was not part of the archive
        self._file, self._sha, self._size, self._rest, self._begun = file, hashlib.sha256(), 0, "", False

    def feed(self, text: str) -> None:
        """The next piece. Raises `ScenarioError` with what the helper says, `RunError` for a damaged archive."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line)

    def _line(self, line: str) -> None:
        if self.whole:
            return
        if line.startswith(archive.REFUSED):
            raise ScenarioError(line.removeprefix(archive.REFUSED))
        if line.startswith(archive.BEGIN):
            self._begun = True
        elif line.startswith(archive.END):
            self._check(json.loads(line.removeprefix(archive.END)))
        elif self._begun:
            try:
                data = base64.b64decode(line, validate=True)
            except binascii.Error:
                raise RunError("the run folder arrived damaged (a line is not base64); fetch again") from None
            self._sha.update(data)
            self._size += len(data)
            self._file.write(data)
        else:
            self.last = line

    def _check(self, told: dict[str, Any]) -> None:
        if told != {"sha256": self._sha.hexdigest(), "bytes": self._size}:
            raise RunError(f"the run folder arrived damaged ({self._size} of {told.get('bytes')} bytes); fetch again")
        self.whole = True


def unpack(file: IO[bytes], into: Path, limit: int = archive.LIMIT) -> None:
    """Unpack a tar.gz into the folder `into`, regular files only.

    Raises `RunError`, before anything of the kind is written, for a name outside of it, a link or device, an archive
    that is damaged or larger than `limit`.
    """
    file.seek(0)
    left = limit
    try:
        with tarfile.open(fileobj=file, mode="r|gz") as tar:
            for member in tar:
                left -= member.size
                target = into / _safe(member)
                if left < 0:
                    raise RunError(f"the archive is larger than {limit} bytes; nothing was fetched")
                target.parent.mkdir(parents=True, exist_ok=True)
                source = tar.extractfile(member)
                assert source is not None
                with target.open("xb") as out:
                    shutil.copyfileobj(source, out)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise RunError(f"the archive cannot be unpacked ({str(error).lower()}); nothing was fetched") from None


def _safe(member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if not member.isreg() or path.is_absolute() or ".." in path.parts or not path.parts or "\\" in member.name:
        raise RunError(f"the archive holds {member.name!r}, which is no file of a run folder; nothing was fetched")
    return path
