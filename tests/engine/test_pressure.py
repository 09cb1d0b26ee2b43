"""Memory and disks that fill up: what is read, and what is said of it when."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from raysim.engine.memory import (
    DiskUsage,
    MemoryUsage,
    Watch,
    disk_usage,
    gpu_memory,
    host_memory,
    ray_ends_at,
)

GIB = 2**30
TOTAL = psutil.virtual_memory().total


def at(share: float, limit: int = 100 * GIB) -> MemoryUsage:
    return MemoryUsage(round(share * limit), limit)


class TestReaders:
    def test_a_machine_without_limits(self, tmp_path: Path) -> None:
        found = host_memory(tmp_path, tmp_path / "none")
        memory = psutil.virtual_memory()
        assert found.limit == memory.total
        assert found.used == pytest.approx(memory.total - memory.available, abs=GIB)

    def test_this_machine(self) -> None:
        found = host_memory()
        assert 0 < found.used <= found.limit <= TOTAL

    def test_a_group_of_version_2_is_counted_without_its_file_cache(self, tmp_path: Path) -> None:
        limit = TOTAL // 2
        group(tmp_path, "memory.max", "memory.current", limit, limit - 5000, inactive_file=300, active_file=200)
        assert host_memory(tmp_path, membership(tmp_path, "0::/")) == MemoryUsage(limit - 5500, limit)

    def test_a_group_of_version_1_is_counted_without_its_file_cache(self, tmp_path: Path) -> None:
        limit = TOTAL // 2
        folder = tmp_path / "memory" / "slurm" / "job_7"
        lines = {"inactive_file": 1, "total_inactive_file": 300, "total_active_file": 200}
        group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", limit, limit - 5000, **lines)
        none = 9223372036854771712  # what version 1 says when there is no limit
        group(tmp_path / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", none, 10**9)
        own = membership(tmp_path, "5:cpu,cpuacct:/else", "4:memory:/slurm/job_7", "0::/")
        assert host_memory(tmp_path, own) == MemoryUsage(limit - 5500, limit)

    def test_a_group_within_a_group_that_is_fuller_counts(self, tmp_path: Path) -> None:
        outer, inner = TOTAL // 2, TOTAL // 4
        group(tmp_path / "user.slice", "memory.max", "memory.current", outer, outer - 4096)
        group(tmp_path / "user.slice" / "job.scope", "memory.max", "memory.current", inner, inner // 3)
        own = membership(tmp_path, "0::/user.slice/job.scope")
        assert host_memory(tmp_path, own) == MemoryUsage(outer - 4096, outer)

    def test_a_container_that_is_told_its_path_from_outside(self, tmp_path: Path) -> None:
        limit = TOTAL // 2
        group(tmp_path / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", limit, limit - 4096)
        own = membership(tmp_path, "4:memory:/docker/0123abcd")
        assert host_memory(tmp_path, own) == MemoryUsage(limit - 4096, limit)

    @pytest.mark.parametrize(
        ("limit", "used"),
        [("max", "1"), (str(2 * TOTAL), str(TOTAL)), ("x", "1"), ("", ""), ("0", "0")],
        ids=["no limit", "more than the machine has", "no number", "empty", "none"],
    )
    def test_a_group_that_says_nothing(self, tmp_path: Path, limit: str, used: str) -> None:
        group(tmp_path, "memory.max", "memory.current", limit, used)
        assert host_memory(tmp_path, membership(tmp_path, "0::/")).limit == TOTAL

    def test_a_group_that_vanishes_meanwhile(self, tmp_path: Path) -> None:
        group(tmp_path, "memory.max", "memory.current", TOTAL // 2, TOTAL // 2)
        (tmp_path / "memory.stat").unlink()
        assert host_memory(tmp_path, membership(tmp_path, "0::/")).limit == TOTAL

    def test_more_used_than_allowed_is_full_and_less_than_the_cache_is_empty(self, tmp_path: Path) -> None:
        group(tmp_path, "memory.max", "memory.current", TOTAL // 2, TOTAL)
        assert host_memory(tmp_path, membership(tmp_path, "0::/")) == MemoryUsage(TOTAL // 2, TOTAL // 2)

    def test_no_gpu_or_none_in_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)  # another test may have used one
        assert gpu_memory() is None
        monkeypatch.setitem(sys.modules, "torch", None)
        assert gpu_memory() is None

    def test_what_an_allocator_holds_in_reserve_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_the_disk_of_a_folder_that_is_not_there_yet(self, tmp_path: Path) -> None:
        found = disk_usage(tmp_path / "runs" / "quickstart")
        usage = shutil.disk_usage(tmp_path)
        assert found.folder == tmp_path / "runs" / "quickstart"
        assert found.total == usage.total
        assert found.free == pytest.approx(usage.free, abs=GIB)


class TestWatch:
    def test_says_what_is_full_and_what_helps(self) -> None:
        watch = Watch(ends_at=0.95)
        limit = round(23.4 * GIB)
        assert watch.look({"10.0.0.3": (at(0.92, limit), None), "10.0.0.4": (at(0.5), at(0.1))}) == [
            "memory: node 10.0.0.3 uses 92 % of 23.4 GiB; Ray ends actors from 95 % on: use fewer actors "
            "(resources.actors) or smaller batches"
        ]

    def test_says_it_once_and_again_only_after_it_was_over(self) -> None:
        watch = Watch(ends_at=0.95)
        said = [bool(watch.look({"a": (at(s / 100), None)})) for s in (89, 90, 96, 85, 91, 80, 95, 79, 89, 90, 90)]
        assert said == [False, True, False, False, False, False, False, False, False, True, False]

    def test_nodes_and_gpus_are_told_of_apart(self) -> None:
        watch = Watch(ends_at=0.95)
        assert len(watch.look({"a": (at(0.91), at(0.5))})) == 1
        said = watch.look({"a": (at(0.91), at(0.93, 80 * GIB)), "b": (at(0.94), None)})
        assert [text.split(";")[0] for text in said] == [
            "memory: the GPU of node a uses 93 % of 80.0 GiB",
            "memory: node b uses 94 % of 100.0 GiB",
        ]
        assert watch.look({}) == []
        assert watch.look({"b": (at(0.94), None)}) == []

    def test_comes_before_a_ray_that_ends_actors_early(self) -> None:
        watch = Watch(ends_at=0.7)
        assert watch.look({"a": (at(0.64), None)}) == []
        (text,) = watch.look({"a": (at(0.66), None)})
        assert "Ray ends actors from 70 % on" in text
        assert watch.look({"a": (at(0.64), None)}) == []
        assert len(watch.look({"a": (at(0.66), None)})) == 1

    def test_without_rays_monitor_it_is_the_kernel(self) -> None:
        (text,) = Watch(ends_at=None).look({"a": (at(0.95), None)})
        assert "the kernel ends processes when it is full" in text

    def test_a_machine_without_a_limit(self) -> None:
        assert Watch().look({"a": (MemoryUsage(5, 0), MemoryUsage(0, 0))}) == []

    def test_a_disk_that_fills_up(self) -> None:
        watch = Watch()

        def said(free_mb: int, total_gb: int = 500) -> list[str]:
            return watch.look_at_disks([DiskUsage(Path("/data/runs"), free_mb * 2**20, total_gb * GIB)])

        assert said(1024) == []
        assert said(900) == [
            "disk: 0.9 GiB of 500.0 GiB are free where /data/runs lies; a run that cannot write ends: make room there, "
            "or choose another folder"
        ]
        assert [said(mb) for mb in (800, 1500, 900, 2048, 1024)] == [[]] * 5
        assert len(said(1023)) == 1

    def test_a_disk_that_is_small_altogether(self) -> None:
        disk = DiskUsage(Path("/dev/shm"), 150 * 2**20, GIB)
        assert not disk.low
        assert DiskUsage(disk.folder, 100 * 2**20, GIB).low
        assert not DiskUsage(disk.folder, 10**12, 64 * 10**12).low  # 1.6 % are free, and a terabyte is enough


@pytest.mark.parametrize(
    ("environ", "share"),
    [
        ({}, 0.95),
        ({"RAY_memory_usage_threshold": "0.8"}, 0.8),
        ({"RAY_memory_usage_threshold": "x"}, 0.95),
        ({"RAY_memory_usage_threshold": "7"}, 0.95),
        ({"RAY_memory_monitor_refresh_ms": "0"}, None),
        ({"RAY_memory_monitor_refresh_ms": "500"}, 0.95),
    ],
)
def test_when_ray_ends_actors(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], share: float | None) -> None:
    for name in ("RAY_memory_usage_threshold", "RAY_memory_monitor_refresh_ms"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert ray_ends_at() == share


def group(folder: Path, limit_name: str, used_name: str, limit: int | str, used: int | str, **stat: int) -> None:
    """A control group's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / used_name).write_text(f"{used}\n")
    (folder / "memory.stat").write_text("".join(f"{name} {value}\n" for name, value in {"anon": 7, **stat}.items()))


def membership(folder: Path, *lines: str) -> Path:
    """The file that says which groups a process is in."""
    path = folder / "self_cgroup"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
