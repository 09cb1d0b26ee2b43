"""Asking actors: whatever Ray raises becomes one sentence, and what can be made good becomes `LostError`."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter, sleep
from types import FrameType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from raysim.common.errors import RaysimError, RunError
from raysim.engine.policies.stall import STALL_S, overdue
from raysim.engine.ray import local_cluster
from raysim.engine.records import LostError

ANSWER_S = 10.0
"""How long an actor may take to answer after another died; one that is busy for longer is replaced as well."""

LOOK_S = 0.5
"""How often those who wait look whether it is still worth it."""

GONE_S = 10.0
"""How long nobody listens where a cluster's control store was until it is taken for dead; it may be started again."""

_REASONS = {
    "memory": "its machine ran out of memory",
    "node": "its node is gone",
    "ray.kill": "it was ended",
    "worker process has died": "its process ended unexpectedly",
    "unavailable": "it cannot be reached",
    "died unexpectedly": "its process ended unexpectedly",
}
"""Ray's words on why an actor is dead -> ours; the first that is found counts."""


class GcsDiedError(RunError):
    """Ray's control store is gone: a minute later Ray ends the process, whatever it is doing."""


class ActorCalls:
    """What one run asks of its actors.

    Attributes:
        until_s: perf_counter() until which actors are waited for that are busy; None: as long as it takes.
    """

    def __init__(
        self,
        name_of: Callable[[str], str | None],
        notify: Callable[[str], None] = lambda text: None,
        detail_of: Callable[[str], str] = lambda actor_id: "",
    ) -> None:
        """name_of: Ray's id of an actor -> what a user calls it; None: it is none of the crew.

        note: tells the user. detail_of: Ray's id of an actor -> what else helps to find it.
        """
        self.name_of, self.notify, self.detail_of = name_of, notify, detail_of
        self.deadline_s: float | None = None
        self.needs: Sequence[Any] = ()  # what all actors wait for before they begin
        self._looked_s = 0.0  # when it was last looked for the control store
        self._refused_s: float | None = None  # since when it has been gone
        self._longest_s: dict[str, float] = {}  # kind of question -> the longest wait that ended with an answer

    def get(self, refs: Any, where: str) -> Any:
        """`ray.get`. where: what was asked for, to begin a sentence with."""
        pending = list(refs) if isinstance(refs, list | tuple) else [refs]

        def answer() -> tuple[bool, Any]:
            try:
                return True, ray.get(refs, timeout=LOOK_S)
            except GetTimeoutError:
                return False, None

        return self.translated(partial(self._patiently, answer, pending, where), where)

    def first(self, refs: Sequence[Any], where: str) -> Any:
        """The first of these that is answered, or failed."""

        def answer() -> tuple[bool, Any]:
            ready, _ = ray.wait(list(refs), num_returns=1, timeout=LOOK_S, fetch_local=False)
            return bool(ready), ready[0] if ready else None

        return self.translated(partial(self._patiently, answer, refs, where), where)

    def _patiently(self, answer: Callable[[], tuple[bool, Any]], pending: Sequence[Any], where: str) -> Any:
        """Ask until there is an answer; say so when it is overdue. Raises `GcsDiedError` when none will come."""
        began_s, kind = perf_counter(), re.sub(r"\d+", "", where)
        reported_s = None
        while True:
            self._check_gcs(where)
            there, value = answer()
            silent_s = perf_counter() - began_s
            if there:
                self._longest_s[kind] = max(self._longest_s.get(kind, 0.0), silent_s)
                return value
            if overdue(silent_s, self._longest_s.get(kind), reported_s, STALL_S):
                reported_s = silent_s
                self.notify(self._stall(pending, where, silent_s))

    def wait_for_gcs(self, where: str) -> None:
        """Return once it answers: what asks it while it is gone blocks, until Ray ends this process after a minute."""
        while self._check_gcs(where):
            sleep(LOOK_S)

    def _check_gcs(self, where: str) -> bool:
        """Whether it was gone when it was last looked. Raises `GcsDiedError` when it will not be back."""
        died, now_s = local_cluster.gcs_died(), perf_counter()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if gcs_answers():
                self._refused_s = None
            elif self._refused_s is None:
                self._refused_s = now_s
        if died or (self._refused_s is not None and now_s - self._refused_s >= GONE_S):
            raise GcsDiedError(
                f"{where}: Ray's control store (gcs_server) has died, without which nothing of the run can go on"
            )
        return self._refused_s is not None

    def _stall(self, pending: Sequence[Any], where: str, silent_s: float) -> str:
        """Who is waited for, since when, and what can be done."""
        _, needs = ray.wait(list(self.needs), num_returns=len(self.needs), timeout=0) if self.needs else ([], [])
        _, left = ray.wait(list(pending), num_returns=len(pending), timeout=0, fetch_local=False)
        ids = dict.fromkeys(_actor_of(ref) for ref in needs or left)
        actors = ", ".join(f"{self.name_of(one) or 'an actor'}{self.detail_of(one)}" for one in ids)
        return (
            f"{where}: no answer for {silent_s:.0f} s from {actors or 'an actor'}; it is slow, hangs or was stopped: "
            "`py-spy dump --pid PID` or `ray stack` on its node show where; Ctrl-C twice ends the run, and resuming it "
            "with --set failure.client_timeout_s=SECONDS gives up on clients that hang"
        )

    def translated(self, call: Callable[[], Any], where: str) -> Any:
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
                raise self.lost(f"{where}: {self._failure_message(cause)}") from None
            raise RunError(f"{where}: {type(cause).__name__}: {cause}") from error
        except RayError as error:
            raise self.lost(f"{where}: {self._failure_message(error)}") from None

    def lost(self, sentence: str) -> LostError:
        """Note that the run has to go back, for which busy actors are not waited for long."""
        self.set_deadline(ANSWER_S)
        return LostError(sentence)

    def set_deadline(self, patience_s: float) -> None:
        """From now on wait for busy actors for so many seconds at most."""
        deadline_s = perf_counter() + patience_s
        self.deadline_s = deadline_s if self.deadline_s is None else min(self.deadline_s, deadline_s)

    def within_deadline(self, answers: Sequence[Any], where: str) -> Sequence[Any]:
        """Wait for answers of actors that may be busy. Raises `LostError` once that is not worth it any more."""
        left = list(answers)
        while left:
            self.wait_for_gcs(where)
            _, left = self.translated(partial(ray.wait, left, num_returns=len(left), timeout=LOOK_S), where)
            if left and self.deadline_s is not None and perf_counter() > self.deadline_s:
                raise LostError(f"{where}: those who write it are still at work on the next one")
        return answers

    def _failure_message(self, error: RayError) -> str:
        """Who is gone and why, in a few words; Ray's own text is a page."""
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
        if not isinstance(error, RayActorError):
            return f"{type(error).__name__}: {lines[0]}"
        actors = (error.actor_id and self.name_of(error.actor_id)) or "an actor"
        return f"{actors} died: " + next((why for sign, why in _REASONS.items() if sign in _cause(text)), lines[0])


def gcs_answers() -> bool:
    """Whether somebody listens where Ray's control store is. A node that is slow to answer is not a dead one."""
    try:
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    except Exception:  # Ray Client does not know the address
        return True
    return True


def _actor_of(ref: Any) -> str:
    """Ray's id of the actor that is to answer; "" where a reference does not say, as some of Ray Client's."""
    try:
        return str(getattr(ref, "_generator_ref", ref).task_id().actor_id().hex())
    except Exception:
        return ""


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
    translated = re.split(r"There are some potential root causes|Some common causes", text)[0]
    return translated.partition("The actor is dead because")[2] or translated
