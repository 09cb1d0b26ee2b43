"""FedAPEN against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from raysim.algorithms.fedapen import Ensemble, FedAPEN, mutual_loss
from raysim.contract import check_algorithm
from raysim.contract.toy import toy_model, toy_samples
from raysim.core import Batch, Client, LocalTraining, Task
from raysim.core.seeds import seeded
from tests.algorithms.nets import Constant

TASK = Task(4, 8, ("deep", "flat"), toy_model)


def client_of(net: nn.Module, labels: list[int], t: int = 2, batch_size: int = 64) -> Client:
    local = LocalTraining(batch_size=batch_size, lr=0.1)
    return Client(0, TASK, toy_samples(labels, 0), net, local, seeded(1, "client", t, 0), t=t, arch="deep")


def batch_of(labels: list[int]) -> Batch:
    return Batch(torch.zeros(len(labels), 1), torch.tensor(labels), torch.arange(len(labels)))


def test_kat_one_step_of_lambda() -> None:
    net = Ensemble(Constant(2.0, 0.0), Constant(0.0, 2.0))
    assert net.lambda_ == 0.5
    logits_BC = net.eval()(torch.zeros(1, 1)).detach()
    assert logits_BC.tolist() == [[1.0, 1.0]]
    assert float(F.cross_entropy(logits_BC, torch.tensor([0]))) == pytest.approx(math.log(2))
    client = client_of(net, [0])
    FedAPEN(lambda_epochs=1).learn_lambda(client, client.data)  # dL/dlambda = -2, rate 0.001
    assert float(net.lambda_) == pytest.approx(0.502, abs=1e-7)


@pytest.mark.parametrize(("label", "bound"), [(0, 1.0), (1, 0.0)])
def test_lambda_stays_within_0_and_1(label: int, bound: float) -> None:
    client = client_of(Ensemble(Constant(2.0, 0.0), Constant(0.0, 2.0)), [label])
    FedAPEN(lambda_lr=10.0).learn_lambda(client, client.data)
    assert client.net.lambda_ == bound


@pytest.mark.parametrize(
    ("part", "n", "kept"), [(0.05, 19, []), (0.05, 61, [19, 39, 59]), (0.5, 5, [1, 3]), (0.0, 5, [])]
)
def test_every_20th_sample_is_kept_aside(part: float, n: int, kept: list[int]) -> None:
    data = toy_samples([i % 4 for i in range(n)], 0)
    held, rest = FedAPEN(adaptability=part).split(data)
    assert len(held) == len(kept) and len(rest) == n - len(kept) > 0
    assert torch.equal(held.raw_N, data.raw_N[kept]) and torch.equal(held.y, data.y[kept])
    others = [i for i in range(n) if i not in kept]
    assert torch.equal(rest.raw_N, data.raw_N[others])


def test_the_loss_in_numbers() -> None:
    # z = [ln 9, 0], z_s = [0, 0], y = 0: p = (.9, .1), p_s = (.5, .5), and e = [ln 3, 0] with p_e = (.75, .25).
    net = Ensemble(Constant(math.log(9), 0.0), Constant(0.0, 0.0))
    private = -math.log(0.9) + 0.510826 - math.log(0.75)  # KL(p_s || p)
    shared = -math.log(0.5) + 0.368064 - math.log(0.75)  # KL(p || p_s)
    found = mutual_loss(net, batch_of([0, 0]), None).detach()
    assert float(found) == pytest.approx(private + shared, abs=1e-5)


@pytest.mark.large
def test_the_contract_where_lambda_is_learnt() -> None:
    # Clients of the contract's task have fewer than 20 samples, so that by default nothing is kept aside.
    check_algorithm(FedAPEN(small="norm", adaptability=0.25, lambda_lr=0.1))
