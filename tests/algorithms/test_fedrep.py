"""FedRep against numbers worked out by hand."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedrep import FedRep
from raysim.contract.toy import SEED, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Client, Extractor, LocalTraining, Server, Task, weights
from raysim.core.data import tensors
from raysim.core.messages import wire_bytes
from raysim.core.seeds import seeded

TASK = Task(4, 8, ("flat",), toy_model)


class Chain(nn.Module):
    """Logits (a * b * x, 0): a is the extractor's only parameter, b the header's."""

    def __init__(self) -> None:
        super().__init__()
        self.extractor = nn.Linear(1, 1, bias=False)
        self.header = nn.Linear(1, 1, bias=False)
        for layer in (self.extractor, self.header):
            nn.init.ones_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.header(self.extractor(x)), (0, 1))


def test_header_then_extractor_by_hand():
    net = Chain()
    data = tensors(torch.tensor([[1.0]]), torch.tensor([0]))
    client = Client(0, TASK, data, net, LocalTraining(lr=1.0, batch_size=1), seeded(1, "client"))
    up = FedRep(header_epochs=1).client_update(client, None)
    # d CE / d(ab) = sigmoid(ab) - 1 = -0.268941 at a = b = 1; so b becomes 1.268941, and a stays 1.
    assert net.header.weight.item() == pytest.approx(1.268941, abs=1e-6)
    # Under that header: a = 1 + b * (1 - sigmoid(b)) = 1 + 1.268941 * 0.219440, and b stays.
    assert net.extractor.weight.item() == pytest.approx(1.278456, abs=1e-5)
    assert {name: w.item() for name, w in up.w.items()} == {"extractor.weight": net.extractor.weight.item()}


def test_more_header_epochs_leave_the_extractors_step_to_the_last_header():
    def trained(epochs: int) -> nn.Module:
        client = Client(
            0, TASK, toy_samples([0, 1, 2, 3], 0), toy_model("flat"), LocalTraining(lr=0.1), seeded(SEED, "client")
        )
        FedRep(header_epochs=epochs).client_update(client, None)
        return client.net

    once, twice, start = trained(1), trained(2), toy_model("flat")
    (x, y) = toy_samples([0, 1, 2, 3], 0).x, torch.tensor([0, 1, 2, 3])
    for net in (once, twice):
        expected = copy.deepcopy(start)
        expected.header.load_state_dict(weights(net.header))
        F.cross_entropy(expected(x), y).backward()
        for name, weight in net.extractor.named_parameters():
            gradient = expected.extractor.get_parameter(name).grad
            # The images are augmented with a little noise.
            assert_close(weight, start.extractor.get_parameter(name) - 0.1 * gradient, rtol=0.0, atol=3e-3)
    assert not once.header.weight.equal(twice.header.weight)


@pytest.mark.parametrize(("settings", "mean"), [({}, 2.0), (FedRep.profiles["official"], 3.0)])
def test_extractors_are_averaged_alike_or_by_sample_counts(settings: dict[str, str], mean: float):
    server = Server(TASK, torch.Generator(), {0: 1, 1: 3}, 1, None)
    FedRep(**settings).server_update(server, {k: Extractor({"w": torch.tensor([v])}) for k, v in ((0, 0.0), (1, 4.0))})
    assert server.state.w["w"].tolist() == [mean]


def test_everything_but_the_header_travels():
    # conv 3 * 9 + 3, BatchNorm 3 + 3 and 3 + 3 statistics, linear 12 * 8 + 8: 146 floats, and a counter of 8 bytes.
    assert {wire_bytes(msg) for _, _, msg in Trial(FedRep(header_epochs=1)).run(2).sent} == {146 * 4 + 8}
