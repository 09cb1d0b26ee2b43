"""Exceptions that the user sees as one sentence, each with its exit code."""

from __future__ import annotations

from raysim.common.text import sentence

FAILURES = (Exception, SystemExit, GeneratorExit)
"""Exceptions that count as a failure of user code, including the `SystemExit` of `sys.exit()`."""


class RaysimError(Exception):
    """Base class of errors that the user sees as one sentence, without a traceback.

    The sentence may quote any text: secrets in addresses and control characters are removed, and long words and
    quotations are shortened to their beginning and end.

    >>> import raysim
    >>> try:
    ...     scenario = raysim.Scenario.load("quickstart", ["rounds=0"])
    ... except raysim.RaysimError as error:
    ...     print(f"{error} (exit code {error.exit_code})")
    --set rounds=0: rounds: 0 given; allowed: at least 1 (exit code 2)
    """

    exit_code = 1

    def __init__(self, text: object = "") -> None:
        super().__init__(sentence(str(text)))


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
    training.lr - -1 given; allowed: greater than 0
    """

    exit_code = 2

    def __init__(self, reason: object = "", *, key: str = "", origin: str = "") -> None:
        """Store the message. origin: the source of the key, a file or `--set`."""
        super().__init__(": ".join(filter(None, (origin, key, str(reason)))))
        self.key, self.reason = key, str(reason)


class UnavailableError(ScenarioError):
    """Published data or weights are missing on this machine; the scenario itself may be valid."""


class RunError(RaysimError, RuntimeError):
    """A run failed after it had started. Exit code 1.

    >>> import raysim
    >>> def run_or_say_why(scenario):
    ...     try:
    ...         return raysim.run(scenario, quiet=True)
    ...     except raysim.RunError as error:  # the finished rounds are kept, and the error says how to resume
    ...         print(error)
    """
