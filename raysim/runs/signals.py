"""Handles Ctrl-C and SIGTERM: the first signal ends a run after its round, the second at once.

SIGTERM never interrupts the closing of a run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from raysim.engine.stop import Stop

LIVE_LINES = 4
"""Maximum number of lines of a live progress display with at least 60 columns."""


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM after a block, because Ray replaces it when it starts and resets it when it ends.

    While Ray starts, its own handler would end the process: this raises `KeyboardInterrupt` instead, and ignores any
    later SIGTERM.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as ended:
        before = signal.SIG_IGN
        raise KeyboardInterrupt from ended
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interruptible(stop: Stop | None = None) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end a run after its round. A second signal, or one before round 1, ends it at once.

    While a run is being closed, SIGTERM is ignored, and so is the first Ctrl-C, unless signals have ended the run. The
    next Ctrl-C ends the closing, and `raysim resume` completes it later. stop: receives the request to end; default:
    there is nothing to save.

    Python allows signal handlers only in the main thread; in other threads, this changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    stop = Stop() if stop is None else stop

    def end(number: int, frame: FrameType | None) -> None:
        if stop.closing and number == signal.SIGTERM:
            return
        if stop.closing and not stop.requested:
            stop.requested = True
            _print("writing the results; press Ctrl-C again to end immediately")
            return
        if stop.possible and not stop.closing and not stop.requested:
            stop.requested = True
            if not stop.quiet:
                _print("ending after this round is saved; press Ctrl-C or send SIGTERM again to end immediately")
            return
        stop.requested = stop.closing = True
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # a script's background process ignores Ctrl-C
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler that was not installed from Python is None.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _print(text: str) -> None:
    # The text bypasses the progress display, which may be in the middle of a line. An error here would be raised inside
    # a running function, such as a method's hook. stderr may be closed, have no descriptor, or be None.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        # The next update of a live display erases the lines above the cursor, as many as the display has, so the text
        # needs empty lines below.
        below = LIVE_LINES * "\n" if sys.stderr.isatty() else ""
        os.write(sys.stderr.fileno(), f"\nraysim: {text}\n{below}".encode())
