"""The resources that a scenario requests: one request per override, and one for all other clients."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.engine.policies.placement import ResourceRequest
from raysim.scenario.overrides import clients_of
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import Override, Resources


def requests_of(parsed: ParsedScenario) -> tuple[ResourceRequest, ...]:
    """Return one request per override and one for all other clients; the first override that matches a client applies.

    Raises `ScenarioError` when an override does not select clients of this scenario.
    """
    resources = parsed.resources
    *chosen_by, left = clients_of(parsed, "resources", resources.overrides)
    requests = [
        _request(chosen, override, resources, f"resources.overrides.{i}")
        for i, (chosen, override) in enumerate(zip(chosen_by, resources.overrides, strict=True))
    ]
    return (*requests, _request(left, resources, resources, "resources"))


def _request(clients: Sequence[int], given: Override | Resources, default: Resources, key: str) -> ResourceRequest:
    cpus = default.cpus_per_actor if given.cpus_per_actor is None else given.cpus_per_actor
    gpus = default.gpus_per_actor if given.gpus_per_actor is None else given.gpus_per_actor
    return ResourceRequest(
        tuple(clients),
        None if given.actors == "auto" else given.actors,
        None if given.clients_per_actor == "auto" else given.clients_per_actor,
        cpus,
        None if gpus == "auto" else gpus,
        key,
    )
