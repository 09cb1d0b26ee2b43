"""Attack `fetch`, `status`, `logs` and `jobs`: answers that no raysim cluster sends."""

from __future__ import annotations

import asyncio
import io
import json
import random
import stat
import warnings
import zipfile
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import ExitStack, chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from raysim.common.text import is_name
from raysim.jobs import archive
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import PREFIX
from tests.attacks.harness import Outcome, run_command, snapshot, values


def attack_job(number: int, root: Path, outcome: Outcome) -> None:
    """A cluster, or a user who submitted a job there, sends anything."""
    rng = random.Random(f"job {number}")
    client = _HostileClient(rng, root)
    cluster = Cluster("http://127.0.0.1:8265", "2.60.0", client)
    here = root / "here"
    before = snapshot(root, here / "runs")
    with ExitStack() as stack:
        stack.enter_context(chdir(here))
        stack.enter_context(patch("raysim.jobs.cluster.connect", lambda address: cluster))
        stack.enter_context(patch("raysim.jobs.fetch.MONITOR_S", 0.0))
        stack.enter_context(patch("raysim.jobs.fetch.START_S", 5.0))
        stack.enter_context(patch("raysim.jobs.watch.POLL_S", 0.001))
        for words in (("fetch", "j"), ("fetch", "j"), ("status", "j"), ("logs", "j"), ("logs", "-f", "j"), ("jobs",)):
            run_command(outcome, " ".join(words), *words, "--address", "http://127.0.0.1:8265")
    if snapshot(root, here / "runs") != before:
        raise AssertionError("something outside of ./runs changed")
    for path in (here / "runs").rglob("*") if (here / "runs").exists() else ():
        inside = path.relative_to(here / "runs").parts
        if path.is_symlink() or not all(map(is_name, inside[:2])) or any(part.startswith(".") for part in inside):
            raise AssertionError(f"{path} was made")


class _HostileClient:
    """`JobSubmissionClient` whose answers Ray's own models have read, as it does with what a server sends."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng, self.root = rng, root
        self.stopped: set[str] = set()
        self.details = self._details()
        self.log = self._log()

    def _any(self, often: float, otherwise: Any) -> Any:
        return self.rng.choice(values(self.root)) if self.rng.random() < often else otherwise

    def _details(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "type": "SUBMISSION", "submission_id": "j", "status": "SUCCEEDED", "entrypoint": "x", "message": "fine",
            "metadata": {"raysim": "1", "name": "tiny", "algorithm": "fedgh"}, "start_time": 10**12, "end_time": 10**12,
            "driver_exit_code": 0,
        }  # fmt: skip
        known["metadata"]["name"] = self._any(0.4, "tiny")
        if self.rng.random() < 0.4:
            place = self.rng.choice([known, known["metadata"]])
            place[self.rng.choice(list(place))] = self.rng.choice(values(self.root))
        return known

    def _log(self) -> str:
        folder = {"run_folder": self._any(0.2, "/there/tiny/r1"), "run_id": self._any(0.4, "r1")}
        names = ("scenario", "rounds", "clients", "final", "seconds", "state_digest", "folder", "mlflow", "overrides")
        summary = {name: self._any(0.3, {"accuracy/all": self._any(0.3, 0.5)}) for name in names}
        marks: list[Any] = [folder, {"summary": self._any(0.2, summary)}, self._any(0.5, {})]
        lines = [f"{PREFIX}{json.dumps(mark)}" for mark in marks]
        lines += [f"round 1/{self._any(0.5, 3)}", f"raysim: {self._any(0.5, 'no')}", "\x1b[31mred\x1b[0m", PREFIX + "{"]
        if self.rng.random() < 0.3:
            self.rng.shuffle(lines)
        text = "\n".join(lines)
        if self.rng.random() < 0.3:
            at = self.rng.randrange(len(text))
            text = (
                text[:at] + self.rng.choice(["\0", "\n", "{", '"', "\x1b", "", "\ud800", "[" * 5000]) + text[at + 1 :]
            )
        return text + "\n" * self.rng.randrange(2)

    def get_job_info(self, job: str) -> Any:
        from ray.job_submission import JobDetails

        if job.startswith("raysim-fetch"):
            return SimpleNamespace(submission_id=job, status="STOPPED", metadata={}, start_time=1, end_time=1,
                                   driver_exit_code=0, message="")  # fmt: skip
        return JobDetails(**self.details)

    def list_jobs(self) -> list[Any]:
        from ray.job_submission import JobDetails

        return [JobDetails(**{**self.details, **given}) for given in ({}, {"submission_id": "\x1b[2J/.."})]

    def get_job_logs(self, job: str) -> str:
        return self.log

    def submit_job(self, **given: Any) -> str:
        return "x"

    def stop_job(self, job: str) -> bool:
        return True

    def delete_job(self, job: str) -> bool:
        return True

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        if not job.startswith("raysim-fetch"):
            yield self.log
            return
        text = self._archive()
        if self.rng.random() < 0.2:
            text = self._damaged(text)
        size = self.rng.choice([1000, 65_536, 10**9])
        for at in range(0, len(text), size):
            yield text[at : at + size]
        how = self.rng.random()
        if how < 0.1:
            raise self.rng.choice(
                [RuntimeError("x"), OSError("x"), ValueError("x"), asyncio.IncompleteReadError(b"", 1)]
            )
        if how < 0.15:
            for _ in range(500):
                yield "A" * (64 << 10) + self.rng.choice(["", "\n"])

    def _archive(self) -> str:
        data = self._zip()
        lines = [b64encode(data[at : at + archive.WIDTH]).decode() for at in range(0, len(data), archive.WIDTH)]
        return "\n".join(["x", f"{archive.BEGIN}{self._any(0.1, len(data))}", *lines, archive.END, ""])

    def _damaged(self, text: str) -> str:
        lines = text.split("\n")
        at = self.rng.randrange(len(lines))
        what = self.rng.randrange(5)
        if what == 0:
            del lines[at]
        elif what == 1:
            lines[at] = "".join(self.rng.choices("A=é\0\x1b{", k=20))
        elif what == 2:
            lines.insert(at, f"{archive.REFUSED}\x1b[2Jno http://u:p@host")
        elif what == 3:
            lines = [" ".join(lines)]
        else:
            lines[at] = lines[at][:-1]
        return "\n".join(lines)

    def _zip(self) -> bytes:
        """A run folder and something that is none."""
        file = io.BytesIO()
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for name in ("summary.json", "plots/a.png"):
                packed.writestr(name, b'{"run_id": "r1"}')
            if self.rng.random() < 0.7:
                self._evil(packed)
        data = bytearray(file.getvalue())
        if self.rng.random() < 0.3:  # bytes of the directory at the end
            for _ in range(self.rng.randrange(1, 5)):
                data[-self.rng.randrange(1, 150)] = self.rng.randrange(256)
        if self.rng.random() < 0.1:
            data[self.rng.randrange(len(data)) :] = self.rng.randbytes(self.rng.randrange(30))
        return bytes(data)

    def _evil(self, packed: zipfile.ZipFile) -> None:
        what = self.rng.randrange(6)
        if what == 0:  # a name
            name = self.rng.choice([str(value) for value in values(self.root) if isinstance(value, str)][:22])
            packed.writestr(name.encode("utf-8", "replace").decode(), b"evil")
        elif what == 1:  # a kind
            member = zipfile.ZipInfo("link")
            kind = self.rng.choice([stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
            member.create_system, member.external_attr = 3, (kind | 0o777) << 16
            packed.writestr(member, f"{self.root}/victim/x")
            packed.writestr("link/x", b"evil")
        elif what == 2:  # 100 MiB in 100 KiB, as a file or as a comment
            packed.writestr("x", bytes(100 << 20))
            packed.comment = bytes(60_000)
        elif what == 3:  # many, or with memory of a size that the archive chooses
            packed.writestr("packed", b"x", self.rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]))
            for number in range(self.rng.choice([1, 11_000])):
                packed.writestr(f"f{number}", b"")
        elif what == 4:  # a file that is a folder, or is there
            packed.writestr(
                self.rng.choice(["summary.json/x", "plots", "plots/", "summary.json", ".hidden", "a/.b"]), b"x"
            )
        else:
            packed.writestr("big", bytes(100))
            packed.filelist[-1].file_size = self.rng.choice([1 << 31, (1 << 32) - 2, 10**6, 1])
