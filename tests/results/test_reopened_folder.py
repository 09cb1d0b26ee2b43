"""A run folder can be resumed however its run ended, and then holds what an undisturbed one would."""

from __future__ import annotations

import dataclasses
import errno
import gc
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raysim.common.errors import RunError, ScenarioError
from raysim.results.client_rows import ClientRows, MissingRowsError
from raysim.results.folder import RunFolder
from raysim.results.load import read_clients, read_rounds, read_summary

LAST = 6


@pytest.fixture(autouse=True)
def _streams_are_closed(monkeypatch):
    """Of folders that a test leaves open. These themselves may be collected, which lets go of their locks."""
    all_rows = []
    original = RunFolder.__init__

    def init(self, *args):
        original(self, *args)
        all_rows.append(self._clients)

    monkeypatch.setattr(RunFolder, "__init__", init)
    yield
    for rows in all_rows:
        rows.close_stream()


@pytest.fixture
def tell(make_rows):
    """Log rounds `first` to `last`, the same for every caller: columns that come late, a NaN, a round without rows."""

    def tell(folder, first, last):
        for t in range(first, last + 1):
            values = {"accuracy/all": t / 10, "comm/up_bytes": 2**40 + t, "client/odd": math.nan if t % 2 else 0.5}
            values |= {"server/z": t} if t >= 2 else {}
            values |= {"client/a": 1 / 3} if t >= 4 else {}
            rows = [untestable(r) if r.client == 5 else r for r in make_rows(t, 0 if t == 3 else 6)]
            dice = random.Random(t)
            folder.log(t, values, [unmeasured(r) if dice.random() < 0.4 else r for r in rows])

    return tell


@pytest.fixture
def begin(tmp_path, make_card, tell):
    """A new run folder with the rounds up to `last`, its run still running."""

    def begin(last, name="r1"):
        folder = RunFolder.create(tmp_path / "runs" / "quick", name)
        folder.open(make_card(folder.path))
        tell(folder, 0, last)
        return folder

    return begin


@pytest.fixture
def ideal(begin):
    """What a folder without any disturbance holds after `LAST` rounds."""
    folder = begin(LAST, "ideal")
    folder.close("finished", {})
    return contents(folder.path)


@pytest.fixture
def continue_run(make_card, tell):
    """Take the folder at `path` back to round `t`, and from there to its end."""

    def continue_run(path, t):
        folder = RunFolder.reopen(path)
        folder.truncate(t)
        folder.open(make_card(path))
        tell(folder, t + 1, LAST)
        folder.close("finished", {})
        return contents(path)

    return continue_run


def unmeasured(row):
    return dataclasses.replace(row, accuracy=None, correct=None, total=None, loss=None)


def untestable(row):
    """The row of a client without test samples: it was tested on its validation samples."""
    return dataclasses.replace(row, accuracy=None, correct=0, total=0, loss=None)


def contents(path):
    assert {p.name for p in path.iterdir()} == {"rounds.parquet", "clients.parquet", "summary.json", "logs"}
    rounds, clients = read_rounds(path), read_clients(path)
    return rounds.schema, repr(rounds.to_pylist()), clients.schema, clients.to_pylist(), read_summary(path)["status"]


def kill(folder):
    """Leave of `folder` what its process would if it were killed."""
    folder._clients.close_stream()
    folder.release()


def test_a_killed_run_ends_as_if_it_had_not_been(begin, continue_run, ideal):
    folder = begin(5)
    folder.sync()
    kill(folder)
    assert continue_run(folder.path, 4) == ideal


@pytest.mark.parametrize("t", [-1, 3])
def test_a_run_that_ended_ends_again(begin, continue_run, ideal, t):
    folder = begin(5)
    folder.close("failed", {})
    assert continue_run(folder.path, t) == ideal


def test_a_run_that_begins_anew(begin, continue_run, ideal, make_card):
    folder = begin(0)
    kill(folder)
    (folder.path / "rounds.parquet").write_bytes(b"PAR1 and no more")
    (folder.path / "clients.arrows").unlink()
    folder = RunFolder.reopen(folder.path)
    assert folder.truncate(-1) == {}
    folder.open(make_card(folder.path))
    assert read_clients(folder.path).num_rows == 0 and read_summary(folder.path)["status"] == "running"
    with pytest.raises(ScenarioError, match="no round is done yet"):
        read_rounds(folder.path)
    kill(folder)
    assert continue_run(folder.path, -1) == ideal


def test_a_stream_that_was_cut_off_anywhere(begin, make_rows, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # for the time it takes
    folder = begin(1)
    path, stream = folder.path, folder.path / "clients.arrows"
    ends = [stream.stat().st_size]
    for t in (2, 3):
        folder.log(t, {"accuracy/all": 0.5}, make_rows(t, 2))
        ends.append(stream.stat().st_size)
    folder.sync()
    kill(folder)
    whole = stream.read_bytes()
    expected = read_clients(path).slice(0, 6 + 6 + 2)
    rows = ClientRows(path)
    for cut in (*range(ends[1], ends[2], 37), ends[2]):  # within round 3
        stream.write_bytes(whole[:cut])
        rows.truncate(2)
        rows.close_stream()
        assert read_clients(path).equals(expected), cut
    for cut in range(ends[0], ends[1], 101):  # within round 2
        stream.write_bytes(whole[:cut])
        with pytest.raises(MissingRowsError, match=r"clients\.arrows"):
            rows.truncate(2)
        assert stream.stat().st_size == cut
    for name in ("clients.arrows", "rounds.parquet"):
        whole = (path / name).read_bytes()
        (path / name).unlink()
        folder = RunFolder.reopen(path)
        with pytest.raises(RunError, match="round 2"):
            folder.truncate(2)
        kill(folder)
        (path / name).write_bytes(whole)


class KilledError(BaseException):
    """Stands for SIGKILL: nothing in the code catches it."""


def test_a_kill_at_any_moment_of_going_on(begin, continue_run, ideal, tmp_path, monkeypatch):
    ended, running = begin(5), begin(5, "running")
    ended.close("failed", {})
    running.sync()
    kill(running)
    moments = 0
    for source in (ended.path, running.path):
        for n in range(100):
            path = tmp_path / "copies" / source.name / str(n)
            shutil.copytree(source, path)
            left = n

            def count_down(then):
                def call(*args, **kwargs):
                    nonlocal left
                    left -= 1
                    if left == -1:
                        raise KilledError
                    return then(*args, **kwargs)

                return call

            folder = RunFolder.reopen(path)
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", count_down(os.fsync))
                patch.setattr(Path, "replace", count_down(Path.replace))
                patch.setattr(Path, "unlink", count_down(Path.unlink))
                try:
                    folder.truncate(4)
                except KilledError:
                    moments += 1
                    kill(folder)
                    assert continue_run(path, 4) == ideal, (source, n)
                    continue
            kill(folder)
            break
    assert moments >= 10  # twice two files synced and put in place, a folder synced, a file removed


def test_what_was_kept(begin):
    folder = begin(5)
    rows = read_clients(folder.path).to_pylist()
    folder.close("interrupted", {})
    folder = RunFolder.reopen(folder.path)
    latest = folder.truncate(4)
    expected = {row["client"]: row for row in rows if row["round"] <= 4 and row["total"] is not None}
    assert len({row["round"] for row in expected.values()}) > 1  # not all in the last round
    assert expected[5]["total"] == 0
    assert {client: dataclasses.asdict(row) for client, row in latest.items()} == expected
    folder.close("failed", {})
    assert read_rounds(folder.path)["round"].to_pylist() == list(range(5))


def test_only_one_at_a_time(begin):
    folder = begin(1)

    def refused():
        with pytest.raises(ScenarioError, match=f"process {os.getpid()}"):
            RunFolder.reopen(folder.path)

    refused()
    folder.close("failed", {})
    second = RunFolder.reopen(folder.path)
    refused()
    del second  # a run that failed before it could say so
    gc.collect()
    RunFolder.reopen(folder.path)


def test_sync_makes_every_round_durable(begin, monkeypatch):
    folder = begin(4)
    assert read_rounds(folder.path).num_rows < 5  # else this test shows nothing
    synced = set()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: synced.add(os.fstat(handle).st_ino))
        folder.sync()
    assert read_rounds(folder.path)["round"].to_pylist() == [0, 1, 2, 3, 4]
    for path in (folder.path, folder.path / "clients.arrows", folder.path / "rounds.parquet"):
        assert path.stat().st_ino in synced, path
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"clients\.arrows"):
        folder.sync()
    kill(folder)


SCRIPT = """
import sys, pathlib
from raysim.common.results import ClientRow, RunCard
from raysim.results.folder import RunFolder
folder = RunFolder.create(pathlib.Path(sys.argv[1]) / "quick", "killed")
folder.open(RunCard("quick", "killed", folder.path, {}, {}, "digits", "s", "d", "p", 1, 1, "m-s1", {}))
for t in range(100_000):
    row = ClientRow(t, 0, "m", True, 0.5, 1, 2, 0.1, 1, 2, None, None, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)
    folder.log(t, {"accuracy/all": t / 10}, [row] * 50)
    if t % 3 == 0:
        folder.sync()
        print(t, flush=True)
"""


def test_a_process_that_is_killed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, stdout=-1) as process:
        lines = [process.stdout.readline() for _ in range(5)]
        path = tmp_path / "quick" / "killed"
        with pytest.raises(ScenarioError, match=f"process {process.pid}"):
            RunFolder.reopen(path)
        assert read_summary(path)["status"] == "running"
        process.kill()
        lines += process.stdout.readlines()
    assert read_summary(path)["status"] == "died"
    t = int(lines[-1])
    folder = RunFolder.reopen(path)
    assert folder.truncate(t)[0].round == t
    assert read_rounds(path)["round"].to_pylist() == list(range(t + 1))
    assert read_clients(path)["round"].to_pylist() == [r for r in range(t + 1) for _ in range(50)]
    kill(folder)


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")
