"""Ray starts while torch is imported: each takes seconds, and neither needs the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from raysim.common.memory import without_collection
from raysim.runs.signals import interruptible, sigterm_kept
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import Resources

_IMPORTED = "raysim.runs.run", "pandas"
"""What a run imports before its actors start; pandas is what pyarrow imports for the first table it makes."""


@contextlib.contextmanager
def ray_ahead(scenario: ParsedScenario) -> Iterator[None]:
    """Start the Ray that a run of this scenario will have for itself, and meanwhile import what runs it.

    The run takes it over and stops it. Where the run does not come so far, it is stopped here. Where Ray is joined, or
    its CPUs are not known before the actors are planned, nothing happens.
    """
    if scenario.backend != "ray" or os.environ.get("RAY_ADDRESS") or not _fits_here(scenario.resources):
        yield
        return
    with contextlib.ExitStack() as cleanup:
        with interruptible(), sigterm_kept(), without_collection(), ThreadPoolExecutor(1) as second:
            # Ray in the main thread: its processes end with the thread that started them.
            importing = [second.submit(import_module, name) for name in _IMPORTED]
            from raysim.engine.ray import session

            cleanup.callback(session.stop_ahead)
            session.connect_ahead()
            for one in importing:
                one.result()
        yield


def _fits_here(resources: Resources) -> bool:
    """Whether this machine surely has the CPUs of the actors, before it is known who trains where."""
    if resources.clients_per_actor != "auto" or resources.overrides:
        return False
    actors = 1 if resources.actors == "auto" else resources.actors  # "auto": what fits, and at least one
    return actors * resources.cpus_per_actor <= (os.cpu_count() or 1)
