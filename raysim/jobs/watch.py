"""Functions to follow, stop and explain jobs, given as Ray's `JobDetails`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from raysim.jobs.job_log import JobLog, visible

STOP_S = 12
"""Seconds between SIGTERM and SIGKILL when Ray stops a job; Ray's default of 3 is too short to close a run."""

STOPPED_CODE = 130
POLL_S = 0.5
LOG_PER_S = 1e6  # characters; long logs are requested less often
RECONNECT_S = 60.0
"""How long `follow` retries when a cluster has stopped answering, in seconds."""


def exit_code(job: Any) -> int:
    """The exit code that `raysim launch` would have returned."""
    if job.status == "SUCCEEDED":
        return 0
    return STOPPED_CODE if job.status == "STOPPED" else job.driver_exit_code or 1


def why(job: Any, log: JobLog) -> str:
    """The reason why a job failed, as one sentence."""
    if log.problem:
        return log.problem
    if job.driver_exit_code == 127:
        return "there is no `python` on the cluster's PATH: activate the Python environment before `ray start`"
    if job.driver_exit_code:
        shows = f"`raysim logs {job.submission_id}` shows its output"
        return f"the job ended with exit code {job.driver_exit_code} ({shows})"
    return (job.message or "").strip().partition("\n")[0] or "Ray gives no reason"


def stop(client: Any, job: str) -> None:
    """Stop a job and wait until it has ended, which takes seconds because the run writes its results."""
    client.stop_job(job)
    until = time.monotonic() + STOP_S + 3.0
    while not client.get_job_info(job).status.is_terminal() and time.monotonic() < until:
        time.sleep(POLL_S / 5)


def follow(client: Any, job: str, write: Callable[[str], object]) -> Any:
    """Write the output of a job until it has ended; returns its last `JobDetails`.

    Polls for the whole log, because a stream would break with its connection and does not pass proxies. Raises the
    error of Ray's client if the cluster does not answer for `RECONNECT_S`.
    """
    client.get_job_info(job)  # an unknown id is an error that must not be retried
    written = 0  # characters of the log
    answered_s = time.monotonic()
    while True:
        try:
            info = client.get_job_info(job)
            text = client.get_job_logs(job)
            answered_s = time.monotonic()
        except (OSError, RuntimeError):
            if time.monotonic() - answered_s > RECONNECT_S:
                raise
            time.sleep(POLL_S)
            continue
        end = len(text) if info.status.is_terminal() else text.rfind("\n") + 1
        write(visible(text[written:end]))
        written = max(written, end)
        if info.status.is_terminal():
            return info
        time.sleep(POLL_S + len(text) / LOG_PER_S)
