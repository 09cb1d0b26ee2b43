"""The folder that a job ships: raysim, the algorithms, the scenario. No data, no results, no history."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from raysim.common.errors import ScenarioError
from raysim.launch.code import SHIPPED, checkout

PACKAGES = ("raysim", "algorithms")


class Shipped(NamedTuple):
    """A file and its path in the folder."""

    source: Path
    path: str


def code() -> Iterator[Shipped]:
    """Every file of code to ship, each path once.

    The packages are those that this process imports, so the job runs the code that was checked: a checkout, an
    installation, or a user's own `algorithms` folder before them. Where a package has several folders, the first that
    has a file counts, as in `import`.
    """
    seen: set[str] = set()
    for name in PACKAGES:
        for folder in importlib.import_module(name).__path__:
            for source in sorted(Path(folder).rglob("*")):
                inside = source.relative_to(folder)
                path = (name / inside).as_posix()
                if path not in seen and _is_code(source, inside):
                    seen.add(path)
                    yield Shipped(source, path)


def stage(scenario: Path | None, folder: Path) -> str | None:
    """Fill `folder` with the code and the scenario, if there is one; returns the scenario's name in it.

    Raises `ScenarioError` when a file cannot be read.
    """
    name = None if scenario is None else scenario.name
    given = [] if scenario is None else [Shipped(scenario, scenario.name)]
    try:
        for source, path in [*code(), *given]:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        _identity(folder)
    except OSError as error:
        raise ScenarioError(f"{error.filename}: cannot be shipped: {error.strerror or error}") from None
    return name


def _is_code(source: Path, inside: Path) -> bool:
    hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
    return not hidden and (source.suffix == ".py" or source.name == "py.typed") and source.is_file()


def _identity(folder: Path) -> None:
    """Write raysim's name, version and requirements, for a cluster that has only those requirements installed."""
    found = metadata.distribution("raysim")
    header = str(found.metadata).partition("\n\n")[0]
    info = folder / f"raysim-{found.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(header + "\n", encoding="utf-8")
    commit, dirty = checkout()
    if commit is not None:
        (info / SHIPPED).write_text(f"{commit} {'dirty' if dirty else 'clean'}", encoding="utf-8")
