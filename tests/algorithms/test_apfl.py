"""APFL against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.apfl import APFL, Mixture, joint_loss
from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.standalone import Standalone
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Task, weights
from raysim.core.data import tensors
from raysim.core.seeds import seeded

TASK = Task(4, 8, ("norm",), toy_model)
ONE = Batch(torch.ones(1, 1), torch.tensor([0]), torch.tensor([0]))


class Scale(nn.Module):
    """Logits (a * a * x, 0): what a mixture of parameters gives is not what one of predictions gives."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([a]))

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.a.square() * x, (0, 1))


def mixture(personal: float, shared: float, alpha: float, of_parameters: bool) -> Mixture:
    net = Mixture(Scale(personal), alpha, True, of_parameters)
    net.shared.load_state_dict(Scale(shared).state_dict())
    return net


def test_mixtures_by_hand():
    # alpha = 1/4: parameters 1/4 * 2 + 3/4 * 1 = 1.25, squared; predictions 1/4 * 4 + 3/4 * 1.
    assert mixture(2.0, 1.0, 0.25, True)(ONE.x)[0, 0].item() == pytest.approx(1.5625)
    assert mixture(2.0, 1.0, 0.25, False)(ONE.x)[0, 0].item() == pytest.approx(1.75)


def test_gradients_of_mixed_parameters_by_hand():
    net = mixture(2.0, 1.0, 0.25, True)
    joint_loss(net, ONE, None).backward()
    # d CE / d logit = sigmoid - 1: -0.173288 at 1.5625, -0.268941 at 1. The mixture is 1.25, and (1.25^2)' = 2.5.
    assert net.personal.a.grad.item() == pytest.approx(0.25 * 2.5 * -0.173288, abs=1e-5)
    assert net.alpha.grad.item() == pytest.approx((2.0 - 1.0) * 2.5 * -0.173288, abs=1e-5)
    assert net.shared.a.grad.item() == pytest.approx(2.0 * -0.268941, abs=1e-5)  # of its own loss alone


def test_gradients_of_mixed_predictions_by_hand():
    net = mixture(2.0, 1.0, 0.25, False)
    joint_loss(net, ONE, None).backward()
    # sigmoid(1.75) - 1 = -0.148047; the logits differ by 4 - 1.
    assert net.personal.a.grad.item() == pytest.approx(0.25 * 4 * -0.148047, abs=1e-5)
    assert net.alpha.grad.item() == pytest.approx(3 * -0.148047, abs=1e-5)
    assert net.shared.a.grad.item() == pytest.approx(2.0 * -0.268941, abs=1e-5)


def test_alpha_is_learnt_and_stays_within_its_bounds():
    def after(lr: float) -> float:
        net = mixture(2.0, 1.0, 0.25, True)
        data = tensors(ONE.x, ONE.y)
        client = Client(0, TASK, data, net, LocalTraining(lr=lr, batch_size=1), seeded(1, "client"))
        APFL().client_update(client, None)
        assert client.stats.values == {"alpha": net.alpha.item()}
        return net.alpha.item()

    assert after(0.1) == pytest.approx(0.25 + 0.1 * 2.5 * 0.173288, abs=1e-5)
    assert after(10.0) == 1.0


def test_with_alpha_one_the_mixture_of_parameters_is_standalone():
    # Not bit for bit: the mixture is computed from both models. That of predictions is in test_reductions.py.
    alone, mixed = Trial(Standalone(), models=("norm",)).run(3), Trial(APFL(alpha=1.0, adaptive=False)).run(3)
    for k, net in alone.nets.items():
        assert_close(weights(net), weights(mixed.nets[k].personal), rtol=1e-5, atol=1e-6)


def test_the_global_model_is_fedavgs_bit_for_bit():
    # All four models see the batches of FedAvg's clients, and no gradient of the mixture.
    average, mixed = Trial(FedAvg()).run(3), Trial(APFL(agg="weighted")).run(3)
    assert_close(average.server.state, mixed.server.state, rtol=0, atol=0)
