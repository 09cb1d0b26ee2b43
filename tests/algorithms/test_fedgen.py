"""FedGen against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedgen import Broadcast, FedGen, Generator, Upload, alike
from raysim.contract.toy import toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task, Weights
from raysim.core.messages import wire_size
from raysim.core.meter import FlopMeter
from raysim.core.seeds import seeded

TASK = Task(4, 8, ("flat",), toy_model)


class Net(nn.Module):
    """An image is its own representation, of one number; logits are 1 and 2 times it."""

    def __init__(self) -> None:
        super().__init__()
        self.header = nn.Linear(1, 2)
        self.header.load_state_dict({"weight": torch.tensor([[1.0], [2.0]]), "bias": torch.zeros(2)})

    def forward(self, x: Tensor) -> Tensor:
        return self.header(x)


def surprise(difference: float) -> float:
    """Cross-entropy of two classes where the right one's logit is larger by `difference`."""
    return math.log1p(math.exp(-difference))


# Two samples, 1 of class 0 and 2 of class 1; the second one's generated representation is 3, of class 0.
BATCH = Batch(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]), torch.tensor([0, 1]))
LABELS, LATENTS = torch.tensor([1, 0]), torch.tensor([[1.0], [3.0]])


@pytest.mark.parametrize(("alpha", "share"), [(1.0, 1.0), (10.0, 0.5), (0.0, 1.0)])
def test_clients_learn_from_generated_representations(alpha: float, share: float):
    # Differences of the right logit: -1 and 2 of the samples, 1 and -3 of the generated ones.
    given = (torch.tensor(share), LABELS, LATENTS)
    own, made = (surprise(-1) + surprise(2)) / 2, (surprise(1) + surprise(-3)) / 2
    loss = float(FedGen(alpha=alpha).loss(Net(), BATCH, given).detach())
    assert loss == pytest.approx(own + share * alpha * made, abs=1e-6)
    assert float(FedGen(alpha=alpha).loss(Net(), BATCH, None).detach()) == pytest.approx(own, abs=1e-6)


def test_predictions_are_pulled_towards_those_of_generated_representations():
    # Teachers: logits (1, 2) of the same representation for the first sample, (0, 0) for the second, whose own are
    # (2, 4): KL = sum of 0.5 ln(0.5 / p) with p = 0.119203 and 0.880797.
    given = (torch.tensor(0.5), LABELS, LATENTS, torch.tensor([[1.0], [0.0]]))
    kl = 0.5 * (math.log(0.5 / 0.119203) + math.log(0.5 / 0.880797))
    without = float(FedGen().loss(Net(), BATCH, given[:3]).detach())
    loss = float(FedGen(beta=4.0).loss(Net(), BATCH, given).detach())
    assert loss - without == pytest.approx(0.5 * 4.0 * kl / 2, abs=1e-5)


def test_generated_representations_reach_the_header_alone():
    net = toy_model("flat")
    label, latent = torch.tensor([1, 0]), torch.rand(2, 8)
    batch = Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]), torch.tensor([0, 1]))
    gradients = []
    for alpha in (0.0, 1.0):
        net.zero_grad()
        FedGen(alpha=alpha).loss(net, batch, (torch.tensor(1.0), label, latent)).backward()
        gradients.append({name: w.grad.clone() for name, w in net.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient.equal(gradients[1][name]) != name.startswith("header."), name


class Same(nn.Module):
    """A generator that gives the first number that it reads."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


# Two participants with logits (z, 2 z) and (4 z, z); the second has three quarters of class 0 and nothing of class 1.
HEADERS = torch.tensor([[[1.0], [2.0]], [[4.0], [1.0]]]), torch.zeros(2, 2)
SHARES = torch.tensor([[0.25, 1.0], [0.75, 0.0]])
MADE = Batch(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]), torch.tensor([0, 1]))


def test_the_generator_minimises_the_loss_of_the_mean_logits():
    # Mean logits (2.5 z, 1.5 z): differences 1 for class 0 at z = 1, -2 for class 1 at z = 2.
    algorithm = FedGen(noise_dim=1)
    found = float(algorithm.generator_loss(Same(), MADE, (*HEADERS, SHARES)))
    assert found == pytest.approx((surprise(1) + surprise(-2)) / 2, abs=1e-6)


def test_the_generator_minimises_the_mean_of_the_losses():
    # z = 1, class 0: differences -1 and 3, weights 1/4 and 3/4. z = 2, class 1: 2 of the first participant alone.
    algorithm = FedGen(noise_dim=1, ensemble="losses")
    found = float(algorithm.generator_loss(Same(), MADE, (*HEADERS, SHARES)))
    assert found == pytest.approx((0.25 * surprise(-1) + 0.75 * surprise(3) + surprise(2)) / 2, abs=1e-6)


def test_representations_of_different_noise_are_pushed_apart():
    # Noise 0 and 1 of two numbers: square distances 1, representations 2 apart: mean product (0 + 2 + 2 + 0) / 4 = 1.
    noise, latent = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0], [2.0]])
    assert float(alike(noise, latent)) == pytest.approx(math.exp(-1))
    assert float(alike(noise, torch.ones(2, 1))) == 1.0


def test_fedgen_diversity_is_of_the_noise_alone():
    # The noise is the representation: (1 * 1 + 1 * 1) / 4. As `MADE`, with the columns of the labels, here of one
    # class: over all three, the noise's square distance is 1/3.
    made = Batch(torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    plain, diverse = (
        float(FedGen(noise_dim=1, diversity=weight).generator_loss(Same(), made, (*HEADERS, SHARES)))
        for weight in (0.0, 3.0)
    )
    assert diverse - plain == pytest.approx(3 * math.exp(-0.5), abs=1e-5)


def test_the_generator_by_hand():
    # One noise number 2 and the first of two classes: hidden 2 * 1 + 3 = 5, normalised (5 - 1) / 2 = 2, out 2 * 10 + 1.
    net = Generator(3, 1, 1).eval()
    values: dict[str, Any] = {
        "hidden.weight": [[1.0, 3.0, -9.0]],
        "hidden.bias": [0.0],
        "norm.weight": [1.0],
        "norm.bias": [0.0],
        "norm.running_mean": [1.0],
        "norm.running_var": [4.0],
        "out.weight": [[10.0]],
        "out.bias": [1.0],
    }
    net.load_state_dict({name: torch.tensor(value) for name, value in values.items()}, strict=False)
    algorithm = FedGen(noise_dim=1)
    rows = algorithm.inputs(torch.tensor([[2.0], [2.0]]), torch.tensor([0, 1]), 2)
    assert rows.tolist() == [[2.0, 1.0, 0.0], [2.0, 0.0, 1.0]]
    # Of the second class: 2 - 9 = -7, which the ReLU sets to 0.
    assert_close(net(rows), torch.tensor([[21.0], [1.0]]), atol=1e-3, rtol=0)


def header(value: float) -> Weights:
    return {"weight": torch.full((4, 8), value), "bias": torch.full((4,), value)}


UPS = {
    0: Upload(header(1.0), torch.tensor([1, 0, 0, 0], dtype=torch.int32)),
    2: Upload(header(5.0), torch.tensor([1, 0, 2, 0], dtype=torch.int32)),
}


def server_after(algorithm: FedGen, ups: dict[int, Upload] = UPS) -> Server[Broadcast]:
    server: Server[Broadcast] = Server(TASK, torch.Generator().manual_seed(0), {0: 1, 2: 3}, t=1)
    server.state = algorithm.server_start(server, {})
    replace(algorithm, generator_steps=1).server_update(server, ups)
    return server


def test_headers_are_averaged_and_labels_counted():
    state = server_after(FedGen()).state
    assert state.header["weight"].unique().tolist() == [3.0]
    assert state.label_C.tolist() == [0.5, 0.0, 0.5, 0.0]
    other = server_after(FedGen(agg="weighted")).state
    assert other.header["bias"].unique().tolist() == [4.0]  # (1 + 3 * 5) / 4
    more = {**UPS, 0: Upload(header(1.0), torch.tensor([5, 0, 0, 0], dtype=torch.int32))}
    assert server_after(FedGen(), more).state.label_C.tolist() == [0.75, 0.0, 0.25, 0.0]
    assert server_after(FedGen(labels="uniform"), more).state.label_C.tolist() == [0.5, 0.0, 0.5, 0.0]


def test_fedgen_shares_are_of_each_class(monkeypatch: pytest.MonkeyPatch):
    given = []
    monkeypatch.setattr(Server, "fit", lambda self, net, loss, passed, **_: given.append(passed))
    counts = {0: [3, 0, 1, 0], 2: [1, 2, 1, 0]}
    server_after(FedGen(), {k: Upload(header(1.0), torch.tensor(n, dtype=torch.int32)) for k, n in counts.items()})
    (_, _, share_KC), *others = given
    assert share_KC.tolist() == [[0.75, 0.0, 0.5, 0.0], [0.25, 1.0, 0.5, 0.0]] and not others


def client_of(algorithm: FedGen, t: int = 1) -> Client:
    net = algorithm.client_model(toy_model("flat"), TASK)
    return Client(1, TASK, toy_samples([0, 1, 1], 1), net, LocalTraining(), seeded(1, "client", t, 1), t=t)


def test_clients_draw_the_labels_that_the_server_names():
    algorithm = FedGen(decay=0.5)
    server = server_after(algorithm)
    given = algorithm.generated(client_of(algorithm, t=3), server.state)
    assert given is not None
    share, label_N, latent_ND = given
    assert share.item() == 0.25 and set(label_N.tolist()) <= {0, 2} and latent_ND.shape == (3, 8)
    assert len(algorithm.generated(client_of(FedGen()), server.state) or ()) == 3
    assert len(FedGen(beta=1.0).generated(client_of(FedGen()), server.state) or ()) == 4


def test_fedgen_betas_latents_are_of_the_samples_own_labels(monkeypatch: pytest.MonkeyPatch):
    algorithm, drawn = FedGen(beta=1.0), []
    server, inputs = server_after(algorithm), FedGen.inputs
    monkeypatch.setattr(FedGen, "inputs", lambda self, noise, y, c: drawn.append(y) or inputs(self, noise, y, c))
    algorithm.generated(client_of(algorithm), server.state)
    first, second = drawn
    # The server names labels 0 and 2; the client has samples of classes 0 and 1.
    assert set(first.tolist()) <= {0, 2} and second.tolist() == [0, 1, 1]


def test_round_one_can_do_without_the_generator():
    server: Server[Broadcast] = Server(TASK, torch.Generator(), t=1)
    for untrained in (True, False):
        algorithm = FedGen(untrained=untrained)
        server.state = algorithm.server_start(server, {})
        sent = algorithm.server_send(server, 0)
        assert (sent.generator is not None) == (sent.label_C is not None) == untrained
        assert (algorithm.generated(client_of(algorithm), sent) is not None) == untrained
    server.t = 2
    assert algorithm.server_send(server, 0).generator is not None


def test_what_travels():
    # Header 4 * 8 + 4; generator of 32 + 4 inputs, 256 hidden units and 8 outputs, with BatchNorm and its counter.
    toy = Trial(FedGen()).run(1)
    sizes = {hook: wire_size(msg).params for hook, _, msg in toy.sent}
    assert sizes["server_send"] == 36 + 256 * 37 + 4 * 256 + 1 + 8 * 257 + 4
    assert sizes["client_update"] == 36 + 4
    counts = {k: msg.count_C.tolist() for hook, k, msg in toy.sent if hook == "client_update"}
    assert counts[0] == [8, 8, 0, 0] and counts[3] == [4, 4, 0, 4]


def test_fedgen_trains_its_generator_as_the_round_says(monkeypatch: pytest.MonkeyPatch):
    algorithm = FedGen(decay=0.5, generator_lr=0.08, generator_steps=3, generator_batch=4, generator_decay=0.25)
    trained: list[tuple[LocalTraining, int]] = []
    monkeypatch.setattr(
        Server, "fit", lambda self, net, loss, given, *, data, local: trained.append((local, len(data)))
    )
    server: Server[Broadcast] = Server(TASK, torch.Generator().manual_seed(0), {0: 1, 2: 3}, t=3)
    server.state = algorithm.server_start(server, {})
    algorithm.server_update(server, UPS)
    assert trained == [(LocalTraining(1, 4, "adam", 0.02, weight_decay=0.25), 12)]  # 0.08 * 0.5^2; 3 steps of 4


@pytest.mark.parametrize(("beta", "flops"), [(0.0, 72_240), (1.0, 144_480)])
def test_fedgen_counts_what_its_clients_generate(beta: float, flops: int):
    # Three samples; 12,040 weights: 36 * 256 + 256 of the hidden layer, 512 of the norm, 256 * 8 + 8 of the last.
    algorithm = FedGen(beta=beta)
    server, client = server_after(algorithm), client_of(algorithm)
    client.meter = FlopMeter()
    algorithm.generated(client, server.state)
    assert client.stats.flops == flops
