"""FedProto against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedproto import UNKNOWN, FedProto, GlobalPrototypes, Nearest, Prototypes, Table
from raysim.contract.toy import FOUR, LOCAL, ROUNDS, C, D, toy_model, toy_samples
from raysim.core import Batch, Client, LocalTraining, Server, Task, weights
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen
from tests.engine.sizes import KB, one_round


def server_of(method: FedProto, owners: dict[int, list[int]], num_classes: int = 3, width: int = 2) -> Server[Table]:
    """A server before round 1 that has been told who owns what."""
    server: Server[Table] = Server(Task(num_classes, width, ("flat",), toy_model), torch.Generator(), t=1)
    server.classes = {k: torch.tensor(classes) for k, classes in owners.items()}
    server.state = method.server_start(server, {})
    return server


def up(*rows: list[float], counts: list[int] | None = None) -> Prototypes:
    return Prototypes(torch.tensor(rows), None if counts is None else torch.tensor(counts, dtype=torch.int32))


def down(prototypes: dict[int, list[float]]) -> GlobalPrototypes:
    return GlobalPrototypes(torch.tensor(list(prototypes), dtype=torch.int32), torch.tensor(list(prototypes.values())))


def sent(method: FedProto, server: Server[Table], to: int) -> dict[int, list[float]]:
    """What a client receives, by class."""
    found = method.server_send(server, to)
    if found is None:
        return {}
    assert found.class_K is not None
    return dict(zip(found.class_K.tolist(), found.prototype_KD.tolist(), strict=True))


def batch_of(rows: list[list[float]], labels: list[int], weight: list[float] | None = None) -> Batch:
    weight_B = None if weight is None else torch.tensor(weight)
    return Batch(torch.tensor(rows), torch.tensor(labels), torch.arange(len(labels)), weight_B)


def client_of(labels: list[int], arch: str, net: nn.Module | None = None) -> Client:
    task = Task(C, D, (arch,), toy_model, ROUNDS)
    net = toy_model(arch) if net is None else net
    return Client(0, task, toy_samples(labels, 0), net, LOCAL, seeded(1, "client", 1, 0), t=1, arch=arch)


@pytest.mark.parametrize(("agg", "expected"), [("uniform", 2.0), ("weighted", 3.0)])
def test_kat_prototypes_0_and_4_of_one_and_three_samples(agg: str, expected: float):
    method = FedProto(agg=agg)
    server = server_of(method, {0: [1], 1: [1]}, width=1)
    counts = agg == "weighted"
    ups = {0: up([0.0], counts=[1] if counts else None), 1: up([4.0], counts=[3] if counts else None)}
    assert sent(method, server, 0) == {}
    method.server_update(server, ups)
    assert sent(method, server, 0) == sent(method, server, 1) == {1: [expected]}


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_class_that_no_client_sent_keeps_its_prototype_or_is_forgotten(rebuild: bool):
    method = FedProto(rebuild=rebuild)
    server = server_of(method, {0: [0, 2], 1: [2], 2: [1]})
    method.server_update(server, {0: up([1.0, 2.0], [3.0, 4.0])})
    assert sent(method, server, 0) == {0: [1, 2], 2: [3, 4]} and sent(method, server, 2) == {}
    method.server_update(server, {1: up([5.0, 6.0])})
    assert sent(method, server, 0) == ({2: [5, 6]} if rebuild else {0: [1, 2], 2: [5, 6]})
    assert sent(method, server, 1) == {2: [5, 6]}
    assert server.values["known_classes"] == (1 if rebuild else 2)


def pull(method: FedProto, batch: Batch, prototypes: dict[int, list[float]]) -> float:
    """What the loss adds to cross-entropy."""
    net = Seen()
    total = method.loss(net, batch, down(prototypes).table(3))
    assert isinstance(total, Tensor)
    return (total - cross_entropy(net, batch, None)).item()


def test_kat_the_pull_averages_over_batch_and_dimensions():
    # (3^2 + 4^2) / 2 = 12.5
    assert pull(FedProto(), batch_of([[3.0, 4.0]], [0]), {0: [0.0, 0.0]}) == pytest.approx(12.5)
    assert pull(FedProto(lambda_=0.1), batch_of([[3.0, 4.0]], [0]), {0: [0.0, 0.0]}) == pytest.approx(1.25, abs=1e-6)
    # The prototype is that of the sample's class.
    both = {0: [3.0, 4.0], 1: [3.0, 2.0]}
    assert pull(FedProto(), batch_of([[3.0, 4.0], [3.0, 4.0]], [0, 1]), both) == pytest.approx(1.0, abs=1e-6)


def test_samples_without_a_prototype_add_nothing_and_the_divisor_stays():
    two = [[3.0, 4.0], [9.0, 9.0]]
    assert pull(FedProto(), batch_of(two, [0, 1]), {0: [0.0, 0.0]}) == pytest.approx(6.25)
    assert pull(FedProto(), batch_of(two, [1, 1]), {0: [0.0, 0.0]}) == 0
    # Padding is no sample.
    assert pull(FedProto(), batch_of(two, [0, 1], [1.0, 0.0]), {0: [0.0, 0.0]}) == pytest.approx(12.5)


def test_the_nearest_known_prototype_wins():
    net = Nearest(Seen(), 3, 2)
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    with torch.no_grad():
        net.model.header.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
        assert net.eval()(x).argmax(1).tolist() == [2, 2]  # nothing is known yet: its own classifier
        net.prototype_CD.copy_(torch.tensor([[0.0, 0.0], [3.0, 3.0], [3.0, 4.0]]))
        net.known_C.copy_(torch.tensor([True, True, False]))
        found = net(x)
        # Class 2's row sits on the first image, but is not known.
        assert_close(found, torch.tensor([[-5.0, -1.0, UNKNOWN], [-1.0, -(13**0.5), UNKNOWN]]))
        assert found.argmax(1).tolist() == [1, 0] and bool(found.isfinite().all())
        assert net.train()(x).equal(net.model(x))  # training is the classifier's


def test_a_client_keeps_the_prototypes_it_received_last():
    method = FedProto(inference="nearest")
    client = client_of([0, 1], "flat", method.client_model(toy_model("flat"), Task(C, D, ("flat",), toy_model)))
    method.client_receive(client, down({1: [1.0] * D, 3: [3.0] * D}))
    assert client.net.known_C.tolist() == [False, True, False, True]
    method.client_receive(client, down({3: [4.0] * D}))  # after a `rebuild`
    assert client.net.known_C.tolist() == [False, False, False, True]
    assert client.net.prototype_CD[:, 0].tolist() == [0, 0, 0, 4]
    assert not isinstance(FedProto().client_model(toy_model("flat"), client.task), Nearest)


def test_own_classes_are_searched_unless_all_are_asked_for():
    # Client 0 owns classes 0 and 1; class 2's prototype sits on its image. Distances 5, 1 and 0.
    ups = {0: up([0.0, 0.0], [3.0, 3.0]), 1: up([3.0, 4.0])}
    for method, expected in ((FedProto(inference="nearest"), 1), (FedProto(inference="nearest", nearest="all"), 2)):
        server = server_of(method, {0: [0, 1], 1: [2]})
        method.server_update(server, ups)
        client = client_of([0, 1], "flat", Nearest(Seen(), 3, 2))
        client.task = server.task
        message = method.server_send(server, 0)
        assert message is not None
        method.client_receive(client, message)
        with torch.no_grad():
            logits_1C = client.net.eval()(torch.tensor([[3.0, 4.0]]))
        assert int(logits_1C.argmax()) == expected
        assert sorted(sent(method, server, 0)) == [0, 1, 2][: expected + 1]


OFFICIAL = FedProto(**FedProto.profiles["official"])


def test_official_training_and_prototypes_are_the_released_arithmetic():
    # Two epochs: NLL of log-probabilities + lambda * MSE to the targets, which are the sample's own representation,
    # detached, where its class has no global prototype; prototypes are means over the last epoch's steps.
    known = {1: torch.linspace(0.0, 1.0, D)}
    local = LocalTraining(epochs=2, batch_size=6, lr=0.1, momentum=0.5)
    ours, theirs = client_of(FOUR[1], "deep"), toy_model("deep")
    ours.local = local
    optimizer, listed = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.5), {}
    batches = list(ours.data.shuffled(6, 2, seeded(1, "client", 1, 0)))
    for i, batch in enumerate(batches):
        feature_BD = theirs.features(batch.x)
        target_BD = torch.stack([known.get(c, f.detach()) for c, f in zip(batch.y.tolist(), feature_BD, strict=True)])
        loss = nn.NLLLoss()(theirs.header(feature_BD).log_softmax(1), batch.y) + nn.MSELoss()(target_BD, feature_BD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i >= len(batches) // 2:
            for c, f in zip(batch.y.tolist(), feature_BD.detach(), strict=True):
                listed.setdefault(c, []).append(f)
    upload = OFFICIAL.client_update(ours, down({c: row.tolist() for c, row in known.items()}))
    assert sorted(listed) == [1, 2]
    assert_close(upload.prototype_SD, torch.stack([torch.stack(listed[c]).mean(0) for c in sorted(listed)]))
    for name, w in weights(theirs).items():
        assert_close(weights(ours.net)[name], w)


@pytest.mark.parametrize(("num_classes", "per_client", "published_kb"), [(10, 2, 7.8125), (100, 10, 39.0625)])
def test_measured_bytes(num_classes: int, per_client: int, published_kb: float):
    for up_bytes, down_bytes, up_params, down_params in one_round(FedProto(), num_classes, per_client, rounds=2):
        assert up_bytes == down_bytes == 4 * per_client * 500
        assert up_params == down_params == per_client * 500
        assert (up_bytes + down_bytes) / KB == pytest.approx(published_kb, abs=5e-5)  # FedGH Table 3: 7.81, 39.06
