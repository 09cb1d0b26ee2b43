"""FedTGP against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from raysim.algorithms.fedtgp import (
    FedTGP,
    Nearest,
    Prototypes,
    Trained,
    adaptive_margin,
    distances,
    margin_loss,
)
from raysim.contract.toy import toy_model
from raysim.core import Batch, Server, Task
from raysim.core.messages import nonfinite
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen
from tests.engine.sizes import KB, one_round

LN = math.log1p


def server_of(method: FedTGP, owners: dict[int, list[int]], num_classes: int = 3, width: int = 2) -> Server[Trained]:
    """A server before round 1 that has been told who owns what."""
    task = Task(num_classes, width, ("flat",), toy_model)
    server: Server[Trained] = Server(task, seeded(1, "server_update", 1), t=1)
    torch.manual_seed(5)
    server.classes = {k: torch.tensor(classes) for k, classes in owners.items()}
    server.state = method.server_start(server, {})
    return server


def up(*rows: list[float]) -> Prototypes:
    return Prototypes(torch.tensor(rows))


@pytest.mark.parametrize(("margin", "expected"), [(1.0, 0.01814993), (0.0, 0.00671535)])
def test_kat_the_loss_with_and_without_margin(margin: float, expected: float):
    # Logits -margin and -5: ln(1 + e^-(5 - margin)).
    global_CD = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    found = margin_loss(torch.zeros(1, 2), torch.tensor([0]), global_CD, margin).item()
    assert found == pytest.approx(expected, abs=2e-7) and expected == pytest.approx(LN(math.exp(margin - 5)), abs=1e-8)


def test_kat_the_margin_is_the_greatest_gap():
    # Gaps 1, sqrt(18), 1.
    mean_KD = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    assert adaptive_margin(mean_KD, 100.0) == pytest.approx(math.sqrt(18), abs=1e-6)
    assert adaptive_margin(mean_KD, 2.0) == 2.0
    assert adaptive_margin(mean_KD[[0, 2]], 100.0) == 1.0
    assert adaptive_margin(mean_KD[:1], 100.0) == 0.0
    # Equal means: no gap, and the root of zero is zero.
    assert adaptive_margin(torch.ones(3, 2), 100.0) == 0.0


def test_a_prototype_on_top_of_another_has_a_finite_gradient():
    # The gradient of the bare root is infinite at 0, and times 0 it is NaN.
    value = torch.full((1, 3), 0.1, requires_grad=True)
    distances(value, torch.full((2, 3), 0.1)).sum().backward()
    assert value.grad is not None and bool(value.grad.isfinite().all())
    # Norms and products alone give a negative square for some of these.
    row_BD = 100 + torch.rand(30, 500, generator=torch.Generator().manual_seed(1))
    assert not nonfinite(distances(row_BD, row_BD))
    assert bool((row_BD.square().sum(1) - 2 * (row_BD @ row_BD.T).diagonal() + row_BD.square().sum(1) < 0).any())


def test_class_means_behind_the_margin_are_over_clients():
    # Class 0: clients at 0 and 2, mean 1; class 1 at 4: gap 3, not 2.
    method = FedTGP(server_epochs=1)
    server = server_of(method, {0: [0], 1: [0, 1]}, width=1)
    method.server_update(server, {0: up([0.0]), 1: up([2.0], [4.0])})
    assert server.values["margin"] == pytest.approx(3)


def test_the_pull_by_hand_and_unknown_classes_masked():
    def pull(labels: list[int], lambda_: float = 10.0, weight: list[float] | None = None) -> float:
        net, known_C = Seen(), torch.tensor([True, False, False])
        x, weight_B = torch.tensor([[3.0, 4.0], [9.0, 9.0]]), None if weight is None else torch.tensor(weight)
        batch = Batch(x, torch.tensor(labels), torch.arange(2), weight_B)
        loss = FedTGP(lambda_=lambda_).pulled_loss(net, batch, (torch.zeros(3, 2), known_C))
        return (loss - cross_entropy(net, batch, None)).item()

    # (3^2 + 4^2) / 2 = 12.5 and 81, each over a batch of two.
    assert pull([0, 1], 1.0) == pytest.approx(6.25, abs=1e-5)
    assert pull([0, 1]) == pytest.approx(62.5, abs=1e-4)
    assert pull([0, 0], 1.0) == pytest.approx(46.75, abs=1e-4)
    assert pull([0, 1], 1.0, [1.0, 0.0]) == pytest.approx(12.5, abs=1e-5)
    assert pull([1, 2]) == 0


def test_the_nearest_prototype_of_any_class_wins():
    net = Nearest(Seen(), 3, 2)
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    with torch.no_grad():
        net.model.header.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
        assert net.eval()(x).argmax(1).tolist() == [1, 1]  # nothing received yet: its own classifier
        net.prototype_CD.copy_(torch.tensor([[0.0, 0.0], [9.0, 9.0], [3.0, 3.0]]))
        net.received.fill_(True)
        assert_close(net(x), -torch.tensor([[5.0, 61**0.5, 1.0], [1.0, 145**0.5, 13**0.5]]))
        assert net(x).argmax(1).tolist() == [2, 0]
        assert net.train()(x).equal(net.model(x))  # training is the classifier's


@pytest.mark.parametrize(("num_classes", "per_client", "published_kb"), [(10, 2, 3.906), (100, 10, 19.531)])
def test_measured_bytes(num_classes: int, per_client: int, published_kb: float):
    method = FedTGP(server_epochs=1)
    for up_bytes, down_bytes, up_params, down_params in one_round(method, num_classes, per_client, rounds=2):
        assert up_bytes == 4 * up_params == 4 * per_client * 500
        assert down_bytes == 4 * down_params == 4 * num_classes * 500
        assert up_bytes / KB == pytest.approx(published_kb, abs=5e-4)  # FedRAL Table 4 counts one way
    if num_classes == 10:
        assert {down_bytes for _, down_bytes, _, _ in one_round(method, num_classes, per_client)} == {0}
