"""Limits of memory."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from raysim.common import memory


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        (
            "0::/slurm/job_1/step_0\n",
            {"v2/slurm/job_1/memory.max": "16000000", "v2/slurm/memory.max": "max"},
            16_000_000,
        ),
        ("0::/\n", {"v2/memory.max": "5000000"}, 5_000_000),
        ("9:cpu:/a\n4:memory:/job_2\n0::/b\n", {"v1/job_2/memory.limit_in_bytes": "7000000"}, 7_000_000),
        ("0::/none\n", {}, None),
        ("not a control group", {"v2/memory.max": "5000000"}, 5_000_000),
    ],
)
def test_the_limit_of_a_job(
    groups: str, files: dict[str, str], limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    roots = {"": "v2", "memory": "v1"}
    found = {controller: (str(tmp_path / roots[controller]), name) for controller, (_, name) in memory.CGROUPS.items()}
    monkeypatch.setattr(memory, "CGROUPS", found)
    monkeypatch.setattr(memory, "OWN_CGROUPS", tmp_path / "cgroup")
    assert memory.usable_memory() == (limit or psutil.virtual_memory().total)
