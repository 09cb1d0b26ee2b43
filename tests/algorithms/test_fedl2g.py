"""FedL2G against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedl2g import FedL2G, Gradient, Guides
from raysim.contract.toy import toy_model
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task
from raysim.core.data import tensors
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen

TASK = Task(2, 2, ("flat",), toy_model)


class Free(nn.Module):
    """A model whose representation and logits are its only two parameters."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits_C = nn.Parameter(torch.tensor(logits))

    def features(self, x: Tensor) -> Tensor:
        return self.logits_C.expand(len(x), -1)

    def header(self, feature_BD: Tensor) -> Tensor:
        return feature_BD

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


def batch_of(*labels: int) -> Batch:
    return Batch(torch.zeros(len(labels), 1), torch.tensor(labels), torch.arange(len(labels)))


def client_of(net: Any, labels: list[int], **local: Any) -> Client:
    data = tensors(torch.zeros(len(labels), 1), torch.tensor(labels))
    return Client(0, TASK, data, net, LocalTraining(**{"lr": 0.1, **local}), seeded(1, "client"), t=1)


VECTORS = torch.tensor([[3.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize("guide", ["logits", "features"])
def test_the_loss_by_hand(guide: str):
    # ln 2 + 0.5 * (3^2 + 1^2) / 2
    loss = FedL2G(guide=guide, lambda_=0.5).loss(Free(0.0, 0.0), batch_of(0), VECTORS)
    assert float(loss.detach()) == pytest.approx(0.693147 + 2.5, abs=1e-6)
    # Representations of `Seen` are its images, its logits are 0.
    seen = FedL2G(guide=guide).loss(
        Seen(2), Batch(torch.tensor([[3.0, 1.0]]), torch.tensor([0]), torch.tensor([0])), VECTORS
    )
    assert float(seen.detach()) == pytest.approx(0.693147 + (5.0 if guide == "logits" else 0.0), abs=1e-6)


def test_the_gradient_of_the_quiz_by_hand():
    # The step: -0.1 * ((-0.5, 0.5) + (0 - 3, 0 - 1)) = (0.35, 0.05). On the quiz, the gradient for these logits is
    # (p, -p) with p = sigmoid(0.30) = 0.574443. A guiding vector moves the logits by 0.1 * 2 / 2 of its own movement.
    client = client_of(Free(0.0, 0.0), [0, 1])
    found = FedL2G().gradient(client, VECTORS, [batch_of(0)], [batch_of(1)])
    assert_close(found, torch.tensor([[0.0574443, -0.0574443], [0.0, 0.0]]), rtol=0, atol=1e-6)
    assert client.net.logits_C.tolist() == [0.0, 0.0]


def test_it_is_the_first_order_product_that_the_paper_names():
    # Of one sample: 2 * lr / C * Jacobian of the logits * gradient of the quiz loss at the stepped weights.
    net, x = toy_model("deep"), torch.rand(2, 1, 4, 4)
    client = client_of(net, [0, 1])
    vector_CG = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    study, quiz = (Batch(x[i : i + 1], torch.tensor([i]), torch.tensor([0])) for i in (0, 1))
    found = FedL2G().gradient(client, vector_CG, [study], [quiz])
    stepped = toy_model("deep")
    FedL2G().loss(stepped, study, vector_CG).backward()
    with torch.no_grad():
        for weight in stepped.parameters():
            weight.sub_(0.1 * weight.grad)
    stepped.zero_grad()
    nn.functional.cross_entropy(stepped(quiz.x), quiz.y).backward()
    logits_C = net(study.x)[0]
    rows = [torch.autograd.grad(logit, list(net.parameters()), retain_graph=True) for logit in logits_C]
    along = [sum((a * w.grad).sum() for a, w in zip(row, stepped.parameters(), strict=True)) for row in rows]
    assert_close(found[0], 2 * 0.1 / 4 * torch.stack(along))
    assert not found[1:].any()


def test_the_quiz_is_not_trained_with():
    # Every second sample is the quiz of a client with four, so only class 1 is trained with and tried out.
    net = Free(0.0, 0.0)
    up = FedL2G(lambda_=0.0).client_update(client_of(net, [0, 1, 0, 1], batch_size=2), Guides(VECTORS))
    assert net.logits_C[1] > 0 > net.logits_C[0]
    assert up.tried_S.tolist() == [False, True] and not up.row_SG[0].any()


def test_networks_are_not_trained_in_the_warmup():
    net = Free(0.0, 0.0)
    FedL2G(warmup=1).client_update(client_of(net, [0, 1, 0, 1]), Guides(VECTORS))
    assert net.logits_C.tolist() == [0.0, 0.0]


def test_the_server_averages_over_clients_that_tried_a_class():
    server: Server[Guides] = Server(TASK, torch.Generator(), {0: 1, 1: 9}, 1, Guides(torch.zeros(2, 2)))
    server.classes = {0: torch.tensor([0, 1]), 1: torch.tensor([0])}
    ups = {
        0: Gradient(torch.tensor([[1.0, 2.0], [8.0, 8.0]]), torch.tensor([True, False])),
        1: Gradient(torch.tensor([[3.0, 4.0]]), torch.tensor([True])),
    }
    FedL2G(server_lr=0.5).server_update(server, ups)
    assert server.state.vector_CG.tolist() == [[-1.0, -1.5], [0.0, 0.0]]
    # A gradient of norm 500 counts as one of norm 100.
    server.state = Guides(torch.zeros(2, 2))
    FedL2G(server_lr=1.0).server_update(server, {1: Gradient(torch.tensor([[300.0, 400.0]]), torch.tensor([True]))})
    assert_close(server.state.vector_CG[0], torch.tensor([-60.0, -80.0]))


@pytest.mark.parametrize(("guide", "width"), [("logits", 4), ("features", 8)])
def test_measured_bytes(guide: str, width: int):
    trial = Trial(FedL2G(guide=guide)).run(1)
    down, up = (
        {wire_size(msg).bytes for hook, k, msg in trial.sent if (hook, k) == (name, 0)}
        for name in ("server_send", "client_update")
    )
    assert down == {4 * 4 * width} and up == {2 * 4 * width + 2}
