"""FedPer against numbers worked out by hand."""

from __future__ import annotations

from torch.testing import assert_close

from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.fedper import FedPer
from raysim.contract.toy import toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Client, Extractor, LocalTraining, Task, extractor_weights, weights
from raysim.core.seeds import seeded

TASK = Task(4, 8, ("norm",), toy_model)


def client() -> Client:
    return Client(0, TASK, toy_samples([0, 1] * 4, 0), toy_model("norm", "other"), LocalTraining(), seeded(1, "client"))


def test_a_client_takes_the_extractor_and_keeps_its_header():
    one, received = client(), toy_model("norm")
    header = weights(one.net.header)
    FedPer().client_receive(one, Extractor(extractor_weights(received)))
    assert_close(weights(one.net.extractor), weights(received.extractor), rtol=0, atol=0)
    assert_close(weights(one.net.header), header, rtol=0, atol=0)


def test_in_round_one_clients_train_as_under_fedavg():
    average, personal = Trial(FedAvg()).run(1), Trial(FedPer()).run(1)
    for k, net in average.nets.items():
        assert_close(weights(net), weights(personal.nets[k]), rtol=0, atol=0)
