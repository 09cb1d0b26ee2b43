"""FedProx against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from raysim.algorithms.fedprox import FedProx
from raysim.core import Batch, LocalTraining
from raysim.core.fit import FitJob, fit_one
from tests.algorithms.nets import Constant

ONE = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0]))


def test_the_loss_by_hand():
    net, received = Constant(1.0, 1.0), {"logits_1C": torch.tensor([[0.0, 3.0]])}
    # ln 2 + 0.5 / 2 * (1 + 4)
    assert float(FedProx(mu=0.5).loss(net, ONE, received).detach()) == pytest.approx(0.693147 + 1.25, abs=1e-6)
    assert float(FedProx(mu=0.5).loss(net, ONE, None).detach()) == pytest.approx(0.693147, abs=1e-6)


def test_two_steps_by_hand():
    net, received = Constant(0.0, 0.0), {"logits_1C": torch.zeros(1, 2)}
    job = FitJob(net, FedProx(mu=2.0).loss, received, [ONE, ONE], LocalTraining(lr=0.1))
    fit_one(replace(job, batches=[ONE]))
    # At the received weights the term has no gradient: p - e_y = (-0.5, 0.5).
    assert_close(net.logits_1C, torch.tensor([[0.05, -0.05]]), check_stride=False)
    fit_one(replace(job, batches=[ONE]))
    # p = sigmoid(0.1) = 0.524979; the gradient is (p - 1) + mu * 0.05 = -0.375021, and its opposite.
    assert_close(net.logits_1C, torch.tensor([[0.0875021, -0.0875021]]))
