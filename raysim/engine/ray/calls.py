"""Calls to actors: Ray's exceptions become one-sentence errors, and `LostError` if the run can recover."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, sleep
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from raysim.common.errors import RaysimError, RunError
from raysim.engine.ray import local_cluster
from raysim.engine.records import LostError

logger = logging.getLogger(__name__)

RECOVERY_DEADLINE_S = 10.0
"""Seconds within which a busy actor must answer after another died; otherwise the run replaces it as well."""

POLL_S = 0.5
"""Seconds between checks of a waiting call that an answer can still come."""

STALL_S = 30.0
"""Seconds beyond the longest wait so far of the same kind after which idle actors are reported: a stopped or hanging
actor raises no error. The first wait of a kind gets twice as long."""

GCS_TIMEOUT_S = 10.0
"""Seconds for which a cluster's GCS may refuse connections before it counts as dead: a cluster may restart it."""

_REASONS = {
    "memory": "its machine ran out of memory",
    "node": "its node is gone",
    "ray.kill": "it was ended",
    "worker process has died": "its process ended unexpectedly",
    "unavailable": "it cannot be reached",
    "died unexpectedly": "its process ended unexpectedly",
}
"""Ray's reasons for the death of an actor -> raysim's; the first match counts."""


class GcsDiedError(RunError):
    """Ray's GCS has died; Ray ends this process a minute later."""


class ActorCalls:
    """Waits for the answers of one run's actors.

    Attributes:
        inputs: results that all pending calls need as arguments; while one is missing, the calls wait for its actor.
    """

    def __init__(
        self,
        name_of: Callable[[str], str | None],
        detail_of: Callable[[str], str] = lambda actor_id: "",
        idle_of: Callable[[Sequence[str]], Sequence[str]] = lambda actor_ids: actor_ids,
    ) -> None:
        """name_of: Ray's id of an actor -> its name in messages; None for an actor of another pool.

        detail_of: Ray's id of an actor -> its process and clients, for messages.
        idle_of: Ray's ids of actors -> the ids of those that use no CPU.
        """
        self.name_of, self.detail_of, self.idle_of = name_of, detail_of, idle_of
        self.inputs: Sequence[Any] = ()
        self._probed_s = 0.0  # perf_counter() of the last probe of the GCS
        self._refused_s: float | None = None  # perf_counter() of the first failed probe since the last success
        self._longest_s: dict[str, float] = {}  # kind of call -> the longest wait that ended with an answer

    def get(self, refs: Any, context: str) -> Any:
        """Call `ray.get`. context: the activity, such as "round 3", with which error messages begin."""
        pending = list(refs) if isinstance(refs, list | tuple) else [refs]
        left, values = list(pending), dict[Any, Any]()

        def poll() -> tuple[bool, Any]:
            nonlocal left
            # Not `ray.get` with a timeout: when it ends, Ray drops the part of a remote object that has arrived, so an
            # object that takes longer would never arrive.
            ready, left = ray.wait(left, num_returns=len(left), timeout=POLL_S, fetch_local=False)
            values.update(zip(ready, ray.get(ready), strict=True))
            return not left, None

        self._wait(poll, pending, context)
        found = [values[ref] for ref in pending]
        return found if isinstance(refs, list | tuple) else found[0]

    def wait_any(self, refs: Sequence[Any], context: str) -> Any:
        """Return the first reference with a call that ended, with a result or an error."""

        def poll() -> tuple[bool, Any]:
            ready, _ = ray.wait(list(refs), num_returns=1, timeout=POLL_S, fetch_local=False)
            return bool(ready), ready[0] if ready else None

        return self._wait(poll, refs, context)

    def wait_for_gcs(self, context: str) -> None:
        """Return once the GCS answers: a request to a dead GCS blocks until Ray ends this process after a minute."""
        self._probed_s = 0.0
        while not self._check_gcs(context):
            sleep(POLL_S)

    @contextlib.contextmanager
    def translate_errors(self, context: str) -> Iterator[None]:
        """Convert Ray's exceptions in a block.

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
                raise cause from cause.__cause__  # without Ray's own exception
            if not isinstance(cause, RayError):
                raise RunError(f"{context}: {type(cause).__name__}: {cause}") from error
            # An argument of the task is gone.
            raise LostError(f"{context}: {self._failure_message(cause)}") from None
        except RayError as error:
            raise LostError(f"{context}: {self._failure_message(error)}") from None

    def _wait(self, poll: Callable[[], tuple[bool, Any]], pending: Sequence[Any], context: str) -> Any:
        """Poll until there is an answer, and warn of idle actors; again after four times that wait."""
        began_s, kind = perf_counter(), re.sub(r"\d+", "", context)
        report_s = self._longest_s.get(kind, STALL_S) + STALL_S
        with self.translate_errors(context):
            while True:
                self._check_gcs(context)
                done, value = poll()
                waited_s = perf_counter() - began_s
                if done:
                    self._longest_s[kind] = max(self._longest_s.get(kind, 0.0), waited_s)
                    return value
                if waited_s >= report_s:
                    idle = self.idle_of(self._awaited(pending))
                    report_s = (4 if idle else 1.5) * waited_s
                    if idle:
                        logger.warning(self._stall_message(idle, context, waited_s))

    def _check_gcs(self, context: str) -> bool:
        """Return whether the GCS answered the last probe. Raises `GcsDiedError` if the GCS will not come back."""
        now_s = perf_counter()
        if now_s - self._probed_s >= POLL_S:
            self._probed_s = now_s
            if gcs_answers():
                self._refused_s = None
            elif self._refused_s is None:
                self._refused_s = now_s
        if self._refused_s is None:
            return True
        # Nothing restarts the GCS of a local Ray.
        if local_cluster.is_running() or now_s - self._refused_s >= GCS_TIMEOUT_S:
            how = "resume the run" if local_cluster.is_running() else "restart the cluster, then resume the run"
            raise GcsDiedError(f"{context}: Ray's GCS (gcs_server) has died, so the run cannot continue; {how}")
        return False

    def _awaited(self, pending: Sequence[Any]) -> list[str]:
        """Return Ray's ids of the actors without an answer; while inputs are missing, of the actors that make them."""
        return list(dict.fromkeys(_actor_of(ref) for ref in _missing(self.inputs) or _missing(pending)))

    def _stall_message(self, idle: Sequence[str], context: str, waited_s: float) -> str:
        """Return the warning about idle actors without an answer: which, for how long, and the remedy."""
        actors = ", ".join(f"{self.name_of(one) or 'an actor'}{self.detail_of(one)}" for one in idle)
        why = "which uses no CPU, so it hangs or was stopped. To see where it hangs"
        if len(idle) > 1:
            why = "which use no CPU, so they hang or were stopped. To see where they hang"
        return (
            f"{context}: no answer for {waited_s:.0f} s from {actors}, {why}, run `py-spy dump --pid PID` or "
            "`ray stack` on the actor's node. To give up on clients that hang, press Ctrl-C twice and resume the run "
            "with --set failure.client_timeout_s=SECONDS; if that is refused because training.together is not 1, "
            "launch the run again with this setting"
        )

    def _failure_message(self, error: RayError) -> str:
        """Return in a few words which actor or object is gone and why; Ray's own text is a page."""
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
        if not isinstance(error, RayActorError):
            return f"{type(error).__name__}: {lines[0]}"
        # In Ray's text, guesses follow the cause.
        cause = re.split(r"There are some potential root causes|Some common causes", text)[0]
        cause = cause.partition("The actor is dead because")[2] or cause
        reason = next((reason for sign, reason in _REASONS.items() if sign in cause), lines[0])
        return f"{(error.actor_id and self.name_of(error.actor_id)) or 'an actor'} died: {reason}"


def gcs_answers() -> bool:
    """Return whether a process listens at the address of Ray's GCS; a node that answers slowly is not dead."""
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def _missing(refs: Sequence[Any]) -> Sequence[Any]:
    """Return the references to results that do not exist yet on any node; none is fetched."""
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


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends: while a task is submitted, they would cause a traceback of Ray."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if received:
        signal.raise_signal(received[0])
