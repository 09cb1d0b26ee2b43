"""The resources that a scenario requests: one request per override, and one for all other clients."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.engine.policies.placement import ResourceRequest, parse_ranges
from raysim.scenario.origin import Key
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import Override, Resources


def requests_of(parsed: ParsedScenario) -> tuple[ResourceRequest, ...]:
    """Return one request per override and one for all other clients; the first override that matches a client applies.

    Raises `ScenarioError` when an override does not select clients of this scenario.
    """
    origin, resources = parsed.origin, parsed.resources
    models, count = parsed.clients.models, parsed.clients.number
    left = list(range(count))
    requests = []
    for i, override in enumerate(resources.overrides):
        key: Key = ("resources", "overrides", str(i))
        if (override.models is None) == (override.clients is None):
            raise origin.error(key, "give either `models` or `clients` to select the clients of this override")
        if override.models is not None:
            strange = [name for name in override.models if name not in models]
            if strange:
                raise origin.error(
                    (*key, "models"), f"{strange[0]!r} is not among clients.models ({', '.join(dict.fromkeys(models))})"
                )
            chosen = {k for k in left if models[k % len(models)] in override.models}
        else:
            assert override.clients is not None
            try:
                chosen = parse_ranges(override.clients, count)
            except ValueError as error:
                raise origin.error(
                    (*key, "clients"), f"{override.clients!r} is invalid: {error}; allowed: ids from 0 to {count - 1}"
                ) from None
        requests.append(_request([k for k in left if k in chosen], override, resources, ".".join(key)))
        left = [k for k in left if k not in chosen]
    requests.append(_request(left, resources, resources, "resources"))
    return tuple(requests)


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
