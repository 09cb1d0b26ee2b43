"""How full a machine's memory, a GPU or a disk is, told once before the kernel or Ray's memory monitor ends processes.

The readers ask the system, `Watch` decides what is worth a sentence; neither acts.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from raysim.common.text import expanded

WARN_AT = 0.90
CALM_AT = 0.80
"""Memory is told of from 90 % on, and again only after it was below 80 %, so that one at the edge is told of once."""

LOW_DISK = 1 << 30
"""Less free than this, in bytes, is little: what matters is whether the next checkpoint and the rows of the next rounds
find room, and they have the same size on any disk. A share would not do: 2 % of a cluster's 64 TB are 1.3 TB and no
reason to worry, 2 % of a 20 GB container are 400 MB, one checkpoint of a hundred small networks."""

RAY_ENDS_AT = 0.95
"""Ray's default."""

_RAY_SHARE = "RAY_memory_usage_threshold"
_RAY_PERIOD = "RAY_memory_monitor_refresh_ms"  # 0: Ray does not look

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class MemoryUsage:
    """Memory in use and where it ends, in bytes."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        """used / limit; 0 without a limit."""
        return self.used / self.limit if self.limit > 0 else 0.0


@dataclass(frozen=True)
class DiskUsage:
    """Room on the file system that a folder lies on, in bytes."""

    folder: Path
    free: int  # for this user
    total: int

    @property
    def low(self) -> bool:
        """Whether less than 1 GiB is free; of a disk below 10 GiB, a tenth of it."""
        return self.free < min(LOW_DISK, self.total // 10)


def host_memory(groups: Path = _GROUPS, own: Path = _OWN) -> MemoryUsage:
    """Memory of this machine or of an enclosing control group that limits it, whichever is fuller.

    Counted as Ray's memory monitor counts: a machine uses what is not available, a group what is charged to it without
    its file cache, which the kernel takes back first. Unlike Ray, which knows only the outermost group, this also looks
    at the groups inside, where SLURM and systemd put their limits and the kernel enforces them.

    groups: where control groups are mounted. own: the file that says in which this process is.
    """
    memory = psutil.virtual_memory()
    machine = MemoryUsage(memory.total - memory.available, memory.total)
    limited = [found for found in _group_pressures(groups, own) if found.limit < machine.limit]
    return max([machine, *limited], key=lambda memory_usage: memory_usage.share)


def gpu_memory(index: int = 0) -> MemoryUsage | None:
    """Memory of a GPU, without what this process's allocator holds in reserve: that is used again before more is asked.

    Several processes on one GPU each know only their own reserve, so the smallest of their answers is nearest the
    truth. None without torch or a GPU, and in a process that does not use one: asking would put 0.5 GB of CUDA there.
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
    """Room where `folder` lies or would be made. Quotas of a user, which the file system does not tell, are not seen.

    Raises `OSError` when the file system does not answer.
    """
    path = expanded(folder).absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    usage = shutil.disk_usage(there)
    return DiskUsage(path, usage.free, usage.total)


def ray_ends_at() -> float | None:
    """The share of memory above which a Ray that is started here ends actors; None when it was told not to."""
    if os.environ.get(_RAY_PERIOD) == "0":
        return None
    with contextlib.suppress(ValueError):
        share = float(os.environ.get(_RAY_SHARE, ""))
        if 0 < share <= 1:
            return share
    return RAY_ENDS_AT


@dataclass
class Watch:
    """Says each thing once when it begins; again only after it was over."""

    ends_at: float | None = field(default_factory=ray_ends_at)
    warn_at: float = WARN_AT
    calm_at: float = CALM_AT
    told: set[tuple[str, str]] = field(default_factory=set)  # (what, where)

    def __post_init__(self) -> None:
        # Where Ray ends actors earlier than usual, a word at 90 % would come too late.
        self.warn_at = min(self.warn_at, math.inf if self.ends_at is None else self.ends_at - 0.05)
        self.calm_at = min(self.calm_at, self.warn_at)

    def look(self, nodes: Mapping[str, tuple[MemoryUsage, MemoryUsage | None]]) -> list[str]:
        """What has become worth saying of these machines: name -> (its memory, its GPU's), a sentence each."""
        return [text for node, both in nodes.items() for text in self._of_node(node, *both)]

    def look_at_disks(self, disks: Iterable[DiskUsage]) -> list[str]:
        """What has become worth saying of these disks. One is told of again after it had twice the room."""
        said = []
        for disk in disks:
            at = ("disk", str(disk.folder))
            over = disk.free >= 2 * min(LOW_DISK, disk.total // 10)
            if self._begins(at, disk.low, over):
                said.append(
                    f"disk: {_gib(disk.free)} of {_gib(disk.total)} are free where {disk.folder} lies; "
                    "a run that cannot write ends: make room there, or choose another folder"
                )
        return said

    def _of_node(self, node: str, host: MemoryUsage, gpu: MemoryUsage | None) -> Iterator[str]:
        mend = "use fewer actors (resources.actors) or smaller batches"
        if self._crosses(("host", node), host):
            end = "the kernel ends processes when it is full"
            if self.ends_at is not None:
                end = f"Ray ends actors from {_percent(self.ends_at)} on"
            yield f"memory: node {node} uses {_percent(host.share)} of {_gib(host.limit)}; {end}: {mend}"
        if gpu is not None and self._crosses(("gpu", node), gpu):
            end = "a client that finds no room in it ends the run"
            yield f"memory: the GPU of node {node} uses {_percent(gpu.share)} of {_gib(gpu.limit)}; {end}: {mend}"

    def _crosses(self, at: tuple[str, str], memory_usage: MemoryUsage) -> bool:
        return self._begins(at, memory_usage.share >= self.warn_at, memory_usage.share < self.calm_at)

    def _begins(self, at: tuple[str, str], bad: bool, over: bool) -> bool:
        """Whether this is the moment to say so."""
        if over:
            self.told.discard(at)
        if not bad or at in self.told:
            return False
        self.told.add(at)
        return True


def _group_pressures(groups: Path, own: Path) -> Iterator[MemoryUsage]:
    """Every control group around this process that limits memory, innermost first."""
    lines = []
    with contextlib.suppress(OSError):
        lines = own.read_text().splitlines()
    for line in lines or ["0::/"]:
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root = groups / controllers
        # A container may be told its path from outside, which does not exist inside: then its own group is the root.
        for folder in _upwards(root, inside.lstrip("/")):
            names = _V1 if controllers else _V2
            memory_usage = _group_pressure(folder, names)
            if memory_usage is not None:
                yield memory_usage


@dataclass(frozen=True)
class _Names:
    """How a version of control groups calls its files and the lines of memory.stat."""

    limit: str
    used: str
    cache: tuple[str, ...]


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))


def _upwards(root: Path, inside: str) -> Iterator[Path]:
    """`root/inside` and the folders above it until `root`."""
    folder = root / inside
    yield folder
    while folder != root:
        folder = folder.parent
        yield folder


def _group_pressure(folder: Path, names: _Names) -> MemoryUsage | None:
    """What one group uses and may use; None when it has no limit or cannot be read."""
    try:
        limit = int((folder / names.limit).read_text())  # "max": no limit
        used = int((folder / names.used).read_text())
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cache = sum(int(value) for name, value in lines if name in names.cache)
    except (OSError, ValueError):
        return None
    return MemoryUsage(min(max(0, used - cache), limit), limit)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
