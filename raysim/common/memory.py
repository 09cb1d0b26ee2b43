"""Memory limits, available memory and garbage collection of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_memory() -> int:
    """Return the memory limit of this process in bytes: the machine's memory or the limit of its control group."""
    limits = [psutil.virtual_memory().total]
    for path in CGROUP_LIMITS:
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no such file, or no limit: "max"
            continue
    return min(limits)


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


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection during a large import: it takes a sixth of the time and frees little."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
