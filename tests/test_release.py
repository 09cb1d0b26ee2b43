"""What a release states about itself is true."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
import yaml

import raysim
from tests.cli.command import run
from tests.conftest import REPOSITORY
from tests.plugins.test_own_code import forget_own_code

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


def test_the_version_is_the_same_everywhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["version"] == VERSION
    assert f"## {VERSION}" in (REPOSITORY / "CHANGELOG.md").read_text()
    code, out, _ = run(capfd, "--version")
    first, *others = out.splitlines()
    assert (code, first) == (0, f"raysim {VERSION}")
    assert [line.split()[0] for line in others] == ["ray", "torch", "torchvision", "mlflow", "numpy", "Python"]


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["test"]["steps"]]
    assert os.access(REPOSITORY / ".ci/run", os.X_OK)
    assert workflow["jobs"]["publish"]["needs"] == "test"


def test_tables_of_a_foreign_run_run_no_code_of_it(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """SECURITY.md promises it: compare, report and the data frames of a run read the folder's tables only."""
    marker = workplace / "ran"
    method = (REPOSITORY / "algorithms" / "fedgh.py").read_text().replace("class FedGH", "class Theirs")
    method = method.replace(
        "import torch\n", f"import torch\n\n__import__('pathlib').Path({str(marker)!r}).touch()\n", 1
    )
    (workplace / "theirs.py").write_text(method)
    scenario = {
        "name": "theirs",
        "rounds": 1,
        "backend": "in_process",
        "algorithm": {"name": "./theirs.py"},
        "data": {"name": "digits"},
        "clients": {"count": 3, "models": ["digits_mlp64"]},
    }
    folder = raysim.run(scenario, quiet=True).folder
    marker.unlink()
    forget_own_code()
    assert run(capfd, "compare", str(folder))[0] == 0
    assert run(capfd, "report", str(folder), "-o", "report.html")[0] == 0
    opened = raysim.Run(folder)
    assert len(opened.rounds) and len(opened.clients) and len(opened.partition)
    assert not marker.exists()
    assert opened.client(0).network is not None
    assert marker.exists()
