"""What every partition promises, for all sizes and seeds."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raysim
from raysim.common.errors import ScenarioError
from raysim.data import partition_counts as counts
from raysim.data.partition import (
    Dirichlet,
    Hks,
    Iid,
    Pathological,
    Resample,
    check_partition,
    default_split,
    make_partition,
)
from raysim.data.partition_counts import (
    Split,
    dirichlet_shares,
    largest_remainder,
    split_cells,
    top_up,
)

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**40)
SPLITS: list[Split] = ["pooled811", "pfedhn", "published", (0.6, 0.15, 0.25)]


def labels(classes, train_each, test_each, seed=0):
    """A shuffled data set: labels, and how many are published as train."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(np.repeat(np.arange(classes), each)) for each in (train_each, test_each)]
    return np.concatenate(parts), classes * train_each


def all_index(partition):
    return np.concatenate([shards.index for shards in partition.parts.values()])


def totals(partition, label_M, classes):
    return sum(partition.count_NC(label_M, classes, part) for part in partition.parts)


def check_basics(partition, label_M, num_train, clients, split):
    index = all_index(partition)
    assert len(np.unique(index)) == len(index)  # no sample twice, in no part twice
    assert index.min() >= 0 and index.max() < len(label_M)
    for shards in partition.parts.values():
        assert len(shards) == clients and shards.offset[0] == 0 and shards.offset[-1] == len(shards.index)
        assert all((np.diff(shards.of(client)) > 0).all() for client in range(clients))
        assert shards.size_N.tolist() == [len(shards.of(client)) for client in range(clients)]
    assert (partition.train.size_N > 0).all() and (partition.test.size_N > 0).all()
    if split == "published":
        assert len(partition.val.index) == 0
    if not counts.pooled(split):
        assert (partition.test.index >= num_train).all() and (partition.train.index < num_train).all()


@quick
@given(seed=seeds, clients=st.integers(1, 30), split=st.sampled_from(SPLITS))
def test_iid(seed, clients, split):
    label_M, num_train = labels(5, 40, 12)
    made = make_partition(label_M, num_train, 5, clients, Iid(), split, seed)
    check_basics(made, label_M, num_train, clients, split)
    assert len(all_index(made)) == len(label_M)
    total_N = totals(made, label_M, 5).sum(1)
    assert total_N.max() - total_N.min() <= (1 if counts.pooled(split) else 3)
    if split == "pfedhn":
        assert len(made.train.index) == 160 and len(made.val.index) == 40


@quick
@given(
    seed=seeds,
    clients=st.integers(1, 40),
    classes=st.integers(2, 12),
    held=st.integers(1, 12),
    split=st.sampled_from(SPLITS),
)
def test_pathological(seed, clients, classes, held, split):
    held = min(held, classes)
    label_M, num_train = labels(classes, 125, 60)
    made = make_partition(label_M, num_train, classes, clients, Pathological(held), split, seed)
    check_basics(made, label_M, num_train, clients, split)
    count_NC = made.count_NC(label_M, classes)
    assert ((count_NC > 0).sum(1) == held).all()
    quota = clients * held // classes
    holders_C = (count_NC > 0).sum(0)
    assert ((holders_C == quota) | (holders_C == quota + 1)).all() and holders_C.sum() == clients * held
    assert [len(np.unique(label_M[made.train.of(k)])) for k in range(clients)] == [held] * clients
    if quota > 0:  # every class has a holder, so every sample has an owner
        assert len(all_index(made)) == len(label_M)
    total = totals(made, label_M, classes)
    for cls in range(classes):
        sizes = total[:, cls][total[:, cls] > 0]
        if len(sizes) and counts.pooled(split):  # U(0.4, 0.6), rounded
            assert sizes.max() - 1 <= 1.5 * (sizes.min() + 1)
    if not counts.pooled(split):  # the same classes in the test part, none else
        assert ((made.count_NC(label_M, classes, "test") > 0) == (count_NC > 0)).all()


@quick
@given(
    seed=seeds,
    clients=st.integers(1, 25),
    alpha=st.sampled_from([1e-3, 0.1, 0.5, 5.0]),
    split=st.sampled_from(SPLITS),
)
def test_dirichlet(seed, clients, alpha, split):
    label_M, num_train = labels(6, 70, 20)
    made = make_partition(label_M, num_train, 6, clients, Dirichlet(alpha, 10, 5), split, seed)
    check_basics(made, label_M, num_train, clients, split)
    assert len(all_index(made)) == len(label_M)
    pool_NC = totals(made, label_M, 6) if counts.pooled(split) else made.count_NC(label_M, 6)
    assert pool_NC.sum(1).min() >= 10


@quick
@given(seed=seeds, clients=st.integers(1, 20), alpha=st.sampled_from([0.1, 0.5, 1.0]))
def test_hks_test_parts_follow_the_train_parts(seed, clients, alpha):
    label_M, num_train = labels(10, 60, 30)
    made = make_partition(label_M, num_train, 10, clients, Hks(alpha), "published", seed)
    check_basics(made, label_M, num_train, clients, "published")
    assert len(all_index(made)) == len(label_M)
    train_NC, test_NC = made.count_NC(label_M, 10), made.count_NC(label_M, 10, "test")
    assert train_NC.sum(1).min() >= 10
    # Each count is within one of its quota; who would have no test sample is given one.
    given_one = (test_NC.sum(1) == 1).sum()
    assert (abs(test_NC - train_NC / 2) < 1.5 + given_one).all()


@quick
@given(seed=seeds, clients=st.integers(1, 60), samples=st.integers(1, 100), split=st.sampled_from(SPLITS))
def test_resample(seed, clients, samples, split):
    label_M, num_train = labels(4, 40, 10)
    made = make_partition(label_M, num_train, 4, clients, Resample(samples), split, seed)
    assert (made.train.size_N == samples).all() and (made.test.size_N >= 1).all()
    for shards in made.parts.values():
        assert all((np.diff(shards.of(client)) > 0).all() for client in range(clients))
    parts = [set(shards.index.tolist()) for shards in made.parts.values()]
    assert not parts[0] & parts[2] and not parts[0] & parts[1] and not parts[1] & parts[2]


@pytest.mark.parametrize(("size", "drawn"), [(1437, 32), (180, 4), (5, 5), (10_001, 64), (300, 100), (1, 1)])
def test_draws_for_all_clients_are_those_of_one_after_another(size, drawn):
    each, all_at_once = np.random.default_rng(3), np.random.default_rng(3)
    expected = [each.choice(size, drawn, replace=False, shuffle=False) for _ in range(40)]
    assert (counts.draw(size, drawn, 40, all_at_once) == expected).all()
    assert each.bit_generator.state == all_at_once.bit_generator.state


SETTINGS = [Iid(), Pathological(3), Dirichlet(0.3), Hks(0.5), Resample(20)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_deterministic_in_the_seed(setting):
    label_M, num_train = labels(8, 60, 20)
    args = (label_M, num_train, 8, 7, setting, default_split(setting))
    first, second, other = (make_partition(*args, seed) for seed in (1, 1, 2))
    assert first.digest == second.digest != other.digest
    blind = make_partition(*args[:4], Iid(), args[5], 1)
    assert (first.digest == blind.digest) == isinstance(setting, Iid)  # no blind dealing under another name


@pytest.mark.parametrize("split", ["pooled811", "published"])
def test_iid_clients_have_all_classes_alike(split):
    label_M, num_train = labels(5, 400, 100)
    count_NC = totals(make_partition(label_M, num_train, 5, 10, Iid(), split, 1), label_M, 5)
    assert abs(count_NC - 50).max() < 25  # four standard deviations
    assert len({tuple(row) for row in count_NC.tolist()}) > 1  # and not stratified


def test_the_samples_of_a_class_are_dealt_at_random():
    label_M, num_train = labels(4, 100, 25)
    train = make_partition(label_M, num_train, 4, 5, Dirichlet(100.0), "pooled811", 1).train
    owner_M = np.full(len(label_M), -1)
    owner_M[train.index] = train.owner
    owner_Q = owner_M[(label_M == 0) & (owner_M >= 0)]  # of one class, in the order of the data
    assert (owner_Q[1:] == owner_Q[:-1]).mean() < 0.5  # about 1/5 of neighbours; dealt in order, almost all


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_table_holds_every_sample(setting):
    label_M, num_train = labels(8, 60, 20)
    made = make_partition(label_M, num_train, 8, 7, setting, default_split(setting), 1)
    table = made.table(label_M)
    assert table.column_names == ["client", "part", "sample", "label"] and len(table) == len(all_index(made))
    for name, shards in made.parts.items():
        rows = table.filter(pc.equal(table["part"], name))
        assert np.array_equal(rows["sample"], shards.index) and np.array_equal(rows["client"], shards.owner)
        assert np.array_equal(rows["label"], label_M[shards.index])


def test_largest_remainder_by_hand():
    share = np.array([[0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3], [0, 0, 0], [0.96, 0.02, 0.02]])
    total = np.array([7, 5, 9, 10])
    # Quotas 3.5 2.1 1.4 | 1.67 1.67 1.67 | none | 9.6 0.2 0.2
    assert largest_remainder(total, share).tolist() == [[4, 2, 1], [2, 2, 1], [0, 0, 0], [10, 0, 0]]
    assert largest_remainder(total, share, none_empty=True)[3].tolist() == [8, 1, 1]
    assert largest_remainder(np.array([2]), np.array([[0.9, 0.05, 0.05]]), none_empty=True)[0].sum() == 2
    assert largest_remainder(np.array([3]), np.array([[0, 1, 0]])).tolist() == [[0, 3, 0]]


@quick
@given(seed=seeds, total=st.integers(0, 10_000), parts=st.integers(1, 50))
def test_largest_remainder_is_exact_and_near(seed, total, parts):
    share = np.random.default_rng(seed).dirichlet(np.full(parts, 0.3))[None]
    count = largest_remainder(np.array([total]), share)
    assert count.sum() == total and (abs(count - share / share.sum() * total) < 1 + 1e-6).all()


def test_811_by_hand():
    cells = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 60, 0]
    want = {1: (1, 0, 0), 2: (1, 0, 1), 3: (3, 0, 0), 4: (3, 0, 1), 5: (4, 0, 1), 6: (5, 0, 1), 7: (5, 1, 1)}
    want |= {8: (6, 1, 1), 9: (7, 1, 1), 10: (8, 1, 1), 14: (11, 1, 2), 60: (48, 6, 6), 0: (0, 0, 0)}
    for cell in cells:
        # A second class of ten keeps the client from being one without any test sample.
        assert tuple(split_cells(np.array([[cell, 10]]))[0, 0]) == want[cell], cell
    # Where one is left for validation and test, the classes of a client take turns.
    assert split_cells(np.full((1, 100), 6)).sum((0, 1)).tolist() == [500, 50, 50]
    # No client with two samples is left without a test sample.
    assert split_cells(np.array([[3, 1]])).sum(1).tolist() == [[3, 0, 1]]
    assert split_cells(np.array([[1, 0]])).sum(1).tolist() == [[1, 0, 0]]


def test_dirichlet_guards():
    rng = np.random.default_rng(0)
    one, _ = dirichlet_shares(np.array([30, 30]), 1, 0.5, 10, 3, rng)  # the only client is full after one class
    assert one.tolist() == [[1.0, 1.0]]
    share_NC, _ = dirichlet_shares(np.array([50, 0, 50]), 10, 1e-4, 10, 1, rng)  # every draw needs the repair
    assert np.isfinite(share_NC).all() and np.allclose(share_NC.sum(0), 1)
    assert (largest_remainder(np.array([50, 0, 50]), share_NC.T).sum(0) == 10).all()


def test_a_full_client_gets_nothing_of_the_classes_that_follow():
    total_C = np.full(10, 100)
    share_NC, _ = dirichlet_shares(total_C, 5, 0.05, 1, 1, np.random.default_rng(0))
    # Less than an equal part, 1000 / 5, and the class that fills the client.
    assert largest_remainder(total_C, share_NC.T).sum(0).max() < 200 + 100


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.1, 0.45, 0.85), (100.0, 0.1, 0.14)])
def test_a_smaller_alpha_is_more_skewed(alpha, low, high):
    # A Dirichlet draw's squared shares sum to (alpha + 1) / (10 alpha + 1) on average: 0.55 and 0.101 for 10 clients.
    share_NC, _ = dirichlet_shares(np.full(50, 100), 10, alpha, 1, 1, np.random.default_rng(1))
    assert low < np.square(share_NC[:, :5]).sum(0).mean() < high  # of 5 classes, since no client is full before


def test_top_up_takes_what_is_wanted_from_the_largest():
    count = np.array([[9, 5], [1, 0], [4, 6]])
    got = top_up(count, 3, np.array([[1, 1], [0.5, 0.0], [1, 1.0]]))
    assert got.tolist() == [[7, 5], [3, 0], [4, 6]]
    assert top_up(np.array([[1, 0], [0, 0]]), 2, np.ones((2, 2))).sum() == 1  # no client can spare any


@pytest.mark.parametrize(
    ("setting", "split", "clients", "message"),
    [
        (Pathological(120), "pooled811", 10, "data.partition.classes_per_client: 120 given"),
        (Hks(), "pooled811", 10, "data.split: pooled811 given"),
        (Dirichlet(), "pooled811", 6001, "clients.count: 6001 given"),
        (Dirichlet(min_samples=601), "pooled811", 100, "clients.count: 100 given"),
        (Iid(), "published", 10_001, "clients.count: 10001 given"),
        (Resample(48_001), "pooled811", 5, "data.partition.samples_per_client: 48001 given"),
    ],
)
def test_impossible_combinations(setting, split, clients, message):
    with pytest.raises(ScenarioError) as error:
        check_partition(setting, split, 100, clients, 50_000, 60_000, "cifar100")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_too_few_samples_of_a_class():
    label_M, num_train = labels(10, 5, 5)
    with pytest.raises(ScenarioError, match=r"clients.count: 30 given, but class"):
        make_partition(label_M, num_train, 10, 30, Pathological(4), "pooled811", 1, "digits")


def test_many_clients_of_a_skewed_draw_are_dealt_in_seconds() -> None:
    """With the sizes of CIFAR-10, where redrawing until each client has 10 samples never ends."""
    label_M, num_train = labels(10, 5000, 1000)
    started = time.process_time()
    made = make_partition(label_M, num_train, 10, 200, Dirichlet(0.1), "pooled811", 0)
    assert time.process_time() - started < 5
    assert min(sum(np.bincount(one.owner, minlength=200) for one in made.parts.values())) >= 10


def test_shares_of_a_scenario(workplace: Path) -> None:
    scenario = {
        "name": "shares",
        "rounds": 1,
        "backend": "in_process",
        "algorithm": {"name": "standalone"},
        "data": {"name": "digits", "split": {"train": 0.75, "test": 0.25}},
        "clients": {"count": 3, "models": ["digits_mlp64"]},
    }
    run = raysim.run(scenario, quiet=True)
    found = run.partition.groupby("part").size()
    assert set(found.index) == {"train", "test"}
    assert found["train"] / found.sum() == pytest.approx(0.75, abs=0.01)
    assert run.scenario.data.split.train == 0.75  # from resolved.yaml
    with pytest.raises(raysim.ScenarioError, match=r"data\.split"):
        raysim.Scenario.load(scenario, ["data.split={train: 0.7, test: 0.2}"])
    with pytest.raises(raysim.ScenarioError, match="validation"):
        raysim.run(scenario, sets=["stop={patience: 1}"], quiet=True)
