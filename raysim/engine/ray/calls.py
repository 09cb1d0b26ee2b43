"""Calls to actors. Ray's exceptions become one-sentence errors, or `LostError` if the run can recover."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from raysim.common.errors import RaysimError, RunError
from raysim.engine.records import LostError

logger = logging.getLogger(__name__)

POLL_S = 0.5
"""Seconds between checks of a waiting call for answers."""

SLOW_S = 60.0
"""A wait that exceeds the longest one so far by these seconds is reported: a hanging actor raises no error."""

_REASONS = {
    "memory": "its machine ran out of memory",
    "node": "its node is gone",
    "ray.kill": "it was ended",
    "worker process has died": "its process ended unexpectedly",
    "unavailable": "it cannot be reached",
    "died unexpectedly": "its process ended unexpectedly",
}
"""Ray's reason for an actor's death -> raysim's text; the first match counts."""


class ActorCalls:
    """Waits for the answers of one run's actors.

    Attributes:
        inputs: results that all pending calls need as arguments; while one is missing, the calls wait for its actor.
    """

    def __init__(self, name_of: Callable[[str], str | None], detail_of: Callable[[str], str]) -> None:
        """name_of: Ray's id of an actor -> its name in messages, or None if another pool has the actor.

        detail_of: Ray's id of an actor -> its process and clients, for messages.
        """
        self.name_of, self.detail_of = name_of, detail_of
        self.inputs: Sequence[Any] = ()
        self._longest_s = 0.0  # the longest wait so far that ended with an answer

    def get(self, refs: Any, context: str) -> Any:
        """Call `ray.get`. context: the activity that error messages begin with, such as "round 3"."""
        pending = list(refs) if isinstance(refs, list | tuple) else [refs]
        left, values = list(pending), dict[Any, Any]()

        def poll() -> bool:
            nonlocal left
            # `ray.get` with a timeout would drop the received part of a remote object at each timeout. An object that
            # takes longer than the timeout would never arrive.
            ready, left = ray.wait(left, num_returns=len(left), timeout=POLL_S, fetch_local=False)
            values.update(zip(ready, ray.get(ready), strict=True))
            return not left

        self._wait(poll, pending, context)
        found = [values[ref] for ref in pending]
        return found if isinstance(refs, list | tuple) else found[0]

    def wait_any(self, refs: Sequence[Any], context: str) -> Any:
        """Return the first reference whose call has ended, by a result or an error."""
        ready: list[Any] = []

        def poll() -> bool:
            ready[:] = ray.wait(list(refs), num_returns=1, timeout=POLL_S, fetch_local=False)[0]
            return bool(ready)

        self._wait(poll, refs, context)
        return ready[0]

    @contextlib.contextmanager
    def translate_errors(self, context: str) -> Iterator[None]:
        """Convert Ray's exceptions inside a block.

        Raises:
            LostError: an actor, a node or an object is gone.
            RaysimError, OSError: an actor raised it.
            RunError: an actor raised any other exception.
        """
        try:
            yield
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RaysimError | OSError):
                raise cause from cause.__cause__  # raised without Ray's own exception
            if not isinstance(cause, RayError):
                raise RunError(f"{context}: {type(cause).__name__}: {cause}") from error
            # An argument of the task is lost.
            raise LostError(f"{context}: {self._failure_message(cause)}") from None
        except RayError as error:
            raise LostError(f"{context}: {self._failure_message(error)}") from None

    def _wait(self, poll: Callable[[], bool], pending: Sequence[Any], context: str) -> None:
        """Poll until it succeeds. Warn if that takes long, and again after four times as long."""
        began_s = perf_counter()
        report_s = self._longest_s + SLOW_S
        with self.translate_errors(context):
            while not poll():
                waited_s = perf_counter() - began_s
                if waited_s >= report_s:
                    report_s = 4 * waited_s
                    logger.info(f"{context}: no answer for {waited_s:.0f} s from {self._awaited(pending)}")
        self._longest_s = max(self._longest_s, perf_counter() - began_s)

    def _awaited(self, pending: Sequence[Any]) -> str:
        """Return the actors that have not answered (or have not created missing inputs), and a remedy."""
        ids = dict.fromkeys(_actor_of(ref) for ref in _missing(self.inputs) or _missing(pending))
        actors = ", ".join(f"{self.name_of(one) or 'an actor'}{self.detail_of(one)}" for one in ids)
        return (
            f"{actors}. If an actor hangs, run `py-spy dump --pid PID` or `ray stack` on its node to see where. To "
            "give up on clients that hang, press Ctrl-C twice and resume the run with --set "
            "failure.client_timeout_s=SECONDS"
        )

    def _failure_message(self, error: RayError) -> str:
        """Return in a few words which actor or object is lost and why, because Ray's own text is a page."""
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
        if not isinstance(error, RayActorError):
            return f"{type(error).__name__}: {lines[0]}"
        # Ray's text lists guesses after the cause.
        cause = re.split(r"There are some potential root causes|Some common causes", text)[0]
        cause = cause.partition("The actor is dead because")[2] or cause
        reason = next((reason for sign, reason in _REASONS.items() if sign in cause), lines[0])
        return f"{(error.actor_id and self.name_of(error.actor_id)) or 'an actor'} died: {reason}"


def _missing(refs: Sequence[Any]) -> Sequence[Any]:
    """Return the references whose results exist on no node yet, without fetching any."""
    if not refs:
        return ()
    _, missing = ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)
    return missing


def _actor_of(ref: Any) -> str:
    """Return Ray's id of the actor that computes a reference."""
    return str(getattr(ref, "_generator_ref", ref).task_id().actor_id().hex())


def succeeded(ref: Any) -> bool:
    """Return whether a call has ended without an error."""
    try:
        ray.get(ref, timeout=0)
    except RayError:  # includes GetTimeoutError
        return False
    return True
