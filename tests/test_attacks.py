"""A few of the mutants of `python -m tests.attacks`: nothing outside of one folder changes, nothing is a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.attacks import run_folders
from tests.attacks.data_files import DataAttack
from tests.attacks.harness import SLOWEST_S, attack
from tests.attacks.job_logs import attack_job
from tests.attacks.names import NamesAttack
from tests.attacks.own_code import OwnCodeAttack
from tests.attacks.run_folders import FolderAttack

MIB = 200
"""What this process may grow by: some mutants hold a hundred MiB in a hundred KiB."""


def test_job_logs(tmp_path: Path) -> None:
    from tests.jobs import add_commands

    add_commands()
    outcome = attack(15, attack_job, tmp_path)
    assert not outcome.failures, outcome.failures[0]
    assert set(outcome.codes) == {0, 1, 2}
    assert outcome.grown_mib < MIB


@pytest.mark.large
def test_data_files(tmp_path: Path) -> None:
    outcome = attack(8, DataAttack(), tmp_path)
    assert not outcome.failures, outcome.failures[0]
    assert set(outcome.codes) == {0, 2}
    assert outcome.slowest_s < SLOWEST_S


def test_run_folders(tmp_path: Path) -> None:
    outcome = attack(12, FolderAttack(tmp_path / "real"), tmp_path)
    assert not outcome.failures, outcome.failures[0]
    assert set(outcome.codes) == {0, 1, 2}
    assert outcome.grown_mib < MIB


def test_own_code(tmp_path: Path) -> None:
    outcome = attack(6, OwnCodeAttack(tmp_path), tmp_path)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.codes[2]
    assert outcome.grown_mib < MIB and outcome.slowest_s < SLOWEST_S


@pytest.mark.large
def test_names(tmp_path: Path) -> None:
    outcome = attack(8, NamesAttack(tmp_path), tmp_path)  # one of each kind
    assert not outcome.failures, outcome.failures[0]
    assert outcome.codes[0] and outcome.codes[2]
    assert outcome.slowest_s < SLOWEST_S


def test_they_find_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the one check, a link is followed: that shows."""
    monkeypatch.setattr("raysim.runs.resume.refuse_strange_files", lambda folder: None)
    monkeypatch.setattr(run_folders, "MUTATIONS", (_linked_plots,))
    outcome = attack(1, FolderAttack(tmp_path / "real"), tmp_path)
    assert "something outside of the run folder changed" in outcome.failures[0]


def _linked_plots(rng: random.Random, folder: Path) -> None:
    if not (folder / "plots").is_symlink():
        shutil.rmtree(folder / "plots", ignore_errors=True)
        (folder / "plots").symlink_to(folder.parent.parent / "victim" / "folder")
