"""Overrides of a section for some clients: which clients each one applies to, and the resources that they request."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.engine.policies.placement import ResourceRequest
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.schema import Override, Resources, Selected


def clients_of(parsed: ParsedScenario, section: str, overrides: Sequence[Selected]) -> list[list[int]]:
    """Return the clients of each override, ascending, and at the end all other clients.

    The first override that matches a client applies. section: the section with the key `overrides`. Raises
    `ScenarioError` when an override does not select clients of this scenario.
    """
    origin, models, count = parsed.origin, parsed.clients.models, parsed.clients.number
    left, chosen_by = list(range(count)), []
    for i, override in enumerate(overrides):
        key = (section, "overrides", str(i))
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
        chosen_by.append([k for k in left if k in chosen])
        left = [k for k in left if k not in chosen]
    return [*chosen_by, left]


def parse_ranges(text: str, count: int) -> set[int]:
    """Parse ranges of ids below `count`: `"0-9,12"` -> {0, ..., 9, 12}. Raises `ValueError` for any other text."""
    ids: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError('write ranges of ids such as "0-9,12"')
        if last and int(last) < int(first):
            raise ValueError(f"{part.strip()} is in descending order")
        if max(int(first), int(last or first)) >= count:
            raise ValueError(f"there is no client {max(int(first), int(last or first))}")
        ids |= set(range(int(first), int(last or first) + 1))
    return ids


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
