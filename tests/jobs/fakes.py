"""A cluster without Ray: the methods of Ray's client over a dictionary. The helper of `fetch` runs as a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobDetails, JobStatus, JobType


def details(job: str, state: str = "RUNNING", **changes: Any) -> JobDetails:
    """Ray's record of a job."""
    ended = JobStatus(state).is_terminal()
    known: dict[str, Any] = {
        "metadata": {"raysim": "0.1.0", "name": "quickstart", "algorithm": "fedgh"},
        "start_time": 1_000,
        "end_time": 3_500 if ended else None,
    }
    return JobDetails(
        type=JobType.SUBMISSION, submission_id=job, status=JobStatus(state), entrypoint="", **{**known, **changes}
    )


class FakeClient:
    """`JobSubmissionClient` over dictionaries; `sent` has the arguments of each submission."""

    def __init__(self, *jobs: JobDetails, logs: dict[str, str] | None = None) -> None:
        self.jobs = {str(job.submission_id): job for job in jobs}
        self.logs = logs or {}
        self.sent: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self.helpers: list[subprocess.Popen[bytes]] = []
        self.helper_log = Path()  # file for the output of the helper of `fetch`

    def get_job_info(self, job: str) -> JobDetails:
        if job not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist.")
        return self.jobs[job]

    def list_jobs(self) -> list[JobDetails]:
        return list(self.jobs.values())

    def get_job_logs(self, job: str) -> str:
        self.get_job_info(job)
        return self.logs.get(job, "")

    def submit_job(self, **named: Any) -> str:
        job = str(named["submission_id"])
        if job.startswith("raysim-fetch"):
            command = named["entrypoint"].replace("python", sys.executable, 1)
            with self.helper_log.open("a") as out:
                self.helpers.append(subprocess.Popen(command, shell=True, stdout=out, stderr=out))
        else:
            self.sent.append(named)
            self.jobs[job] = details(job, metadata=named["metadata"])
        return job

    def stop_job(self, job: str) -> bool:
        if job.startswith("raysim-fetch"):
            self.helpers[-1].terminate()
            self.helpers[-1].wait(60)
        else:
            self.get_job_info(job)  # raises for an unknown id
            self.jobs[job] = details(job, "STOPPED")
        self.stopped.append(job)
        return True

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        seen, ended = 0, False
        while not ended:
            ended = self.helpers[-1].poll() is not None
            text = self.helper_log.read_text()[seen : seen + 20_000]
            seen += len(text)
            yield text
            ended = ended and not text
            await asyncio.sleep(0)


def use(monkeypatch: pytest.MonkeyPatch, client: FakeClient) -> FakeClient:
    """Let the commands connect to this client."""
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", lambda address: client)
    return client
