"""When the user is warned of a memory or a disk that fills up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from raysim.engine.resource_monitor import ResourceMonitor

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine of 23.4 GiB with a disk of 500 GiB; tests change how full they are."""
    has = SimpleNamespace(percent=50.0, free=100 * GIB, total=500 * GIB)
    memory = lambda: SimpleNamespace(percent=has.percent, total=round(23.4 * GIB))  # noqa: E731
    monkeypatch.setattr("psutil.virtual_memory", memory)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: has)
    return has


def test_warns_of_a_full_memory_and_a_low_disk_once(machine: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    monitor = ResourceMonitor(Path("/data/runs"))
    for machine.percent in (89.0, 92.0, 96.0, 79.0, 91.0):
        monitor.check()
    (memory,) = caplog.messages
    assert memory.startswith("memory: 92 %") and "resources.actors" in memory
    for mib in (1024, 900, 800):
        machine.free = mib * 2**20
        monitor.check()
    (_, disk) = caplog.messages
    assert disk.startswith("disk: only 0.9 GiB") and "/data/runs" in disk
