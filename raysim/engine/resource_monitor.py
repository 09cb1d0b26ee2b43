"""Warnings when this machine's memory, or the disk of the run folder, is nearly full."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

WARN_AT = 90.0
"""Memory use in per cent above which raysim warns. Ray's memory monitor kills actors at 95."""

LOW_DISK = 1 << 30
"""Free bytes below which raysim warns about a disk. This is no share of the disk: the next checkpoint has the same size
on any disk, while 2 % of a cluster's 64 TB are 1.3 TB."""


@dataclass
class ResourceMonitor:
    """Warns once about this machine's memory, and once about the disk of the run folder."""

    folder: Path
    warned: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Check memory and disk, and warn once for each that is nearly full."""
        for name, text in self._full():
            if name not in self.warned:
                self.warned.add(name)
                logger.warning(text)

    def _full(self) -> Iterator[tuple[str, str]]:
        memory = psutil.virtual_memory()
        if memory.percent >= WARN_AT:
            yield (
                "memory",
                f"memory: {memory.percent:.0f} % of this machine's {gib(memory.total)} are in use, and Ray or the "
                "kernel kills processes when memory is full: set a smaller resources.actors or training.batch_size",
            )
        with contextlib.suppress(OSError):  # a missing folder is reported by whatever writes to it
            disk = shutil.disk_usage(self.folder)
            if disk.free < min(LOW_DISK, disk.total // 10):
                yield (
                    "disk",
                    f"disk: only {gib(disk.free)} of {gib(disk.total)} are free at {self.folder}, and the run ends "
                    "when the disk is full: free some space, or choose another folder",
                )


def gib(size: int) -> str:
    """Format a number of bytes, such as "12.0 GiB"."""
    return f"{size / 2**30:.1f} GiB"
