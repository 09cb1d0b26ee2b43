"""The two ways a run can be refused, each with its exit code."""

from __future__ import annotations

from raysim.common.text import printable, redacted


class RaysimError(Exception):
    """Something that one sentence can explain to a user; shown without a traceback.

    The sentence may quote anything: secrets in addresses and control characters are left out of it.
    """

    exit_code = 1

    def __init__(self, text: object = "") -> None:
        super().__init__(redacted(printable(str(text))))


class ScenarioError(RaysimError, ValueError):
    """What was asked for cannot be: a wrong key, value, file or combination. Exit code 2."""

    exit_code = 2


class RunError(RaysimError, RuntimeError):
    """A run that had begun could not go on. Exit code 1."""
