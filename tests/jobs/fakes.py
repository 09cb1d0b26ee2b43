"""A cluster without Ray: the client's methods over a dictionary, and a dashboard that only answers /api/version."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raysim.jobs import archive
from raysim.jobs.cluster import Cluster

HERE = "http://127.0.0.1:8265"


def details(job: str, state: str = "RUNNING", **changes: Any) -> SimpleNamespace:
    """Ray's `JobDetails`, as far as they are read."""
    known = {
        "submission_id": job,
        "status": state,
        "metadata": {"raysim": "0.1.0", "name": "quickstart", "algorithm": "fedgh"},
        "start_time": 1_000,
        "end_time": 3_500 if state in {"SUCCEEDED", "FAILED", "STOPPED"} else None,
        "driver_exit_code": 0 if state == "SUCCEEDED" else None,
        "message": "",
    }
    return SimpleNamespace(**{**known, **changes})


class FakeClient:
    """`JobSubmissionClient` over dictionaries; what is asked for is noted in `asked`."""

    def __init__(self, *jobs: SimpleNamespace, logs: dict[str, str] | None = None) -> None:
        self.jobs = {job.submission_id: job for job in jobs}
        self.logs = logs or {}
        self.asked: list[tuple[str, Any]] = []
        self.tails: list[list[str | Exception]] = []  # what each following of a log brings

    def get_job_info(self, job: str) -> SimpleNamespace:
        self.asked.append(("info", job))
        if job not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist.")
        return self.jobs[job]

    def list_jobs(self) -> list[SimpleNamespace]:
        return list(self.jobs.values())

    def get_job_logs(self, job: str) -> str:
        return self.logs.get(job, "")

    def submit_job(self, **named: Any) -> str:
        self.asked.append(("submit", named))
        command = shlex.split(named["entrypoint"])
        if command[1:3] == ["python", "-c"] and not self.tails:  # the helper of `fetch`, which prints a run folder
            lines: list[str] = []
            archive.send(Path(command[4]), "--checkpoints" in command, lines.append)
            self.tails.append(["".join(f"{line}\n" for line in lines)])
        self.jobs[named["submission_id"]] = details(named["submission_id"], metadata=named.get("metadata"))
        return str(named["submission_id"])

    def stop_job(self, job: str) -> bool:
        self.asked.append(("stop", job))
        self.jobs[job].status = "STOPPED"
        return True

    def delete_job(self, job: str) -> bool:
        del self.jobs[job]
        return True

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for piece in self.tails.pop(0) if self.tails else []:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def cluster(*jobs: SimpleNamespace, version: str = "2.60.0", **given: Any) -> Cluster:
    return Cluster(HERE, version, FakeClient(*jobs, **given))


@contextmanager
def dashboard(answer: object, token: str | None = None) -> Iterator[str]:
    """The address of a server that gives `answer` for /api/version to requests with `token`, as Ray's does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            brought = self.headers.get("Authorization")
            status = 200 if token is None or brought == f"Bearer {token}" else 403 if brought else 401
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, *rest: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
