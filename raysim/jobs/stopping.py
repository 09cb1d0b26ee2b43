"""What a job does when Ray asks it to stop: one SIGTERM, and SIGKILL `submit.STOP_S` later."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INSIST_S = 5.0
"""How long a round may go on after the job was asked to stop, in seconds; closing has the rest of `submit.STOP_S`."""


@contextlib.contextmanager
def stoppable(after_s: float = INSIST_S) -> Iterator[threading.Event]:
    """Let SIGTERM end what is done within with `KeyboardInterrupt`, and repeat it once after so many seconds.

    The first SIGTERM ends a run after its round, and Ray sends no other before it kills: a round that takes minutes is
    to be cut off while there is still time to write what was done. A run that is closing by then takes no notice
    (`launch.signals`), so the repetition can cut rounds and nothing else.

    Yields an event; once it is set, and afterwards, SIGTERM changes nothing: the process has little left to do.
    """
    closing = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if not closing.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    _repeat(closing, after_s)
    try:
        yield closing
    finally:
        closing.set()


def _repeat(closing: threading.Event, after_s: float) -> None:
    arrived, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)  # Python writes the number of every signal to it

    def watch() -> None:
        while os.read(arrived, 1) != bytes([signal.SIGTERM]):
            pass
        if not closing.wait(after_s):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="insist", daemon=True).start()
