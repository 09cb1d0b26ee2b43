"""Ctrl-C and SIGTERM: the first ends a run after its round, the second at once; its closing no SIGTERM cuts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from raysim.engine.run import Stop

_within: list[Stop] = []  # of the contexts that were entered and not left


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Whoever takes SIGTERM within, such as Ray when a cluster is joined, does not have it afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interruptible(stop: Stop) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a run after its round, and at once when they come again or there is nothing to save.

    Entered again within itself, it takes the signals back from whoever has taken them meanwhile. Leaving that inner
    one begins the closing of the run: from then on, and as soon as a run that was asked to end has left its rounds,
    SIGTERM changes nothing until the outer one is left. A person at the keyboard still ends it with Ctrl-C.

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
        if number == signal.SIGTERM and stop.requested and not stop.possible:
            return  # the round ended before the second SIGTERM came: what was done is being written
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: ending takes seconds and is not to be cut
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in the background of a script
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, end) for number in numbers}
    again = any(outer is stop for outer in _within)
    _within.append(stop)
    try:
        yield
    finally:
        _within.pop()
        if again:  # not back to Ray's handler, which would end the process in the middle of its closing
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            for number, handler in before.items():
                signal.signal(number, handler)
