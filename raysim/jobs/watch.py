"""State of jobs; functions to follow and stop them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysim.common.errors import RunError
from raysim.common.text import is_name, one_line
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import JobLog, read_log, visible
from raysim.jobs.submit import STOP_S

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
STOPPED_CODE = 130
POLL_S = 0.5
LOG_PER_S = 1e6  # characters; long logs are requested less often
RECONNECT_S = 60.0
"""How long `follow` retries when a cluster has stopped answering, in seconds."""


@dataclass(frozen=True)
class Job:
    """The state of a job.

    Any user can submit a job, so its text is made safe for a terminal, and `name` is checked to be a valid folder name.
    """

    id: str
    state: str  # PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED
    name: str  # the scenario's name; "" if it is not valid
    algorithm: str
    began_s: float  # since the epoch
    ended_s: float | None
    exit_code: int | None
    message: str  # Ray's message

    @classmethod
    def of(cls, info: Any) -> Job:
        """Convert Ray's `JobDetails`."""
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
        """Whether the job has ended."""
        return self.state in ENDED

    @property
    def seconds(self) -> float:
        """The job's duration so far, including the time that it waited to start."""
        return max(0.0, (self.ended_s or time.time()) - self.began_s)

    @property
    def code(self) -> int:
        """The exit code that `raysim launch` would have returned."""
        if self.state == "SUCCEEDED":
            return 0
        if self.state == "STOPPED":
            return STOPPED_CODE
        return self.exit_code if self.exit_code in {1, 2, STOPPED_CODE} else 1


def _seconds(milliseconds: int | None) -> float | None:
    """Convert a time to seconds; None if it is not positive or over a thousand years after the epoch."""
    return milliseconds / 1000 if milliseconds and 0 < milliseconds < 1 << 45 else None


def look(cluster: Cluster, job: str) -> tuple[Job, JobLog]:
    """Return a job's state and the facts in its log. Raises `ScenarioError` if there is no such job."""
    status = Job.of(cluster.info(job))
    return status, read_log(cluster.log(job))


def why(job: Job, log: JobLog) -> str:
    """The reason why a job failed, as one sentence."""
    if log.problem:
        return log.problem
    if job.exit_code == 127:
        return "there is no `python` on the cluster's PATH: activate the Python environment before `ray start`"
    if job.exit_code is not None and job.exit_code != 0:
        return f"the job ended with exit code {job.exit_code} (`raysim logs {job.id}` shows its output)"
    return next((one_line(line) for line in job.message.splitlines() if line.strip()), "Ray gives no reason")


def stop(cluster: Cluster, job: str) -> Job:
    """Stop a job and wait until it has ended, which takes seconds because the run writes its results.

    Returns the job's new state. Raises `ScenarioError` if there is no such job, `RunError` if it does not end.
    """
    status = Job.of(cluster.info(job))
    if status.ended:
        return status
    cluster.call("stop_job", job)
    return wait(cluster, job, STOP_S + 3.0)


def wait(cluster: Cluster, job: str, seconds: float) -> Job:
    """Wait until a job has ended. Raises `RunError` if it has not ended after `seconds`."""
    until = time.monotonic() + seconds
    while not (status := Job.of(cluster.call("get_job_info", job))).ended:
        if time.monotonic() > until:
            text = f"the job was asked to stop, but is still {status.state} after {seconds:.0f} s"
            raise RunError(f"{job}: {text}; run `raysim stop {job}` again")
        time.sleep(POLL_S / 5)
    return status


def follow(cluster: Cluster, job: str, write: Callable[[str], object]) -> Job:
    """Write the output of a job until it has ended; returns its last state.

    Polls for the whole log, because a stream would break with its connection and does not pass proxies. Raises
    `ScenarioError` if there is no such job, `RunError` if the cluster does not answer for `RECONNECT_S`.
    """
    cluster.info(job)
    written = 0  # characters of the log
    answered_s = time.monotonic()
    while True:
        try:
            status = Job.of(cluster.call("get_job_info", job))
            text = cluster.log(job)
            answered_s = time.monotonic()
        except RunError:
            if time.monotonic() - answered_s > RECONNECT_S:
                raise
            time.sleep(POLL_S)
            continue
        end = len(text) if status.ended else text.rfind("\n") + 1
        write(visible(text[written:end]))
        written = max(written, end)
        if status.ended:
            return status
        time.sleep(POLL_S + len(text) / LOG_PER_S)
