"""FedAvg, LG-FedAvg and Standalone against numbers worked out by hand."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.testing import assert_close

from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.standalone import Standalone
from raysim.contract.toy import SEED, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Client, LocalTraining, Model, Server, Task, weights
from raysim.core.seeds import seeded


def server_of(state: Any, num_samples: Mapping[int, int]) -> Server[Any]:
    return Server(Task(4, 8, ("norm",), toy_model), seeded(SEED, "server_update", 1), num_samples, 1, state)


def client_of(net: nn.Module) -> Client:
    task = Task(4, 8, ("norm",), toy_model)
    return Client(0, task, toy_samples([0, 1] * 4, 0), net, LocalTraining(batch_size=4), seeded(SEED, "client", 1, 0))


def test_fedavg_averages_running_statistics_and_copies_the_batch_counter():
    server = server_of({}, {0: 1, 1: 3})
    one, other = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for layer, mean, var, count in ((one, 0.0, 1.0, 7), (other, 4.0, 5.0, 9)):
        layer.running_mean.fill_(mean)
        layer.running_var.fill_(var)
        layer.num_batches_tracked.fill_(count)
    FedAvg().server_update(server, {0: Model(weights(one)), 1: Model(weights(other))})
    assert server.state["running_mean"].tolist() == [3.0]
    assert server.state["running_var"].tolist() == [4.0]  # (1 * 1 + 3 * 5) / 4
    assert server.state["num_batches_tracked"].item() == 7  # of the first part, not a mean
    assert server.state["num_batches_tracked"].dtype == torch.int64


def test_fedavg_without_bn_buffers_leaves_each_client_its_own():
    algorithm = FedAvg(avg_bn_buffers=False)
    toy = Trial(algorithm)
    assert not [name for name in toy.server.state if "running" in name or "tracked" in name]
    client = client_of(toy_model("norm"))
    client.net.extractor[1].running_mean.fill_(5.0)
    sent = {name: torch.full_like(w, 2.0) for name, w in toy.server.state.items()}
    algorithm.client_receive(client, Model(sent))
    assert client.net.extractor[1].running_mean.tolist() == [5.0, 5.0, 5.0]
    assert all((parameter == 2.0).all() for parameter in client.net.parameters())
    up = algorithm.client_update(client, None)
    assert set(up.w) == {name for name, _ in client.net.named_parameters()}


def test_standalone_takes_the_steps_of_plain_sgd():
    toy = Trial(Standalone(), labels=([0, 1, 2, 3],))
    expected = copy.deepcopy(toy.nets[0])
    toy.round(1)
    # Four samples are one batch of 6 at most: one step with lr 0.1 on the augmented images.
    (batch,) = toy.samples[0].shuffled(6, 1, seeded(SEED, "client", 1, 0))
    nn.functional.cross_entropy(expected.train()(batch.x), batch.y).backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= 0.1 * parameter.grad
    assert_close(weights(toy.nets[0]), weights(expected), rtol=1e-6, atol=1e-7)
