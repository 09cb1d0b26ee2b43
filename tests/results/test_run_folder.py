"""The run folder is readable at any time, whole when it says so, and clear about what went wrong."""

from __future__ import annotations

import dataclasses
import errno
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raysim.common.errors import RunError
from raysim.common.results import METRICS, ClientRow
from raysim.results.client_rows import CLIENT_SCHEMA
from raysim.results.folder import RunFolder
from raysim.results.load import read_clients, read_rounds, read_summary


@pytest.fixture
def run(tmp_path, make_card):
    run = RunFolder.create(tmp_path / "runs" / "quick", "r1")
    run.open(make_card(run.path))
    yield run
    run._clients.close_stream()  # what a killed process leaves to the operating system


def test_schema_follows_client_row():
    assert CLIENT_SCHEMA.names == [field.name for field in dataclasses.fields(ClientRow)]
    optional = {f.name for f in dataclasses.fields(ClientRow) if "None" in str(f.type)}
    assert {f.name for f in CLIENT_SCHEMA if f.nullable} == optional


def test_finished_run(run, make_rows, tmp_path):
    run.write("scenario.yaml", "name: quick  # ä\n")
    run.log(0, {"accuracy/all": 0.1}, make_rows(0, 20))
    run.log(1, {"accuracy/all": 0.2, "comm/up_bytes": 2**40, "client/angle": math.nan}, make_rows(1, 20))
    run.close("finished", {"best": math.nan, "where": Path("x"), "n": {"a": (1, 2)}})

    assert run.path == tmp_path / "runs" / "quick" / "r1"
    assert (run.path / "scenario.yaml").read_text() == "name: quick  # ä\n"
    assert {p.name for p in run.path.iterdir()} == {
        "scenario.yaml",
        "rounds.parquet",
        "clients.parquet",
        "summary.json",
        "logs",
    }
    rounds = read_rounds(run.path)
    assert rounds.column_names == ["round", *METRICS, "client/angle"]
    assert [str(f.type) for f in rounds.schema] == ["int64"] + ["double"] * (len(METRICS) + 1)
    assert rounds["round"].to_pylist() == [0, 1]
    assert rounds["comm/up_bytes"].to_pylist() == [None, 2.0**40]
    clients = pq.read_table(run.path / "clients.parquet")
    assert clients.schema.equals(CLIENT_SCHEMA)
    assert [ClientRow(**row) for row in clients.to_pylist()] == make_rows(0, 20) + make_rows(1, 20)
    summary = read_summary(run.path)
    assert summary["status"] == "finished" and summary["scenario"] == "quick"
    assert summary["best"] is None and summary["n"] == {"a": [1, 2]}


def test_killed_run_is_readable_and_does_not_look_whole(run, make_rows):
    for t in range(3):
        run.log(t, {"accuracy/all": t / 10}, make_rows(t, 4))
    # No close: what is on disk now is what a killed process leaves.
    assert read_clients(run.path)["round"].to_pylist() == [0] * 4 + [1] * 4 + [2] * 4
    assert read_rounds(run.path)["round"].to_pylist() == [0]  # the first at once, then every two seconds
    assert read_summary(run.path)["status"] == "running" and read_summary(run.path)["seed"] == 1
    before = {path: path.stat().st_mtime_ns for path in [run.path, *run.path.rglob("*")]}
    run.release()  # as the end of the process does
    assert read_summary(run.path)["status"] == "died" and read_summary(run.path)["seed"] == 1
    assert before == {path: path.stat().st_mtime_ns for path in [run.path, *run.path.rglob("*")]}
    (run.path / "logs" / ".lock").unlink()  # a copy, which may be of a run that goes on
    assert read_summary(run.path)["status"] == "running"


def test_truncated_stream_is_read_up_to_the_cut(run, make_rows):
    stream = run.path / "clients.arrows"
    sizes = []
    for t in range(3):
        run.log(t, {}, make_rows(t, 4))
        sizes.append(stream.stat().st_size)
    whole = stream.read_bytes()
    for cut, rounds in ((sizes[0] - 1, 0), (sizes[0], 1), (sizes[1] + 9, 2), (sizes[2] - 1, 2), (3, 0)):
        stream.write_bytes(whole[:cut])
        assert read_clients(run.path).num_rows == 4 * rounds


def test_close_on_a_full_disk_keeps_what_it_can(run, make_rows, monkeypatch):
    run.log(0, {"accuracy/all": 0.1}, make_rows(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", _full_disk)
        with pytest.raises(RunError, match=r"clients\.parquet could not be written"):
            run.close("finished", {})
    assert read_summary(run.path)["status"] == "failed"
    assert read_clients(run.path).num_rows == 2  # still the stream


def _full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")
