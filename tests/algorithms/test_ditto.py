"""Ditto against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from raysim.algorithms.ditto import Ditto, PersonalAndShared, shared_loss
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Model, Task, weights
from raysim.core.data import tensors
from raysim.core.seeds import seeded
from tests.algorithms.nets import Constant

TASK = Task(4, 8, ("norm",), toy_model)
ONE = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0]))


def pair(personal: tuple[float, float], shared: tuple[float, float]) -> PersonalAndShared:
    net = PersonalAndShared(Constant(*personal))
    net.shared.load_state_dict(Constant(*shared).state_dict())
    return net


def test_losses_by_hand():
    net, received = pair((1.0, 1.0), (0.0, 3.0)), {"logits_1C": torch.tensor([[0.0, 3.0]])}
    # ln 2 + 0.5 / 2 * (1 + 4); ln(1 + e^3)
    assert float(Ditto(lambda_=0.5).personal_loss(net, ONE, received).detach()) == pytest.approx(1.943147, abs=1e-6)
    assert float(shared_loss(net, ONE, None).detach()) == pytest.approx(3.048587, abs=1e-6)


def test_both_models_take_their_own_step():
    net = pair((0.0, 0.0), (1.0, 1.0))
    data = tensors(torch.zeros(1, 1), torch.tensor([0]))
    client = Client(0, TASK, data, net, LocalTraining(lr=0.1, batch_size=1), seeded(1, "client"))
    down = Model(weights(net.shared))
    up = Ditto(lambda_=2.0).client_update(client, down)
    # Personal: (-0.5, 0.5) + 2 * (0 - 1) = (-2.5, -1.5); shared: (-0.5, 0.5), from where the personal one started not.
    assert_close(net.personal.logits_1C.detach(), torch.tensor([[0.25, 0.15]]))
    assert_close(up.w["logits_1C"], torch.tensor([[1.05, 0.95]]))


def test_the_global_model_does_not_depend_on_the_personal_ones():
    # Of one client the batches of the global model follow those of the personal one, whose number is the same.
    one, other = Trial(Ditto(lambda_=0.0)).run(3), Trial(Ditto(lambda_=5.0)).run(3)
    assert_close(one.server.state, other.server.state, rtol=0, atol=0)
