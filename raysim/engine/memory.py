"""How full a machine's memory, a GPU or a disk is, and the warnings before one of them is full."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from raysim.common.text import expanded

WARN_AT = 0.90
"""Share of a memory in use at which the user is warned. Ray's memory monitor kills actors at 0.95."""

LOW_DISK = 1 << 30
"""Free bytes below which a disk is low. A share would not do: 2 % of a cluster's 64 TB are 1.3 TB, and the next
checkpoint and the rows of the next rounds have the same size on any disk."""


@dataclass(frozen=True)
class MemoryUsage:
    """Memory in use and its limit, in bytes."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        """used / limit; 0 without a limit."""
        return self.used / self.limit if self.limit > 0 else 0.0


@dataclass(frozen=True)
class DiskUsage:
    """Free space on the file system that holds a folder, in bytes."""

    folder: Path
    free: int  # for this user
    total: int

    @property
    def low(self) -> bool:
        """Whether less than 1 GiB is free; of a disk below 10 GiB, a tenth of it."""
        return self.free < min(LOW_DISK, self.total // 10)


def host_memory() -> MemoryUsage:
    """Memory of this machine, whatever a container allows."""
    memory = psutil.virtual_memory()
    return MemoryUsage(memory.total - memory.available, memory.total)


def gpu_memory(index: int = 0) -> MemoryUsage | None:
    """Memory of a GPU without the reserve of this process's allocator, which it uses before it asks for more.

    Of several processes on one GPU each knows its own reserve only, so the smallest of their answers is nearest the
    truth. None in a process that has not used a GPU yet: asking would allocate 0.5 GB for CUDA.
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    free, total = torch.cuda.mem_get_info(index)
    reserve = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
    return MemoryUsage(max(0, total - free - reserve), total)


def disk_usage(folder: Path | str) -> DiskUsage:
    """Free space where `folder` is or would be made; a user's quota, which the file system hides, is not counted.

    Raises `OSError` when the file system does not answer.
    """
    path = expanded(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    return DiskUsage(path, usage.free, usage.total)


@dataclass
class ResourceMonitor:
    """Warns once of each memory and each disk that is nearly full."""

    warned: set[str] = field(default_factory=set)

    def check_memory(self, nodes: Mapping[str, tuple[MemoryUsage, MemoryUsage | None]]) -> list[str]:
        """New warnings about these machines: name -> (its memory, its GPU's)."""
        warnings = []
        for name, (host, gpu) in nodes.items():
            node = f"node {name}"
            if host.share >= WARN_AT and self._is_new(node):
                effect = "Ray or the kernel kills processes when it is full"
                warnings.append(_memory_warning(node, host, effect))
            gpu_name = f"the GPU of {node}"
            if gpu is not None and gpu.share >= WARN_AT and self._is_new(gpu_name):
                warnings.append(_memory_warning(gpu_name, gpu, "the run ends when a client's model does not fit"))
        return warnings

    def check_disk(self, disk: DiskUsage) -> list[str]:
        """A new warning about this disk, if there is one."""
        if not disk.low or not self._is_new(str(disk.folder)):
            return []
        return [
            f"disk: {_gib(disk.free)} of {_gib(disk.total)} are free at {disk.folder}; a run that cannot write ends: "
            "free some space, or choose another folder"
        ]

    def _is_new(self, name: str) -> bool:
        new = name not in self.warned
        self.warned.add(name)
        return new


def _memory_warning(name: str, usage: MemoryUsage, effect: str) -> str:
    return (
        f"memory: {name} uses {100 * usage.share:.0f} % of {_gib(usage.limit)}; {effect}: use fewer actors "
        "(resources.actors) or smaller batches"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
