"""The errors that one sentence explains to a user, each with its exit code."""

from __future__ import annotations

from raysim.common.text import sentence

FAILURES = (Exception, SystemExit, GeneratorExit)
"""What the user's own code may raise: a function that calls `sys.exit()` fails, like any other."""


class RaysimError(Exception):
    """Something that one sentence can explain to a user; shown without a traceback.

    The sentence may quote anything: secrets in addresses and control characters are left out of it, and of a long
    word or quotation only its beginning and end are shown.
    """

    exit_code = 1

    def __init__(self, text: object = "") -> None:
        super().__init__(sentence(str(text)))


class ScenarioError(RaysimError, ValueError):
    """A wrong key, value, file or combination. Exit code 2.

    Attributes:
        key: the scenario's key, such as "data.split"; empty: the error is about none.
        reason: the sentence without the key and its origin.
    """

    exit_code = 2

    def __init__(self, reason: object = "", *, key: str = "", origin: str = "") -> None:
        """origin: where the key was given, a file or `--set`."""
        super().__init__(": ".join(filter(None, (origin, key, str(reason)))))
        self.key, self.reason = key, str(reason)


class UnavailableError(ScenarioError):
    """A published data set, or published weights, that this machine lacks: the scenario itself may be right."""


class RunError(RaysimError, RuntimeError):
    """A run that had begun could not continue. Exit code 1."""
