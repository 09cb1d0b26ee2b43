"""Memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator


def return_freed_memory() -> None:
    """Return unused pages to the system; each costs a page fault when it is used again. Without glibc, do nothing."""
    if hasattr(ctypes, "CDLL"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Import something large here: garbage collection, which takes a sixth of that time and finds little, waits."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
