"""The papers' sweep files, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from raysim.scenario.scenario import Scenario
from raysim.study.cells import Cell, Sweep
from raysim.study.definition import load_sweep
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "scenarios" / "papers"
BASES = sorted(FOLDER.glob("*/base.yaml"))
FILES = sorted(set(FOLDER.glob("*/*.yaml")) - set(BASES))


def name_of(path: Path) -> str:
    """Such as "fedssa/table1"."""
    return f"{path.parent.name}/{path.stem}"


@cache
def sweep_of(name: str) -> Sweep:
    """The sweep of a file such as "fedssa/table1", with one seed."""
    return load_sweep(FOLDER / f"{name}.yaml", seeds=[1])


def cell_of(name: str, label: str) -> Cell:
    """The cell with this label."""
    (cell,) = (cell for cell in sweep_of(name).cells if cell.label == label)
    return cell


@cache
def checked(name: str, label: str) -> Scenario:
    """The checked scenario of a cell."""
    with torch.device("meta"):  # no weights are drawn for networks whose sizes a method only compares
        return Scenario.of(cell_of(name, label).scenario)
