"""HetLoRA, FlexLoRA and raFLoRA against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.flexlora import FlexLoRA
from raysim.algorithms.hetlora import HetLoRA
from raysim.algorithms.raflora import RaFLoRA
from raysim.core import Client, LocalTraining, Model, Server, Task, lora, tensors
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded

METHODS = [HetLoRA(), FlexLoRA(), RaFLoRA()]
A, B = "extractor.lora_A", "extractor.lora_B"


class Net(nn.Module):
    """A frozen layer of m = n = 2 with an adapter of rank 1 or 2, and a header."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        alpha = 2.0 if name.startswith("scaled") else None
        self.extractor = lora(nn.Linear(2, 2), int(name[-1]), alpha)
        self.header = nn.Linear(2, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.extractor(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.header(self.features(x))


def server_of(algorithm: Any, *archs: str, samples: Mapping[int, int] | None = None) -> Server[Any]:
    """A server whose client k has the architecture archs[k], and one sample."""
    task = Task(2, 2, tuple(dict.fromkeys(archs)), lambda name, *key: Net(name))
    counts = samples or dict.fromkeys(range(len(archs)), 1)
    server: Server[Any] = Server(task, torch.Generator(), counts, arch=dict(enumerate(archs)))
    server.state = algorithm.server_start(server, {})
    return server


def up(a: list[list[float]], b: list[list[float]], bias: float = 0.0) -> Model:
    header = {"header.weight": torch.zeros(2, 2), "header.bias": torch.full((2,), bias)}
    return Model({A: torch.tensor(a).float(), B: torch.tensor(b).float(), **header})


def product(message: Model, scaling: float = 1.0) -> Tensor:
    return scaling * message.w[B] @ message.w[A]


def diag(*values: float) -> Tensor:
    return torch.tensor(values).float().diag()


# B A = diag(2, 0), of rank 2 with a second part of zeros; and diag(0, 1), whose first part is 0.
PAIR = {0: up([[2, 0], [0, 0]], [[1, 0], [0, 0]], 1.0), 1: up([[0, 0], [0, 1]], [[0, 0], [0, 1]], 3.0)}


def test_flexlora_averages_products_and_sends_the_nearest_of_each_rank():
    server = server_of(FlexLoRA(), "rank2", "rank2", "rank1")
    FlexLoRA().server_update(server, PAIR)
    # (diag(2, 0) + diag(0, 1)) / 2; the nearest matrix of rank 1 lacks the smaller singular value, 0.5.
    assert_close(product(FlexLoRA().server_send(server, 0)), diag(1, 0.5))
    assert_close(product(FlexLoRA().server_send(server, 2)), diag(1, 0))
    assert FlexLoRA().server_send(server, 2).w["header.bias"].tolist() == [2.0, 2.0]


def test_hetlora_averages_padded_adapters():
    # A = diag(2, 1) / 2 and B = diag(1, 1) / 2, so the product is diag(0.5, 0.25) and not the mean product.
    algorithm = HetLoRA(weighting="equal")
    server = server_of(algorithm, "rank2", "rank2")
    algorithm.server_update(server, PAIR)
    assert_close(product(algorithm.server_send(server, 0)), diag(0.5, 0.25))


def test_hetlora_weighs_by_the_norm_of_the_product():
    # Norms 2 and 1: A = diag(2 * 2, 1) / 3 and B = diag(2, 1) / 3.
    server = server_of(HetLoRA(), "rank2", "rank2")
    HetLoRA().server_update(server, PAIR)
    assert_close(product(HetLoRA().server_send(server, 0)), diag(8 / 9, 1 / 9))
    by_samples = HetLoRA(weighting="samples")
    server = server_of(by_samples, "rank2", "rank2", samples={0: 1, 1: 3})
    by_samples.server_update(server, PAIR)
    assert_close(product(by_samples.server_send(server, 0)), diag(2 / 16, 9 / 16))


# A client of rank 1 with the product diag(4, 0), and one of rank 2 with diag(2, 1).
UNEQUAL = {0: up([[4, 0]], [[1], [0]]), 1: up([[2, 0], [0, 1]], [[1, 0], [0, 1]])}


def test_unequal_ranks():
    # Padding: A = diag(6, 1) / 2, B = diag(2, 1) / 2. The mean product is diag(3, 0.5). In raFLoRA, the second part is
    # that of the client of rank 2 alone.
    for algorithm, expected in (
        (HetLoRA(weighting="equal"), diag(3, 0.25)),
        (FlexLoRA(), diag(3, 0.5)),
        (RaFLoRA(), diag(3, 1)),
    ):
        server = server_of(algorithm, "rank1", "rank2")
        algorithm.server_update(server, UNEQUAL)
        assert_close(product(algorithm.server_send(server, 1)), expected)
        assert_close(product(algorithm.server_send(server, 0)), diag(3, 0))


def test_a_rank_that_no_participant_has_can_still_be_trained():
    for algorithm in (FlexLoRA(), RaFLoRA()):
        server = server_of(algorithm, "rank1", "rank2")
        algorithm.server_update(server, {0: UNEQUAL[0]})
        sent = algorithm.server_send(server, 1).w
        assert sent[A][1].any() and not sent[B][:, 1].any()  # B's gradient is not 0


def test_raflora_keeps_the_part_that_no_participant_has():
    server = server_of(RaFLoRA(), "rank1", "rank2", samples={0: 1, 1: 3})
    RaFLoRA().server_update(server, UNEQUAL)  # (4 + 3 * 2) / 4
    assert_close(product(RaFLoRA().server_send(server, 1)), diag(2.5, 1))
    RaFLoRA().server_update(server, {0: UNEQUAL[0]})
    assert_close(product(RaFLoRA().server_send(server, 1)), diag(4, 1))


def test_products_count_with_their_scaling():
    # alpha = 2: the product of rank 1 counts twice, that of rank 2 once.
    for algorithm in (HetLoRA(weighting="equal"), FlexLoRA(), RaFLoRA()):
        server = server_of(algorithm, "scaled1", "scaled2")
        algorithm.server_update(server, {0: UNEQUAL[0]})
        assert_close(product(algorithm.server_send(server, 0), scaling=2.0), diag(8, 0))
        assert_close(product(algorithm.server_send(server, 1), scaling=1.0)[0, 0], torch.tensor(8.0))


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda one: type(one).__name__)
def test_bytes_are_those_of_the_adapters(algorithm: Any):
    server = server_of(algorithm, "rank1", "rank2")
    for k, rank in enumerate((1, 2)):
        assert wire_size(algorithm.server_send(server, k)).bytes == 4 * (rank * (2 + 2) + 2 * 2 + 2)


@pytest.mark.parametrize(("algorithm", "share"), [(FlexLoRA(), 0.5), (RaFLoRA(), 1.0)])
def test_energy_beyond_the_smallest_rank(algorithm: Any, share: float):
    # Clients send back what they got. Half of them lack the second part, so in a plain mean it is halved every round.
    server = server_of(algorithm, "rank1", "rank2")
    algorithm.server_update(server, {1: up([[8, 0], [0, 4]], [[1, 0], [0, 1]])})
    for t in range(1, 6):
        algorithm.server_update(server, {k: algorithm.server_send(server, k) for k in (0, 1)})
        assert_close(product(algorithm.server_send(server, 1)), diag(8, 4 * share**t))
        kept = 16 * share ** (2 * t)
        assert server.values["energy_beyond_smallest_rank"] == pytest.approx(kept / (64 + kept))


def test_the_first_message_has_adapters_without_effect_and_one_header():
    for algorithm in METHODS:
        server = server_of(algorithm, "rank1", "rank2")
        one, two = (algorithm.server_send(server, k) for k in (0, 1))
        assert not product(one).any() and not product(two).any() and one.w[A].any()
        assert one.w["header.weight"].equal(two.w["header.weight"])


def pruning_client(algorithm: HetLoRA, lr: float) -> Client:
    net = algorithm.client_model(Net("rank2"), Task(2, 2, ("rank2",), lambda name, *key: Net(name)))
    task = Task(2, 2, ("rank2",), lambda name, *key: Net(name))
    data = tensors(torch.eye(2), torch.tensor([0, 1]))
    return Client(0, task, data, net, LocalTraining(lr=lr), seeded(1, "client", 1, 0), t=1, arch="rank2")


def test_a_client_prunes_the_part_that_training_made_smaller():
    # With a header of zeros, the loss has no gradient but that of the penalty, which shrinks the last part.
    algorithm = HetLoRA(gamma=0.5, penalty=1.0)
    client = pruning_client(algorithm, lr=0.1)
    down = up([[2, 0], [0, 1]], [[1, 0], [0, 1]])
    algorithm.client_receive(client, down)
    sent = algorithm.client_update(client, down)
    assert sent.w[A].tolist() == [[2.0, 0.0]] and int(client.net.rank) == 1
    assert client.net.extractor.lora_A.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    server = server_of(algorithm, "rank2")
    algorithm.server_update(server, {0: sent})
    assert algorithm.server_send(server, 0).w[A].shape == (1, 2)
    algorithm.client_receive(client, down)  # from a server that does not know it yet
    assert client.net.extractor.lora_A.tolist() == [[2.0, 0.0], [0.0, 0.0]]
