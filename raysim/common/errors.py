"""Exceptions that users see as one sentence. Each has an exit code."""

from __future__ import annotations

import pickle
from typing import Any


class RaysimError(Exception):
    """Base class of errors that the user sees as one sentence, without a traceback.

    >>> import raysim
    >>> try:
    ...     scenario = raysim.Scenario.load("quickstart", ["rounds=0"])
    ... except raysim.RaysimError as error:
    ...     print(f"{error} (exit code {error.exit_code})")
    --set rounds=0: rounds: 0 given; allowed: a whole number at least 1 and at most 1000000000 (exit code 2)
    """

    exit_code = 1

    def __init__(self, text: object = "") -> None:
        super().__init__(str(text))


class ScenarioError(RaysimError, ValueError):
    """An invalid key, value, file or combination of settings. Exit code 2.

    Attributes:
        key: the scenario key, such as "data.split"; empty if the error is not about a key.
        reason: the message without the key and its origin.

    >>> import raysim
    >>> try:
    ...     scenario = raysim.Scenario.load("quickstart", ["training.lr=-1"])
    ... except raysim.ScenarioError as error:
    ...     print(error.key, "-", error.reason)
    training.lr - -1 given; allowed: a number greater than 0
    """

    exit_code = 2

    def __init__(self, reason: object = "", *, key: str = "", origin: str = "") -> None:
        """Store the message. origin: the place that sets the key, a file or `--set`."""
        super().__init__(": ".join(filter(None, (origin, key, str(reason)))))
        self.key, self.reason = key, str(reason)


class UnavailableError(ScenarioError):
    """Published data or weights are missing on this machine, although the scenario may be valid."""


class RunError(RaysimError, RuntimeError):
    """A run failed after its start. Exit code 1.

    >>> import raysim
    >>> def run_or_say_why(scenario):
    ...     try:
    ...         return raysim.run(scenario, quiet=True)
    ...     except raysim.RunError as error:  # the finished rounds are kept, and the error says how to resume
    ...         print(error)
    """


class HookError(RunError):
    """The user's own code raised an error: a hook, a model, a partition, a policy, a data function or a tracker.

    `__cause__` is the exception that it raised; None if that exception cannot be sent from an actor. Exit code 1.

    Attributes:
        hook: what raysim called, such as "client_update" or "Halves.shares".
        client: the id of the client; None if the code belongs to no client.
        round: the round; None before the first one.
        trace: Python's traceback of the user's code.

    >>> import raysim
    >>> def run_or_show(scenario):
    ...     try:
    ...         return raysim.run(scenario, quiet=True)
    ...     except raysim.HookError as error:
    ...         print(f"{error.hook} of client {error.client} in round {error.round} raised {error.__cause__!r}")
    """

    def __init__(
        self, text: str, *, hook: str = "", client: int | None = None, round: int | None = None, trace: str = ""
    ) -> None:
        super().__init__(text)
        self.hook, self.client, self.round, self.trace = hook, client, round, trace

    def __reduce__(self) -> tuple[Any, ...]:
        return _hook_error, (str(self), vars(self), _portable(self.__cause__))


def _hook_error(text: str, attributes: dict[str, Any], cause: BaseException | None) -> HookError:
    error = HookError(text)
    vars(error).update(attributes)
    error.__cause__ = cause
    return error


def _portable(error: BaseException | None) -> BaseException | None:
    """Return an exception if it can be pickled, which exceptions with their own `__init__` often cannot; else None."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error
