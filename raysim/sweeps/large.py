"""Which cells run with client actors, one at a time, instead of whole in one of the workers."""

from __future__ import annotations

import os

import psutil

from raysim.common.errors import ScenarioError
from raysim.runs.preview import client_memory_mb, samples_mb
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from raysim.sweeps.definition import Cell


def is_large(cell: Cell, parallel: int | None) -> bool:
    """Whether a cell asks for client actors, or is too large for a worker's share of this machine's memory.

    parallel: workers on this machine; default: one per CPU.
    """
    scenario = cell.scenario
    if scenario.backend == "in_process":
        return False
    if asks_for_actors(scenario):
        return True
    try:
        checked = Scenario.of(scenario)
    except ScenarioError:
        return False  # its worker says why it cannot run
    share_mb = psutil.virtual_memory().total / 2**20 / (parallel or os.cpu_count() or 1)
    return client_memory_mb(checked) + samples_mb(checked) > share_mb


def asks_for_actors(scenario: ParsedScenario) -> bool:
    """Whether the scenario says `backend: ray`, or how many client actors there are to be."""
    resources = scenario.resources
    numbers = (resources.actors, resources.clients_per_actor)
    return "backend" in scenario.settings.model_fields_set or numbers != ("auto", "auto") or bool(resources.overrides)
