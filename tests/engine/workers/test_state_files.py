"""Rows are kept in memory or on a disk, for all processes of a machine, and leave neither a name nor memory behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim.common.errors import RunError
from raysim.engine.workers.state_files import Row, Rows, StateFiles, StateLimits

SIZE = 1 << 16


def row(value: int, size: int = SIZE) -> Row:
    return np.full(size, value, dtype=np.uint8)


def read(rows: Rows, begin: int, size: int = SIZE) -> Row:
    found: Row = np.empty(size, dtype=np.uint8)
    rows.read(begin, found)
    return found


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on a disk"])
def test_rows_take_room_once_they_are_written(tmp_path: Path, on_disk: bool) -> None:
    files = StateFiles(StateLimits(1e-3, str(tmp_path)))
    rows = files.rows(2_000_000 if on_disk else 1_000_000)
    for i in (5, 900):
        rows.write(i * SIZE, row(i % 7))
    assert [int(read(rows, i * SIZE).sum()) for i in (5, 900)] == [5 * SIZE, 900 % 7 * SIZE]
    assert not read(rows, 6 * SIZE).any()
    assert os.fstat(rows.file.fileno()).st_blocks * 512 in range(2 * SIZE, 4 * SIZE)
    assert files.memory_mb * 2**20 == (0 if on_disk else 2 * SIZE)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match="cannot read the client states: their file is truncated"):
        read(rows, 2000 * SIZE)
    files.close()
    with pytest.raises(ValueError, match="closed file"):
        rows.write(0, row(1))


def test_another_process_joins() -> None:
    ours = StateFiles()
    ours.rows(100).write(64, row(7, 10))
    script = f"""
import os, sys
import numpy as np
from raysim.engine.workers.state_files import Handle, StateFiles
handles = tuple(Handle(*one) for one in {[tuple(one) for one in ours.handles]})
theirs, own = StateFiles(), StateFiles()
theirs.join(handles)
assert theirs.joined and theirs.handles == handles and theirs.memory_mb == 0
row = np.empty(10, dtype=np.uint8)
theirs.rows(100).read(64, row)
theirs.rows(100).write(74, row + 1)
# The path leads to another file there, or to none: it keeps its own.
for wrong in (handles[0]._replace(inode=1), handles[0]._replace(path="/proc/0/fd/9")):
    own.join((wrong, handles[1]))
    assert not own.joined and own.handles != handles
own.rows(100).write(0, row)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert read(ours.rows(100), 64, 20).tolist() == [7] * 10 + [8] * 10
    ours.join(ours.handles)
    assert not ours.joined
