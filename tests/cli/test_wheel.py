"""An installed wheel in an empty folder is all that a user needs: the commands that docs/own_code.md begins with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SHORT = ["--set", "rounds=1", "--set", "training.epochs=1"]


@pytest.mark.large
@pytest.mark.ray
def test_the_pages_commands(tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    copy = tmp_path / "copy"  # setuptools writes into the folder that it builds from
    shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "runs", "build", "*.egg-info"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(copy)]
    subprocess.run(install, check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}

    def raysim(*words: str) -> str:
        command = [sys.executable, "-m", "raysim", *words]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    where = subprocess.run(
        [sys.executable, "-c", "import raysim; print(raysim.__file__)"],
        cwd=empty, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(site)
    raysim("launch", "quickstart", *SHORT)
    assert "problem" not in raysim("doctor")

    raysim("init")
    assert "accuracy" in raysim("launch", "scenarios/quickstart.yaml", *SHORT)
    page = (REPOSITORY / "docs" / "own_code.md").read_text(encoding="utf-8")
    lines = re.findall(r"^raysim ([^#\n]+)", page.split("```")[1], re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["new", "describe", "launch", "sweep", "new", "new"]
    for line in lines:
        words = line.split()
        raysim(*words, *(SHORT if words[0] in ("launch", "sweep") else ()))
    assert len(list((empty / "runs").rglob("summary.json"))) == 1 + 1 + 1 + 9
    for scenario in ("my_net.yaml", "my_data.yaml"):
        raysim("launch", scenario, *SHORT)
