"""Runs on devices that differ: virtual time, late clients and dropouts, the same bits after deaths and anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raysim.common.results import ClientRow
from raysim.engine.backend import Backend
from raysim.engine.checkpoint.storage import open_storage
from raysim.engine.checkpoint.store import CheckpointManager, CheckpointStore
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.policies.placement import ClusterResources
from raysim.engine.run import run_round, state_digest
from raysim.results.in_memory import MemoryTracker
from raysim.results.load import read_rounds
from raysim.runs.plan import make_plan
from raysim.runs.run import Run, run
from raysim.scenario.parse import ParsedScenario
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import all_rounds
from tests.engine.scenarios import plain as loaded

SYSTEM = "system={flops_per_s: [1.0e+9, 2.0e+8], up_mbit_per_s: 1, down_mbit_per_s: {name: uniform, low: 2, high: 8}}"


def rounds_on(backend: Backend, given: ParsedScenario, folder: Path | None = None) -> tuple[str, Any, Any]:
    """State digest, client rows without timings, and each round's values that are the same everywhere."""
    plan, data = make_plan(Scenario.of(given), ClusterResources(8, 2))
    memory = MemoryTracker()
    checkpoints = CheckpointManager(CheckpointStore(open_storage(folder)), 2, 3) if folder else None
    digest = all_rounds(replace(plan, max_attempts=50), backend, data.raw, memory, checkpoints=checkpoints)
    if isinstance(backend, InProcessBackend):
        backend.close()
    rows = [replace(row, train_s=0.0, evaluate_s=0.0) for row in memory.clients]
    kept = ("accuracy/", "comm/", "compute/", "time/virtual", "engine/dropped", "engine/participants")
    return digest, rows, [{k: v for k, v in row.items() if k.startswith(kept)} for row in memory.rounds]


def participants(rows: list[ClientRow], t: int) -> dict[int, ClientRow]:
    return {row.client: row for row in rows if row.round == t and row.participated}


def test_virtual_time_adds_up_and_changes_nothing_else() -> None:
    plain, _, values_without = rounds_on(InProcessBackend(), loaded())
    assert not any("virtual" in name for name in values_without[-1])
    given = loaded(SYSTEM, "system.latency_s=0.5")
    digest, rows, values = rounds_on(InProcessBackend(), given)
    assert digest == plain
    system = Scenario.of(given).participation.system
    assert system is not None
    total = 0.0
    for t in (1, 2, 3):
        found = participants(rows, t)
        for k, row in found.items():
            # 125,000 bytes per second up; clients 0, 2, ... compute five times as fast as clients 1, 3, ...
            seconds = row.flops / (2e8 if k % 2 else 1e9) + row.up_bytes / 125_000 + 0.5
            assert row.virtual_s == pytest.approx(seconds + row.down_bytes * 8e-6 / system.down_mbit_per_s[k])
        slowest = max(row.virtual_s or 0.0 for row in found.values())
        total += slowest
        assert values[t]["time/virtual_s"] == slowest
        assert values[t]["time/virtual_total_s"] == pytest.approx(total)
        assert values[t]["engine/dropped_clients"] == 0
    assert all(row.virtual_s is None for row in rows if not row.participated)


def test_who_is_late_stays_as_it_was() -> None:
    """A round with late clients is bit for bit the round in which they failed."""
    # One by one, since a client that is late trains with its group, and one that failed does not.
    given = loaded(SYSTEM, "clients.participation=1", "rounds=2", "training.together=1")
    _, rows, _ = rounds_on(InProcessBackend(), given)
    seconds = sorted(row.virtual_s or 0.0 for row in participants(rows, 2).values())
    deadline = (seconds[4] + seconds[5]) / 2
    late_digest, rows, values = rounds_on(InProcessBackend(), loaded(*_sets(given), f"clients.deadline_s={deadline}"))
    counted = [participants(rows, t) for t in (1, 2)]
    assert len(counted[1]) == 5 and values[2]["engine/dropped_clients"] == 3
    assert values[2]["time/virtual_s"] == deadline
    assert values[2]["comm/up_bytes"] == sum(row.up_bytes for row in counted[1].values())

    plan, data = make_plan(Scenario.of(loaded(*_sets(given), "failure.max_failed_fraction=0.9")))
    backend = InProcessBackend()
    backend.start(plan, data.raw)
    for t in (1, 2):
        everyone = plan.cohort(t)
        run_round(backend, t, everyone, skip={*everyone} - counted[t - 1].keys())
    expected = state_digest(backend)
    backend.close()
    assert late_digest == expected


def _sets(given: ParsedScenario) -> list[str]:
    return [*given.origin.sets.values()]


def test_the_first_to_finish_count(workplace: Path) -> None:
    given = loaded(SYSTEM, "clients.participation=0.25", "clients.oversample=2")
    backend = InProcessBackend()
    _, rows, values = rounds_on(backend, given)
    plan, _ = make_plan(Scenario.of(given))
    for t in (1, 2, 3):
        selected = plan.cohort(t)
        assert len(selected) == 4 and values[t]["engine/dropped_clients"] == 2
        assert participants(rows, t).keys() < {*selected}
        assert len(participants(rows, t)) == values[t]["engine/participants"] == 2
        assert values[t]["time/virtual_s"] == max(row.virtual_s or 0.0 for row in participants(rows, t).values())
    trained = {row.client for row in rows if row.participated}
    assert backend.worker.states.held == trained  # a client that was always late is as it was made


def test_who_drops_out_does_not_train() -> None:
    _, rows, values = rounds_on(InProcessBackend(), loaded(SYSTEM, "system.dropout=[0, 1]", "clients.participation=1"))
    assert {row.client for row in rows if row.participated} == {0, 2, 4, 6}
    assert [row["engine/dropped_clients"] for row in values[1:]] == [4, 4, 4]
    assert [row["engine/participants"] for row in values[1:]] == [4, 4, 4]


UNEVEN = (
    SYSTEM, "system.dropout=0.2", "system.availability=0.8", "clients.oversample=1.5", "clients.deadline_s=0.03",
    "clients.selection.name=by_samples",
)  # fmt: skip


def test_a_resumed_run_counts_on(workplace: Path) -> None:
    whole = run(loaded(*UNEVEN), quiet=True)
    part = run(loaded(*UNEVEN, "rounds=1"), quiet=True)
    assert Run(part.folder).resume(sets=["rounds=3"], quiet=True).state_digest == whole.state_digest
    columns = ["time/virtual_s", "time/virtual_total_s", "engine/dropped_clients"]
    assert read_rounds(part.folder).select(columns).equals(read_rounds(whole.folder).select(columns))


def test_seeds_of_their_own() -> None:
    """Each changes its own part, and what is not given follows `seed`."""

    def facts(*sets: str) -> tuple[Any, Any, Any]:
        random = ("system={dropout: 0.5}", "training.epochs=9", "training.stragglers={share: 1}")
        plan, data = make_plan(Scenario.of(loaded(*random, *sets)))
        weight = plan.fresh_model("digits_mlp64").header.weight
        drawn = [(plan.cohort(t), [plan.epochs_in(t, k) for k in range(8)]) for t in range(1, 9)]
        return data.partition.digest, weight, drawn

    def same(one: Any, other: Any) -> list[bool]:
        return [one[0] == other[0], torch.equal(one[1], other[1]), one[2] == other[2]]

    base = facts()  # seed 5
    assert same(base, facts("seeds={data: 5, weights: 5, cohorts: 5}")) == [True, True, True]
    assert same(base, facts("seeds.data=6")) == [False, True, True]
    assert same(base, facts("seeds.weights=6")) == [True, False, True]
    assert same(base, facts("seeds.cohorts=6")) == [True, True, False]
    assert same(base, facts("seed=6")) == [False, False, False]
