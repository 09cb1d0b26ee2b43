"""What a release states about itself is true."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import raysim
from tests.cli.command import run
from tests.conftest import REPOSITORY
from tests.plugins.own import forget_own_code

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]


def test_the_version_is_the_same_everywhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["version"] == VERSION
    assert f"## {VERSION}" in (REPOSITORY / "CHANGELOG.md").read_text()
    code, out, _ = run(capfd, "--version")
    assert (code, out) == (0, f"raysim {VERSION}\n")


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())
    assert ".ci/run" in [step.get("run") for step in workflow["jobs"]["test"]["steps"]]
    assert os.access(REPOSITORY / ".ci/run", os.X_OK)
    assert workflow["jobs"]["publish"]["needs"] == "test"


def test_every_dependency_is_imported_and_every_import_is_declared() -> None:
    names = {"scikit-learn": "sklearn", "pyyaml": "yaml", "pillow": "PIL"}
    declared = {names.get(name, name.replace("-", "_")) for name in map(_package, PROJECT["dependencies"])}
    extras = PROJECT["optional-dependencies"]
    optional = {
        _package(text).replace("-", "_")
        for name in ("hub", "privacy", "tune", "tensorboard", "wandb")
        for text in extras[name]
    }
    files = [*(REPOSITORY / "raysim").rglob("*.py"), *(REPOSITORY / "algorithms").glob("*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    imported = {module.partition(".")[0] for module in modules}
    # Pydantic needs the same version of pydantic_core.
    third_party = imported - set(sys.stdlib_module_names) - {"raysim", "__future__", "pydantic_core"}
    # The data set digits is a file of scikit-learn, which is read without importing it.
    assert declared - {"sklearn"} <= third_party
    assert third_party <= declared | optional


def test_every_dependency_has_a_lower_bound() -> None:
    """`make test-versions` tries it."""
    bounded = [one for one in map(Requirement, PROJECT["dependencies"]) if ">=" in str(one.specifier)]
    assert len(bounded) == len(PROJECT["dependencies"])


def _package(requirement: str) -> str:
    return Requirement(requirement).name


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


def test_every_package_of_the_environment_is_pinned() -> None:
    """Otherwise `make setup` installs whatever is newest on that day."""

    def key(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {key(line.partition("==")[0]) for line in lines if "==" in line}
    extras = PROJECT["optional-dependencies"]
    names = ("dev", "tune", "tensorboard", "wandb")
    texts = [*PROJECT["dependencies"], *(text for name in names for text in extras[name])]
    left, seen = list(map(Requirement, texts)), {("raysim", frozenset({"tensorboard", "tune", "wandb"}))}
    while left:
        one = left.pop()
        if (known := (key(one.name), frozenset(one.extras))) in seen:
            continue
        seen.add(known)
        for needed in map(Requirement, metadata.requires(one.name) or ()):
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *one.extras)):
                left.append(needed)
    # setuptools belongs to the environment.
    assert {name for name, _ in seen} - pinned <= {"raysim", "setuptools"}
