"""Start Ray while torch is being imported: each takes seconds, and neither needs the other."""

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
"""Modules that a run imports before its actors start; pyarrow imports pandas when it creates its first table."""


@contextlib.contextmanager
def ray_ahead(scenario: ParsedScenario) -> Iterator[None]:
    """Start the local Ray for a run of this scenario, and import the modules that the run needs at the same time.

    The run takes over this Ray and stops it; if the run ends before that, it is stopped here. Nothing is started if the
    run joins a Ray cluster, or if the CPUs that it needs are unknown until its actors are planned.
    """
    if scenario.backend != "ray" or os.environ.get("RAY_ADDRESS") or not _fits_here(scenario.resources):
        yield
        return
    with contextlib.ExitStack() as cleanup:
        with interruptible(), sigterm_kept(), without_collection(), ThreadPoolExecutor(1) as second:
            # Start Ray in the main thread, because its processes end with the thread that started them.
            importing = [second.submit(import_module, name) for name in _IMPORTED]
            from raysim.engine.ray import session

            cleanup.callback(session.stop_ahead)
            session.connect_ahead()
            for one in importing:
                one.result()
        yield


def _fits_here(resources: Resources) -> bool:
    """Whether this machine certainly has the CPUs for the actors, judged before the actors are planned."""
    if resources.clients_per_actor != "auto" or resources.overrides:
        return False
    actors = 1 if resources.actors == "auto" else resources.actors  # "auto": as many as fit, at least one
    return actors * resources.cpus_per_actor <= (os.cpu_count() or 1)
