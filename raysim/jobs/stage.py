"""Fills the folder that a job ships: raysim with its algorithms and scenarios, and the scenario or sweep; no data."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from raysim.plugins.own_code import JOB_CODE, OwnCode
from raysim.runs.code import SHIPPED, checkout
from raysim.scenario.bundled import FOLDER

PACKAGES = ("raysim", "raysim.algorithms")


def stage(files: Sequence[Path], folder: Path, own_code: OwnCode) -> list[str]:
    """Copy the code and `files` to `folder`; returns the paths of the files in it.

    The files keep their paths relative to each other. The packages are those that this process imports, from a
    checkout, an installation, or a user's `algorithms` folder in front of either, so the job runs the code that was
    checked.
    """
    for name in PACKAGES:
        # If a package has several folders, `import` uses the first that has a file: copy that one last.
        for source in reversed([*importlib.import_module(name).__path__]):
            shutil.copytree(source, folder / name.replace(".", "/"), ignore=_others, dirs_exist_ok=True)
    for scenario in FOLDER.rglob("*.yaml"):  # the base of a sweep may be one of them
        _copy(scenario, folder / "raysim" / "scenarios" / scenario.relative_to(FOLDER))
    _identity(folder)
    # Not resolved, so that links of files and folders stay where the sweep file names them.
    places = [Path(os.path.abspath(file)) for file in files]  # noqa: PTH100  # `absolute` keeps `..`
    common = Path(os.path.commonpath([place.parent for place in places])) if places else folder
    names = [place.relative_to(common).as_posix() for place in places]
    for file, name in zip(files, names, strict=True):
        _copy(file, folder / name)
    if names:  # the scenario's loader looks for this folder, also if it is empty
        code = (folder / names[0]).parent / JOB_CODE
        code.mkdir()
        own_code.write(code)
    return names


def _copy(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)


def _others(folder: str, names: list[str]) -> list[str]:
    """The names in a package's folder that are not shipped: all but Python code, and all links."""
    return [
        name
        for name in names
        if name.startswith(".")
        or name == "__pycache__"
        or Path(folder, name).is_symlink()
        or not (name.endswith(".py") or name == "py.typed" or Path(folder, name).is_dir())
    ]


def _identity(folder: Path) -> None:
    """Write raysim's metadata, with its version and requirements: the cluster need not have raysim installed."""
    distribution = metadata.distribution("raysim")
    header = str(distribution.metadata).partition("\n\n")[0]
    info = folder / f"raysim-{distribution.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(header + "\n", encoding="utf-8")
    commit, dirty = checkout()
    if commit is not None:
        (info / SHIPPED).write_text(f"{commit} {'dirty' if dirty else 'clean'}", encoding="utf-8")
