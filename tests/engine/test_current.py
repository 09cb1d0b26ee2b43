"""Tests of all clients with the server's current message: their numbers, and that they change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

from raysim.algorithms.lg_fedavg import Header, LGFedAvg
from raysim.common.errors import HookError
from raysim.common.results import ClientRow
from raysim.core.algorithm import Client, ClientId
from raysim.engine.inprocess import InProcessBackend
from raysim.engine.plan import Plan
from raysim.engine.policies.evaluations import EvaluationSchedule
from raysim.engine.workers.server import receives
from tests.conftest import REPOSITORY, said
from tests.engine.scenarios import FEW, loaded, of_method, outcome, plain, rounds_of

ALL = "evaluation={clients: all}"
NEW = [field.name for field in fields(ClientRow) if field.name.startswith(("before_", "current_"))]
ASKED_FOR = ("accuracy/participants_before", "accuracy/best_current", "accuracy/val_current", "loss/test_current")


def differing() -> set[str]:
    """Methods of which the guide says that `accuracy/all_current` differs from `accuracy/all`."""
    guide = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^- It differs for (.*?)\)\.$", guide, re.MULTILINE | re.DOTALL)
    return {name.lower().replace("-", "_") for name in re.findall(r"\b\w*[A-Z][\w-]+", sentence)}


def without_current(rows: Iterable[ClientRow]) -> list[ClientRow]:
    """The rows of a run that tests no other clients: without its columns, and rows that have nothing else."""
    blank: dict[str, Any] = dict.fromkeys(NEW)
    return [replace(row, **blank) for row in rows if row.participated or row.total is not None]


def without_metrics(rounds: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    asked_for = ("accuracy/all_current", *ASKED_FOR)
    return [{name: value for name, value in one.items() if not name.startswith(asked_for)} for one in rounds]


def accuracy_of(backend: InProcessBackend, net: Any, k: ClientId) -> tuple[int, int]:
    """(correct, total) of a network on the test samples of a client."""
    plan: Plan = backend.plan
    data = backend.worker.training.samples.at(plan.test.of(k))
    net.eval()
    with torch.no_grad():
        return int((net(data.x).argmax(1) == data.y).sum()), len(data)


def test_two_clients_by_hand() -> None:
    """FedAvg, one participant: the global model is its model, with which the other client is tested."""
    given = loaded(
        *of_method("fedavg"), "clients={count: 2, participation: 0.5, models: [digits_cnn_s]}", "rounds=1", ALL
    )
    backend, memory, _ = rounds_of(given)
    first, second = (row for row in memory.clients if row.round == 1)
    trained, other = (first, second) if first.participated else (second, first)
    net = backend.worker.states.open(trained.client)
    assert not other.participated and other.total is None and other.accuracy is None
    counts = [accuracy_of(backend, net, row.client) for row in (trained, other)]
    assert [(row.current_correct, row.current_total) for row in (trained, other)] == counts
    assert trained.current_correct == trained.correct and other.down_bytes == 0
    (right, of), (others_right, others_of) = counts
    values = memory.rounds[1]
    assert values["accuracy/all_current"] == (right / of + others_right / others_of) / 2
    assert values["accuracy/all_current_pooled"] == (right + others_right) / (of + others_of)
    assert values["accuracy/best_current"] == values["accuracy/all_current"]
    assert values["accuracy/participants_pooled"] == trained.accuracy
    # The other client is as it was, and counts so in accuracy/all.
    assert backend.worker.states.held == {trained.client}
    before = next(row for row in memory.clients if (row.round, row.client) == (0, other.client))
    assert values["accuracy/all"] == pytest.approx((right / of + (before.accuracy or 0)) / 2)
    assert values["accuracy/all_pooled"] == (right + (before.correct or 0)) / (of + others_of)
    # Before round 1 all clients have the one initial network, which is also what FedAvg sends in round 1.
    assert memory.rounds[0]["accuracy/all_current"] == memory.rounds[0]["accuracy/all"]


@pytest.mark.parametrize("method", FEW)
def test_nothing_else_changes(method: str) -> None:
    """Digest, rows and metrics are those of a run without the keys."""
    sets = (*of_method(method), "training.batch_size=64")
    digest, rows, rounds = outcome(loaded(*sets), InProcessBackend())
    given = loaded(*sets, "evaluation.when=both")
    backend = InProcessBackend()
    found = outcome(given, backend, all_every=4)
    assert found[0] == digest
    assert without_current(found[1]) == rows and without_metrics(found[2]) == rounds
    tested = [row for row in found[1] if row.current_total is not None]
    assert [row.round for row in tested] == [0] * 8 + [4] * 8
    assert all("accuracy/participants_before" in found[2][t] for t in (2, 4))
    of_own, of_current = (found[2][4][name] for name in ("loss/test", "loss/test_current"))
    nearest = getattr(backend.plan.algorithm, "inference", "") == "nearest"
    assert (of_current != pytest.approx(of_own)) == (method in differing() or nearest), "docs/guide.md says otherwise"
    if not receives(backend.plan.algorithm):  # the message has no effect before training
        for t in (0, 4):
            for name in ("accuracy/all", "accuracy/val", "loss/test"):
                of_current = {"accuracy/all": "accuracy/all_current"}.get(name, f"{name}_current")
                assert found[2][t][of_current] == pytest.approx(found[2][t][name]), name


@pytest.mark.parametrize("together", [1, 2])
def test_before_and_after_training_in_one_run(together: int) -> None:
    sets = [f"training.together={together}", "algorithm={name: lg_fedavg}", "data.split=published"]
    sets += ["evaluation={global_test: true}", "data.partition={name: iid}"]
    runs = {
        when: rounds_of(plain(*sets, f"evaluation.when={when}")) for when in ("after_update", "after_receive", "both")
    }
    after, before, both = (memory.rounds for _, memory, _ in runs.values())
    assert len({digest for _, _, digest in runs.values()}) == 1
    for t in (1, 2, 3):
        assert both[t]["accuracy/participants_before"] == before[t]["accuracy/participants"]
        for name in ("accuracy/participants", "accuracy/all", "accuracy/global", "loss/test", "accuracy/all_pooled"):
            assert both[t][name] == after[t][name], name
    assert "accuracy/participants_before" not in after[3]
    losses = [[row.loss for row in runs["after_receive"][1].clients if row.participated]]
    assert [[row.before_loss for row in runs["both"][1].clients if row.participated]] == losses


def test_which_rounds() -> None:
    settings = EvaluationSchedule(10, every=2, all_every=4)
    assert [t for t in range(11) if settings.tests_all(t)] == [0, 4, 8, 10]
    assert [t for t in range(11) if settings.watches(t)] == [0, 4, 8]
    assert not any(EvaluationSchedule(3).tests_all(t) for t in range(4))


def test_stopping_takes_only_rounds_that_test_all_that_the_last_one_tests() -> None:
    # Multiples of 2, of 3 * 2 (the published test set) and of 4 (current networks).
    settings = EvaluationSchedule(13, every=2, global_every=6, all_every=4)
    assert [t for t in range(1, 14) if settings.watches(t)] == [12]
    assert [t for t in range(1, 14) if settings.extra(t)] == [13] and not EvaluationSchedule(12, every=2).extra(12)
    # In the last round, all are tested with everything; else the published set is due in rounds 6 and 12 alone.
    assert [settings.coverage(t) for t in (1, 2, 6, 8, 12, 13)] == [None, "own", "whole", "own", "whole", "whole"]
    # Round 9 of a schedule that tests current networks every third round and evaluates every second is no test.
    assert [t for t in range(1, 11) if EvaluationSchedule(10, every=2, all_every=3).tests_all(t)] == [6, 10]


@dataclass(frozen=True)
class FailsToReceive(LGFedAvg):
    """Client 3 fails when it receives, after it changed its network."""

    def client_receive(self, client: Client, down: Header) -> None:
        super().client_receive(client, down)
        if client.id == 3:
            raise ValueError("no")


def test_a_client_that_fails_to_receive(caplog: pytest.LogCaptureFixture) -> None:
    given = loaded(ALL, "failure.max_failed_fraction=0.5", "rounds=1")
    backend, memory, _ = rounds_of(given, algorithm=FailsToReceive(), max_failed_fraction=1.0)
    assert {row.client for row in memory.clients if row.round == 1 and row.current_total is not None} == {
        0, 1, 2, 4, 5, 6, 7,
    }  # fmt: skip
    assert len([text for text in said(caplog) if "all_current" in text and "client 3" in text]) == 2
    assert 3 not in backend.worker.states.held
    with pytest.raises(HookError, match="client_receive of client 3 failed in round 1"):
        rounds_of(loaded(ALL), algorithm=FailsToReceive())
