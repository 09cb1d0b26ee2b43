"""A run's networks, samples and representations as it had them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import raysim
from raysim.data.datasets import load_dataset
from raysim.engine.initial import own_model
from raysim.runs.opened import OpenedRun
from raysim.runs.run import Run
from tests.engine.scenarios import of_method

Runs = Callable[..., Run]


def test_a_loaded_client_has_the_accuracy_that_the_run_measured(runs: Runs) -> None:
    result = runs()
    last = result.clients.dropna(subset=["accuracy"]).groupby("client").last()
    assert result.clients["participated"].sum() < 3 * 8  # in each round some client keeps its state
    for k, row in last.iterrows():
        net, test = result.client(k).network, result.client(k).data.test
        right = net(test.x).argmax(1) == test.y
        assert (int(right.sum()), len(test)) == (row["correct"], row["total"])
        assert not net.training
        predictions = result.client(k).predictions()
        assert predictions["label"].tolist() == test.y.tolist()
        assert (predictions["predicted"] == predictions["label"]).sum() == row["correct"]
        probability_NC = net(test.x).softmax(1)
        assert np.allclose(predictions["probability"], probability_NC.max(1).values.detach())
        each = result.client(k).predictions(probabilities=True).filter(regex=r"^probability_\d+$")
        assert np.allclose(each, probability_NC.detach()) and list(each)[-1] == "probability_9"


LARGE = pytest.mark.large

CURRENT = {
    "fedproto": "prototypes, which are used only to train",
    "heterofl": "a part of the weights",
    "fedkd": "changes that depend on the receiver, from a server that changes as it sends",
    "fedapen": "a model; the client trains when it receives it",
}


@pytest.mark.parametrize("method", [pytest.param(name, marks=() if name == "fedkd" else LARGE) for name in CURRENT])
def test_the_current_network_has_the_accuracy_that_the_run_measured(runs: Runs, method: str) -> None:
    sets = [
        *of_method(method)[1:],
        "evaluation={clients: all}",
        "training.schedule={name: cosine}",
    ]
    run = runs(method, *sets)
    for t in (2, 3):
        rows = run.clients.query("round == @t").set_index("client")
        for k, row in rows.iterrows():
            found = run.client(k, round=t).predictions(current=True)
            right = int((found["predicted"] == found["label"]).sum())
            assert (right, len(found)) == (row["current_correct"], row["current_total"])
    mean = (rows["current_correct"] / rows["current_total"]).mean()
    assert run.rounds["accuracy/all_current"].iloc[-1] == pytest.approx(mean)
    test = run.client(0).data.test
    current = run.client(0).current_network
    assert not current.training
    predicted = run.client(0).predictions(current=True)["predicted"].tolist()
    assert current(test.x).argmax(1).tolist() == predicted
    own, received = run.client(0).network.state_dict(), current.state_dict()
    assert all(torch.equal(own[name], received[name]) for name in own) == (method == "fedproto")
    count_CC = OpenedRun.of(run.folder).confusion("test", OpenedRun.of(run.folder).checkpoint(), current=True)
    assert count_CC.trace() == rows["current_correct"].sum()


def test_samples_are_those_of_the_partition_table(runs: Runs) -> None:
    result, part = runs(), "train"
    table = result.partition.query("part == @part and client == 2")
    samples = getattr(result.client(2).data, part)
    assert result.client(2).predictions(part)["sample"].tolist() == table["sample"].tolist()
    assert samples.y.tolist() == table["label"].tolist()
    images = load_dataset("digits").raw_M[table["sample"].to_numpy()]
    assert np.array_equal(samples.raw_N.numpy(), images)


def test_representations_are_what_the_header_reads(runs: Runs) -> None:
    run = runs()
    value_ND, label_N, client_N = run.representations([4, 1], "val")
    assert value_ND.shape == (len(label_N), 32) and client_N.tolist() == sorted(client_N, reverse=True)
    net, samples = run.client(4).network, run.client(4).data.val
    logits_NC = net.header(torch.from_numpy(value_ND[client_N == 4]))
    torch.testing.assert_close(logits_NC, net(samples.x))


def test_earlier_rounds_as_far_as_they_are_kept(runs: Runs) -> None:
    run = runs()
    cohort = set(run.clients.query("round == 3 and participated")["client"])
    for k in range(8):
        now, before = (run.client(k).network_after(t).state_dict() for t in (3, 2))
        assert all(torch.equal(now[name], before[name]) for name in now) == (k not in cohort)
    with pytest.raises(raysim.ScenarioError, match="rounds 2 and 3"):
        run.client(0).network_after(1)


def test_the_own_model_is_found_beside_others(runs: Runs) -> None:
    client = runs("fml", "rounds=1").client(0)
    net = client.network
    assert own_model(net).features(client.data.test.x).shape[1] == 32
