"""Temporary folders of killed processes are removed, and no others."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raysim.common.temporary import temporary_folder

OWNER = """
import sys
from raysim.common.temporary import temporary_folder
with temporary_folder("verify-") as folder:
    (folder / "part").write_text("x")
    print(folder.parent, flush=True)
    sys.stdin.read()
"""


def test_the_next_folder_removes_those_of_killed_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "raysim-of-another-program").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        with temporary_folder("verify-") as mine:
            assert (left / "content" / "part").exists()  # its process lives
            assert not list(mine.iterdir())
            assert mine.parent.stat().st_mode & 0o077 == 0
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert left.exists() and not mine.parent.exists()
    with temporary_folder("submit-"):
        assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["raysim-of-another-program"]
