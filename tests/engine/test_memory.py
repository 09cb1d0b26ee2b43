"""Memory and disks that fill up: the measurements, and when the user is warned of them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from raysim.engine.memory import DiskUsage, MemoryUsage, ResourceMonitor, disk_usage, gpu_memory, host_memory

GIB = 2**30


def at(share: float, limit: int = 100 * GIB) -> MemoryUsage:
    return MemoryUsage(round(share * limit), limit)


class TestMeasurements:
    def test_host_memory(self) -> None:
        found, memory = host_memory(), psutil.virtual_memory()
        assert found.limit == memory.total
        assert found.used == pytest.approx(memory.total - memory.available, abs=GIB)

    def test_no_gpu_or_none_in_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)  # another test may have used one
        assert gpu_memory() is None
        monkeypatch.setitem(sys.modules, "torch", None)
        assert gpu_memory() is None

    def test_gpu_memory_is_without_the_allocators_reserve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers: dict[str, Any] = {
            "is_available": True,
            "is_initialized": True,
            "mem_get_info": (10 * GIB, 80 * GIB),
            "memory_reserved": 30 * GIB,
            "memory_allocated": 5 * GIB,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(f"torch.cuda.{name}", lambda *index, answer=answer: answer)
        assert gpu_memory(0) == MemoryUsage(45 * GIB, 80 * GIB)

    def test_the_disk_of_a_folder_that_does_not_exist_yet(self, tmp_path: Path) -> None:
        found = disk_usage(tmp_path / "runs" / "quickstart")
        usage = shutil.disk_usage(tmp_path)
        assert found.folder == tmp_path / "runs" / "quickstart"
        assert found.total == usage.total
        assert found.free == pytest.approx(usage.free, abs=GIB)


class TestResourceMonitor:
    def test_warns_of_a_full_memory_and_names_the_remedy(self) -> None:
        limit = round(23.4 * GIB)
        assert ResourceMonitor().check_memory(
            {"10.0.0.3": (at(0.92, limit), None), "10.0.0.4": (at(0.5), at(0.1))}
        ) == [
            "memory: node 10.0.0.3 uses 92 % of 23.4 GiB; Ray or the kernel kills processes when it is full: "
            "use fewer actors (resources.actors) or smaller batches"
        ]

    def test_warns_once(self) -> None:
        monitor = ResourceMonitor()
        warned = [bool(monitor.check_memory({"a": (at(s / 100), None)})) for s in (89, 90, 96, 79, 91)]
        assert warned == [False, True, False, False, False]

    def test_warns_of_each_node_and_gpu(self) -> None:
        monitor = ResourceMonitor()
        assert len(monitor.check_memory({"a": (at(0.91), at(0.5))})) == 1
        warnings = monitor.check_memory({"a": (at(0.91), at(0.93, 80 * GIB)), "b": (at(0.94), None)})
        assert [text.split(";")[0] for text in warnings] == [
            "memory: the GPU of node a uses 93 % of 80.0 GiB",
            "memory: node b uses 94 % of 100.0 GiB",
        ]
        assert monitor.check_memory({}) == []

    def test_a_machine_without_a_limit(self) -> None:
        assert ResourceMonitor().check_memory({"a": (MemoryUsage(5, 0), MemoryUsage(0, 0))}) == []

    def test_warns_of_a_low_disk_once(self) -> None:
        monitor = ResourceMonitor()

        def warnings(free_mb: int) -> list[str]:
            return monitor.check_disk(DiskUsage(Path("/data/runs"), free_mb * 2**20, 500 * GIB))

        assert warnings(1024) == []
        assert warnings(900) == [
            "disk: 0.9 GiB of 500.0 GiB are free at /data/runs; a run that cannot write ends: free some space, "
            "or choose another folder"
        ]
        assert warnings(800) == []

    def test_a_small_disk_is_low_below_a_tenth(self) -> None:
        disk = DiskUsage(Path("/dev/shm"), 150 * 2**20, GIB)
        assert not disk.low
        assert DiskUsage(disk.folder, 100 * 2**20, GIB).low
        assert not DiskUsage(disk.folder, 10**12, 64 * 10**12).low  # 1.6 % of a large disk are a terabyte
