"""Access to a cluster through its Jobs API: the connection, the list of jobs, and the download of run folders.

A run folder is on the head node's disk, which the user's machine may not reach. The Jobs API cannot return files. So
the only channel that every cluster has is a job's log.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import secrets
import shlex
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from raysim.common import archive
from raysim.common.errors import RaysimError, RunError, ScenarioError
from raysim.common.text import cause, holds_secret, redacted
from raysim.jobs.job_log import read_log
from raysim.results.store import bypass_proxy, is_loopback

KIND = "raysim"
"""The metadata key that marks raysim's jobs. Its value is the version of raysim."""


@contextlib.contextmanager
def connect(address: str) -> Iterator[Any]:
    """Yield a `JobSubmissionClient` for a dashboard. Inside the block, its errors become one sentence."""
    if holds_secret(address):
        raise ScenarioError(
            f"--address: {redacted(address)} contains a password; remove it, and put the cluster's token into "
            "RAY_AUTH_TOKEN"
        )
    if is_loopback(address):
        bypass_proxy()
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray").setLevel(logging.WARNING)  # Ray logs every upload and every closed connection
    # The client would prefer this variable to `address`, although `--address` overrides it.
    os.environ.pop("RAY_API_SERVER_ADDRESS", None)
    try:
        yield JobSubmissionClient(address)
    except AuthenticationError as error:
        raise ScenarioError(f"{address}: {' '.join(str(error).split())}") from None
    except ConnectionError:
        raise ScenarioError(
            f"{address} does not answer: check that Ray is running and that this is its dashboard's address"
        ) from None
    except (OSError, RuntimeError) as error:
        # An error with a number comes from this machine's disk.
        if isinstance(error, RaysimError) or getattr(error, "errno", None) is not None:
            raise
        reason = str(error).strip(" .\n").splitlines()[-1]  # Ray sends a traceback, whose last line is the reason
        raise (ScenarioError if "status code 404" in reason else RunError)(f"{address}: {reason}") from None


def jobs_of(client: Any) -> list[Any]:
    """Return Ray's `JobDetails` of all jobs that raysim submitted, newest first."""
    jobs = [job for job in client.list_jobs() if KIND in (job.metadata or {})]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)


def fetch(client: Any, job: str, output: Path | None, checkpoints: bool) -> tuple[Path, int]:
    """Download a job's run folder to `output`; return the folder and the number of files.

    The default of `output` is ./runs/<scenario>/<run id>. For a sweep the folder contains all cells, and the default is
    ./runs/<sweep>. Fetching again replaces the files, so a run can be fetched while it runs and again after its end.

    Raises `ScenarioError` if the job has no run folder; `RunError` if the folder did not arrive complete, and then
    `output` is unchanged.
    """
    log = read_log(client.get_job_logs(job))
    if not log.run_folder:
        raise ScenarioError(f"{job}: the job has no run folder so far (`raysim logs {job}` shows its output)")
    target = output or Path("runs", *PurePosixPath(log.run_folder).parts[-1 if log.sweep else -2 :])
    with tempfile.TemporaryFile() as file:
        asyncio.run(_receive(client, log.run_folder, checkpoints, file))
        with zipfile.ZipFile(file) as received:
            names = received.namelist()
            # Client rows are in clients.arrows during a run, and in clients.parquet after its end.
            for rows in (target / name for name in names if PurePosixPath(name).stem == "clients"):
                for suffix in (".arrows", ".parquet"):
                    rows.with_suffix(suffix).unlink(missing_ok=True)
            received.extractall(target)
    return target, len(names)


async def _receive(client: Any, folder: str, checkpoints: bool, file: IO[bytes]) -> None:
    """Start a helper job on the head node, which prints `folder` as an archive; write this archive to `file`."""
    program = Path(archive.__file__).read_text(encoding="utf-8")
    words = ["python", "-c", program, folder, *(["--checkpoints"] if checkpoints else [])]
    helper = client.submit_job(
        entrypoint=f"exec {shlex.join(words)}", submission_id=f"raysim-fetch-{secrets.token_hex(6)}"
    )
    begun, last, rest = False, "", ""
    try:
        async with contextlib.aclosing(client.tail_job_logs(helper)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split("\n")
                for line in lines:
                    if line == archive.END:
                        return
                    if begun:
                        file.write(base64.b64decode(line))
                    else:
                        begun, last = line == archive.BEGIN, line
    except Exception as error:  # aiohttp raises errors of its own if the connection breaks
        last = cause(error)
    finally:
        client.stop_job(helper)  # the helper then empties its log, which contains the whole folder
    raise RunError(f"the run folder was not received ({last}); fetch again")
