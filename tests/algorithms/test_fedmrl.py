"""FedMRL against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedmrl import FedMRL, Fusion
from raysim.contract.toy import toy_model, toy_samples
from raysim.core import Batch, Client, LocalTraining, Model, Server, Task
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded

TASK = Task(4, 8, ("deep", "norm", "flat"), toy_model)


class Gives(nn.Module):
    """A model with a given representation of any image, and a header without bias."""

    def __init__(self, feature: list[float], header: list[list[float]]) -> None:
        super().__init__()
        self.feature_1D = nn.Parameter(torch.tensor([feature]))
        self.header = nn.Linear(len(feature), len(header))
        self.header.load_state_dict({"weight": torch.tensor(header), "bias": torch.zeros(len(header))})

    def features(self, x: Tensor) -> Tensor:
        return self.feature_1D.expand(len(x), -1)


def fusion() -> Fusion:
    """Own representation (1, 2), small one (3); the projection adds the small one's double to the own one's first."""
    net = Fusion(Gives([1.0, 2.0], [[0.1, 0.2], [0.3, -0.4]]), Gives([3.0], [[0.5], [-0.5]]))
    net.projection.load_state_dict({"weight": torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), "bias": torch.zeros(2)})
    return net


ONE = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0]))


def test_fused_representation_and_prediction():
    # (2 * 3 + 1, 2) = (7, 2); logits 0.1 * 7 + 0.2 * 2 = 1.1 and 0.3 * 7 - 0.4 * 2 = 1.3.
    net = fusion()
    assert net.features(ONE.x).tolist() == [[7.0, 2.0]]
    assert_close(net(ONE.x), torch.tensor([[1.1, 1.3]]))


@pytest.mark.parametrize(("small_weight", "own_weight"), [(1.0, 1.0), (0.5, 0.0), (0.0, 2.0)])
def test_both_headers_learn_from_nested_parts(small_weight: float, own_weight: float):
    # The small header reads the first number alone: logits 3.5 and -3.5. CE = ln(1 + e^-7), and ln(1 + e^0.2).
    algorithm = FedMRL(small_weight=small_weight, own_weight=own_weight)
    small, own = math.log1p(math.exp(-7)), math.log1p(math.exp(0.2))
    loss = float(algorithm.loss(fusion(), ONE, None).detach())
    assert loss == pytest.approx(small_weight * small + own_weight * own, abs=1e-6)


def test_one_loss_trains_both_models_and_the_projection():
    # p = softmax(1.1, 1.3) = (0.450166, 0.549834), minus (1, 0); of the small header q1 = 1 / (1 + e^7) = 0.000911.
    # Fused: own header (0.1 - 0.3, 0.2 + 0.4) * -0.549834, small header 2 * 0.5 * -0.000911 for the first number.
    net = fusion()
    FedMRL().loss(net, ONE, None).backward()
    fused = [0.2 * 0.549834 - 0.000911, -0.6 * 0.549834]
    assert_close(net.model.feature_1D.grad, torch.tensor([fused]), atol=1e-5, rtol=0)
    assert_close(net.small.feature_1D.grad, torch.tensor([[2 * fused[0]]]), atol=1e-5, rtol=0)
    inputs = [3.0, 1.0, 2.0]
    expected = torch.tensor([[f * i for i in inputs] for f in fused])
    assert_close(net.projection.weight.grad, expected, atol=1e-5, rtol=0)
    assert_close(net.header.weight.grad, torch.tensor([[7.0, 2.0], [-7.0, -2.0]]) * -0.549834, atol=1e-5, rtol=0)
    assert_close(net.small.header.weight.grad, torch.tensor([[-7 * 0.000911], [7 * 0.000911]]), atol=1e-4, rtol=0)


def test_the_small_model_of_one_participant_can_be_kept():
    found = set()
    for seed in range(10):
        server: Server[Model] = Server(TASK, torch.Generator().manual_seed(seed), {0: 1, 2: 3})
        FedMRL(agg="one").server_update(server, {k: Model({"w": torch.tensor([v])}) for k, v in ((0, 1.0), (2, 5.0))})
        found.add(server.state.w["w"].item())
    assert found == {1.0, 5.0}


def client_of(algorithm: FedMRL) -> Client:
    net = algorithm.client_model(toy_model("deep"), TASK)
    return Client(1, TASK, toy_samples([0, 1] * 6, 1), net, LocalTraining(lr=0.1), seeded(1, "client", 1, 1))


@pytest.mark.parametrize(("share", "width"), [(0.2, 2), (1.0, 8), (0.01, 1)])
def test_only_the_small_model_travels(share: float, width: int):
    # `flat` has 16 inputs: 16 d + d, and a header of 4 d + 4 numbers.
    algorithm = FedMRL(small_width=share)
    server: Server[Model] = Server(TASK, torch.Generator())
    server.state = algorithm.server_start(server, {})
    client, down = client_of(algorithm), algorithm.server_send(server, 1)
    algorithm.client_receive(client, down)
    up = algorithm.client_update(client, down)
    assert wire_size(down).bytes == wire_size(up).bytes == 4 * (16 * width + width + 4 * width + 4)
    assert client.net.projection.in_features == 8 + width
    assert client.net.projection.out_features == 8


def test_a_client_takes_the_server_s_small_model_and_keeps_the_rest():
    algorithm = FedMRL()
    client = client_of(algorithm)
    before = {name: w.clone() for name, w in client.net.state_dict().items()}
    sent = Model({name: w + 1 for name, w in client.net.small.state_dict().items()})
    algorithm.client_receive(client, sent)
    for name, w in client.net.state_dict().items():
        assert w.equal(before[name] + 1 if name.startswith("small.") else before[name])
