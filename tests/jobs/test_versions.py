"""Versions of client and cluster: differences that stop a job, and those that only warn."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

import pytest

from raysim.jobs.versions import Versions, incompatibility, missing, warning

HERE = Versions.here()


def test_they_survive_an_environment_variable() -> None:
    assert Versions.parse(HERE.text()) == HERE
    assert "" not in (HERE.python, HERE.ray, HERE.torch, HERE.raysim)


def test_the_same_fits() -> None:
    assert incompatibility(HERE, HERE) == ""
    assert warning(HERE, HERE) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ray": ""}, "has no Ray"),
        ({"ray": "2.9.1"}, "the cluster has Ray 2.9.1"),
        ({"python": "3.9"}, f"the cluster has Python 3.9, but the job was submitted with Python {HERE.python}"),
        ({"raysim": "0.0.1"}, "finds raysim 0.0.1"),
        ({"raysim": ""}, "finds no raysim"),
    ],
)
def test_what_does_not_fit(change: dict[str, str], message: str) -> None:
    assert message in incompatibility(HERE, replace(HERE, **change))


def test_a_patch_of_ray_fits() -> None:
    assert incompatibility(replace(HERE, ray="2.60.0"), replace(HERE, ray="2.60.3")) == ""


def test_another_torch_is_only_told() -> None:
    other = replace(HERE, torch="1.0.0")
    assert incompatibility(HERE, other) == ""
    assert "torch 1.0.0" in warning(HERE, other)
    assert warning(replace(HERE, torch="2.6.0+cpu"), replace(HERE, torch="2.6.0+cu126")) == ""


def test_a_warning_names_the_torch_of_each_side() -> None:
    sent, there = replace(HERE, torch="2.9.0+cpu"), replace(HERE, torch="2.8.0+cu126")
    assert warning(sent, there).startswith("the cluster has torch 2.8.0, but the job was submitted with torch 2.9.0: ")


def test_requirements_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() == []
    real = metadata.version

    def version(name: str) -> str:
        if name == "mlflow":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "pyarrow" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    message = incompatibility(HERE, HERE)
    (arrow,) = [text for text in metadata.requires("raysim") or () if text.startswith("pyarrow")]
    assert message.startswith(f"the cluster lacks {arrow}, mlflow")
    assert "pytest" not in message


def test_which_requirements_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prerelease is enough; a marker that holds counts, one of an extra or another system does not."""
    needed = [
        "new>=3,<4", "absent>=1", "here; python_version >= '3'", "old; python_version < '3'", "docs; extra == 'docs'",
    ]  # fmt: skip

    def version(name: str) -> str:
        if name == "new":
            return "3.8.0rc1"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", lambda name: needed)
    monkeypatch.setattr(metadata, "version", version)
    assert missing() == ["absent>=1", "here"]
