"""The memory limit of this process, and its available memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = {"": ("/sys/fs/cgroup", "memory.max"), "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")}
"""Controller -> (folder of its control groups, name of the file with a group's limit). Version 2 of Linux's control
groups has one hierarchy for all controllers, here ""; version 1 has one for "memory"."""

OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_memory() -> int:
    """Return the memory limit of this process in bytes, which the machine or one of its control groups sets.

    A job of Slurm or a service of systemd has a control group of its own, whose path is not the root in such a file.
    """
    limits = [psutil.virtual_memory().total]
    for path in _cgroup_limits():
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # the file is missing, or contains "max", which means no limit
            continue
    return min(limits)


def _cgroup_limits() -> Iterator[Path]:
    """Yield the files with memory limits of this process's control groups and of all groups that contain them."""
    groups = [("", "/"), ("memory", "/")]  # inside a container, the limits are in the root group
    with contextlib.suppress(OSError, ValueError):  # the system is not Linux, or the format is unknown
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            groups += [(one, group) for one in controllers.split(",") if one in CGROUPS]
    for controller, group in groups:
        root, name = CGROUPS[controller]
        for inner in (Path(group), *Path(group).parents):
            yield Path(root, *inner.parts[1:], name)


def available_memory() -> int:
    """Return how many more bytes this process can allocate."""
    return min(psutil.virtual_memory().available, usable_memory())


def return_freed_memory() -> None:
    """Return unused pages to the system. Using one again costs a page fault. Without glibc, do nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
