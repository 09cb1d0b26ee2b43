"""Selects the cells that run one at a time with client actors, instead of whole in a worker process."""

from __future__ import annotations

import os

import psutil

from raysim.common.errors import ScenarioError
from raysim.runs.preview import client_memory_mb, samples_mb
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from raysim.sweeps.cells import Cell


def is_large(cell: Cell, parallel: int | None) -> bool:
    """Whether a cell asks for client actors, or exceeds a worker's share of this machine's memory.

    parallel: number of workers on this machine, or on all nodes of the cluster at RAY_ADDRESS, of which this machine is
    taken to have at most one per CPU; default: one per CPU.
    """
    scenario = cell.scenario
    if scenario.backend == "in_process":
        return False
    if asks_for_actors(scenario):
        return True
    try:
        checked = Scenario.of(scenario)
    except ScenarioError:
        return False  # the worker reports why it cannot run
    cpus = os.cpu_count() or 1
    workers = min(parallel or cpus, cpus) if os.environ.get("RAY_ADDRESS") else parallel or cpus  # of this machine
    return client_memory_mb(checked) + samples_mb(checked) > psutil.virtual_memory().total / 2**20 / workers


def asks_for_actors(scenario: ParsedScenario) -> bool:
    """Whether the scenario sets `backend`, or client actors in `resources`: their number or `overrides`."""
    resources = scenario.resources
    numbers = (resources.actors, resources.clients_per_actor)
    return "backend" in scenario.settings.model_fields_set or numbers != ("auto", "auto") or bool(resources.overrides)
