"""FedDF against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.feddf import FedDF
from raysim.contract.toy import SEED, toy_model
from raysim.contract.trial import Trial
from raysim.core import Batch, LocalTraining, Model, Samples, Server, Task, tensors, weights
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from raysim.core.state import digest
from tests.algorithms.nets import Line


class Normed(nn.Module):
    """BatchNorm, then the same logit twice."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x).expand(-1, 2)


NETS = {"line": Line, "steep": lambda: Line(2.0), "normed": Normed}
ARCH = {0: "line", 1: "steep", 2: "line", 3: "normed", 4: "normed"}
NUM_SAMPLES = {0: 1, 1: 8, 2: 3, 3: 1, 4: 3}


def public(*x: float) -> Samples:
    """Public data of another data set, without labels."""
    return tensors(torch.tensor(x)[:, None], torch.full((len(x),), -1))


def server_of(data: Samples) -> Server[dict[str, Model]]:
    task = Task(2, 1, tuple(NETS), lambda name, *key: NETS[name](), public=data)
    rng = seeded(SEED, "server_update", 1)
    state = {name: Model(weights(net())) for name, net in NETS.items()}
    return Server(task, rng, NUM_SAMPLES, t=1, state=state, local=LocalTraining(), arch=ARCH)


def w(*values: float) -> Model:
    return Model({"w": torch.tensor(values)})


UPS: Mapping[int, Model] = {0: w(1.0, 0.0), 1: w(0.5, 1.0), 2: w(3.0, 0.0)}
"""Of the clients 0 and 2 with `line`, 1 and 3 samples, and 1 with `steep`, 8 samples."""


def of(server: Server[dict[str, Model]], name: str) -> list[float]:
    return server.state[name].w["w"].tolist()


def test_models_of_one_architecture_are_averaged_by_sample_counts():
    server = server_of(public(1.0, 2.0))
    FedDF(distill_epochs=0).server_update(server, UPS)
    assert of(server, "line") == [2.5, 0.0]  # (1 * 1 + 3 * 3) / 4
    assert of(server, "steep") == [0.5, 1.0]  # of its one client


@pytest.mark.parametrize("epochs", [0, 1])
def test_the_model_of_an_absent_architecture_stays(epochs: int):
    server = server_of(public(1.0, 2.0))
    before = server.state
    FedDF(distill_epochs=epochs).server_update(server, UPS)
    assert server.state["normed"] is before["normed"]
    assert of(server, "line") != [0.0, 0.0] != of(server, "steep")


def test_the_loss_is_the_divergence_from_the_ensemble():
    # The teacher of the sample is row 1, softmax(ln 3, 0) = (3/4, 1/4); the student's is (1/2, 1/2):
    # 3/4 * ln(3/2) + 1/4 * ln(1/2) = 0.304099 - 0.173287. The other direction would be 0.143841.
    batch = Batch(torch.tensor([[1.0]]), torch.tensor([-1]), torch.tensor([1]))
    loss = FedDF().loss(Line(1.0), batch, torch.tensor([[9.0, 0.0], [1.0986123, 0.0]]))
    assert loss.item() == pytest.approx(0.130812, abs=1e-6)


def test_one_step_of_distillation_for_every_architecture():
    # Adam's first step is the learning rate against the sign of the gradient. At x = 1 and, doubled, at x = 2 the
    # teacher's logits differ by 5/3 - 2/3 = 1. The mean of `line`, (2.5, 0), is surer of class 0 and moves down;
    # that of `steep`, with 2 * (0.5 - 1) = -1, moves up.
    server = server_of(public(1.0, 2.0))
    FedDF(distill_lr=0.1).server_update(server, UPS)
    assert of(server, "line") == pytest.approx([2.4, 0.1], abs=1e-5)
    assert of(server, "steep") == pytest.approx([0.6, 0.9], abs=1e-5)


def test_passes_and_batch_size_of_the_server():
    # Two passes over two samples, one in each step, are four steps; so small a rate keeps the signs, and for nearly
    # equal gradients Adam's later steps are nearly as long as its first.
    server = server_of(public(1.0, 1.0))
    FedDF(distill_lr=1e-3, distill_epochs=2, distill_batch=1).server_update(server, UPS)
    assert of(server, "line") == pytest.approx([2.496, 0.004], abs=1e-5)
    assert of(server, "steep") == pytest.approx([0.504, 0.996], abs=1e-5)


def test_running_statistics_are_averaged_and_then_move_towards_the_public_data():
    # Means 0 and 4 of clients with 1 and 3 samples: 3; variances 1 and 5: (1 + 15) / 4 = 4. The batch (1, 3) has mean 2
    # and unbiased variance 2, which count a tenth: 0.9 * 3 + 0.1 * 2 and 0.9 * 4 + 0.1 * 2.
    ups = {}
    for k, mean, var, count in ((3, 0.0, 1.0, 7), (4, 4.0, 5.0, 9)):
        net = Normed()
        net.bn.running_mean.fill_(mean)
        net.bn.running_var.fill_(var)
        net.bn.num_batches_tracked.fill_(count)
        ups[k] = Model(weights(net))
    found = []
    for epochs in (0, 1):
        server = server_of(public(1.0, 3.0))
        FedDF(distill_epochs=epochs).server_update(server, ups)
        found.append([float(server.state["normed"].w[f"bn.{name}"]) for name in ("running_mean", "running_var")])
        assert int(server.state["normed"].w["bn.num_batches_tracked"]) == 7 + epochs  # of the first part
    assert found == [pytest.approx([3.0, 4.0]), pytest.approx([2.9, 3.8])]
    assert float(ups[3].w["bn.running_mean"]) == 0.0  # teachers score in eval mode


def test_a_client_that_missed_the_last_round_receives_its_architectures_new_model():
    # Client 3 has the architecture of client 0, which took part in round 1; that of client 2 had no participant then.
    toy = Trial(FedDF()).round(1, [0, 1])
    flat = toy.server.state["flat"].w
    toy.round(2, [2, 3])
    down = {k: msg.w for name, k, msg in toy.sent[4:] if name == "server_send"}
    assert_close(down[3], flat, rtol=0, atol=0)
    assert_close(down[2], weights(toy_model("deep")), rtol=0, atol=0)
    assert digest(flat) != digest(weights(toy_model("flat")))


def test_bytes_are_those_of_the_whole_model_each_way():
    # flat: 16*8+8 and 8*4+4; norm: 3*9+3, 4 * 3 for BatchNorm, 12*8+8 and 8*4+4, and a counter of 8 bytes;
    # deep: 16*12+12, 12*8+8 and 8*4+4.
    sizes = {"flat": 172 * 4, "norm": 182 * 4 + 8, "deep": 344 * 4}
    toy = Trial(FedDF()).run(2)
    assert len(toy.sent) == 16
    for _, k, msg in toy.sent:
        assert wire_size(msg).bytes == sizes[toy.server.arch[k]]
