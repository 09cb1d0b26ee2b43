"""FML against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from raysim.algorithms.fml import FML, Pair
from raysim.core import Batch
from tests.algorithms.nets import Constant

ONE = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0]))


def pair() -> Pair:
    """Predictions (0.5, 0.5) of the own model and (0.9, 0.1) of the small one."""
    return Pair(Constant(0.0, 0.0), Constant(math.log(9), 0.0))


def loss_of(a: float, b: float) -> float:
    return float(FML(a=a, b=b).loss(pair(), ONE, None).detach())


def test_kat_losses():
    # The own model is taught KL(s||t) = 0.368064, the small one KL(t||s) = 0.510826; labels ln 2 and -ln 0.9.
    assert loss_of(1, 1) == pytest.approx(0.693147 + 0.105361, abs=1e-6)
    assert loss_of(0, 1) == pytest.approx(0.368064 + 0.105361, abs=1e-6)
    assert loss_of(1, 0) == pytest.approx(0.693147 + 0.510826, abs=1e-6)
    assert loss_of(0.5, 0.25) == pytest.approx(
        0.5 * 0.693147 + 0.5 * 0.368064 + 0.25 * 0.105361 + 0.75 * 0.510826, abs=1e-6
    )


def test_each_model_gets_the_gradient_of_its_own_loss():
    # a (p - e_y) + (1 - a) (p - q): 0.5 (-.5, .5) + 0.5 (-.4, .4), and 0.25 (-.1, .1) + 0.75 (.4, -.4).
    net = pair()
    FML(a=0.5, b=0.25).loss(net, ONE, None).backward()
    assert_close(net.model.logits_1C.grad, torch.tensor([[-0.45, 0.45]]))
    assert_close(net.small.logits_1C.grad, torch.tensor([[0.275, -0.275]]))


def test_the_own_model_predicts():
    net = pair()
    assert_close(net(torch.zeros(1, 1)).softmax(1), torch.tensor([[0.5, 0.5]]))
