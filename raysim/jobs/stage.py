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
    """A file and its place in the folder."""

    source: Path
    place: str


def code() -> Iterator[Shipped]:
    """Every file of code to ship, each place once.

    The packages are those that this process imports, so that what was checked here is what runs there: a checkout, an
    installation, or a user's own `algorithms` folder in front of them. Where a package has several folders, the first
    that has a file counts, as in `import`.
    """
    seen: set[str] = set()
    for name in PACKAGES:
        for folder in importlib.import_module(name).__path__:
            for source in sorted(Path(folder).rglob("*")):
                inside = source.relative_to(folder)
                place = (name / inside).as_posix()
                if place not in seen and _is_code(source, inside):
                    seen.add(place)
                    yield Shipped(source, place)


def stage(scenario: Path | None, folder: Path) -> str | None:
    """Fill `folder` with the code and the scenario, if there is one; returns the scenario's name in it.

    Raises `ScenarioError` when a file cannot be read.
    """
    name = None if scenario is None else scenario.name
    given = [] if scenario is None else [Shipped(scenario, scenario.name)]
    try:
        for source, place in [*code(), *given]:
            target = folder / place
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
    """raysim's name, version and requirements, which a cluster that has only those requirements does not know."""
    found = metadata.distribution("raysim")
    header = str(found.metadata).partition("\n\n")[0]
    place = folder / f"raysim-{found.version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(header + "\n", encoding="utf-8")
    checkpoint, dirty = checkout()
    if checkpoint is not None:
        (place / SHIPPED).write_text(f"{checkpoint} {'dirty' if dirty else 'clean'}", encoding="utf-8")
