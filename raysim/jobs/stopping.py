"""Handling of SIGTERM in a job: Ray sends it once, and SIGKILL `submit.STOP_S` later."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ROUND_DEADLINE_S = 5.0
"""How long a round may continue after SIGTERM, in seconds; the rest of `submit.STOP_S` is for closing the run."""


@contextlib.contextmanager
def stoppable(after_s: float = ROUND_DEADLINE_S) -> Iterator[threading.Event]:
    """Make SIGTERM raise `KeyboardInterrupt` within the block, and repeat the signal once after `after_s` seconds.

    The first SIGTERM ends a run after its round, and Ray sends no second one before SIGKILL. The repetition interrupts
    a round that takes minutes, while there is still time to write the results. A run that is closing ignores it
    (`runs.signals`), so the repetition can interrupt only rounds.

    Yields an event. Once it is set, and after the block, SIGTERM has no effect, because the process is about to end.
    """
    closing = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not closing.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    _repeat(closing, after_s)
    try:
        yield closing
    finally:
        closing.set()


def _repeat(closing: threading.Event, after_s: float) -> None:
    received, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)  # Python writes the number of every signal to it

    def watch() -> None:
        while os.read(received, 1) != bytes([signal.SIGTERM]):
            pass
        if not closing.wait(after_s):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="repeat-sigterm", daemon=True).start()
