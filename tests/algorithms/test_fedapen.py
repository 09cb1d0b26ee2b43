"""FedAPEN against numbers worked out by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedapen import Ensemble, FedAPEN, ensemble, mutual_loss
from raysim.common.inputs import image
from raysim.contract import check_algorithm
from raysim.contract.toy import toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Model, Server, Task, weights
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from raysim.models import build_model

TASK = Task(4, 8, ("deep", "flat"), toy_model)


class Says(nn.Module):
    """A model that gives the same logits for every image."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logit_C = nn.Parameter(torch.tensor(logits))

    def forward(self, x: Tensor) -> Tensor:
        return self.logit_C.expand(len(x), -1)


def client_of(net: nn.Module, labels: list[int], t: int = 2, batch_size: int = 64) -> Client:
    local = LocalTraining(batch_size=batch_size, lr=0.1)
    return Client(0, TASK, toy_samples(labels, 0), net, local, seeded(1, "client", t, 0), t=t, arch="deep")


def batch_of(labels: list[int]) -> Batch:
    return Batch(torch.zeros(len(labels), 1), torch.tensor(labels), torch.arange(len(labels)))


# -- the ensemble and its weight ---------------------------------------------------------------------


def test_kat_one_step_of_lambda() -> None:
    net = Ensemble(Says(2.0, 0.0), Says(0.0, 2.0))
    assert net.lambda_ == 0.5
    logits_BC = net.eval()(torch.zeros(1, 1)).detach()
    assert logits_BC.tolist() == [[1.0, 1.0]]
    assert float(F.cross_entropy(logits_BC, torch.tensor([0]))) == pytest.approx(math.log(2))
    client = client_of(net, [0])
    FedAPEN(lambda_epochs=1).learn_lambda(client, client.data)  # dL/dlambda = -2, rate 0.001
    assert float(net.lambda_) == pytest.approx(0.502, abs=1e-7)


def test_lambda_follows_autograd_over_batches_and_epochs() -> None:
    torch.manual_seed(0)
    method = FedAPEN(lambda_epochs=3, lambda_lr=0.2)
    net = method.client_model(toy_model("norm"), TASK)
    client = client_of(net, [0, 1, 2, 3, 0], batch_size=2)
    expected = torch.tensor(0.5, requires_grad=True)
    frozen = copy.deepcopy(net).eval()
    for _ in range(3):
        for batch in client.data.in_order(2):  # 2, 2 and 1 samples
            z_BC, zs_BC = frozen.private(batch.x).detach(), frozen.shared(batch.x).detach()
            (slope,) = torch.autograd.grad(F.cross_entropy(ensemble(expected, z_BC, zs_BC), batch.y), expected)
            expected = (expected - 0.2 * slope).clamp(0, 1).detach().requires_grad_()
    before = weights(net)
    method.learn_lambda(client, client.data)
    assert_close(net.lambda_, expected.detach())
    assert abs(float(net.lambda_) - 0.5) > 1e-3
    for name, value in weights(net).items():  # both models are frozen, running statistics included
        assert name == "lambda_" or torch.equal(value, before[name]), name


@pytest.mark.parametrize(("label", "bound"), [(0, 1.0), (1, 0.0)])
def test_lambda_stays_within_0_and_1(label: int, bound: float) -> None:
    client = client_of(Ensemble(Says(2.0, 0.0), Says(0.0, 2.0)), [label])
    FedAPEN(lambda_lr=10.0).learn_lambda(client, client.data)
    assert client.net.lambda_ == bound


@pytest.mark.parametrize(("value", "model"), [(1.0, "private"), (0.0, "shared")])
def test_kat_lambda_one_predicts_like_the_private_model(value: float, model: str) -> None:
    net = FedAPEN().client_model(toy_model("norm"), TASK).eval()
    x = toy_samples([0, 1, 2], 0).x
    halves = net(x)
    net.lambda_.fill_(value)
    assert torch.equal(net(x), net.get_submodule(model)(x))
    assert not torch.allclose(halves, net(x), rtol=0.01)


# -- what is kept aside ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "n", "kept"),
    [
        (0.05, 19, []),
        (0.05, 61, [19, 39, 59]),
        (0.5, 5, [1, 3]),
        (0.0, 5, []),
    ],
)
def test_every_20th_sample_is_kept_aside(part: float, n: int, kept: list[int]) -> None:
    data = toy_samples([i % 4 for i in range(n)], 0)
    held, rest = FedAPEN(adaptability=part).split(data)
    assert len(held) == len(kept) and len(rest) == n - len(kept) > 0
    assert torch.equal(held.raw_N, data.raw_N[kept]) and torch.equal(held.y, data.y[kept])
    others = [i for i in range(n) if i not in kept]
    assert torch.equal(rest.raw_N, data.raw_N[others])


def test_weights_are_not_trained_on_what_is_kept_aside() -> None:
    def trained(labels: list[int], method: FedAPEN) -> Model:
        return method.client_update(client_of(method.client_model(toy_model("deep"), TASK), labels), None)

    labels = [i % 4 for i in range(40)]
    changed = [*labels[:19], 0, *labels[20:39], 1]  # other labels for samples 19 and 39, which held 3 and 3
    same = trained(labels, FedAPEN()).w["header.weight"], trained(changed, FedAPEN()).w["header.weight"]
    assert torch.equal(*same)
    other = (FedAPEN(adaptability=0.0), FedAPEN(adaptability=0.0))
    assert not torch.equal(*(trained(y, m).w["header.weight"] for y, m in zip((labels, changed), other, strict=True)))


# -- the loss ----------------------------------------------------------------------------------------


def test_each_model_gets_the_gradient_of_its_own_loss() -> None:
    net = Ensemble(Says(1.0, 0.5, -1.0), Says(0.2, 2.0, 0.3))
    net.lambda_.fill_(0.3)
    label = torch.tensor([2])
    loss = mutual_loss(net, batch_of([2]), None)
    loss.backward()
    total = 0.0
    for name, other, part in (("private", "shared", 0.3), ("shared", "private", 0.7)):
        z_1C = net.get_submodule(name).logit_C.detach()[None].requires_grad_()
        fixed_1C = net.get_submodule(other).logit_C.detach()[None]
        own = (
            F.cross_entropy(z_1C, label)
            + F.kl_div(z_1C.log_softmax(1), fixed_1C.softmax(1), reduction="batchmean")
            + F.cross_entropy(part * z_1C + (1 - part) * fixed_1C, label)
        )
        total += float(own.detach())
        own.backward()
        assert z_1C.grad is not None
        assert_close(net.get_submodule(name).logit_C.grad, z_1C.grad[0])
    assert float(loss.detach()) == pytest.approx(total)
    assert net.lambda_.grad is None


def test_the_loss_in_numbers() -> None:
    # z = [ln 9, 0], z_s = [0, 0], y = 0: p = (.9, .1), p_s = (.5, .5), and e = [ln 3, 0] with p_e = (.75, .25).
    net = Ensemble(Says(math.log(9), 0.0), Says(0.0, 0.0))
    private = -math.log(0.9) + 0.510826 - math.log(0.75)  # KL(p_s || p)
    shared = -math.log(0.5) + 0.368064 - math.log(0.75)  # KL(p || p_s)
    found = mutual_loss(net, batch_of([0, 0]), None).detach()
    assert float(found) == pytest.approx(private + shared, abs=1e-5)


# -- rounds ------------------------------------------------------------------------------------------


def test_the_server_averages_uniformly_and_counts_batches_of_the_first() -> None:
    server: Server[Model] = Server(TASK, seeded(1, "server_update", 1), {5: 1, 9: 3}, 1)
    ups = {
        k: Model({"w": torch.tensor([value]), "running_mean": torch.tensor([value]), "num": torch.tensor(count)})
        for k, value, count in ((5, 0.0, 7), (9, 4.0, 9))
    }
    FedAPEN().server_update(server, ups)
    assert server.state.w["w"].tolist() == [2.0]  # (0 + 4) / 2, though client 9 has three times the samples
    assert server.state.w["running_mean"].tolist() == [2.0] and server.state.w["num"] == 7


@pytest.mark.parametrize(("classes", "floats"), [(10, 670_058), (100, 715_148)])
def test_bytes_are_those_of_the_small_model(classes: int, floats: int) -> None:
    # P_s each way, with CNN-5 as the small one.
    build = lambda name, *key: build_model(name, num_classes=classes, input_spec=image(3, 32, 32), feature_dim=500)  # noqa: E731
    task = Task(classes, 500, ("cnn1", "cnn5"), build)
    for method in (FedAPEN(), FedAPEN(small="cnn5")):
        server: Server[Model] = Server(task, seeded(1, "server_start", 0), {0: 1}, 1)
        server.state = method.server_start(server, {})
        down = wire_size(method.server_send(server, 0))
        assert (down.bytes, down.params) == (4 * floats, floats)
    net = method.client_model(build("cnn1"), task)
    client = Client(0, task, toy_samples([0], 0), net, LocalTraining(), torch.Generator(), t=1, arch="cnn1")
    client.fit = lambda loss, data: None  # type: ignore[method-assign, assignment]
    assert wire_size(method.client_update(client, None)).bytes == 4 * floats


def test_round_1_starts_from_the_common_model_and_learns_no_lambda() -> None:
    toy = Trial(FedAPEN(adaptability=0.5, lambda_lr=5.0))
    common = weights(toy_model("flat", "small"))  # the smallest: 136 weights in the extractor against 192 in the next
    toy.round(1)
    for name, k, msg in toy.sent[:4]:
        assert name == "server_send" and k in toy.nets
        assert all(torch.equal(value, common[part]) for part, value in msg.w.items())
    assert {float(net.lambda_) for net in toy.nets.values()} == {0.5}
    toy.round(2)
    assert all(float(net.lambda_) != 0.5 for net in toy.nets.values())


def test_lambda_is_learnt_with_the_aggregated_model_by_those_who_trained_before() -> None:
    method = FedAPEN(adaptability=0.5, lambda_lr=0.5)
    toy = Trial(method)
    toy.round(1, [0, 1])
    net, before = copy.deepcopy(toy.nets[0]), weights(toy.nets[3])
    absent = copy.deepcopy(toy.nets[1])
    down = toy.server.state
    toy.round(2, [0, 3])
    # By hand: the aggregated shared model goes in first, then lambda is learnt, then weights are trained.
    net.shared.load_state_dict(down.w)
    client = toy.client(0, 2)
    client.net = net
    method.learn_lambda(client, method.split(client.data)[0])
    assert net.lambda_ != 0.5 and torch.equal(toy.nets[0].lambda_, net.lambda_)
    # Client 3 came for the first time, with a private model that knew nothing.
    assert toy.nets[3].lambda_ == 0.5 and not torch.equal(
        before["shared.header.weight"], weights(toy.nets[3])["shared.header.weight"]
    )
    # Client 1 was away: it keeps its lambda and the shared model it had.
    assert all(torch.equal(value, weights(toy.nets[1])[name]) for name, value in weights(absent).items())
    toy.round(3, [1])
    assert toy.nets[1].lambda_ != 0.5


@pytest.mark.large
def test_the_contract_where_lambda_is_learnt() -> None:
    # Clients of the contract's task have fewer than 20 samples, so that by default nothing is kept aside.
    check_algorithm(FedAPEN(small="norm", adaptability=0.25, lambda_lr=0.1))
