"""Overrides, stragglers, precision and optimizers of the section `training`: what clients train with, and the bits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
from raysim.algorithms.standalone import Standalone
from raysim.core.algorithm import Client
from raysim.core.ops import cross_entropy
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.placement import ClusterResources
from raysim.engine.run import run_round
from raysim.engine.stragglers import StragglerDraws
from raysim.runs.plan import make_plan
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import digits, loaded, plain_digits

SETTINGS = [
    "training.precision=bfloat16",
    "training.overrides=[{clients: 0-2, lr: 0.01, epochs: 2}, {models: [digits_mlp64], batch_size: 16}]",
    "training.epochs=3", "training.stragglers={share: 0.7}",
    "training.optimizer=adamw", "training.momentum=0", "training.weight_decay=0.1", "training.lr=0.005",
]  # fmt: skip
"""The `--set`s of all settings with which a run has the same bits everywhere."""


def spec_of(*sets: str) -> Plan:
    return make_plan(Scenario.of(loaded(*sets)))[0]


@dataclass(frozen=True)
class Noted(Standalone):
    """Logs what a client sees of its settings."""

    def client_update(self, client: Client, down: None) -> None:
        client.fit(cross_entropy)
        for name in ("epochs", "batch_size", "lr", "momentum"):
            client.log(name, getattr(client.local, name))


def reports_of(*sets: str, t: int = 2) -> Any:
    """The reports of all clients in round `t`."""
    everyone = ("clients.models=[digits_mlp64]", "clients.participation=1.0")
    plan, data = make_plan(Scenario.of(loaded(*everyone, *sets)))
    backend = InProcessBackend()
    backend.start(replace(plan, algorithm=Noted()), data.raw)
    report = run_round(backend, t, range(8))
    backend.close()
    return report.client_reports


def test_the_first_override_that_matches_a_client_applies() -> None:
    plan = spec_of(
        "training.overrides=[{clients: '1-2', lr: 0.5}, {models: [digits_cnn_s], epochs: 4, optimizer: adamw}]",
        "training.schedule={name: step, every: 1}",
    )
    # Client k has architecture k % 3; digits_cnn_s is that of clients 1, 4 and 7.
    plain = plan.local
    assert plan.local_of(0) == plain and plan.local_of(8 - 3) == plain
    assert plan.local_of(1) == plan.local_of(2) == replace(plain, lr=0.5)  # and not `epochs: 4`
    assert plan.local_of(4) == plan.local_of(7) == replace(plain, epochs=4, optimizer="adamw")
    assert plan.local_in(2, 1).lr == pytest.approx(0.05)  # the schedule applies to all
    assert plan.local_in(2) == replace(plain, lr=pytest.approx(plain.lr / 10))  # of the server
    assert plan.local_of(4) is plan.local_of(7)


def test_a_client_sees_its_own_settings_and_trains_with_them() -> None:
    reports = reports_of(
        "training.overrides=[{clients: 1-2, lr: 0.01, epochs: 3}, {clients: '0,3,6', batch_size: 5, momentum: 0}]",
        "training.schedule={name: step, every: 1, by: 0.5}",
    )
    plain = reports_of("training.schedule={name: step, every: 1, by: 0.5}")
    seen = {k: tuple(report.values.values()) for k, report in reports.items()}
    assert seen[1] == seen[2] == (3, 32, 0.005, 0.9)
    assert seen[0] == seen[3] == seen[6] == (1, 5, 0.025, 0)
    assert seen[4] == seen[5] == seen[7] == (1, 32, 0.025, 0.9)
    for k, report in reports.items():
        times = 3 if k in (1, 2) else 1
        assert report.train_samples == times * plain[k].train_samples
        assert report.flops == pytest.approx(times * plain[k].flops)


def test_stragglers_are_drawn_anew_by_seed_round_and_client() -> None:
    stragglers = StragglerDraws(0.5, seed=3)
    drawn = {(t, k): stragglers.epochs(5, t, k) for t in range(1, 41) for k in range(50)}
    count = Counter(drawn.values())
    # 2000 draws: half are 5 at once, and the others are 1 to 5 alike, 200 each.
    assert all(150 < count[epochs] < 250 for epochs in range(1, 5)) and 1120 < count[5] < 1280
    assert sum(count) == 15  # no other numbers
    assert sum(drawn.values()) / len(drawn) == pytest.approx(stragglers.mean(5), abs=0.1) and stragglers.mean(5) == 4
    assert drawn == {(t, k): StragglerDraws(0.5, seed=3).epochs(5, t, k) for t, k in drawn}
    assert drawn != {(t, k): StragglerDraws(0.5, seed=4).epochs(5, t, k) for t, k in drawn}
    assert len({drawn[t, 7] for t in range(1, 41)}) > 1 < len({drawn[3, k] for k in range(50)})
    assert {StragglerDraws(1.0, seed=3).epochs(1, t, 0) for t in range(9)} == {1}


def test_a_straggler_trains_for_fewer_epochs_of_its_own() -> None:
    sets = ["training.epochs=4", "training.stragglers={share: 1}", "training.overrides=[{clients: 0-3, epochs: 2}]"]
    reports, plan = reports_of(*sets), spec_of(*sets)
    epochs = {k: plan.epochs_in(2, k) for k in range(8)}
    assert {k: report.values["epochs"] for k, report in reports.items()} == epochs
    assert max(epochs[k] for k in range(4)) <= 2 < max(epochs.values()) <= 4
    assert plan.epochs_in(0, 0) == 2  # before round 1 no client trains
    plain = reports_of()
    assert {k: report.train_samples for k, report in reports.items()} == {
        k: epochs[k] * one.train_samples for k, one in plain.items()
    }
    assert {k: report.flops for k, report in reports.items()} == {
        k: pytest.approx(epochs[k] * one.flops) for k, one in plain.items()
    }


def test_groups_have_the_same_settings_except_epochs() -> None:
    plan = spec_of(
        "clients.count=24", "training.together=3", "training.stragglers={share: 0.5}",
        "training.overrides=[{clients: 0-8, lr: 0.1}, {clients: 9-11, epochs: 7}]",
    )  # fmt: skip
    # Of the perceptrons, 0, 3 and 6 have a rate of their own; 9 differs only in epochs.
    assert [group for group in plan.groups(range(24)) if group[0] % 3 == 0] == [(0, 3, 6), (9, 12), (15, 18, 21)]


def test_clients_of_one_group_may_have_different_epochs(caplog: pytest.LogCaptureFixture) -> None:
    sets = ["training.epochs=3", "training.stragglers={share: 0.7}"]
    together, alone = (reports_of(*sets, f"training.together={most}") for most in (8, 1))
    assert len({report.values["epochs"] for report in alone.values()}) > 1
    assert not any(report.alone_because for report in together.values())
    for k, report in together.items():
        assert report.train_loss == pytest.approx(alone[k].train_loss, rel=1e-4)
        assert (report.train_samples, report.flops) == (alone[k].train_samples, alone[k].flops)


def test_a_resumed_run_has_the_same_bits(workplace: Path) -> None:
    two, three = (raysim.run(plain_digits(), sets=[*SETTINGS, f"rounds={rounds}"], quiet=True) for rounds in (2, 3))
    assert two.resume(["rounds=3"], quiet=True).state_digest == three.state_digest


def test_a_client_trains_with_as_many_threads_as_its_actor_has_cpus() -> None:
    """Rounded down, but at least one; in one process, too, so that the bits are those of actors."""
    seen: dict[int, int] = {}

    class Watched(Standalone):
        def client_update(self, client: Client, down: None) -> None:
            seen[client.id] = torch.get_num_threads()

    few = {"models": ["digits_resnet"], "cpus_per_actor": 0.5}
    resources = {"cpus_per_actor": 2.5, "gpus_per_actor": 0, "overrides": [few]}
    given = loaded("clients.participation=1.0", resources=resources)
    plan, data = make_plan(Scenario.of(given), ClusterResources(8, 0))
    backend = InProcessBackend()
    backend.start(replace(plan, algorithm=Watched()), data.raw)
    run_round(backend, 1, range(8))
    backend.close()
    assert seen == {k: 1 if k % 3 == 2 else 2 for k in range(8)}  # client k has architecture k % 3
    assert torch.get_num_threads() == 1  # as before the run


def test_steps_take_the_place_of_epochs(workplace: Path) -> None:
    one = {"count": 1, "models": ["digits_mlp64"]}
    given = digits(clients=one, data={"name": "digits"}, rounds=1, algorithm={"name": "fedavg"})
    epochs = raysim.run(given, sets=["training.epochs=2"], quiet=True)
    per_epoch = -(-int((epochs.partition["part"] == "train").sum()) // 32)
    steps = raysim.run(given, sets=[f"training.steps={2 * per_epoch}"], quiet=True)
    assert epochs.state_digest == steps.state_digest
    assert list(epochs.clients["flops"]) == list(steps.clients["flops"])
    short = raysim.run(given, sets=["training.steps=5"], quiet=True).clients["flops"].max()
    long = raysim.run(given, sets=["training.steps=10"], quiet=True).clients["flops"].max()
    assert long == 2 * short
    with pytest.raises(raysim.ScenarioError, match="steps"):
        Scenario.load(given, ["training.steps=5", "training.stragglers={share: 0.5}"])
