"""Asking actors: whatever Ray raises becomes one sentence, and what can be made good becomes `LostError`."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from raysim.core.errors import RaysimError, RunError
from raysim.engine.backend import LostError

ANSWER_S = 10.0
"""How long an actor may take to answer after another died; one that is busy for longer is replaced as well."""

LOOK_S = 0.5
"""How often those who wait look whether it is still worth it."""

_REASONS = {
    "memory": "its machine ran out of memory",
    "node": "its node is gone",
    "ray.kill": "it was ended",
    "worker process has died": "its process ended unexpectedly",
    "unavailable": "it cannot be reached",
    "died unexpectedly": "its process ended unexpectedly",
}
"""Ray's words on why an actor is dead -> ours; the first that is found counts."""


class Calls:
    """What one run asks of its actors.

    Attributes:
        until_s: perf_counter() until which actors are waited for that are busy; None: as long as it takes.
    """

    def __init__(self, name_of: Callable[[str], str | None]) -> None:
        """name_of: Ray's id of an actor -> what a user calls it; None: it is none of the crew."""
        self.name_of = name_of
        self.until_s: float | None = None

    def get(self, refs: Any, where: str) -> Any:
        """`ray.get`. where: what was asked for, to begin a sentence with."""
        return self.told(partial(ray.get, refs), where)

    def told(self, call: Callable[[], Any], where: str) -> Any:
        """Make the call.

        Raises:
            LostError: an actor or an object is gone.
            RaysimError, OSError: an actor raised it.
            RunError: an actor raised anything else.
        """
        try:
            return call()
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RaysimError | OSError):
                raise cause from None
            if isinstance(cause, RayError):  # what the task was given is gone
                raise self.lost(f"{where}: {self._obituary(cause)}") from None
            raise RunError(f"{where}: {type(cause).__name__}: {cause}") from error
        except RayError as error:
            raise self.lost(f"{where}: {self._obituary(error)}") from None

    def lost(self, sentence: str) -> LostError:
        """Note that the run has to go back, for which busy actors are not waited for long."""
        self.hurry(ANSWER_S)
        return LostError(sentence)

    def hurry(self, patience_s: float) -> None:
        """From now on wait for busy actors for so many seconds at most."""
        until_s = perf_counter() + patience_s
        self.until_s = until_s if self.until_s is None else min(self.until_s, until_s)

    def in_time(self, answers: Sequence[Any], where: str) -> Sequence[Any]:
        """Wait for answers of actors that may be busy. Raises `LostError` once that is not worth it any more."""
        left = list(answers)
        while left:
            _, left = self.told(partial(ray.wait, left, num_returns=len(left), timeout=LOOK_S), where)
            if left and self.until_s is not None and perf_counter() > self.until_s:
                raise LostError(f"{where}: those who write it are still at work on the next one")
        return answers

    def _obituary(self, error: RayError) -> str:
        """Who is gone and why, in a few words; Ray's own text is a page."""
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
        if not isinstance(error, RayActorError):
            return f"{type(error).__name__}: {lines[0]}"
        who = (error.actor_id and self.name_of(error.actor_id)) or "an actor"
        return f"{who} died: " + next((why for sign, why in _REASONS.items() if sign in _cause(text)), lines[0])


def answered(ref: Any) -> bool:
    """Whether the answer is there, and no error."""
    try:
        ray.get(ref, timeout=0)
    except RayError:  # a timeout is one, too
        return False
    return True


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back for a moment; a task that is half handed to Ray dies with a traceback of Ray's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    before = {
        number: signal.signal(number, lambda number, frame: arrived.append((number, frame)))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for got, frame in arrived[:1]:
        handler = before[signal.Signals(got)]
        if callable(handler):
            handler(got, frame)
        elif handler == signal.SIG_DFL:
            signal.raise_signal(got)


def _cause(text: str) -> str:
    """The part of Ray's text on a dead actor that says why, without the guesses that follow."""
    told = re.split(r"There are some potential root causes|Some common causes", text)[0]
    return told.partition("The actor is dead because")[2] or told
