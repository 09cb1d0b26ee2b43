"""FedDBE against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.feddbe import Biased, FedDBE, Shared
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task, weights
from raysim.core.data import tensors
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen

TASK = Task(3, 2, ("flat",), toy_model)
LOG3 = 1.098612


def batch_of(*rows: list[float], weight: list[float] | None = None) -> Batch:
    count = len(rows)
    weight_B = None if weight is None else torch.tensor(weight)
    return Batch(torch.tensor(rows), torch.zeros(count, dtype=torch.int64), torch.arange(count), weight_B)


def test_the_loss_by_hand():
    net, mean_D = Biased(Seen(), 2), torch.tensor([1.0, 0.0])
    # The batch's mean is (3, 2): log 3 of equal logits + 10 / 2 * (2^2 + 2^2) / 2.
    loss = FedDBE(kappa=10.0).loss(net, batch_of([2.0, 0.0], [4.0, 4.0]), mean_D)
    assert float(loss.detach()) == pytest.approx(LOG3 + 20, abs=1e-5)
    assert net.running_D.tolist() == [3.0, 2.0]
    # Of padding with weight 0 nothing counts: the mean is (2, 0).
    padded = FedDBE(kappa=10.0).loss(net, batch_of([2.0, 0.0], [4.0, 4.0], weight=[1.0, 0.0]), mean_D)
    assert float(padded.detach()) == pytest.approx(LOG3 + 2.5, abs=1e-5)


def test_the_running_mean_by_hand():
    net, method, mean_D = Biased(Seen(), 2), FedDBE(kappa=1.0, mu=0.25), torch.zeros(2)
    method.loss(net, batch_of([4.0, 8.0]), mean_D)
    assert net.running_D.tolist() == [1.0, 2.0]
    method.loss(net, batch_of([4.0, 0.0]), mean_D)
    assert net.running_D.tolist() == [1.75, 1.5]


def test_the_vector_is_added_before_the_header():
    net = Biased(Seen(), 2)
    with torch.no_grad():
        net.model.header.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
        net.bias_D.copy_(torch.tensor([10.0, 20.0]))
        assert net(torch.tensor([[1.0, 2.0]])).tolist() == [[11.0, 22.0, 33.0]]


def client_of(net: Biased) -> Client:
    data = tensors(torch.tensor([[1.0, 0.0], [3.0, 2.0]]), torch.tensor([0, 1]))
    return Client(0, TASK, data, net, LocalTraining(lr=0.1, batch_size=2), seeded(1, "client"))


def test_before_there_is_a_mean_the_client_trains_plainly_and_sends_its_own():
    net = Biased(Seen(), 2)
    up = FedDBE().client_update(client_of(net), Shared(weights(net.model), torch.zeros(2)))
    assert up.mean_D.tolist() == [2.0, 1.0] and net.bias_D.tolist() == [0.0, 0.0]
    again = FedDBE().client_update(client_of(net), Shared(up.w, torch.tensor([5.0, 6.0])))
    assert again.mean_D.tolist() == [5.0, 6.0] and bool(net.bias_D.any())


def test_the_first_round_is_fedavgs_bit_for_bit():
    plain, other = (Trial(method).run(1) for method in (FedAvg(), FedDBE()))
    assert_close(plain.server.state, other.server.state.w, rtol=0, atol=0)
    assert bool(other.server.state.mean_D.any())


def test_the_server_keeps_its_first_mean():
    server = Server(TASK, torch.Generator(), {0: 1, 1: 3}, 1, Shared({}, torch.zeros(2)))
    for one, other in (([0.0, 4.0], [4.0, 0.0]), ([9.0, 9.0], [9.0, 9.0])):
        ups = {k: Shared({"w": torch.tensor([4.0 * k])}, torch.tensor(mean)) for k, mean in ((0, one), (1, other))}
        FedDBE().server_update(server, ups)
        assert server.state.w["w"].tolist() == [3.0] and server.state.mean_D.tolist() == [3.0, 1.0]
