"""Garbage collection is paused while any block asks for it, whatever thread it is in."""

from __future__ import annotations

import gc
import threading

from raysim.common.memory import without_collection


def test_blocks_of_two_threads_overlap() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_collection():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with without_collection():
        leave.set()
        thread.join()
        assert not gc.isenabled()  # the block that paused it first has ended
    assert gc.isenabled()


def test_a_pause_by_the_caller_is_kept() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
