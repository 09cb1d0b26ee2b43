"""The log of a job: machine-readable lines with its run folder and summary, and functions to follow and explain it.

The Jobs API has no other channel: a job's metadata is fixed at submission. Ray keeps the log as long as the job.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysim.common.results import ClientRow, RunCard, Status

PREFIX = "raysim-job: "

PROGRESS = re.compile(r"round +\d+/\d+ |.*; \d+ of \d+ rounds")
"""Matches a progress line of a run or of a sweep."""

POLL_S = 1.0
RECONNECT_S = 60.0
"""Seconds for which `follow` retries if a cluster stops answering."""


def report(**facts: object) -> None:
    """Print facts, which are fields of `JobLog`."""
    print(f"{PREFIX}{json.dumps(facts, default=str)}", flush=True)


class JobLogTracker:
    """The tracker that prints a job's run folder and summary into the job's log on the cluster."""

    def open(self, card: RunCard) -> None:
        """Print the run folder."""
        report(run_folder=card.folder)

    def log(self, t: int, values: Mapping[str, float | int], clients: Sequence[ClientRow]) -> None:
        """Do nothing, because progress lines report rounds."""

    def close(self, status: Status, summary: Mapping[str, object]) -> None:
        """Print the summary."""
        report(summary={**summary, "status": status})


@dataclass(frozen=True)
class JobLog:
    """The facts in a job's log."""

    run_folder: str = ""  # absolute path on the head node, for a sweep the folder of all cells; "" before it exists
    sweep: bool = False  # whether the job runs a sweep
    summary: Mapping[str, Any] = field(default_factory=dict)  # content of summary.json; empty until the run has ended
    progress: str = ""  # the last progress line
    problem: str = ""  # error message of the job


def read_log(text: str) -> JobLog:
    """Read the facts in a log, whose last line may be incomplete."""
    facts: dict[str, Any] = {}
    for line in text.split("\n")[:-1]:
        if line.startswith(PREFIX):
            facts |= json.loads(line.removeprefix(PREFIX))
        elif PROGRESS.match(line):
            facts["progress"] = line
        elif line.startswith("raysim: "):
            facts["problem"] = line.removeprefix("raysim: ")
    return JobLog(**facts)


def visible(text: str) -> str:
    """Return the lines of a log that users should see."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(PREFIX))


def exit_code(job: Any) -> int:
    """Return the exit code that `raysim launch` would have returned. job: Ray's `JobDetails`."""
    if job.status == "SUCCEEDED":
        return 0
    return 130 if job.status == "STOPPED" else job.driver_exit_code or 1


def why(job: Any, log: JobLog) -> str:
    """Return the reason why a job failed. job: Ray's `JobDetails`."""
    if job.driver_exit_code == 127:
        return "there is no `python` on the cluster's PATH: activate the Python environment before `ray start`"
    return log.problem or job.message or f"`raysim logs {job.submission_id}` shows its output"


def follow(client: Any, job: str, write: Callable[[str], object]) -> Any:
    """Write the output of a job until the job has ended; return its last `JobDetails`.

    Polls for the whole log, because a stream would break with its connection and does not pass proxies. Raises the
    error of Ray's client if the cluster does not answer for `RECONNECT_S`.
    """
    info = client.get_job_info(job)  # called once here, because the error for an unknown id must not be retried
    written = 0  # number of characters of the log
    answered_s = time.monotonic()
    while True:
        try:
            info = client.get_job_info(job)
            text = client.get_job_logs(job)
        except (OSError, RuntimeError):
            if time.monotonic() - answered_s > RECONNECT_S:
                raise
        else:
            answered_s = time.monotonic()
            ended = info.status.is_terminal()
            end = len(text) if ended else text.rfind("\n") + 1
            write(visible(text[written:end]))
            written = max(written, end)
            if ended:
                return info
        time.sleep(POLL_S)
