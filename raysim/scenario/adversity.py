"""Sections `adversary`, `aggregator`, `privacy` and `asynchronous`: what happens to uploads at the server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from raysim.core.robust import MIXINGS, RULES, RobustMean
from raysim.engine.policies.asynchronous import DISCOUNTS, UploadBuffer
from raysim.engine.policies.attacks import ATTACKS, Malicious
from raysim.engine.policies.privacy import ClientPrivacy
from raysim.engine.policies.sampling import draw_share
from raysim.scenario.named import named_settings
from raysim.scenario.overrides import parse_ranges
from raysim.scenario.parse import ParsedScenario


def malicious_of(parsed: ParsedScenario) -> tuple[Malicious | None, dict[str, Any] | None]:
    """Return the malicious clients with their attack, and the section with defaults filled in.

    Both are None if the scenario has no section `adversary`. Raises `ScenarioError`, one sentence.
    """
    given, origin, count = parsed.adversary, parsed.origin, parsed.clients.number
    if given is None:
        return None, None
    key = ("adversary", "attack")
    attack = named_settings(given.attack, key, ATTACKS, origin, parsed.own_code, "change")
    seed = parsed.seed_of("cohorts")
    if isinstance(given.clients, str):
        try:
            clients = frozenset(parse_ranges(given.clients, count))
        except ValueError as error:
            raise origin.error(
                ("adversary", "clients"), f"{given.clients!r} is invalid: {error}; allowed: ids from 0 to {count - 1}"
            ) from None
    else:
        clients = draw_share(seed, "malicious", given.clients, count)
    if not clients:
        raise origin.error(
            ("adversary", "clients"),
            f"{given.clients} given, which selects no client of {count}; give at least {1 / count:g}",
        )
    section = {"clients": given.clients, "attack": {"name": given.attack["name"], **asdict(attack)}}
    return Malicious(clients, attack, seed), section


def robust_of(parsed: ParsedScenario) -> tuple[RobustMean | None, dict[str, Any] | None]:
    """Return the rule that replaces the mean, and the section with defaults filled in; None without the section.

    Raises `ScenarioError`, one sentence.
    """
    given = parsed.aggregator
    if given is None:
        return None, None
    rule = named_settings(given.rule, ("aggregator", "rule"), RULES, parsed.origin, parsed.own_code, "combine")
    section: dict[str, Any] = {"rule": {"name": given.rule["name"], **asdict(rule)}, "mixing": None}
    mixing = None
    if given.mixing is not None:
        key = ("aggregator", "mixing")
        mixing = named_settings(given.mixing, key, MIXINGS, parsed.origin, parsed.own_code, "mix")
        section["mixing"] = {"name": given.mixing["name"], **asdict(mixing)}
    return RobustMean(rule, mixing), section


def asynchronous_of(parsed: ParsedScenario) -> tuple[UploadBuffer | None, dict[str, Any] | None]:
    """Return how many uploads end a round, and the section with defaults filled in; None without the section.

    Raises `ScenarioError`, one sentence.
    """
    given = parsed.asynchronous
    if given is None:
        return None, None
    key = ("asynchronous", "discount")
    discount = named_settings(given.discount, key, DISCOUNTS, parsed.origin, parsed.own_code, "factor")
    section = {**given.model_dump(), "discount": {"name": given.discount["name"], **asdict(discount)}}
    return UploadBuffer(given.buffer, discount, given.rate), section


def privacy_of(parsed: ParsedScenario, participants: int) -> ClientPrivacy | None:
    """Return how uploads are clipped and noised. participants: K, expected of a round."""
    given, clients = parsed.privacy, parsed.clients
    if given is None:
        return None
    samplings: dict[str, Literal["poisson", "uniform"]] = {"poisson": "poisson", "uniform": "uniform"}
    sampling: Literal["poisson", "uniform", "other"] = samplings.get(clients.selection["name"], "other")
    return ClientPrivacy(
        given.clip,
        given.noise_multiplier,
        given.noise_at,
        given.delta,
        given.accountant,
        sampling,
        participants / clients.number,
        clients.number,
        parsed.seed,
    )
