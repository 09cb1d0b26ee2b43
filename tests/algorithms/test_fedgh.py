"""FedGH against numbers worked out by hand."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from raysim.algorithms.fedgh import ClassMeans, FedGH
from raysim.contract.toy import toy_model, toy_samples
from raysim.core import Client, Header, LocalTraining, Server, Task
from raysim.core.seeds import seeded


def server_with_zero_header(num_classes: int = 2, feature_dim: int = 2) -> Server[Header]:
    header = Header({"weight": torch.zeros(num_classes, feature_dim), "bias": torch.zeros(num_classes)})
    task = Task(num_classes, feature_dim, ("flat",), toy_model)
    return Server(task, torch.Generator(), {0: 1, 1: 1}, t=1, state=header)


def means(class_S: list[int], mean_SD: list[list[float]]) -> ClassMeans:
    return ClassMeans(torch.tensor(class_S, dtype=torch.int32), torch.tensor(mean_SD))


def is_close(server: Server[Header], weight: list[list[float]], bias: list[float], atol: float = 1e-8) -> None:
    assert_close(server.state.w["weight"], torch.tensor(weight), rtol=0, atol=atol)
    assert_close(server.state.w["bias"], torch.tensor(bias), rtol=0, atol=atol)


def test_kat_1_one_class_mean():
    # Softmax of zeros is (1/2, 1/2); the gradient of the logits is (-1/2, 1/2); times lr 0.01 and [1, 2].
    server = server_with_zero_header()
    FedGH().server_update(server, {0: means([0], [[1.0, 2.0]])})
    is_close(server, [[0.005, 0.01], [-0.005, -0.01]], [0.005, -0.005])


def test_kat_2_clients_follow_each_other_in_id_order():
    # The second logits are 0.01 * [1, -1] + 0.005 * [1, -1] = (0.015, -0.015): p0 = sigmoid(0.03) = 0.50749944.
    server = server_with_zero_header()
    FedGH().server_update(server, {0: means([0], [[1.0, 2.0]]), 1: means([1], [[0.0, 1.0]])})
    is_close(server, [[0.005, 0.00492501], [-0.005, -0.00492501]], [-7.499e-5, 7.499e-5], atol=5e-9)


def test_kat_3_one_step_per_client_on_the_mean_of_its_losses():
    # (-1/2, 1/2) x [1, 2] and (1/2, -1/2) x [0, 1], averaged: (-1/4, 1/4) x [1, 1]; the biases cancel.
    server = server_with_zero_header()
    FedGH(server_mode="per_client").server_update(server, {0: means([0, 1], [[1.0, 2.0], [0.0, 1.0]])})
    is_close(server, [[0.0025, 0.0025], [-0.0025, -0.0025]], [0.0, 0.0])


def test_frozen_random_never_trains():
    server = server_with_zero_header()
    FedGH(server_mode="frozen_random").server_update(server, {0: means([0], [[1.0, 2.0]])})
    is_close(server, [[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0], atol=0)
    assert server.values == {}


def test_two_server_epochs():
    # After the first step the logits of [1, 2] are (0.005 + 0.02 + 0.005) * (1, -1) = (0.03, -0.03), so
    # 1 - p0 = sigmoid(-0.06) = 0.4850045 and the second step adds 0.004850045 * [1, 2, bias].
    server = server_with_zero_header()
    FedGH(server_epochs=2).server_update(server, {0: means([0], [[1.0, 2.0]])})
    is_close(server, [[0.009850045, 0.01970009], [-0.009850045, -0.01970009]], [0.009850045, -0.009850045], 5e-9)


class Echo(nn.Module):
    """A network whose representation is the first two pixels, with nothing to train but its header."""

    def __init__(self) -> None:
        super().__init__()
        self.header = nn.Linear(2, 4)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.header(self.features(x))


def test_a_client_uploads_the_mean_of_each_class_it_owns():
    samples = toy_samples([3, 0, 3, 3], 0)
    raw = torch.zeros_like(samples.raw_N)
    # First two pixels, in 255ths: class 0 has (51, 102); class 3 has (0, 255), (51, 0) and (102, 0).
    raw[:, 0, :2, 0] = torch.tensor([[0, 255], [51, 102], [51, 0], [102, 0]], dtype=torch.uint8)
    task = Task(4, 2, ("flat",), toy_model)
    data = type(samples)(raw, samples.y, samples.transform)
    client = Client(0, task, data, Echo(), LocalTraining(batch_size=3), seeded(1, "client", 1, 0), t=1)
    up = FedGH().client_update(client, None)
    assert up.class_S.tolist() == [0, 3] and up.class_S.dtype == torch.int32
    assert_close(up.mean_SD, torch.tensor([[0.2, 0.4], [0.2, 1 / 3]]))


def test_absent_classes_can_be_left_out_of_the_softmax():
    # Class 2 has no mean: with the mask the softmax of zeros is (1/2, 1/2, 0), and its row does not move.
    server = server_with_zero_header(num_classes=3)
    FedGH(mask_absent=True).server_update(server, {0: means([0], [[1.0, 2.0]]), 1: means([1], [[0.0, 1.0]])})
    is_close(
        server,
        [[0.005, 0.00492501], [-0.005, -0.00492501], [0.0, 0.0]],
        [-7.499e-5, 7.499e-5, 0.0],
        atol=5e-9,
    )


def test_official_starts_from_local_headers():
    server = server_with_zero_header()
    official = FedGH(**FedGH.profiles["official"])
    assert official.static_downlink and official.server_send(server, 0) is None
    server.t = 2
    assert isinstance(official.server_send(server, 0), Header)
