"""Memory limits and available memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = {"": ("/sys/fs/cgroup", "memory.max"), "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")}
"""Controller -> the folder of its control groups, and the file of a group's limit: version 2 of Linux's control groups,
which has one hierarchy for all controllers, and version 1."""

OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_memory() -> int:
    """Return the memory limit of this process in bytes: that of the machine, or of a control group that it is in.

    A job of Slurm or a service of systemd has a control group of its own, whose path is not the root in such a file.
    """
    limits = [psutil.virtual_memory().total]
    for path in _cgroup_limits():
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such file, or no limit: "max"
            continue
    return min(limits)


def _cgroup_limits() -> Iterator[Path]:
    """Yield the files with the memory limits of this process's control groups, and of those that contain them."""
    groups = [("", "/"), ("memory", "/")]  # in a container, the root
    with contextlib.suppress(OSError, ValueError):  # no Linux, or an unknown format
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            groups += [(one, group) for one in controllers.split(",") if one in CGROUPS]
    for controller, group in groups:
        root, name = CGROUPS[controller]
        for inner in (Path(group), *Path(group).parents):
            yield Path(root, *inner.parts[1:], name)


def available_memory() -> int:
    """Return how many bytes this process can allocate now."""
    return min(psutil.virtual_memory().available, usable_memory())


def return_freed_memory() -> None:
    """Return unused pages to the system; each costs a page fault when it is used again. Without glibc, do nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
