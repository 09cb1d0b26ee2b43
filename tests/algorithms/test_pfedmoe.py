"""pFedMoE against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.pfedmoe import Experts, PFedMoE
from raysim.contract.toy import toy_model
from raysim.core import Client, LocalTraining, Task
from raysim.core.data import tensors
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen

TASK = Task(3, 2, ("flat",), toy_model)


class Scaled(Seen):
    """A network whose representation is the sample times its only parameter."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def features(self, x: Tensor) -> Tensor:
        return self.factor * x


def experts(bias: tuple[float, float] = (0.0, 0.0), inputs: int = 2) -> Experts:
    """Own extractor x, small extractor 10 x, a header that adds the representation, and a gate of constant weights."""
    net = Experts(Scaled(1.0), Scaled(10.0), inputs, 1)
    with torch.no_grad():
        net.model.header.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
        for layer in (net.gate[0], net.gate[2]):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        net.gate[2].bias.copy_(torch.tensor(bias))
    return net


def test_both_experts_by_hand():
    # Weights (3/4, 1/4): 0.75 * (20, 40) + 0.25 * (2, 4) = (15.5, 31).
    net, x = experts((math.log(3), 0.0)), torch.tensor([[2.0, 4.0]])
    assert_close(net.shares(x).detach(), torch.tensor([[0.75, 0.25]]))
    assert_close(net.features(x).detach(), torch.tensor([[15.5, 31.0]]))
    assert_close(net(x).detach(), torch.tensor([[46.5, 0.0, 0.0]]))


def test_the_gate_reads_the_sample():
    net = experts()
    with torch.no_grad():
        net.gate[0].weight.copy_(torch.tensor([[1.0, 0.0]]))
        net.gate[2].weight.copy_(torch.tensor([[2.0], [0.0]]))
    # sigmoid(2 * sigmoid(x_1)): of x_1 = 0, sigmoid(1) = 0.731059; of x_1 = ln 3, sigmoid(1.5) = 0.817574.
    found = net.shares(torch.tensor([[0.0, 9.0], [math.log(3), -9.0]])).detach()
    assert_close(found[:, 0], torch.tensor([0.731059, 0.817574]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("inputs", "read"), [(1, [2.5]), (2, [1.5, 3.5]), (4, [1.0, 2.0, 3.0, 4.0])])
def test_samples_with_more_values_are_averaged(inputs: int, read: list[float]):
    net, seen = experts(inputs=inputs), []
    net.gate.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    net.shares(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    assert seen[0].tolist() == [read]


def test_a_step_moves_both_experts_by_their_weights():
    # The first logit is 0.02 * (3/4 * a + 1/4 * b) for factors a and b, so that a step moves a three times as far as b.
    net = experts((math.log(3), 0.0))
    data = tensors(torch.tensor([[0.01, 0.01]]), torch.tensor([0]))
    client = Client(0, TASK, data, net, LocalTraining(lr=1.0, batch_size=1), seeded(1, "client"))
    up = PFedMoE().client_update(client, None)
    small, own = up.w["factor"].item() - 10.0, net.model.factor.item() - 1.0
    assert small > 0 and small == pytest.approx(3 * own, rel=1e-2)
    assert up.w.keys() == {"factor"} and not net.gate[2].bias.equal(experts((math.log(3), 0.0)).gate[2].bias)
