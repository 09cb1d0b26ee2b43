"""Job logs and run folders that no raysim wrote: nothing outside of one folder changes, nothing is a traceback.

    python -m tests.attacks [COUNT]     # COUNT (500) of each; in minutes

Every mutant is made from a number, so that one can be looked at again. `tests/test_attacks.py` does some of each.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from raysim.cli.main import main
from raysim.common.text import is_name, printable
from raysim.jobs import archive
from raysim.jobs.cluster import Cluster
from raysim.jobs.job_log import PREFIX

TIME_S = 300
"""How long a mutant may hang, in seconds."""

Mutation = Callable[[random.Random, Path], None]


@dataclass
class Outcome:
    """What came of the mutants."""

    codes: Counter[int] = field(default_factory=Counter)  # exit codes
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0  # of the processor, for a mutant; without the first, which imports
    grown_mib: float = 0.0  # of this process, at most; likewise


def attack(count: int, one: Callable[[int, Path, Outcome], None], places: Path, first: int = 0) -> Outcome:
    """Do `one` with `count` mutants, each in a folder of its own below `places`."""
    outcome, before = Outcome(), 0
    for number in range(first, first + count):
        root = places / f"mutant-{number}"
        (root / "here").mkdir(parents=True)
        _make_victims(root)
        began = time.process_time()
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(TIME_S)
        try:
            one(number, root, outcome)
        except BaseException:
            outcome.failures.append(f"mutant {number}: {traceback.format_exc()}")
        finally:
            signal.alarm(0)
        if number == first:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        else:
            outcome.slowest_s = max(outcome.slowest_s, time.process_time() - began)
        shutil.rmtree(root)
    outcome.grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return outcome


def _too_long(*rest: object) -> None:
    raise AssertionError(f"not done after {TIME_S} s")


def _make_victims(root: Path) -> None:
    """What an attacker would like to change."""
    import sqlite3

    victim = root / "victim"
    (victim / "folder").mkdir(parents=True)
    for name in ("thesis.tex", "folder/key", "x", "r1"):
        (victim / name).write_text(name)
    with sqlite3.connect(victim / "cookies.db") as database:
        database.execute("CREATE TABLE cookies (name TEXT)")
    database.close()


def snapshot(root: Path, leave: Path) -> dict[str, object]:
    """Everything below `root` but what is in `leave`."""
    found: dict[str, object] = {}
    for where, folders, files in os.walk(root):
        folders[:] = [name for name in folders if Path(where, name) != leave]
        for path in (Path(where, name) for name in (*folders, *files)):
            facts = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (facts.st_mode, facts.st_ino, data if path.is_file() else None)
    return found


def run_command(outcome: Outcome, label: str, *words: str) -> None:
    """Run a command; what it says must be for people."""
    out = io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(out):
            main(list(words))
    except SystemExit as ended:
        code = ended.code or 0
    told = out.getvalue()
    outcome.codes[code] += 1
    if code not in (0, 1, 2) or "Traceback (most recent call last)" in told:
        raise AssertionError(f"{label}: exit code {code!r}: {told[:500]}")
    if printable(told) != told:
        raise AssertionError(f"{label}: not fit for a terminal: {told[:500]!r}")


def values(root: Path) -> list[Any]:
    """What takes the place of a name, a number, or anything."""
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    return [
        "../../victim/x", "../victim", f"{root}/victim", f"{root}/victim/x", f"{root}/victim/folder", "..", ".", "",
        "/", "a/b", "a\0b", "\x1b[2J", "\x1b]0;x\x07", "\ud800", "\u202e", "é", "x" * 5000, "a\nb", "a\r", "nan",
        "checkpoints",
        None, True, False, 0, 1, -1, 7, 3.5, 1e308, 10**40, float("nan"), float("inf"), [], {}, [[]], {"a": 1}, deep,
        ["x", "../x"], {"\x1b": "\x1b"}, f"sqlite:///{root}/victim/cookies.db", f"sqlite:///{root}/victim/thesis.tex",
        f"sqlite:///{root}/victim/new.db", f"file://{root}/victim", "http://127.0.0.1:9", "http://u:p@127.0.0.1:9",
        f"{root}/victim/folder/20261121-101500-ab12", "s3://x/../y", "memory://x",
    ]  # fmt: skip


# ---- jobs


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


# ---- run folders


class FolderAttack:
    """`resume` on run folders that another person made from a real one, which was interrupted before its last round."""

    def __init__(self, place: Path) -> None:
        from raysim.launch.run import run
        from tests.engine.scenarios import loaded

        class Cut:
            def open(self, card: Any) -> None: ...

            def close(self, status: Any, summary: Any) -> None: ...

            def log(self, t: int, values: Any, clients: Any) -> None:
                if t == 3:
                    raise KeyboardInterrupt

        place.mkdir()
        with self._alone(place):
            sets = ["clients.count=4", "clients.models=[digits_mlp64]", "checkpoint.every=1", "data.augment=false"]
            try:
                run(loaded(*sets), quiet=True, trackers=[Cut()])
            except KeyboardInterrupt:
                (self.folder,) = (place / "runs" / "tiny").iterdir()
        (place / "mlflow.db").touch()  # where the run says that it is tracked

    def __call__(self, number: int, root: Path, outcome: Outcome) -> None:
        """One mutant."""
        rng = random.Random(f"folder {number}")
        folder = root / "here" / self.folder.name
        shutil.copytree(self.folder, folder)
        for _ in range(rng.choice([1, 1, 2])):
            rng.choice(MUTATIONS)(rng, folder)
        before = snapshot(root, folder)
        with self._alone(root / "here"):
            run_command(outcome, "resume", "resume", str(folder), "--quiet")
        if snapshot(root, folder) != before:
            raise AssertionError("something outside of the run folder changed")

    @staticmethod
    def _alone(place: Path) -> ExitStack:
        """In `place`, without MLflow, whose database and artifacts are outside, and with empty pictures."""

        def no_picture(*given: Any, **_: Any) -> None:
            next(arg for arg in given if isinstance(arg, Path)).write_bytes(b"")

        stack = ExitStack()
        stack.enter_context(chdir(place))
        stack.enter_context(patch("raysim.launch.session.MlflowTracker", _NoMlflow))
        for name in ("draw_heatmap", "plot_accuracy"):
            stack.enter_context(patch(f"raysim.launch.session.{name}", no_picture))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        stack.enter_context(patch.dict(os.environ, environment, clear=True))
        return stack


class _NoMlflow:
    """`MlflowTracker` that tracks nothing."""

    where = ""
    run_id = experiment_id = run_path = None

    def __init__(self, uri: str, *rest: object, **more: object) -> None:
        self.uri = uri
        self.warnings: list[str] = []

    def resume(self, rounds: Any) -> None:
        for row in rounds:
            _ = int(row["round"]), [float(value) for value in row.values()]

    def __getattr__(self, name: str) -> Any:
        return lambda *rest, **more: None


def _in_json(rng: random.Random, value: Any, root: Path) -> Any:
    """JSON in which something is something else."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _in_json(rng, value[key], root)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _in_json(rng, value[at], root), *value[at + 1 :]]
    return rng.choice(values(root))


def _root(folder: Path) -> Path:
    return folder.parent.parent


def _json_file(name: str) -> Mutation:
    def mutate(rng: random.Random, folder: Path) -> None:
        path = folder / name
        if not path.is_file() or path.is_symlink():
            return
        if rng.random() < 0.15:
            path.write_bytes(
                rng.choice([b"", b"null", b"[]", b"{", b"[" * 100_000, b"\xff\xfe", b'"x"', rng.randbytes(99)])
            )
            return
        with suppress(ValueError):  # another mutation was here
            path.write_text(json.dumps(_in_json(rng, json.loads(path.read_text()), _root(folder))))

    return mutate


def _manifest(rng: random.Random, folder: Path) -> None:
    """A manifest whose checksum is right."""
    names = sorted((folder / "checkpoints").glob("checkpoint-*.json"))
    if not names:
        return
    path = rng.choice(names)
    try:
        body = json.loads(json.loads(path.read_text())["checkpoint"])
    except (ValueError, TypeError, KeyError, OSError):
        return
    if rng.random() < 0.3 and isinstance(body, dict):
        body["round"] = rng.choice([10**6, 10**12, 3, 0, -1])
        path = path.with_name(f"checkpoint-{body['round']:06d}.json")
    text = json.dumps(_in_json(rng, body, _root(folder)) if rng.random() < 0.9 else rng.choice(values(_root(folder))))
    path.write_text(json.dumps({"crc32": zlib.crc32(text.encode()), "checkpoint": text}))


def _removed(rng: random.Random, folder: Path) -> None:
    """A manifest that names what is to be removed with the next checkpoint."""
    for path in sorted((folder / "checkpoints").glob("checkpoint-*.json")):
        try:
            body = json.loads(json.loads(path.read_text())["checkpoint"])
            body["parts"].append([f"{'../' * rng.randrange(1, 5)}victim/thesis.tex", 10, 0, []])
        except (ValueError, TypeError, KeyError, OSError):
            return
        text = json.dumps(body)
        path.write_text(json.dumps({"crc32": zlib.crc32(text.encode()), "checkpoint": text}))


def _server(rng: random.Random, folder: Path) -> None:
    """A server's state of other classes and shapes, which the manifests agree with."""
    for path in sorted((folder / "checkpoints").glob("server-*.safetensors")):
        if not path.is_file():  # an earlier mutation made it a pipe or a link to nothing
            return
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.loads(data[8 : 8 + size])
            what = rng.choice(["tree", "tree", "facts", "header"])
            if what == "header":
                header = _in_json(rng, header, _root(folder))
            else:
                inner = _in_json(rng, json.loads(header["__metadata__"][what]), _root(folder))
                if rng.random() < 0.3:
                    evil = rng.choice(
                        ["raysim.core.state:torch.nn.Module", "raysim.algorithms.fedgh:torch.Tensor", "os:system"]
                    )
                    inner = ["named", evil, [["value", "touch x"]]]
                header["__metadata__"][what] = json.dumps(inner)
        except (ValueError, TypeError, KeyError):
            return
        text = json.dumps(header).encode()
        data = len(text).to_bytes(8, "little") + text + data[8 + size :]
        path.write_bytes(data)
        for manifest in (folder / "checkpoints").glob("checkpoint-*.json"):
            try:
                body = json.loads(json.loads(manifest.read_text())["checkpoint"])
                if body["server"][0] == path.name:
                    body["server"] = [path.name, len(data), zlib.crc32(data)]
            except (ValueError, TypeError, KeyError, LookupError, OSError):
                continue
            text = json.dumps(body).encode()
            manifest.write_text(json.dumps({"crc32": zlib.crc32(text), "checkpoint": text.decode()}))


def _link(rng: random.Random, folder: Path) -> None:
    """A link where something is, or will be."""
    known = [path for path in folder.rglob("*") if not path.is_symlink()]
    new = [
        "plots",
        "logs/error.txt",
        "plots/accuracy.png",
        "clients.parquet",
        "a/b/c",
        "checkpoints/.checkpoint-000003.json.part",
    ]
    new += ["checkpoints/clients-000003-00000.safetensors", "checkpoints/server-000003.safetensors"]
    path = rng.choice([*known, *(folder / name for name in new)])
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    victim = _root(folder) / "victim"
    path.symlink_to(
        rng.choice([victim / "thesis.tex", victim, victim / "folder", Path("../../victim/x"), Path("/dev/zero")])
    )


def _kind(rng: random.Random, folder: Path) -> None:
    """A pipe, a socket, a folder or a file where something else is."""
    path = rng.choice([path for path in folder.rglob("*") if not path.is_symlink()] or [folder / "x"])
    was_file = path.is_file()
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    what = rng.randrange(3)
    if what == 0:
        os.mkfifo(path)
    elif what == 1 and len(str(path)) < 100:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif was_file:
        path.mkdir()
    else:
        path.write_text("x")


def _bytes(rng: random.Random, folder: Path) -> None:
    """A file with other bytes."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    if not files:
        return
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    what = rng.randrange(4)
    if what == 0:
        data = data[: rng.randrange(len(data) + 1)]
    elif what == 1:
        data += rng.randbytes(100)
    elif what == 2:
        data = bytearray(rng.randbytes(rng.randrange(2000)))
    else:
        for _ in range(rng.randrange(1, 20)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(bytes(data))


def _table(rng: random.Random, folder: Path) -> None:
    """Rows of other types, numbers and names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "round": rng.choice([[0, 1, 2, 3], [2**62] * 4, ["x"] * 4, [None] * 4, [-1, 0, 1, 2], [[1]] * 4])
    }
    for name in rng.sample(["accuracy/all", "time/total_s", "\x1b[2J", "client", "total", "correct", "a" * 999], 4):
        columns[name] = rng.choice([[0.5] * 4, ["x"] * 4, [None] * 4, [[1.0]] * 4, [10**18] * 4, [float("nan")] * 4])
    name = rng.choice(["rounds.parquet", "clients.parquet", "clients.arrows"])
    path = folder / name
    if path.is_dir() or path.is_symlink():
        return
    table = pa.table(columns)
    if name.endswith("parquet"):
        pq.write_table(table, path)
    else:
        with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)


def _scenario(rng: random.Random, folder: Path) -> None:
    """A scenario of which a key says something else."""
    import yaml

    path = folder / "resolved.yaml"
    try:
        scenario = yaml.safe_load(path.read_text())
        if rng.random() < 0.1:
            path.write_bytes(rng.choice([b"", b"\xff", b"a: &a [*a]", b"[" * 3000, b"&a [x]: 1"]))
            return
        places = [
            v for v in values(_root(folder)) if v != f"sqlite:///{_root(folder)}/victim/new.db"
        ]  # it is asked for
        key = rng.choice(list(scenario))
        if isinstance(scenario[key], dict) and scenario[key]:
            scenario[key][rng.choice(list(scenario[key]))] = rng.choice(places)
        else:
            scenario[key] = rng.choice(places)
        path.write_text(yaml.safe_dump(scenario))
    except (ValueError, TypeError, OSError, yaml.YAMLError):
        pass


def _closing(rng: random.Random, folder: Path) -> None:
    """A run of which only the closing is left, and other rows."""
    with suppress(ValueError, TypeError, OSError):
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "status": "closing", "rounds": 3}))
        if rng.random() < 0.7:
            _table(rng, folder)


def _more(rng: random.Random, folder: Path) -> None:
    """Files that were not asked for."""
    for i in range(rng.choice([1, 50])):
        name = rng.choice(
            [f".x.{i}.abcdefgh", f"checkpoint-{i:06d}.json", f"clients-{i:06d}-00000.safetensors", f"x{i}\x1b[2J"]
        )
        try:
            (folder / rng.choice(["", "checkpoints", "logs"]) / name).write_bytes(b"x")
        except OSError:
            return


MUTATIONS: tuple[Mutation, ...] = (
    _json_file("run.json"), _json_file("run.json"), _json_file("summary.json"), _manifest, _manifest, _manifest,
    _removed, _server, _server, _link, _link, _kind, _bytes, _bytes, _table, _scenario, _more,
    _closing,
)  # fmt: skip


def _shown(outcome: Outcome) -> Iterator[str]:
    yield f"exit codes {dict(sorted(outcome.codes.items()))}, {len(outcome.failures)} failures"
    yield f"at most {outcome.slowest_s:.1f} s of a processor each, memory grew by {outcome.grown_mib:.0f} MiB"
    yield from outcome.failures[:10]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory(prefix="attacks-") as name:
        for what, one in (("job logs", attack_job), ("run folders", FolderAttack(Path(name) / "real"))):
            found = attack(count, one, Path(name))
            print(f"{count} {what}: ", *_shown(found), sep="\n  ", flush=True)
