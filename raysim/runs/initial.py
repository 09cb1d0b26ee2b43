"""The initial state of a run that began with another run's state: a file in the run folder."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from raysim.common.errors import ScenarioError
from raysim.common.files import reason
from raysim.engine.initial import Initial
from raysim.scenario.parse import ParsedScenario

FILE = "init.safetensors"
"""Name of the file in the run folder; with it, resuming or inspecting the run does not need the other run."""


def initial_of(folder: Path, scenario: ParsedScenario) -> Initial | None:
    """Read the initial state of the run in this folder; None if it began with fresh weights.

    scenario: of the run. Raises `ScenarioError` if the file is missing or differs from the recorded digest.
    """
    if scenario.init is None:
        return None
    path = folder / FILE
    again = "restore this file, or start a new run with `raysim launch`"
    try:
        initial = Initial.parse(path.read_bytes())
        known = initial.digest == scenario.init.digest and len(initial.of) == scenario.clients.number
    except OSError as error:
        raise ScenarioError(f"cannot read the run's initial state from {path} ({reason(error)}); {again}") from None
    except (SafetensorError, ValueError, IndexError, KeyError, TypeError, RecursionError):  # a forged file
        known = False
    if not known:
        raise ScenarioError(f"{path} is damaged: it differs from the initial state that the run recorded; {again}")
    return initial
