"""Sections of a scenario that change who counts: the same bits on any placement and after a resume, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import digits
from tests.engine.test_adversary import AVERAGED
from tests.engine.test_asynchronous import SLOW
from tests.engine.test_held_out import NEW
from tests.engine.test_privacy import AVERAGED as PRIVATE


def noised(at: str) -> dict[str, Any]:
    return {"clip": 1.0, "noise_multiplier": 0.5, "noise_at": at, "delta": 1e-3}


ATTACKED = {
    **AVERAGED,
    "adversary": {"clients": 0.25, "attack": {"name": "noise"}},
    "aggregator": {"rule": {"name": "multi_krum", "malicious": 2}, "mixing": {"name": "bucketing", "size": 1}},
    "privacy": noised("client"),
}
SECTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "attack, rule and noise": (ATTACKED, "privacy/epsilon"),
    "new clients": ({**NEW, "evaluation": {**NEW["evaluation"], "fine_tune": 2}}, "accuracy/held_out"),
    "noise at the server": ({**PRIVATE, "privacy": noised("server")}, "privacy/epsilon"),
    "noise at clients": (
        {**PRIVATE, "algorithm": {"name": "fedproto"}, "privacy": noised("client")},
        "privacy/epsilon",
    ),
    **{name: ({**SLOW, "algorithm": {"name": name}}, "async/staleness") for name in ("fedavg", "hks")},
}
"""What a section is tried with, and the metric that must be equal as well."""


@pytest.mark.large
@pytest.mark.ray
@pytest.mark.parametrize("name", SECTIONS)
def test_the_same_bits_on_any_placement_and_after_a_resume(name: str, workplace: Path, ray_session: None) -> None:
    changes, metric = SECTIONS[name]
    if "privacy" in changes:
        pytest.importorskip("dp_accounting")
    given = digits(**changes)
    sets = [["backend=in_process"], ["backend=ray", "resources.actors=3"]]
    runs = [raysim.run(given, sets=one, quiet=True) for one in sets]
    rounds = given["rounds"]
    runs.append(raysim.run(given, sets=["rounds=2"], quiet=True).resume([f"rounds={rounds}"], quiet=True))
    assert len({(run.state_digest, *run.rounds[metric].iloc[1:]) for run in runs}) == 1
    assert runs[0].rounds[metric].max() > 0


FEW = {"count": 8, "models": ["digits_mlp64"]}
NESTED = {
    "algorithm": {"name": "heterofl"},
    "clients": {"count": 8, "models": ["heterofl_cnn_d", "heterofl_cnn_e"]},
    "aggregator": {"rule": {"name": "krum", "malicious": 1}},
}


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (AVERAGED, {"algorithm": {"name": "fedgh"}, "aggregator": {"rule": {"name": "median"}}}, ["FedGH", "average"]),
        (AVERAGED, {"aggregator": {"rule": {"name": "krum", "malicious": 4}}}, ["malicious: 4", "8"]),
        (AVERAGED, {"aggregator": {"rule": {"name": "medain"}}}, ["medain", "median"]),
        (AVERAGED, {"adversary": {"clients": 0.1, "attack": {"name": "noise"}}}, ["adversary.clients", "0.1"]),
        (AVERAGED, {"adversary": {"clients": "7-9", "attack": {"name": "noise"}}}, ["adversary.clients", "7-9"]),
        (AVERAGED, NESTED, ["Krum", "median"]),
        (SLOW, {"algorithm": {"name": "fedkd"}}, ["asynchronous", "fedkd"]),
        (SLOW, {"system": None}, ["asynchronous", "system"]),
        (SLOW, {"clients": {**SLOW["clients"], "deadline_s": 1.0}}, ["clients.deadline_s", "asynchronous"]),
        (SLOW, {"asynchronous": {"buffer": 5}}, ["asynchronous.buffer", "5", "4"]),
        (NEW, {"evaluation": {}}, ["clients.held_out", "evaluation.clients"]),
        (NEW, {"algorithm": {"name": "fedcache"}}, ["clients.held_out", "fedcache", "registers"]),
        (NEW, {"clients": FEW, "evaluation": {"clients": "all", "fine_tune": 1}}, ["evaluation.fine_tune", "held_out"]),
        (PRIVATE, {"algorithm": {"name": "fedgh"}}, ["privacy.noise_at", "FedGH"]),
        (PRIVATE, {"algorithm": {"name": "fedssa"}}, ["privacy", "before round 1"]),
        (PRIVATE, {"aggregator": {"rule": {"name": "median"}}}, ["aggregator", "sum"]),
        (PRIVATE, {"failure": {"max_failed_fraction": 0.5}}, ["failure.max_failed_fraction"]),
        (PRIVATE, {"system": {"availability": 0.5}}, ["system.availability"]),
        (
            PRIVATE,
            {"clients": FEW, "privacy": {**PRIVATE["privacy"], "accountant": "pld"}},
            ["privacy.accountant", "poisson"],
        ),
    ],
)
def test_what_cannot_work_is_refused(base: dict[str, Any], changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(raysim.ScenarioError) as error:
        Scenario.load(digits(**{**base, **changes}))
    for word in words:
        assert word.lower() in str(error.value).lower()
