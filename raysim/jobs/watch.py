"""Looks at jobs and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysim.common.errors import RunError
from raysim.common.text import is_name, one_line
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import JobLog, LogFilter, read_log
from raysim.jobs.submit import STOP_S

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
STOPPED_CODE = 130
LOOK_EVERY_S = 0.5
PATIENCE_S = 60.0
"""How long `follow` keeps asking a cluster that has stopped answering, in seconds."""


@dataclass(frozen=True)
class Job:
    """A job as it stands. Text is fit for a terminal, and `name` for a folder: anybody can submit a job."""

    id: str
    state: str  # PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED
    name: str  # of the scenario; empty where it is none
    algorithm: str
    began_s: float  # since the epoch
    ended_s: float | None
    exit_code: int | None
    message: str  # Ray's own words

    @classmethod
    def of(cls, info: Any) -> Job:
        """From Ray's `JobDetails`."""
        known = info.metadata or {}
        name = known.get("name", "")
        return cls(
            id=one_line(info.submission_id),
            state=one_line(str(getattr(info.status, "value", info.status))),
            name=name if is_name(name) else "",
            algorithm=one_line(known.get("algorithm", "")),
            began_s=_seconds(info.start_time) or 0.0,
            ended_s=_seconds(info.end_time),
            exit_code=info.driver_exit_code,
            message=info.message or "",
        )

    @property
    def ended(self) -> bool:
        """Whether it runs no more, and will not."""
        return self.state in ENDED

    @property
    def seconds(self) -> float:
        """How long it has been there, waiting for its turn included."""
        return max(0.0, (self.ended_s or time.time()) - self.began_s)

    @property
    def code(self) -> int:
        """The exit code that `raysim launch` would have ended with."""
        if self.state == "SUCCEEDED":
            return 0
        if self.state == "STOPPED":
            return STOPPED_CODE
        return self.exit_code if self.exit_code in {1, 2, STOPPED_CODE} else 1


def _seconds(milliseconds: int | None) -> float | None:
    """A time, if it is one of the next thousand years."""
    return milliseconds / 1000 if milliseconds and 0 < milliseconds < 1 << 45 else None


def look(cluster: Cluster, job: str) -> tuple[Job, JobLog]:
    """A job and what its log tells. Raises `ScenarioError` when there is no such job."""
    found = Job.of(cluster.info(job))
    return found, read_log(cluster.log(job))


def why(job: Job, told: JobLog) -> str:
    """Why a job failed, as one sentence."""
    if told.problem:
        return told.problem
    if job.exit_code == 127:
        return "there is no `python` on the cluster's PATH: start Ray with its environment activated"
    if job.exit_code is not None and job.exit_code != 0:
        return f"it ended with exit code {job.exit_code} (`raysim logs {job.id}` shows what it printed)"
    return next((one_line(line) for line in job.message.splitlines() if line.strip()), "Ray gives no reason")


def stop(cluster: Cluster, job: str) -> Job:
    """Ask a job to end and wait until it has, which takes the run seconds: it writes what was done.

    Returns the job as it then stands; one that had ended before is left as it is. Raises `ScenarioError` when there
    is no such job, `RunError` when it goes on after all.
    """
    found = Job.of(cluster.info(job))
    if found.ended:
        return found
    cluster.call("stop_job", job)
    return wait(cluster, job, STOP_S + 3.0)


def wait(cluster: Cluster, job: str, seconds: float) -> Job:
    """The job, once it has ended. Raises `RunError` when it has not after so many seconds."""
    until = time.monotonic() + seconds
    while not (found := Job.of(cluster.call("get_job_info", job))).ended:
        if time.monotonic() > until:
            raise RunError(f"{job}: it was asked to stop, but is {found.state} after {seconds:.0f} s")
        time.sleep(LOOK_EVERY_S / 5)
    return found


def follow(cluster: Cluster, job: str, write: Callable[[str], object]) -> Job:
    """Pass on what a job prints until it has ended; returns it as it then stands.

    A connection that breaks is made anew, without repeating or leaving out anything. Raises `ScenarioError` when
    there is no such job, `RunError` when the cluster stays away for `PATIENCE_S`.
    """
    cluster.info(job)
    return asyncio.run(_follow(cluster, job, write))


async def _follow(cluster: Cluster, job: str, write: Callable[[str], object]) -> Job:
    lines = LogFilter()
    shown = 0  # characters of the log that were passed on

    async def show() -> None:
        nonlocal shown
        seen = 0
        async with contextlib.aclosing(cluster.client.tail_job_logs(job)) as pieces:
            async for piece in pieces:
                new = piece[max(0, shown - seen) :]
                seen += len(piece)
                shown += len(new)
                write(lines.feed(new))

    async def catch_up() -> None:
        nonlocal shown
        new = (await asyncio.to_thread(cluster.log, job))[shown:]
        shown += len(new)
        write(lines.feed(new))

    last_s = time.monotonic()
    showing = asyncio.create_task(show())
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            found = Job.of(await asyncio.to_thread(cluster.call, "get_job_info", job))
            last_s = time.monotonic()
        except RunError:
            if time.monotonic() - last_s > PATIENCE_S:
                raise
            continue
        if found.ended:
            break
        if showing.done():
            showing.exception()  # broken, or not let through by a proxy; that the job is there was just asked
            with contextlib.suppress(RunError):
                await catch_up()
            showing = asyncio.create_task(show())
    showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)
    await catch_up()  # Ray looks for new lines every second or two; the last ones are had at once this way
    write(lines.end())
    return found
