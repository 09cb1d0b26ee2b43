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
