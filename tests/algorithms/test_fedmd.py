"""FedMD against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.testing import assert_close

from raysim.algorithms.fedmd import FedMD, Request, Scores
from raysim.contract.toy import SEED
from raysim.contract.trial import Trial
from raysim.core import Client, LocalTraining, Samples, Server, Task, tensors
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from tests.algorithms.nets import Line


def samples(x: list[float], y: list[int]) -> Samples:
    return tensors(torch.tensor(x)[:, None], torch.tensor(y))


def task_with(public: Samples) -> Task:
    return Task(2, 1, ("line",), lambda name, *key: Line(), public=public)


def client_of(public: Samples, net: nn.Module | None = None) -> Client:
    """Its own data is one sample, x = 2, of class 0; it takes steps of 0.1."""
    local = LocalTraining(batch_size=4, lr=0.1)
    return Client(0, task_with(public), samples([2.0], [0]), net or Line(), local, seeded(SEED, "client", 1, 0), t=1)


def server_of(public: Samples, state: Any = None, t: int = 1) -> Server[Any]:
    return Server(task_with(public), seeded(SEED, "server_update", t), {0: 1, 3: 99}, t=t, state=state)


def request(index: list[int], past: list[int] | None = None, mean: list[list[float]] | None = None) -> Request:
    places = [part if part is None else torch.tensor(part, dtype=torch.int32) for part in (index, past)]
    assert places[0] is not None
    return Request(places[0], places[1], None if mean is None else torch.tensor(mean))


TWO = samples([1.0, 2.0], [-1, -1])
"""Public data of another data set."""


def test_the_consensus_is_the_plain_mean_of_the_participants_logits():
    # Client 3 has 99 times as many samples and counts the same: (1 + 3) / 2, (2 + 0) / 2; (3 - 1) / 2, (4 + 4) / 2.
    server = server_of(TWO, request([0, 1]))
    ups = {0: Scores(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), 3: Scores(torch.tensor([[3.0, 0.0], [-1.0, 4.0]]))}
    FedMD().server_update(server, ups)
    assert server.state.mean_SC.tolist() == [[2.0, 1.0], [1.0, 4.0]]
    assert server.state.mean_SC.dtype == torch.float32
    assert server.state.past_S.tolist() == [0, 1]


def test_places_are_distinct_ascending_and_new_in_every_round():
    public = samples([0.0] * 100, [-1] * 100)
    one, other = (FedMD(scored=20).draw(server_of(public, t=t)) for t in (1, 2))
    for index_S in (one, other):
        places = index_S.tolist()
        assert places == sorted(set(places)) and len(places) == 20 and set(places) <= set(range(100))
        assert index_S.dtype == torch.int32
    assert not one.equal(other)


def test_in_round_1_a_client_trains_and_scores():
    # The own sample has logits (0, 0), p = (1/2, 1/2); the gradient is (-1/2, 1/2) * 2; w = (0.1, -0.1).
    client = client_of(TWO)
    up = FedMD().client_update(client, request([1, 0]))
    assert_close(client.net.w, torch.tensor([0.1, -0.1]))
    assert_close(up.logits_SC, torch.tensor([[0.2, -0.2], [0.1, -0.1]]))  # x = 2, then x = 1, as asked for


def test_a_client_digests_before_it_revisits():
    # Digest: all logits are 0 and the consensus (1, -1), so the loss of a sample is (|-1| + |1|) / 2, with gradient
    # (-x/2, x/2); the mean over x = 1 and 2 is (-3/4, 3/4); w = (0.075, -0.075).
    # Revisit: the own sample has logits (0.15, -0.15), 1 - p0 = sigmoid(-0.3) = 0.4255575;
    # w0 = 0.075 + 0.1 * 2 * 0.4255575 = 0.1601115. The other way round it would be 0.1 + 0.075.
    client = client_of(TWO)
    up = FedMD().client_update(client, request([0, 1], [0, 1], [[1.0, -1.0], [1.0, -1.0]]))
    assert_close(client.net.w, torch.tensor([0.1601115, -0.1601115]), rtol=0, atol=1e-7)
    assert_close(up.logits_SC, torch.tensor([[0.1601115, -0.1601115], [0.320223, -0.320223]]), rtol=0, atol=2e-7)


def test_each_scored_sample_is_drawn_to_its_own_row():
    # Of x = 1, 2 and 4 the first and the last were scored: (1, -1) pulls w0 up with 1/2, (-4, 4) down with 4/2.
    # The mean gradient is (2 - 1/2) / 2 = 3/4: w0 = -0.075, where swapped rows or samples would give others.
    client = client_of(samples([1.0, 2.0, 4.0], [-1] * 3))
    client.data = samples([0.0], [0])  # which has no gradient
    FedMD().client_update(client, request([0], [0, 2], [[1.0, -1.0], [-4.0, 4.0]]))
    assert_close(client.net.w, torch.tensor([-0.075, 0.075]))


def test_transfer_learning_comes_once_with_public_labels_first():
    # Public, x = 1 of class 1: p = 1/2, w = (-0.05, 0.05).
    # Own, x = 2 of class 0: logits (-0.1, 0.1), 1 - p0 = sigmoid(0.2) = 0.5498340, w0 = -0.05 + 0.2 * 0.5498340.
    # Then round 1, the own sample again: 2 * 2 * w0 = 0.2398672, sigmoid(-0.2398672) = 0.4403191, w0 = 0.1480306.
    # Round 2, which has no more transfer learning: sigmoid(-4 * 0.1480306) = 0.3561480, w0 = 0.2192602.
    public = samples([1.0], [1])
    algorithm = FedMD(transfer_epochs=1)
    client = client_of(public, algorithm.client_model(Line(), task_with(public)))
    for w0 in (0.1480306, 0.2192602):
        algorithm.client_update(client, request([0]))
        assert_close(client.net.w, torch.tensor([w0, -w0]), rtol=0, atol=2e-7)


def test_bytes():
    # 12 public samples, 4 classes: places of 4 bytes, and 12 * 4 * 4 bytes of logits each way.
    toy = Trial(FedMD()).run(2)
    sizes = [(name, wire_size(msg).components) for name, k, msg in toy.sent if k == 0]
    assert sizes == [
        ("server_send", {"index_S": 48, "past_S": 0, "mean_SC": 0}),
        ("client_update", {"logits_SC": 192}),
        ("server_send", {"index_S": 48, "past_S": 48, "mean_SC": 192}),
        ("client_update", {"logits_SC": 192}),
    ]
