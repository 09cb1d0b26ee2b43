"""FedTGP against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedtgp import (
    FedTGP,
    GlobalPrototypes,
    Nearest,
    PrototypeNetwork,
    Prototypes,
    Trained,
    adaptive_margin,
    distances,
    margin_loss,
)
from raysim.algorithms.standalone import Standalone
from raysim.contract.toy import C, D, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task, weights
from raysim.core.messages import nonfinite
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen, same_weights
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


def client_of(labels: list[int]) -> Client:
    """A client that trains two epochs in batches of two, by plain SGD at 0.1."""
    task, local = Task(C, D, ("deep",), toy_model), LocalTraining(epochs=2, batch_size=2, lr=0.1)
    return Client(0, task, toy_samples(labels, 0), toy_model("deep"), local, seeded(1, "client", 1, 0), 1, "deep")


# -- the parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "expected"), [(1.0, 0.01814993), (0.0, 0.00671535)])
def test_kat_the_loss_with_and_without_margin(margin: float, expected: float):
    # Logits -margin and -5: ln(1 + e^-(5 - margin)).
    global_CD = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    found = margin_loss(torch.zeros(1, 2), torch.tensor([0]), global_CD, margin).item()
    assert found == pytest.approx(expected, abs=2e-7) and expected == pytest.approx(LN(math.exp(margin - 5)), abs=1e-8)


def test_the_margin_belongs_to_the_own_class_of_each_prototype():
    global_CD = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    both = margin_loss(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1]), global_CD, 1.0).item()
    assert both == pytest.approx(LN(math.exp(-4)), abs=1e-6)
    # The wrong class, at distance 5 + 1 against 0.
    wrong = margin_loss(torch.zeros(1, 2), torch.tensor([1]), global_CD, 1.0).item()
    assert wrong == pytest.approx(6 + LN(math.exp(-6)), abs=1e-5)


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


def test_the_network_by_hand_and_its_size():
    network = PrototypeNetwork(100, 500)
    assert sum(weight.numel() for weight in network.parameters()) == 100 * 500 + 2 * (500**2 + 500)
    assert network.embedding_CD.std().item() == pytest.approx(1, abs=0.02)
    small = PrototypeNetwork(2, 1)
    with torch.no_grad():
        small.embedding_CD.copy_(torch.tensor([[1.0], [-1.0]]))
        for weight, value in zip(small.parameters(), [None, 2.0, 1.0, 3.0, -1.0], strict=True):
            if value is not None:
                weight.fill_(value)
    assert small().tolist() == [[8.0], [-1.0]]  # 3 * relu(2 + 1) - 1 and 3 * relu(-2 + 1) - 1


# -- the server --------------------------------------------------------------------------------------


def test_one_server_step_is_plain_sgd_on_the_loss():
    method = FedTGP(server_epochs=1, server_lr=0.5)
    server = server_of(method, {0: [0, 2], 1: [2]})
    before = PrototypeNetwork(3, 2)
    before.load_state_dict(weights(server.state.network))
    method.server_update(server, {0: up([0.0, 0.0], [3.0, 4.0]), 1: up([3.0, 2.0])})
    assert server.values["margin"] == pytest.approx(math.sqrt(18), abs=1e-6)  # client means (0, 0) and (3, 3)
    # Round about: torch's optimizer and the three prototypes at once.
    sgd = torch.optim.SGD(before.parameters(), lr=0.5)
    value_PD, label_P = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 2.0]]), torch.tensor([0, 2, 2])
    distance_PC = torch.stack([torch.linalg.vector_norm(value_PD - row_D, dim=1) for row_D in before()], 1)
    loss = F.cross_entropy(-(distance_PC + math.sqrt(18) * F.one_hot(label_P, 3)), label_P)
    loss.backward()
    sgd.step()
    assert server.values["prototype_loss"] == pytest.approx(loss.item(), abs=1e-5)
    for name, weight in before.state_dict().items():
        assert_close(server.state.network.state_dict()[name], weight)
    assert server.state.ready is not None
    assert_close(server.state.ready.prototype_CD, before().detach())


def test_round_1_sends_nothing_then_all_classes_and_which_are_known():
    method = FedTGP(server_epochs=1)
    server = server_of(method, {0: [0, 2], 1: [2], 2: [1]})
    assert method.server_send(server, 0) is None
    method.server_update(server, {1: up([1.0, 2.0])})
    first = method.server_send(server, 0)
    assert first is not None and first is method.server_send(server, 2)
    assert first.prototype_CD.shape == (3, 2) and first.known_C is not None
    assert first.known_C.tolist() == [False, False, True]
    method.server_update(server, {0: up([1.0, 2.0], [3.0, 4.0])})
    second = method.server_send(server, 0)
    assert second is not None and second.known_C is not None and second.known_C.tolist() == [True, False, True]
    assert first.known_C.tolist() == [False, False, True]  # a message does not change afterwards


def test_the_shuffle_comes_from_the_servers_generator():
    owners = {0: [0, 1, 2], 1: [0, 1, 2]}
    ups = {0: up([0.0, 0.0], [3.0, 4.0], [1.0, 1.0]), 1: up([0.0, 1.0], [3.0, 5.0], [2.0, 1.0])}

    def after(batch: int, stream: int, of_torch: int = 0) -> Tensor:
        method = FedTGP(server_batch=batch, server_epochs=3)
        server = server_of(method, owners)
        server.rng = seeded(1, "server_update", stream)
        torch.manual_seed(of_torch)
        method.server_update(server, ups)
        assert server.state.ready is not None
        return server.state.ready.prototype_CD

    assert after(2, 1).equal(after(2, 1, of_torch=9)) and not after(2, 1).equal(after(2, 2))
    assert_close(after(6, 1), after(6, 2))  # a single batch
    assert not after(6, 1).allclose(after(2, 1))


@given(st.permutations([0, 1, 2]))
def test_in_a_single_batch_the_order_of_clients_does_not_matter(order: list[int]):
    owners = {0: [0, 1], 1: [1], 2: [0, 2]}
    ups = {0: up([0.0, 0.5], [3.0, 4.0]), 1: up([3.0, 5.0]), 2: up([0.5, 0.0], [-4.0, 3.0])}
    method = FedTGP(server_epochs=2)
    first, other = server_of(method, owners), server_of(method, owners)
    method.server_update(first, ups)
    method.server_update(other, {k: ups[k] for k in order})
    assert first.values["margin"] == other.values["margin"]
    assert first.state.ready is not None and other.state.ready is not None
    assert_close(first.state.ready.prototype_CD, other.state.ready.prototype_CD)


def test_class_means_behind_the_margin_are_over_clients():
    # Class 0: clients at 0 and 2, mean 1; class 1 at 4: gap 3, not 2.
    method = FedTGP(server_epochs=1)
    server = server_of(method, {0: [0], 1: [0, 1]}, width=1)
    method.server_update(server, {0: up([0.0]), 1: up([2.0], [4.0])})
    assert server.values["margin"] == pytest.approx(3)


# -- the client --------------------------------------------------------------------------------------


def test_the_pull_by_hand_and_unknown_classes_masked():
    def pull(labels: list[int], lambda_: float = 10.0, weight: list[float] | None = None) -> float:
        net, known_C = Seen(), torch.tensor([True, False, False])
        batch = Batch(
            torch.tensor([[3.0, 4.0], [9.0, 9.0]]),
            torch.tensor(labels),
            torch.arange(2),
            None if weight is None else torch.tensor(weight),
        )
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


# -- whole rounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}], ids=str)
def test_without_its_term_it_is_standalone_bit_for_bit(settings: dict[str, Any]):
    standalone = Trial(Standalone()).run(3)
    assert same_weights(Trial(FedTGP(lambda_=0.0, **settings)).run(3), standalone)
    assert not same_weights(Trial(FedTGP(**settings)).run(3), standalone)
    # In round 1 there are no prototypes.
    assert same_weights(Trial(FedTGP(**settings)).run(1), Trial(Standalone()).run(1))


def test_a_trained_client_is_measured_against_prototypes_of_the_round_before():
    toy = Trial(FedTGP(inference="nearest")).run(1)
    assert not any(bool(net.received) for net in toy.nets.values())
    ready = toy.server.state.ready.prototype_CD
    toy.round(2)
    assert all(net.prototype_CD.equal(ready) for net in toy.nets.values())
    assert not toy.server.state.ready.prototype_CD.equal(ready)


def test_absent_clients_and_classes():
    toy = Trial(FedTGP(), labels=([0, 1] * 4, [1, 2] * 3, [2] * 5))
    toy.round(1, [0]).round(2, [0, 1])
    # In round 2 class 2 was unknown when client 1 trained; class 3 belongs to no client.
    assert toy.server.state.known_C.tolist() == [True, True, True, False]
    (first, second) = [msg for name, k, msg in toy.sent if name == "server_send" and k == 0]
    assert first is None and second.known_C.tolist() == [True, True, False, False]
    assert not any(nonfinite(msg) for _, _, msg in toy.sent)


# -- the released code -------------------------------------------------------------------------------

OFFICIAL = FedTGP(**FedTGP.profiles["official"])


def test_official_predicts_what_the_released_test_finds():
    # The released test: mean square distances to the prototypes of all classes.
    rng = torch.Generator().manual_seed(6)
    f_BD, prototype_CD = torch.randn(200, 5, generator=rng), torch.randn(10, 5, generator=rng)
    found_B = [min(range(10), key=lambda c: float(nn.MSELoss()(f, prototype_CD[c]))) for f in f_BD]
    net = OFFICIAL.client_model(Seen(10, 5), Task(10, 5, ("flat",), toy_model)).eval()
    net.prototype_CD.copy_(prototype_CD)
    net.received.fill_(True)
    with torch.no_grad():
        assert net(f_BD).argmax(1).tolist() == found_B


def test_official_training_is_the_released_arithmetic():
    # Cross-entropy + 10 * MSE to the prototype of each sample's class; then means per class in eval mode.
    method, client = replace(OFFICIAL, inference="classifier"), client_of([0, 1, 0, 1, 1])
    theirs, prototype_CD = toy_model("deep"), torch.linspace(0.0, 1.0, C * D).view(C, D)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for batch in client.data.shuffled(2, 2, seeded(1, "client", 1, 0)):
        feature_BD = theirs.features(batch.x)
        loss = nn.CrossEntropyLoss()(theirs.header(feature_BD), batch.y)
        (loss + 10 * nn.MSELoss()(prototype_CD[batch.y], feature_BD)).backward()
        optimizer.step()
        optimizer.zero_grad()
    upload = method.client_update(client, GlobalPrototypes(prototype_CD, torch.ones(C, dtype=torch.bool)))
    with torch.no_grad():
        feature_ND = theirs.eval().features(client.data.x)
    expected = [feature_ND[client.data.y == c].mean(0) for c in (0, 1)]
    assert_close(upload.prototype_SD, torch.stack(expected))


def released_epochs(
    network: PrototypeNetwork, sent: dict[int, list[tuple[int, Tensor]]], lr: float, epochs: int, size: int
) -> tuple[float, Tensor]:
    """The released server's round: its margin, and its prototypes after these epochs (shuffled by our generator)."""
    rows = [row for of_client in sent.values() for row in of_client]
    means = {c: torch.stack([p for label, p in rows if label == c]).mean(0) for c, _ in rows}
    gap_C = torch.full((network.embedding_CD.shape[0],), 1e9)
    for c, mean in means.items():
        for other in means.keys() - {c}:
            gap_C[c] = torch.min(gap_C[c], (mean - means[other]).norm())
    gap_C[gap_C > 1e8] = gap_C.min()
    margin = min(float(gap_C.max()), 100.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    rng = seeded(1, "server_update", 1)
    for _ in range(epochs):
        for index in torch.randperm(len(rows), generator=rng).split(size):
            label_P = torch.tensor([rows[i][0] for i in index.tolist()])
            value_PD, global_CD = torch.stack([rows[i][1] for i in index.tolist()]), network()
            square_PC = value_PD.pow(2).sum(1, keepdim=True) - 2 * value_PD @ global_CD.T + global_CD.pow(2).sum(1)
            loss = nn.CrossEntropyLoss()(-(square_PC.sqrt() + margin * F.one_hot(label_P, len(global_CD))), label_P)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return margin, network().detach()


@pytest.mark.parametrize("lr", [0.05])
def test_the_official_server_is_the_released_arithmetic_at_the_clients_rate(lr: float):
    method = replace(OFFICIAL, server_epochs=5)
    owners = {0: [0, 2], 1: [1, 2], 2: [0, 1, 2], 3: [0, 2], 4: [1, 2], 5: [0]}
    server = server_of(method, owners, num_classes=4, width=3)
    server.local = LocalTraining(lr=lr)
    rng = torch.Generator().manual_seed(2)
    ups = {k: Prototypes(3 * torch.rand(len(classes), 3, generator=rng)) for k, classes in owners.items()}
    sent = {k: list(zip(owners[k], up.prototype_SD, strict=True)) for k, up in ups.items()}
    theirs = PrototypeNetwork(4, 3)
    theirs.load_state_dict(weights(server.state.network))
    before_CD = server.state.network().detach()
    method.server_update(server, ups)
    margin, prototype_CD = released_epochs(theirs, sent, lr, epochs=5, size=10)
    assert server.values["margin"] == pytest.approx(margin, rel=1e-5)
    assert server.state.ready is not None
    assert_close(server.state.ready.prototype_CD, prototype_CD, rtol=1e-4, atol=1e-4)
    assert not before_CD.allclose(prototype_CD, atol=1e-2)


# -- bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_classes", "per_client", "published_kb", "inference"),
    [(10, 2, 3.906, "classifier"), (100, 10, 19.531, "classifier")],
)
def test_measured_bytes(num_classes: int, per_client: int, published_kb: float, inference: Any):
    method = FedTGP(server_epochs=1, inference=inference)
    for up_bytes, down_bytes, up_params, down_params in one_round(method, num_classes, per_client, rounds=2):
        assert up_bytes == 4 * up_params == 4 * per_client * 500
        assert down_bytes == 4 * down_params == 4 * num_classes * 500
        assert up_bytes / KB == pytest.approx(published_kb, abs=5e-4)  # FedRAL Table 4 counts one way
    if num_classes == 10:
        assert {down_bytes for _, down_bytes, _, _ in one_round(method, num_classes, per_client)} == {0}
