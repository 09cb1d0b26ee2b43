"""FedGKT against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedgkt import FedGKT, Kept, Rest, Stage, Teacher
from raysim.common.inputs import image
from raysim.core import Batch, Client, LocalTraining, Server, Task, tensors
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from raysim.models import build_model

LN3 = math.log(3)


class Net(nn.Module):
    """Two numbers in; stage 0 doubles them, stage 1 leaves them; two logits, 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(2, 2)
        self.extractor = nn.Sequential(first, nn.Identity())
        self.header = nn.Linear(2, 2)
        with torch.no_grad():
            first.weight.copy_(2 * torch.eye(2))
            for w in (first.bias, self.header.weight, self.header.bias):
                w.zero_()

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        return self.extractor[0], self.extractor[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.header(self.extractor(x))


TASK = Task(2, 2, ("net",), lambda name, *key: Net())
TEACHER = torch.tensor([[2 * LN3, 0.0]])
"""Over the temperature 2 it is (ln 3, 0): softmax (3/4, 1/4)."""


def server_of() -> Server[Kept]:
    server: Server[Kept] = Server(TASK, torch.Generator(), {0: 1, 1: 1}, t=1, local=LocalTraining(lr=0.1))
    server.state = FedGKT().server_start(server, {})
    return server


def up(logits_NC: Tensor) -> Stage:
    """One sample of class 0, for which the first stage gives (1, 2)."""
    return Stage(torch.tensor([[1.0, 2.0]]), logits_NC, torch.zeros(1, dtype=torch.int32))


def is_close(server: Server[Kept], bias: float) -> None:
    """The first logit's bias, and what it implies: the gradients of all others are multiples of it."""
    header = server.state.net.header
    assert_close(header.bias.detach(), torch.tensor([bias, -bias]), rtol=0, atol=1e-6)
    assert_close(header.weight.detach(), bias * torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("alpha", "teacher_NC", "loss"),
    [
        # Cross-entropy of logits (0, 0): ln 2. KL((3/4, 1/4) || (1/2, 1/2)) = 3/4 ln(3/2) - 1/4 ln 2 = 0.1308120;
        # times T^2 = 4: 0.5232481.
        (1.0, TEACHER, 0.6931472 + 0.5232481),
        (0.5, TEACHER, 0.6931472 + 0.2616241),
        (0.0, TEACHER, 0.6931472),
        (1.0, None, 0.6931472),
        (1.0, torch.zeros(1, 2), 0.6931472),
    ],
)
def test_loss(alpha: float, teacher_NC: Tensor | None, loss: float):
    batch = Batch(torch.ones(1, 2), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    found = FedGKT(alpha=alpha, temperature=2.0).loss(Net(), batch, teacher_NC)
    assert found.item() == pytest.approx(loss, abs=1e-6)


def test_each_sample_has_its_own_teacher():
    # The batch holds sample 1 alone: its teacher agrees with the network, that of sample 0 does not.
    teachers_NC = torch.cat([TEACHER, torch.zeros(1, 2)])
    batch = Batch(torch.ones(1, 2), torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
    assert FedGKT().loss(Net(), batch, teachers_NC).item() == pytest.approx(0.6931472, abs=1e-6)


def test_the_server_learns_from_labels_and_logits():
    # Gradient of the first logit: 1/2 - 1 from the label; T^2 / T * (1/2 - 3/4) = -1/2 from the teacher; lr 0.1.
    server = server_of()
    FedGKT(temperature=2.0).server_update(server, {0: up(TEACHER)})
    is_close(server, 0.1)
    # Logits of (1, 2): 0.1 * 1 + 0.2 * 2 + 0.1.
    assert_close(server.state.logits[0], torch.tensor([[0.6, -0.6]]))


def test_the_server_can_learn_from_labels_alone():
    server = server_of()
    FedGKT(server_distill=False).server_update(server, {0: up(TEACHER)})
    is_close(server, 0.05)
    assert_close(server.state.logits[0], torch.tensor([[0.3, -0.3]]))


def test_clients_follow_each_other_and_then_all_get_the_last_networks_logits():
    # As two epochs of one client: both have the same sample.
    server = server_of()
    FedGKT(server_distill=False).server_update(server, {0: up(TEACHER), 1: up(TEACHER)})
    is_close(server, 0.08543437)
    # 6 * 0.08543437, since 1 + 2 * 2 + 1 = 6.
    for k in (0, 1):
        assert_close(server.state.logits[k], torch.tensor([[0.51260622, -0.51260622]]))


def test_fedgkt_passes_over_all_uploads_before_the_next_pass(monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr(Server, "fit", lambda self, *_, data, **__: seen.append(len(data)))
    ups = {k: Stage(torch.zeros(n, 2), torch.zeros(n, 2), torch.zeros(n).int()) for k, n in ((0, 4), (1, 5))}
    FedGKT(server_epochs=2).server_update(server_of(), ups)
    assert seen == [4, 5, 4, 5]


def test_a_client_sends_what_its_trained_first_stage_gives():
    # The learning rate is 0, so that the numbers are those of the network above: stage 0 doubles.
    data = tensors(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([1, 0, 1]))
    client = Client(0, TASK, data, Net(), LocalTraining(batch_size=2, lr=0.0), seeded(1, "client", 1, 0), t=1)
    sent = FedGKT().client_update(client, None)
    assert sent.out_N.tolist() == [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]
    assert sent.logits_NC.tolist() == [[0.0, 0.0]] * 3
    assert sent.y_N.tolist() == [1, 0, 1] and sent.y_N.dtype == torch.int32
    assert (client.stats.loss_sum / client.stats.samples) == pytest.approx(0.6931472, abs=1e-6)


def test_the_teacher_reaches_the_clients_training():
    # One sample of class 0 at (1, 2), which stage 0 makes (2, 4). As at the server: a gradient of -1, so 0.1 and
    # 0.1 * (2, 4); the gradient of stage 0 is 0, as the header's weights are.
    for down, bias in ((Teacher(TEACHER), 0.1), (None, 0.05)):
        data = tensors(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
        client = Client(0, TASK, data, Net(), LocalTraining(lr=0.1), seeded(1, "client", 1, 0), t=1)
        sent = FedGKT(temperature=2.0).client_update(client, down)
        assert_close(client.net.header.bias.detach(), torch.tensor([bias, -bias]))
        # Logits after training: 2 * 2 bias + 4 * 4 bias + bias.
        assert_close(sent.logits_NC, torch.tensor([[21 * bias, -21 * bias]]))


def test_an_absent_client_gets_the_logits_of_its_last_round():
    algorithm, server = FedGKT(server_distill=False), server_of()
    assert algorithm.server_send(server, 0) is None and algorithm.server_send(server, 1) is None
    algorithm.server_update(server, {0: up(TEACHER)})
    assert algorithm.server_send(server, 1) is None
    for _ in range(2):  # client 0 is absent
        algorithm.server_update(server, {1: up(TEACHER)})
    down = algorithm.server_send(server, 0)
    assert down is not None
    assert_close(down.logits_NC, torch.tensor([[0.3, -0.3]]))
    latest = algorithm.server_send(server, 1)
    assert latest is not None and latest.logits_NC[0, 0] > 0.5


def task_of(*names: str, shape: tuple[int, int, int] = (1, 28, 28)) -> Task:
    def build(name: str, *key: str) -> Any:
        return build_model(name, num_classes=10, input_spec=image(*shape), feature_dim=64)

    return Task(10, 64, names, build)


def test_bytes():
    # Three CIFAR images: the first stage gives 16 channels of 32 x 32, 65,536 B each; 10 logits; a label of 4 B.
    task = task_of("hks_resnet8", shape=(3, 32, 32))
    data = tensors(torch.rand(3, 3, 32, 32), torch.tensor([0, 1, 2]))
    client = Client(0, task, data, task.model("hks_resnet8"), LocalTraining(), seeded(1, "client", 1, 0), t=1)
    sent = FedGKT().client_update(client, None)
    assert wire_size(sent).components == {"out_N": 196_608, "logits_NC": 120, "y_N": 12}
    server: Server[Kept] = Server(task, torch.Generator())
    server.state = FedGKT().server_start(server, {})
    FedGKT().server_update(server, {0: sent})
    assert wire_size(FedGKT().server_send(server, 0)).components == {"logits_NC": 120}


def test_the_server_trains_the_rest_of_the_largest_or_of_another():
    def parameters(algorithm: FedGKT, *names: str) -> int:
        task = task_of(*names)
        algorithm.check(task)
        rest: Rest = algorithm.server_start(Server(task, torch.Generator()), {}).net
        return sum(w.numel() for w in rest.parameters())

    # Without the first stage: of the stem 9 * 16 + 32 parameters (one channel of colour), and of each of its blocks
    # 2 * 9 * 16 * 16 + 64 = 4,672. In all hks_resnet16 has 175,258 - 2 * 9 * 16 parameters, hks_resnet20 272,474 - 288.
    assert parameters(FedGKT(), "hks_resnet8", "hks_resnet16") == 174_970 - 176 - 2 * 4_672
    assert parameters(FedGKT(server_model="hks_resnet20"), "hks_resnet8") == 272_186 - 176 - 3 * 4_672


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"clients\.models: fmnist_cnn1"):
        FedGKT().check(task_of("fmnist_cnn1"))
    with pytest.raises(ValueError, match="expects 64"):
        FedGKT(server_model="resnet18_500").check(task_of("hks_resnet16", "hks_resnet8"))
