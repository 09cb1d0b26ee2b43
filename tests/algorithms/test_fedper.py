"""FedPer against numbers worked out by hand."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.fedper import FedPer
from raysim.contract.toy import toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Client, Extractor, LocalTraining, Server, Task, extractor_weights, weights
from raysim.core.messages import wire_bytes
from raysim.core.seeds import seeded

TASK = Task(4, 8, ("norm",), toy_model)


def client() -> Client:
    return Client(0, TASK, toy_samples([0, 1] * 4, 0), toy_model("norm", "other"), LocalTraining(), seeded(1, "client"))


def test_the_server_weighs_extractors_by_sample_counts():
    server = Server(TASK, torch.Generator(), {0: 1, 1: 3}, 1, None)
    FedPer().server_update(server, {k: Extractor({"w": torch.tensor([v])}) for k, v in ((0, 0.0), (1, 4.0))})
    assert server.state.w["w"].tolist() == [3.0]  # (1 * 0 + 3 * 4) / 4


def test_a_client_takes_the_extractor_and_keeps_its_header():
    one, received = client(), toy_model("norm")
    header = weights(one.net.header)
    FedPer().client_receive(one, Extractor(extractor_weights(received)))
    assert_close(weights(one.net.extractor), weights(received.extractor), rtol=0, atol=0)
    assert_close(weights(one.net.header), header, rtol=0, atol=0)


def test_everything_but_the_header_travels():
    # conv 3 * 9 + 3, BatchNorm 3 + 3 and 3 + 3 statistics, linear 12 * 8 + 8: 146 floats, and a counter of 8 bytes.
    assert {wire_bytes(msg) for _, _, msg in Trial(FedPer()).run(2).sent} == {146 * 4 + 8}


def test_headers_part_and_extractors_of_participants_meet():
    toy = Trial(FedPer()).run(2)
    headers = [net.header.weight for net in toy.nets.values()]
    assert not any(headers[0].equal(other) for other in headers[1:])
    for k in toy.nets:
        FedPer().client_receive(toy.client(k, 3), toy.server.state)
    first, *others = [weights(net.extractor) for net in toy.nets.values()]
    for other in others:
        assert_close(other, first, rtol=0, atol=0)


def test_in_round_one_clients_train_as_under_fedavg():
    average, personal = Trial(FedAvg()).run(1), Trial(FedPer()).run(1)
    for k, net in average.nets.items():
        assert_close(weights(net), weights(personal.nets[k]), rtol=0, atol=0)
