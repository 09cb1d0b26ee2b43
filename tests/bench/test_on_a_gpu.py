"""The script for a machine with a GPU: what runs on CPUs does, and every outcome is a row of the CSV."""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

import gpu_parts
import on_a_gpu
import pytest
from gpu_parts import Context

Rows = dict[tuple[str, str, str], str]
"""(part, case, quantity) -> value."""


def rows_of(folder: Path) -> Rows:
    with (folder / "results.csv").open(newline="") as file:
        return {(row["part"], row["case"], row["quantity"]): row["value"] for row in csv.DictReader(file)}


def measured(folder: Path, part: str) -> Rows:
    """Run a part with tiny sizes on the CPU, in this process."""
    on_a_gpu.PARTS[part].run(Context(part, "cpu", True, folder, folder, time.time() + 600))
    return rows_of(folder)


def test_steps_are_timed(tmp_path: Path) -> None:
    rows = measured(tmp_path, "steps")
    assert all(float(rows["steps", f"cnn{i} eager", "step"]) > 0 for i in range(1, 6))
    assert rows["steps", "recorded", "status"] == "skipped"


@pytest.mark.large
def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`machine` fails, because torch finds no CUDA device; 20 s do not suffice for `clients`."""
    if gpu_parts.shutil.which("nvidia-smi"):
        pytest.skip("this machine may have a CUDA device")
    command = ["--out", str(tmp_path), "--parts", "machine,clients", "--minutes", "0.5"]
    sys.argv[1:], before = command, sys.argv[1:]
    try:
        assert on_a_gpu.main() == 1
    finally:
        sys.argv[1:] = before
    rows = rows_of(tmp_path)
    assert rows["machine", "", "status"] == "failed" and rows["machine", "", "error"]
    assert rows["clients", "", "status"] == "skipped"
    assert "clients" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.large
def test_all_parts_as_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["on_a_gpu.py", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    assert on_a_gpu.main() == 0
    rows = rows_of(tmp_path)
    assert {rows[part, "", "status"] for part in on_a_gpu.PARTS} == {"done"}
    assert rows["clients", "2 actors", "same digest as eager"] == "yes"
