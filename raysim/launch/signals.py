"""Ctrl-C and SIGTERM: the first ends a run after its round, the second at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from raysim.engine.run import Stop


@contextlib.contextmanager
def interruptible(stop: Stop) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a run after its round, and at once when they come again or there is nothing to save.

    Python allows this in the main thread only; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        if stop.possible and not stop.requested and not stop.committed():
            stop.requested = True
            # Not through the progress display, which may be in the middle of a line.
            text = "\nraysim: ending after this round, which is then committed; once more to end at once\n"
            os.write(sys.stderr.fileno(), text.encode())
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: ending takes seconds and is not to be cut
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a script
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
