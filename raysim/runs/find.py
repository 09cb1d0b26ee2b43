"""Find a run by its folder or its id."""

from __future__ import annotations

import glob
from pathlib import Path

from raysim.common.errors import ScenarioError


def find_run(text: str) -> Path:
    """Return the run folder at this path, or with this id below ./runs. Raises `ScenarioError` if none exists."""
    path = Path(text).expanduser()
    if path.is_dir():
        return path.absolute()
    folders = sorted(Path("runs").glob(f"*/{glob.escape(text)}")) if "/" not in text else []
    if len(folders) == 1:
        return folders[0].absolute()
    if folders:
        raise ScenarioError(f"{text} is the id of several runs; give the folder of one, such as {folders[0]}")
    known = sorted((p.parent for p in Path("runs").glob("*/*/run.json")), key=lambda p: p.name)
    latest = f"; the latest run there is {known[-1]}" if known else ""
    raise ScenarioError(f"{text} is neither a run folder nor the id of a run below ./runs{latest}")
