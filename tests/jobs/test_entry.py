"""A job's own program, on this machine, without Ray: what it refuses, and where its paths lead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raysim.jobs import entry
from raysim.plugins.own_code import JOB_CODE
from raysim.scenario.parse import parse_scenario
from tests.conftest import REPOSITORY

QUICKSTART = REPOSITORY / "scenarios" / "quickstart.yaml"


def test_other_versions_are_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    sent = "Python 3.11 and Ray 2.9"
    assert entry.main([sent, "quickstart.yaml"]) == 2
    output = capfd.readouterr()
    assert sent in output.err and entry.versions() in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_the_entry_imports_nothing_that_may_be_missing() -> None:
    """Before the versions fit, nothing is imported that a cluster may lack."""
    program = "import sys, raysim.jobs.entry; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "ray", "numpy", "yaml", "pydantic", "click", "rich", "mlflow"} & set(loaded)


def test_a_job_has_the_file_that_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although ~/raysim, where a job's relative paths begin, has a file of the same name."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in (tmp_path / JOB_CODE, tmp_path / "home" / "raysim"):
        folder.mkdir(parents=True)
        (folder / "mine.py").write_text((REPOSITORY / "algorithms" / "fedgh.py").read_text())
    (tmp_path / "s.yaml").write_text(QUICKSTART.read_text())
    monkeypatch.chdir(tmp_path / "home" / "raysim")
    parsed = parse_scenario(tmp_path / "s.yaml", ["algorithm.name=./mine.py"])
    assert parsed.own_code.paths == [str((tmp_path / JOB_CODE / "mine.py").resolve())]
