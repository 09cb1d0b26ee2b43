"""FD against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from raysim.algorithms.fd import FD, ClassLogits, Table
from raysim.algorithms.standalone import Standalone
from raysim.contract.toy import FOUR, LOCAL, ROUNDS, C, D, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, Server, Task
from raysim.core.fit import FitJob, fit_one
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded
from raysim.core.state import digest
from tests.algorithms.nets import Constant
from tests.engine.sizes import KB, one_round

HAND = {0: [3.0, 0.0], 1: [1.0, 2.0], 2: [2.0, 1.0]}
"""Three clients' mean logits of class 0."""


def server_of(method: FD, owners: dict[int, list[int]], num_classes: int = 2) -> Server[Table]:
    """A server before round 1 that has been told who owns what."""
    server: Server[Table] = Server(Task(num_classes, 8, ("flat",), toy_model), torch.Generator(), t=1)
    server.classes = {k: torch.tensor(classes) for k, classes in owners.items()}
    server.state = method.server_start(server, {})
    return server


def up(*rows: list[float]) -> ClassLogits:
    return ClassLogits(torch.tensor(rows))


def sent(method: FD, server: Server[Table], to: int) -> dict[int, list[float]]:
    """What a client is taught, by class."""
    down = method.server_send(server, to)
    if down is None:
        return {}
    assert down.class_K is not None
    return dict(zip(down.class_K.tolist(), down.teacher_KC.tolist(), strict=True))


def batch_of(labels: list[int]) -> Batch:
    return Batch(torch.zeros(len(labels), 1), torch.tensor(labels), torch.arange(len(labels)))


def test_kat_mean_and_leave_one_out():
    server, method = server_of(FD(), {0: [0], 1: [0], 2: [0], 3: [0]}), FD()
    assert all(sent(method, server, k) == {} for k in range(4))  # round 1: no teachers
    method.server_update(server, {k: up(row) for k, row in HAND.items()})
    assert server.state.mean_CC[0].tolist() == [2, 1]
    assert sent(method, server, 0) == {0: [1.5, 1.5]}
    assert sent(method, server, 1) == {0: [2.5, 0.5]}
    assert sent(method, server, 2) == {0: [2, 1]}  # ([3, 0] + [1, 2]) / 2
    assert sent(method, server, 3) == {0: [2, 1]}  # took no part: the plain mean
    plain = FD(leave_one_out=False)
    assert [sent(plain, server, k) for k in range(4)] == [{0: [2, 1]}] * 4


def test_kat_a_single_holder_has_no_teacher_of_its_own_class():
    method = FD()
    server = server_of(method, {0: [0, 1], 1: [1], 2: [0]})
    method.server_update(server, {0: up([3.0, 0.0], [1.0, 1.0]), 1: up([3.0, 5.0])})
    assert server.values == {"known_classes": 2, "single_holder_classes": 1}
    assert sent(method, server, 0) == {1: [3, 5]}  # class 0 it sent alone
    assert sent(method, server, 1) == {1: [1, 1]}
    assert sent(method, server, 2) == {0: [3, 0]}  # another client's
    assert sent(FD(leave_one_out=False), server, 0) == {0: [3, 0], 1: [2, 3]}
    alone = server_of(method, {0: [0]})
    method.server_update(alone, {0: up([3.0, 0.0])})
    assert method.server_send(alone, 0) is None


@pytest.mark.parametrize(
    ("distillation", "distance", "gradient"),
    [
        # z = (0, 0), teacher (ln 3, 0). Softmax of the teacher: (3/4, 1/4); softmax of z: (1/2, 1/2).
        # 3/4 ln(3/2) + 1/4 ln(1/2); gradient softmax(z) - softmax(teacher).
        ("kl", 0.75 * math.log(1.5) + 0.25 * math.log(0.5), [-0.25, 0.25]),
        # ((ln 3)^2 + 0) / 2; gradient 2 (z - teacher) / 2.
        ("squared_error", math.log(3) ** 2 / 2, [-math.log(3), 0.0]),
        # -(ln 3 ln(1/2) + 0); gradient ln 3 softmax(z) - teacher, where ln 3 is the sum of the teacher.
        ("raw_logits", math.log(3) * math.log(2), [-math.log(3) / 2, math.log(3) / 2]),
    ],
)
def test_kat_the_three_distances_to_the_teacher(distillation: Any, distance: float, gradient: list[float]):
    net, table = Constant(0.0, 0.0), (torch.tensor([[math.log(3.0), 0.0]] * 2), torch.tensor([True, False]))
    method = FD(gamma=2.0, distillation=distillation)
    loss = method.loss(net, batch_of([0]), table)
    assert isinstance(loss, Tensor) and loss.item() == pytest.approx(math.log(2) + 2 * distance, abs=1e-6)
    # Cross-entropy adds softmax(z) - onehot = (-1/2, 1/2).
    (found,) = torch.autograd.grad(loss, net.logits_1C)
    expected = [-0.5 + 2 * gradient[0], 0.5 + 2 * gradient[1]]
    assert_close(found, torch.tensor([expected]), rtol=0, atol=1e-6)
    # Class 1 has no teacher: it adds nothing.
    alone = method.loss(net, batch_of([1]), table)
    assert isinstance(alone, Tensor) and alone.equal(cross_entropy(net, batch_of([1]), None))


def test_each_class_with_one_owner_is_standalone_with_the_guard_alone():
    alone = ([0] * 7, [1] * 9, [2] * 5, [3] * 8)
    standalone, guarded, plain = (
        [digest(net) for net in Trial(method, labels=alone).run(3).nets.values()]
        for method in (Standalone(), FD(), FD(leave_one_out=False))
    )
    assert guarded == standalone and plain != standalone


OFFICIAL = FD(**FD.profiles["official"])


def test_official_rebuilds_its_table_each_round():
    # Round 1: both classes; round 2: class 1 belongs to no client, and HtFLlib makes its table of round 2 alone.
    owners = {0: [0, 1], 1: [0], 2: [1]}
    kept, rebuilt = server_of(FD(leave_one_out=False), owners), server_of(OFFICIAL, owners)
    for ups in ({0: up([4.0, 0.0], [6.0, 6.0]), 1: up([2.0, 2.0])}, {1: up([8.0, 0.0])}):
        FD(leave_one_out=False).server_update(kept, ups)
        OFFICIAL.server_update(rebuilt, ups)
    assert sent(FD(), kept, 2) == {1: [6, 6]} and sent(OFFICIAL, rebuilt, 2) == {}
    assert sent(OFFICIAL, rebuilt, 0) == sent(OFFICIAL, rebuilt, 1) == {0: [8, 0]}
    assert (kept.values["known_classes"], rebuilt.values["known_classes"]) == (2, 1)
    # With the guard, a class that was forgotten teaches no client either.
    assert sent(FD(rebuild=True), rebuilt, 1) == {} and sent(FD(rebuild=True), rebuilt, 0) == {0: [8, 0]}


def test_official_sends_the_means_of_the_training_steps():
    task, plain = Task(C, D, ("flat",), toy_model, ROUNDS), replace(LOCAL, momentum=0.0)
    client = Client(0, task, toy_samples(FOUR[1], 0), toy_model("flat"), plain, seeded(1, "client", 1, 0), t=1)
    net, listed = toy_model("flat"), {}
    for batch in client.data.shuffled(LOCAL.batch_size, 1, seeded(1, "client", 1, 0)):
        z = net(batch.x)
        for label, row in zip(batch.y.tolist(), z.detach(), strict=True):
            listed.setdefault(label, []).append(row)
        fit_one(FitJob(net, cross_entropy, None, [batch], plain))
    sent_SC = OFFICIAL.client_update(client, None).logits_SC
    assert_close(sent_SC, torch.stack([torch.stack(listed[c]).mean(0) for c in sorted(listed)]))


@pytest.mark.parametrize(("num_classes", "per_client", "published_kb"), [(10, 2, 0.1563), (100, 10, 7.8125)])
def test_measured_bytes(num_classes: int, per_client: int, published_kb: float):
    # FedGH Table 3 prints 0.16 KB for CIFAR-10. With CIFAR-100 every class has one holder among ten clients, so that
    # only the plain means are sent to all.
    method = FD(leave_one_out=num_classes == 10)
    for up_bytes, down, up_params, down_params in one_round(method, num_classes, per_client, rounds=2):
        assert up_bytes == down == 4 * per_client * num_classes
        assert up_params == down_params == per_client * num_classes
        assert (up_bytes + down) / KB == pytest.approx(published_kb, abs=5e-5)
