"""The script for a machine with a GPU: what runs on CPUs does, and every outcome is a row of the CSV."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu_parts
import gpu_run
import on_a_gpu
import pytest
from gpu_parts import Context, Watched

Rows = dict[tuple[str, str, str], str]
"""(part, case, quantity) -> value."""


def rows_of(folder: Path) -> Rows:
    with (folder / "results.csv").open(newline="") as file:
        return {(row["part"], row["case"], row["quantity"]): row["value"] for row in csv.DictReader(file)}


def measured(folder: Path, part: str) -> Rows:
    """Run a part with tiny sizes on the CPU, in this process."""
    on_a_gpu.PARTS[part].run(Context(part, "cpu", True, folder, folder, time.time() + 600))
    return rows_of(folder)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios run one after another in this process, without Ray, since each start of a process takes seconds."""

    def run(to: Context, scenarios: Sequence[dict[str, Any]], variables: Mapping[str, str]) -> Any:
        return Watched(0, 1.0), [gpu_run.run(content) for content in scenarios]

    monkeypatch.setattr(gpu_parts, "run_scenarios", run)
    monkeypatch.setattr(gpu_parts, "find_spec", lambda name: None)


def test_steps_are_timed(tmp_path: Path) -> None:
    rows = measured(tmp_path, "steps")
    assert all(float(rows["steps", f"cnn{i} eager", "step"]) > 0 for i in range(1, 6))
    assert rows["steps", "recorded", "status"] == "skipped"


@pytest.mark.large
def test_clients_per_second_of_one_process_and_of_two(tmp_path: Path, in_this_process: None) -> None:
    rows = measured(tmp_path, "clients")
    for case in ("one process, eager", "2 processes"):
        assert float(rows["clients", case, "clients per second"]) > 0
    assert float(rows["clients", "2 processes", "times one eager process"]) > 0
    assert rows["clients", "MPS", "status"] == rows["clients", "one process, recorded", "status"] == "skipped"


@pytest.mark.large
def test_rounds_of_pfl_research(tmp_path: Path, in_this_process: None) -> None:
    rows = measured(tmp_path, "pfl")
    assert float(rows["pfl", "one process", "round"]) > 0
    together = "one process, no dropout, clients trained together"
    assert float(rows["pfl", together, "round"]) > 0 and ("pfl", together, "warning") not in rows


@pytest.mark.parametrize(
    "line",
    [
        "[gw1] [  5%] {} tests/gpu/test_gpu.py::test_x[fedgh-one by one] ",
        "tests/gpu/test_gpu.py::test_x[fedgh-one by one] {} [  5%]",
    ],
)
def test_outcomes_are_read_from_the_output_of_pytest(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: Sequence[str], limit_s: float, log: Path, env: Mapping[str, str]) -> Watched:
        begun = [f"tests/gpu/test_gpu.py::{name} " for name in ("test_x[fedgh-one by one]", "test_y")]
        log.write_text("\n".join([*begun, line.format("FAILED")]))
        return Watched(None, 60.0)

    monkeypatch.setattr(gpu_parts, "watched", run)
    with pytest.raises(RuntimeError):
        measured(tmp_path, "tests")
    rows = rows_of(tmp_path)
    assert rows["tests", "test_x", "failed"] == rows["tests", "test_y", "unfinished"] == "1"
    assert rows["tests", "tests/gpu/test_gpu.py::test_x[fedgh-one by one]", "outcome"] == "failed"
    assert "too long" in rows["tests", "", "exit code"]


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
def test_a_process_that_takes_too_long_is_killed_with_its_descendants(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    ran = gpu_parts.watched([sys.executable, "-c", code], 2.0, tmp_path / "log", os.environ)
    assert ran.code is None and 2.0 <= ran.seconds < 10.0


@pytest.mark.large
def test_all_parts_as_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["on_a_gpu.py", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    assert on_a_gpu.main() == 0
    rows = rows_of(tmp_path)
    assert {rows[part, "", "status"] for part in on_a_gpu.PARTS} == {"done"}
    assert rows["clients", "2 actors", "same digest as eager"] == "yes"
