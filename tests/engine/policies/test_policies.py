"""Placement, sampling and metrics are pure functions: tables of facts and expected answers, no Ray."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, recall_score

from raysim.common.errors import ScenarioError
from raysim.common.results import METRICS, ClientRow
from raysim.core.messages import WireSize
from raysim.engine.metrics import (
    ALL_CLIENTS,
    CONDITIONS,
    CURRENT,
    NEW,
    PARTICIPANTS,
    REPORT,
    TESTS,
    Conditions,
    Spread,
    all_clients_metrics,
    by_class,
    compute_metrics,
    round_metrics,
)
from raysim.engine.policies.asynchronous import Flight
from raysim.engine.policies.placement import (
    ActorGroup,
    ClusterResources,
    Layout,
    Node,
    NodeOrder,
    ResourceRequest,
    assign,
    check_fits,
    lay_out,
    place_actors,
)
from raysim.engine.policies.sampling import cohort, cohort_size
from raysim.engine.policies.stopping import Watched
from raysim.engine.policies.system import Timing
from raysim.engine.progress import CUMULATIVE, Progress
from raysim.engine.records import ClientReport, MemoryReport, RoundReport, ServerReport


def group_of(
    count: int, actors: int | None = None, per: int | None = None, cpus: float = 1.0, gpus: float | None = 0.0
) -> ResourceRequest:
    return ResourceRequest(tuple(range(count)), actors, per, cpus, gpus)


@pytest.mark.parametrize(
    ("request_", "machine", "participants", "actors", "gpus_each"),
    [
        (group_of(100), ClusterResources(2, 0), 10, 2, 0),  # a CPU each
        (group_of(100), ClusterResources(64, 0), 10, 10, 0),  # never more than participants
        (group_of(10), ClusterResources(2, 0), cohort_size(0.15, 10), 1, 0),  # a cohort of one
        (group_of(100, cpus=4), ClusterResources(16, 0), None, 4, 0),
        (group_of(100, per=1), ClusterResources(128, 0), 10, 100, 0),  # one client, one actor
        (group_of(100, per=30), ClusterResources(64, 0), 10, 4, 0),
        (group_of(3, actors=9), ClusterResources(64, 0), None, 3, 0),  # no actor without a client
        (group_of(100, gpus=None), ClusterResources(16, 1), None, 4, 0.25),
        (group_of(100, actors=3, gpus=None), ClusterResources(16, 2), None, 3, 0.5),  # a share of 2/3 would fit twice
        (group_of(100, actors=1, gpus=None), ClusterResources(16, 3, nodes=3), None, 1, 1),  # no actor has two GPUs
        (group_of(100, gpus=0.5), ClusterResources(16, 1), None, 2, 0.5),
    ],
)
def test_plan(
    request_: ResourceRequest, machine: ClusterResources, participants: int | None, actors: int, gpus_each: float
) -> None:
    plan = lay_out([request_], machine, participants)
    assert plan.num_actors == actors
    assert plan.groups[0].gpus_per_actor == gpus_each
    assert plan.gpus <= machine.gpus


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any),
)
@example([1, 2, 3], [1, 2])  # with a third of the GPUs for each group, shares of 1/2 would leave no room for 1/3
def test_actors_with_an_automatic_share_fit_on_any_gpus(actors: list[int], gpus: list[int]) -> None:
    requests = [replace(group_of(40, count, gpus=None), key=f"{i}") for i, count in enumerate(actors)]
    nodes = [Node(str(i), 200.0, float(count), str(i)) for i, count in enumerate(gpus)]
    for order in ("spread", "pack"):
        check_fits(lay_out(requests, ClusterResources.of(nodes)), nodes, order)


@pytest.mark.parametrize(
    ("request_", "machine", "words"),
    [
        (group_of(10, gpus=0.5), ClusterResources(2, 0), "and 0 GPUs are available"),
        (group_of(10, actors=3, gpus=0.5), ClusterResources(8, 1), "and 1.5 GPUs"),
        (group_of(10, actors=9), ClusterResources(8, 0), "need 9 CPUs"),
        (group_of(10, actors=2, per=2), ClusterResources(8, 0), "need 5"),
    ],
)
def test_plan_that_does_not_fit(request_: ResourceRequest, machine: ClusterResources, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        lay_out([request_], machine)


def test_local_cpus_may_be_oversubscribed() -> None:
    plan = lay_out([group_of(10, actors=3)], ClusterResources(2, 0, oversubscribable=True))
    assert plan.num_actors == 3
    assert len(plan.notes) == 1


def test_a_number_of_actors_requests_nodes_from_an_autoscaler() -> None:
    machine = ClusterResources(4, 0, 2, growing=True)
    explicit = lay_out([group_of(20, actors=5, gpus=0.5)], machine)
    assert (explicit.num_actors, explicit.gpus) == (5, 2.5)
    assert explicit.notes == ()
    automatic = lay_out([group_of(20)], machine)
    assert automatic.num_actors == 4 and "autoscaler" in automatic.notes[0]
    assert lay_out([group_of(20)], ClusterResources(0, 0, growing=True)).num_actors == 1  # one node to begin with


def test_groups_share_the_machine() -> None:
    requests = [
        ResourceRequest((0, 5), None, 1, 1.0, 0.5),
        ResourceRequest((1, 2, 3, 4), None, None, 1.0, 0.25),
    ]
    plan = lay_out(requests, ClusterResources(8, 2))
    assert [group.actors for group in plan.groups] == [2, 4]
    assert plan.gpus == 2.0


def singles(*ids: int) -> list[tuple[int, ...]]:
    """Groups of one client each."""
    return [(k,) for k in ids]


def test_assign_balances_and_moves_clients_only_for_a_gain() -> None:
    groups = [ActorGroup(tuple(range(6)), 2, 1.0, 0.0, pinned=False)]
    cost = {0: 4.0, 1: 3.0, 2: 3.0, 3: 2.0}
    # Longest first: 0 -> actor 0, 1 -> actor 1, 2 -> actor 1 (3 < 4), 3 -> actor 0.
    assert assign(singles(0, 1, 2, 3), cost, {}, groups) == {0: singles(0, 3), 1: singles(1, 2)}
    # Actor 1 owns all: half of them move, because the round would take twice as long otherwise.
    lists = assign(singles(0, 1, 2, 3), cost, dict.fromkeys(range(4), 1), groups)
    assert sorted(sum(cost[k] for (k,) in groups) for groups in lists.values()) == [6.0, 6.0]
    # Nearly even: no client moves for a gain of one part in a thousand.
    owner = {0: 0, 3: 0, 1: 1, 2: 1}
    cost = {0: 4.01, 1: 3.0, 2: 3.0, 3: 2.0}
    assert assign(singles(0, 1, 2, 3), cost, owner, groups) == {0: singles(0, 3), 1: singles(1, 2)}


def test_clients_that_are_trained_together_go_to_one_actor() -> None:
    groups = [ActorGroup(tuple(range(6)), 2, 1.0, 0.0, pinned=False)]
    cost = {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.5, 4: 1.0}
    # 3 seconds, 2.5 and 1: the last goes where 2.5 are.
    assert assign([(0, 1, 2), (3,), (4,)], cost, {}, groups) == {0: [(0, 1, 2)], 1: [(3,), (4,)]}
    # Actor 1 owns two of the three, so that one has to move and not two.
    assert assign([(0, 1, 2)], cost, {0: 0, 1: 1, 2: 1}, groups) == {1: [(0, 1, 2)]}


def test_pinned_clients_never_move() -> None:
    groups = [ActorGroup((0, 1, 2, 3), 2, 1.0, 0.0, pinned=True)]
    cost = dict.fromkeys(range(4), 1.0)
    assert assign(singles(0, 2), cost, {}, groups) == {0: singles(0, 2)}
    assert assign(singles(1, 2), cost, {0: 0, 2: 0}, groups) == {1: singles(1), 0: singles(2)}


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=30),
    st.integers(1, 5),
    st.lists(st.integers(0, 4), min_size=30, max_size=30),
)
def test_assign_gives_each_client_once_and_no_actor_too_much(
    costs: list[float], actors: int, owners: list[int]
) -> None:
    cost = dict(enumerate(costs))
    groups = [ActorGroup(tuple(cost), actors, 1.0, 0.0, pinned=False)]
    lists = assign(singles(*cost), cost, dict(enumerate(owners)), groups)
    assert sorted(k for part in lists.values() for (k,) in part) == sorted(cost)
    assert set(lists) <= set(range(actors))
    # Graham's bound for list scheduling, and what a client that stays with its owner may add.
    worst = sum(costs) / actors + max(costs) + 0.02 * sum(costs)
    assert max(sum(cost[k] for (k,) in part) for part in lists.values()) <= worst + 1e-9


def test_cohort_sizes() -> None:
    assert cohort_size(0.1, 100) == 10
    assert cohort_size(0.29, 100) == 29  # 0.29 * 100 is 28.999999999999996
    assert cohort_size(0.001, 999) == 0


def test_cohort_is_keyed_by_seed_and_round() -> None:
    first = cohort(1, 1, range(100), 10)
    assert first == cohort(1, 1, range(100), 10)
    assert list(first) == sorted(set(first))
    assert len(first) == 10
    assert first != cohort(1, 2, range(100), 10)
    assert first != cohort(2, 1, range(100), 10)
    assert cohort(1, 1, [1, 3], 10) == (1, 3)


def test_cohorts_draw_all_clients_equally_often() -> None:
    drawn = [k for t in range(1, 1001) for k in cohort(1, t, range(20), 5)]
    counts = [drawn.count(k) for k in range(20)]
    # 250 expected; 60 is more than four standard deviations of a binomial with p = 1/4.
    assert all(abs(count - 250) < 60 for count in counts)


def row(
    client: int,
    correct: int,
    total: int,
    participated: bool = True,
    up: int = 0,
    val: tuple[int | None, int | None] = (0, 0),
) -> ClientRow:
    accuracy = correct / total if total else None
    return ClientRow(
        1, client, "m", participated, accuracy, correct, total, 1.0 if total else None, *val, None, 0.5, 8, up, 4, 2, 1,
        10.0, 0.25, 0.5,
    )  # fmt: skip


def of_all(rows: list[ClientRow]) -> dict[str, float | int]:
    return all_clients_metrics({row.client: row for row in rows})


def test_metrics_by_hand() -> None:
    rows = [row(0, 1, 2, up=100), row(1, 3, 4, up=50), row(2, 0, 0)]  # the last has no test samples
    found = compute_metrics(PARTICIPANTS, rows)
    assert found["accuracy/participants"] == 0.625
    assert found["comm/up_bytes"] == 150
    assert found["comm/down_bytes"] == 12
    assert found["loss/train"] == 0.5
    assert found["time/train_s"] == 0.75
    assert (found["comm/up_params"], found["comm/down_params"]) == (6, 3)
    assert compute_metrics(TESTS, rows)["time/evaluate_s"] == 1.5
    assert "accuracy/global" not in found  # no row has a global accuracy
    all_clients = of_all(rows)
    assert all_clients["accuracy/all"] == 0.625
    assert all_clients["accuracy/all_std"] == 0.125


def test_metrics_of_the_current_message_by_hand() -> None:
    rows = [
        replace(row(0, 1, 2), current_accuracy=0.5, current_correct=1, current_total=2, current_loss=1.0,
                current_val_correct=1, current_val_total=4),
        replace(row(1, 3, 4), current_accuracy=0.75, current_correct=3, current_total=4, current_loss=2.0,
                current_val_correct=0, current_val_total=0),
        row(2, 0, 1),  # not tested with the message
    ]  # fmt: skip
    assert compute_metrics(CURRENT, rows) == {
        "accuracy/all_current": 0.625, "accuracy/all_current_std": 0.125, "accuracy/all_current_pooled": 4 / 6,
        "accuracy/all_current_worst_decile": 0.5, "accuracy/val_current": 0.25, "loss/test_current": 1.5,
    }  # fmt: skip
    assert compute_metrics(CURRENT, rows[2:]) == {}
    assert compute_metrics(PARTICIPANTS, rows)["accuracy/participants_pooled"] == 4 / 7
    # The last row of a client replaces its earlier one in the sums over samples, too.
    assert of_all([*rows, row(2, 4, 4)])["accuracy/all_pooled"] == 8 / 10


def test_validation_accuracy_by_hand() -> None:
    # (1/4 + 2/2) / 2; the third has no validation samples, which is not an accuracy of 0.
    rows = [row(0, 1, 2, val=(1, 4)), row(1, 0, 0, val=(2, 2)), row(2, 3, 4)]
    assert of_all(rows)["accuracy/val"] == 0.625
    assert "accuracy/val" not in of_all(rows[2:])


def test_the_best_rounds_by_hand() -> None:
    progress = Progress()
    seen = []
    for t, (all_clients, val) in enumerate([(0.5, 0.2), (0.7, 0.4), (0.9, 0.3), (0.8, 0.4), (0.6, 0.5)], start=1):
        progress.take_best(t, {"accuracy/all": all_clients, "accuracy/val": val})
        seen.append((progress.best["accuracy/best"], progress.best["accuracy/at_best_val"]))
    # Test samples would choose round 3, validation samples choose 2, which 4 only equals, and then 5.
    assert seen == [(0.5, 0.5), (0.7, 0.7), (0.9, 0.7), (0.9, 0.7), (0.9, 0.6)]
    assert (progress.best_round, progress.best_val_round) == (3, 5)
    without = Progress()
    for t, (everyone, participants) in enumerate([(0.5, 0.9), (0.7, 0.2), (0.7, 0.4)], start=1):
        without.take_best(t, {"accuracy/all": everyone, "accuracy/participants": participants})
    assert without.best == {"accuracy/best": 0.7, "accuracy/best_participants": 0.9} and without.best_round == 2
    assert without.best_val_round is None

    untested = Progress()  # no client has test samples
    for t, val in enumerate((0.2, 0.4, 0.3), start=1):
        untested.take_best(t, {"accuracy/val": val})
    assert (untested.best_val_round, untested.best_val, untested.best) == (2, 0.4, {})


def test_jains_index() -> None:
    some = ([0.5, 0.5], [0.0, 0.8], [0.0, 0.0], [])
    assert [Spread(values).jain for values in some] == [1.0, 0.5, 1.0, None]
    assert Spread([0.2, 0.4, 0.6]).jain == pytest.approx(1.2**2 / (3 * 0.56))


@given(st.lists(st.integers(0, 7).map(lambda k: k / 7), min_size=1, max_size=50), st.sampled_from([0.1, 0.5, 0.9]))
def test_a_spread_has_the_bits_of_its_values(values: list[float], share: float) -> None:
    spread, middle = Spread(values), math.fsum(values) / len(values)
    assert spread.mean == middle
    assert spread.std == math.sqrt(math.fsum((v - middle) ** 2 for v in values) / len(values))
    worst = sorted(values)[: math.ceil(len(values) / 10)]
    assert spread.worst_decile == math.fsum(worst) / len(worst)
    assert spread.quantile(share) == np.quantile(values, share)


def test_a_clients_last_row_counts() -> None:
    first, second = [row(0, 1, 2, val=(1, 4)), row(1, 3, 4)], [row(1, 1, 4, val=(1, 2)), row(2, 1, 1)]
    latest = of_all([*first, *second])
    assert latest == of_all([first[0], *second])
    assert (latest["accuracy/min"], latest["accuracy/median"], latest["accuracy/val"]) == (0.25, 0.5, 0.375)


@pytest.mark.parametrize(
    ("label", "predicted", "f1", "balanced", "correct"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1], 1.0, 1.0, [2, 2]),
        # Class 0: 2 / (2 + 0 + 1); class 1: 2 / (2 + 1 + 1); class 2, which is no label: 0.
        ([0, 0, 1, 1], [0, 1, 1, 2], (2 / 3 + 1 / 2 + 0) / 3, 0.5, [1, 1]),
        ([7, 3, 7], [7, 7, 7], (4 / 5 + 0) / 2, 0.5, [0, 2]),  # of classes 3 and 7
        ([], [], None, None, []),
    ],
)
def test_classes_by_hand(
    label: list[int], predicted: list[int], f1: float | None, balanced: float | None, correct: list[int]
) -> None:
    both = np.array(label, dtype=np.int64), np.array(predicted, dtype=np.int64)
    assert by_class(*both, num_classes=10) == (pytest.approx(f1), pytest.approx(balanced), correct)
    if label:
        assert f1 == pytest.approx(f1_score(label, predicted, average="macro", zero_division=0))
        classes = sorted({*label})
        recall = recall_score(label, predicted, average="macro", labels=classes, zero_division=0)
        assert balanced == pytest.approx(recall)


def groups(*sizes: tuple[int, float, float]) -> list[ActorGroup]:
    """(actors, CPUs each, GPUs each)."""
    return [ActorGroup(tuple(range(actors)), actors, cpus, gpus, False) for actors, cpus, gpus in sizes]


def placed(wanted: list[ActorGroup], nodes: list[Node], order: NodeOrder = "spread") -> list[list[str]]:
    return [[node.name for node in group] for group in place_actors(wanted, nodes, order)]


TWO = [Node("a", 4, 2), Node("b", 4, 2)]


def test_actors_are_spread_or_packed_over_nodes() -> None:
    assert placed(groups((4, 1, 0)), TWO) == [["a", "b", "a", "b"]]
    assert placed(groups((4, 1, 0)), TWO, order="pack") == [["a", "a", "a", "a"]]
    assert placed(groups((6, 1, 0)), TWO, order="pack") == [["a"] * 4 + ["b"] * 2]


def test_a_share_lies_on_one_gpu() -> None:
    one = [Node("a", 8, 2)]
    assert len(placed(groups((4, 1, 0.4)), one)[0]) == 4
    assert len(placed(groups((5, 1, 0.4)), one)[0]) == 4  # each has 0.2 free
    assert len(placed(groups((3, 1, 1.0)), one)[0]) == 2
    assert len(placed(groups((2, 1, 2.0)), one)[0]) == 1


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([0.5, 1, 2]), st.sampled_from([0, 0.25, 0.3, 0.5, 1, 2])),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=4),
    st.sampled_from(["spread", "pack"]),
)
def test_no_node_is_ever_overcommitted(sizes: Any, machines: Any, order: NodeOrder) -> None:
    nodes = [Node(str(i), float(cpus), float(gpus), str(i)) for i, (cpus, gpus) in enumerate(machines)]
    wanted = groups(*sizes)
    found = place_actors(wanted, nodes, order)
    for node in nodes:
        here = [group for group, nodes_of in zip(wanted, found, strict=True) for n in nodes_of if n is node]
        assert sum(group.cpus_per_actor for group in here) <= node.cpus + 1e-6
        assert sum(group.gpus_per_actor for group in here) <= node.gpus + 1e-6
        # No GPU can hold two shares of more than a half.
        assert sum(1 for group in here if group.gpus_per_actor > 0.5) <= node.gpus
    assert all(len(nodes_of) <= group.actors for group, nodes_of in zip(wanted, found, strict=True))


def test_every_metric_has_a_meaning_and_one_place_that_computes_it() -> None:
    progress = Progress()
    accuracies = ("accuracy/all", "accuracy/all_current", "accuracy/participants", "accuracy/val")
    progress.take_best(1, dict.fromkeys(accuracies, 0.5))
    tables = [PARTICIPANTS, ALL_CLIENTS, CURRENT, NEW, TESTS, REPORT, CONDITIONS, CUMULATIVE, progress.best]
    assert sorted(name for table in tables for name in table) == sorted(METRICS)


def test_one_round_by_hand() -> None:
    """Two participants with 64-byte uploads, a third client tested again, and totals over two equal rounds."""
    size = WireSize(64, 16, {"w": 64})
    one, other = (ClientReport(0.5, 8, size, size, 10.0, 0.25, values, None) for values in ({"angle": 1.0}, {}))
    server = ServerReport({"norm": 2.0}, flops=3.0, seconds=0.125, rejected=(1,))
    report = RoundReport({0: one, 1: other}, {}, server, moved=1, timing=Timing({}, (), 4.0, dropped=2))
    rows = [row(0, 1, 2, up=64), row(1, 3, 4, up=64), row(2, 0, 4, participated=False)]
    conditions = Conditions(lr=0.1, seconds=1.5, memory=MemoryReport(100.0, 0.0))
    metrics = round_metrics(report, rows, {row.client: row for row in rows}, conditions)
    expected = {
        "accuracy/participants": 0.625, "accuracy/all": 1.25 / 3, "comm/up_bytes": 128, "compute/flops": 20.0,
        "compute/server_flops": 3.0, "time/aggregate_s": 0.125, "time/virtual_s": 4.0, "engine/dropped_clients": 2,
        "engine/moved_clients": 1, "engine/failed_clients": 0, "engine/participants": 2,
        "training/lr": 0.1, "time/round_s": 1.5, "memory/host_mb": 100.0, "client/angle": 1.0, "server/norm": 2.0,
    }  # fmt: skip
    assert {name: metrics.get(name) for name in expected} == expected
    assert not {*CUMULATIVE, "accuracy/best"} & metrics.keys()  # one round knows nothing of the others
    untested = round_metrics(report, rows, None, conditions)
    assert metrics.keys() - untested.keys() == of_all(rows).keys()
    progress = Progress(t=0)
    for progress.t in (0, 1):
        progress.add(report, rows, metrics)
    cumulative = progress.cumulative(evaluated=True)
    assert cumulative["comm/total_bytes"] == 2 * (128 + 8) and cumulative["compute/total_flops"] == 2 * 23.0
    assert cumulative["time/virtual_total_s"] == 8.0 and progress.totals["dropped"] == 4.0
    assert cumulative["accuracy/best"] == 1.25 / 3 and progress.best_round == 1
    assert (progress.uploads, progress.rejected, progress.client_rounds) == (4, 2, 4)
    assert "accuracy/best" not in progress.cumulative(evaluated=False)


def test_a_resumed_run_has_all_that_was_counted() -> None:
    before = Progress(
        3, stale={1}, diverged={2}, totals={"bytes": 5.0, "flops": 1.0}, best={"accuracy/best": 0.5}, best_round=2,
        best_val=0.25, best_val_round=1, up_components={"up": 1}, down_components={"down": 2},
        final={"accuracy/all": 0.5}, watched=Watched(3, 0.5, 2, 0.6), uploads=4, rejected=1, failed=2,
        client_rounds=6, restarts=7, seconds={"train": 1.5}, before_s=7.5,
        flight=Flight(1.5, {2: (2.5, 1)}),
    )  # fmt: skip
    again = Progress()
    again.resume(3, json.loads(json.dumps(before.facts())), {})
    other = {"latest", "ended_early", "started"}  # of clients.parquet, derived again, of the process
    names = [field.name for field in fields(Progress) if field.name not in other]
    assert {name: getattr(again, name) for name in names} == {name: getattr(before, name) for name in names}
    assert not [name for name in names if getattr(before, name) == getattr(Progress(), name)]  # all have a value here


def test_what_only_fits_packed_is_refused_spread_alone() -> None:
    plan = Layout(tuple(groups((2, 3, 0), (3, 2, 0))))
    nodes = [Node("a", 6, 0), Node("b", 6, 0)]
    check_fits(plan, nodes, order="pack")  # 3 + 3 and 2 + 2 + 2
    with pytest.raises(ScenarioError, match="2 of 3 actors"):  # 3 + 2 and 3 + 2
        check_fits(plan, nodes)


def test_every_metric_of_all_clients_by_hand() -> None:
    """Accuracies k^2 / 100 for k = 0 to 10; the last client has twice as many samples."""
    samples = [(k * k, 100) for k in range(10)] + [(200, 200)]
    rows = [
        replace(row(k, correct, total, val=(3, 4)), macro_f1=k / 20, balanced_accuracy=k / 40, loss=float(k))
        for k, (correct, total) in enumerate(samples)
    ]
    rows[-1] = replace(rows[-1], round=0)  # this client has not taken part yet
    expected = {
        "accuracy/took_part": 0.285, "engine/absent_clients": 1,
        "accuracy/all": 0.35, "accuracy/all_std": math.sqrt(0.1078), "accuracy/all_pooled": 485 / 1200,
        "accuracy/worst_decile": 0.005, "accuracy/min": 0.0, "accuracy/decile_1": 0.01, "accuracy/median": 0.25,
        "accuracy/decile_9": 0.81, "accuracy/jain": 3.85**2 / (11 * 2.5333), "accuracy/macro_f1": 0.25,
        "accuracy/balanced": 0.125, "accuracy/val": 0.75, "loss/test": 5.0,
    }  # fmt: skip
    assert of_all(rows) == pytest.approx(expected)
