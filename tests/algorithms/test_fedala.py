"""FedALA against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from raysim.algorithms.fedala import FedALA, Mixing
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Client, LocalTraining, Model, Task, weights
from raysim.core.data import tensors
from raysim.core.seeds import seeded
from tests.algorithms.nets import Constant

TASK = Task(4, 8, ("norm",), toy_model)


def client_of(net: Mixing) -> Client:
    data = tensors(torch.zeros(1, 1), torch.tensor([0]))
    local = LocalTraining(lr=0.1, batch_size=1, momentum=0.9, weight_decay=0.5)
    return Client(0, TASK, data, net, local, seeded(1, "client"))


def down(*logits: float) -> Model:
    return Model({"logits_1C": torch.tensor([logits])})


def test_a_step_of_the_shares_by_hand():
    # The mixture is the server's (0, 2) at first, where the gradient of CE is (sigmoid(-2) - 1, 1 - sigmoid(-2)), that
    # is (-0.880797, 0.880797).
    # Times the difference (0 - 1, 2 - 0), the gradient of the shares is (0.880797, 1.761594); so they become
    # 1 - 0.5 * 0.880797 = 0.559601 and 1 - 0.5 * 1.761594 = 0.119203.
    net = Mixing(Constant(1.0, 0.0), 1)
    client = client_of(net)
    FedALA(upper=1, share_lr=0.5, first_epochs=1).client_receive(client, down(0.0, 2.0))
    assert_close(net.share[0].detach(), torch.tensor([[0.559601, 0.119203]]), rtol=0, atol=1e-6)
    # 1 + (0 - 1) * 0.559601; 0 + (2 - 0) * 0.119203. The client's optimizer has neither momentum nor decay for shares.
    assert_close(net.model.logits_1C.detach(), torch.tensor([[0.440399, 0.238406]]), rtol=0, atol=1e-6)
    assert client.local.momentum == 0.9 and bool(net.begun)


def test_shares_stay_between_0_and_1_and_take_one_pass_later():
    # Own logits are right and the server's are wrong, so the client takes nothing in.
    net = Mixing(Constant(3.0, 0.0), 1)
    FedALA(upper=1, share_lr=10.0, first_epochs=3).client_receive(client_of(net), down(0.0, 3.0))
    assert net.share[0].tolist() == [[0.0, 0.0]] and net.model.logits_1C.tolist() == [[3.0, 0.0]]
    # From 0, and with the server's now better, one step: (0.952574 - 1) * (4 - 3) and (1 - 0.952574) * (-1 - 0).
    FedALA(upper=1, share_lr=1.0, first_epochs=3).client_receive(client_of(net), down(4.0, -1.0))
    assert_close(net.share[0].detach(), torch.tensor([[0.047426, 0.047426]]), rtol=0, atol=1e-6)


def test_without_a_rate_the_client_takes_the_servers_model():
    trial = Trial(FedALA(share_lr=0.0)).run(2)
    client = trial.client(0, 3)
    message = FedALA().server_send(trial.server, 0)
    FedALA(share_lr=0.0).client_receive(client, message)
    assert_close(weights(client.net.model), message.w, rtol=0, atol=0)


def test_lower_layers_are_the_servers_and_own_statistics_are_dropped():
    trial = Trial(FedALA()).run(2)
    client = trial.client(1, 3)
    message = FedALA().server_send(trial.server, 1)
    FedALA().client_receive(client, message)
    found = weights(client.net.model)
    assert client.net.names == ["header.weight", "header.bias"]
    for name, w in message.w.items():
        assert found[name].equal(w) is not name.startswith("header.")


@pytest.mark.parametrize(
    ("upper", "names"), [(1, ["header.bias"]), (3, ["extractor.4.bias", "header.weight", "header.bias"])]
)
def test_tensors_are_counted_from_the_output(upper: int, names: list[str]):
    assert Mixing(toy_model("norm"), upper).names == names
