"""The benchmark beside fluke-fl gives both sides the same; what it measured is on the page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import beside_fluke
import numpy as np
import pytest
import torch
from beside_fluke import METHODS, Pair, Row, Setting

from raysim.core.data import AsGiven, Samples
from raysim.core.seeds import seeded
from raysim.data.datasets import load_dataset
from raysim.data.predefined import read_partition
from raysim.runs.plan import make_plan
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import digits

TINY = Setting(rounds=2, batch_size=50, same_batches=True)


def test_both_sides_read_the_samples_that_were_dealt(tmp_path: Path) -> None:
    dealt = beside_fluke.deal(20, seed=3)
    every = [i for shard in (*dealt.train, *dealt.test) for i in shard]
    assert len(set(every)) == len(every) > 1700
    label_M = load_dataset("digits", None).label_M
    for train, test in zip(dealt.train, dealt.test, strict=True):
        assert set(label_M[list(test)]) <= set(label_M[list(train)])
        assert len(set(label_M[list(train)])) == 5
        assert len(test) / (len(train) + len(test)) == pytest.approx(0.2, abs=0.07)
    dealt.write(tmp_path / "listed.parquet")
    read = read_partition(str(tmp_path / "listed.parquet"), 20, len(label_M))
    for shards, lists in ((read.train, dealt.train), (read.test, dealt.test)):
        for k, indices in enumerate(lists):
            # In the same order: it decides which samples a permutation puts into a batch.
            assert tuple(shards.index[shards.offset[k] : shards.offset[k + 1]]) == indices


def test_the_initial_network_is_the_one_of_a_run() -> None:
    scenario = Scenario.load(digits(seed=7, clients={"count": 10, "models": [beside_fluke.MODEL]}))
    ours = make_plan(scenario, rounds_left=True)[0].fresh_model(beside_fluke.MODEL).state_dict()
    drawn = beside_fluke.initial_net(7).state_dict()
    assert ours.keys() == drawn.keys()
    assert all(torch.equal(ours[name], drawn[name]) for name in ours)


def test_orders_are_those_in_which_a_client_trains() -> None:
    """Round 2 of two trainings of two epochs; Ditto's are asked for in the other order."""
    samples = Samples(torch.zeros(7, 1), torch.zeros(7, dtype=torch.int64), AsGiven())
    rng = seeded(5, "client", 2, 3)
    first, second = (torch.cat(list(samples.shuffled(3, 2, rng, False).places())).split(7) for _ in range(2))

    def given(name: str) -> list[torch.Tensor]:
        orders = beside_fluke.orders(5, 3, 7, METHODS[name], 2)
        return [next(orders) for _ in range(8)][4:]

    for name, expected in (("fedrep", (*first, *second)), ("ditto", (*second, *first))):
        assert all(torch.equal(a, b) for a, b in zip(given(name), expected, strict=True))


def test_a_row_by_hand() -> None:
    pairs = [
        Pair("m", "trained", "same", 1, 90.0, 92.0, 0.25, "a"),
        Pair("m", "trained", "same", 2, 92.0, 93.0, 0.5, "b"),
    ]
    row = Row.of(pairs)
    assert row.mean == (91.0, 92.5)
    assert row.spread == pytest.approx((2**0.5, 0.5**0.5))
    assert row.difference == pytest.approx((-1.5, 0.5**0.5))
    assert row.weights == 0.5
    assert not row.within  # 1.5 is more than the root of 2
    assert Row.of([pairs[0], pairs[1]._replace(fluke=92.5)]).within
    text = beside_fluke.table(pairs)
    assert "| m | trained | 91.00 ± 1.41 | 92.50 ± 0.71 | -1.50 ± 0.71 | no | 5e-01 |" in text


@pytest.fixture
def fluke() -> Any:
    return pytest.importorskip("fluke", reason="fluke-fl is not installed")


@pytest.mark.filterwarnings("ignore")
def test_fluke_gets_the_same_samples_and_network(fluke: Any) -> None:
    dealt = beside_fluke.deal(20, seed=1)
    clients = beside_fluke.fluke_clients(METHODS["fedper"], Setting(), 1, dealt)
    data = load_dataset("digits", None)
    expected = beside_fluke.initial_net(1)
    raw = torch.tensor(data.raw_M[list(dealt.test[4])])
    images, labels = clients[4].test_set.tensors
    scaled = (raw.double().permute(0, 3, 1, 2) / 255 - 0.3053) / 0.3760
    assert torch.allclose(images.double(), scaled, atol=1e-5)
    assert np.array_equal(labels, data.label_M[list(dealt.test[4])])
    assert clients[4].n_examples == len(dealt.train[4])
    with torch.no_grad():
        assert torch.equal(clients[4].model(images), expected(images))
    ours, theirs = expected.parameters(), clients[4].model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedper", "fedrep", "lg_fedavg", "ditto"])
def test_with_the_same_batches_both_sides_learn_the_same_weights(fluke: Any, workplace: Path, name: str) -> None:
    dealt = beside_fluke.deal(TINY.clients, seed=2)
    ours = beside_fluke.run_raysim(METHODS[name], TINY, 2, dealt, workplace)
    theirs = beside_fluke.run_fluke(METHODS[name], TINY, 2, dealt)
    assert ours.weights_NP is not None and theirs.weights_NP is not None
    assert torch.allclose(ours.weights_NP, theirs.weights_NP, atol=1e-4)
    assert ours.accuracy == pytest.approx(theirs.accuracy, abs=0.01)  # fluke rounds each accuracy to five digits
