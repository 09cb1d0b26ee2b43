"""A time limit for a block of Python code, so that a hanging client does not block a run for ever."""

from __future__ import annotations

import contextlib
import signal
import threading
from time import monotonic, sleep
from types import FrameType

from raysim.common.errors import RunError


class ClientTimeoutError(RunError):
    """A client's part of a round exceeded its time limit."""


class limit(contextlib.AbstractContextManager[None]):
    """Raise `ClientTimeoutError(sentence)` inside the block after it has run for `seconds`, which must exceed 0.

    The system's interval timer fires in the main thread, also of a Ray actor, between two Python instructions: it
    interrupts a sleep or a lock, but a call into C (one operation of torch) ends first. Outside the main thread the
    block is not interrupted. Then, or if the block catches the exception, it is raised at the end of the block. The
    block must not `yield`: the exception would reach other code. The methods of this class are never interrupted, so
    handler and timer are always restored.

    sentence: the message, such as "client 7 took longer than failure.client_timeout_s (60 s)".
    """

    def __init__(self, seconds: float, sentence: str) -> None:
        self.seconds = seconds
        self.sentence = sentence
        # Windows has no such timer, so the block is never interrupted there.
        self.uses_timer = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
        self.inside = False  # whether the timer may raise its error

    def __enter__(self) -> None:
        self.began = monotonic()
        if self.uses_timer:
            self.inside = True
            self.handler = signal.signal(signal.SIGALRM, self._on_alarm)
            # The timer repeats, because Python drops an exception that is raised during the deletion of an object.
            signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.inside = False
        seconds = monotonic() - self.began
        if self.uses_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if seconds >= self.seconds:  # gives a late signal time to arrive before the old handler is restored
                sleep(0.001)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if self.handler is None else self.handler)
        if error is None and seconds > self.seconds:
            raise ClientTimeoutError(self.sentence)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        own = frame is not None and frame.f_code in (limit.__enter__.__code__, limit.__exit__.__code__)
        if self.inside and not own:
            raise ClientTimeoutError(self.sentence)
