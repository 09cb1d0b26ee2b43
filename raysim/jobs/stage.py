"""The folder that a job ships: raysim with its algorithms, the scenario or sweep. No data, no results, no history."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from raysim.common.errors import ScenarioError
from raysim.plugins.own_code import OwnCode
from raysim.runs.code import SHIPPED, checkout
from raysim.scenario.parse import CODE

PACKAGES = ("raysim", "raysim.algorithms")


def stage(files: Sequence[Path], folder: Path, own_code: OwnCode | None = None) -> str | None:
    """Fill `folder` with the code and these files, as they lie to each other; returns the first one's name in it.

    The packages are those that this process imports, so the job runs the code that was checked: a checkout, an
    installation, or a user's own `algorithms` folder before them. Raises `ScenarioError` when a file cannot be read.
    """
    try:
        for name in PACKAGES:
            # Where a package has several folders, the first that has a file counts, as in `import`: it comes last here.
            for source in reversed([*importlib.import_module(name).__path__]):
                shutil.copytree(source, folder / name.replace(".", "/"), ignore=_others, dirs_exist_ok=True)
        _identity(folder)
        places = [file.resolve().parent / file.name for file in files]  # a link keeps its name
        common = Path(os.path.commonpath([place.parent for place in places])) if places else folder
        names = [place.relative_to(common).as_posix() for place in places]
        for file, shipped in zip(files, names, strict=True):
            (folder / shipped).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / shipped)
        if own_code and names:
            own_code.write((folder / names[0]).parent / CODE)  # where the first file finds it
    except OSError as error:  # of several files: shutil's, a list
        raise ScenarioError(f"{error.filename or 'the code'}: cannot be shipped: {error.strerror or error}") from None
    return names[0] if names else None


def _others(folder: str, names: list[str]) -> list[str]:
    """What is not shipped of a package's folder: all but code. What a link names is shipped by itself or not at all."""
    return [
        name
        for name in names
        if name.startswith(".")
        or name == "__pycache__"
        or Path(folder, name).is_symlink()
        or not (name.endswith(".py") or name == "py.typed" or Path(folder, name).is_dir())
    ]


def _identity(folder: Path) -> None:
    """Write raysim's name, version and requirements, for a cluster that has only those requirements installed."""
    distribution = metadata.distribution("raysim")
    header = str(distribution.metadata).partition("\n\n")[0]
    info = folder / f"raysim-{distribution.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(header + "\n", encoding="utf-8")
    commit, dirty = checkout()
    if commit is not None:
        (info / SHIPPED).write_text(f"{commit} {'dirty' if dirty else 'clean'}", encoding="utf-8")
