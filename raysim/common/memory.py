"""Memory limits, available memory and garbage collection of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

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
    """Return how many bytes this process can allocate now, within all limits (including `ulimit -v`)."""
    limits = [psutil.virtual_memory().available, usable_memory()]
    if resource is not None:
        address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
        if address_space != resource.RLIM_INFINITY:
            limits.append(max(0, address_space - psutil.Process().memory_info().vms))
    return min(limits)


def return_freed_memory() -> None:
    """Return unused pages to the system; each costs a page fault when it is used again. Without glibc, do nothing."""
    if hasattr(ctypes, "CDLL"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


class _Pauses:
    """The blocks, of all threads, during which garbage collection is paused."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.was_on = False


_pauses = _Pauses()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection in all threads, until no block that pauses it is left.

    During a large import it takes a sixth of the time and frees little.
    """
    with _pauses.lock:
        if _pauses.count == 0:
            _pauses.was_on = gc.isenabled()
            gc.disable()
        _pauses.count += 1
    try:
        yield
    finally:
        with _pauses.lock:
            _pauses.count -= 1
            if _pauses.count == 0 and _pauses.was_on:
                gc.enable()
