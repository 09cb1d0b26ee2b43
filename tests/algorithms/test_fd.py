"""FD against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fd import FD, ClassLogits, Table, Teachers
from raysim.algorithms.standalone import Standalone
from raysim.contract.toy import FOUR, LOCAL, ROUNDS, C, D, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task, weights
from raysim.core.fit import FitJob, fit_one
from raysim.core.messages import nonfinite
from raysim.core.ops import class_means, cross_entropy
from raysim.core.seeds import seeded
from raysim.core.state import digest
from tests.algorithms.nets import same_weights
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


class Fixed(nn.Module):
    """A network whose logits are its parameter, whatever it sees."""

    def __init__(self, logits_BC: list[list[float]]) -> None:
        super().__init__()
        self.logits_BC = nn.Parameter(torch.tensor(logits_BC))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits_BC


def batch_of(labels: list[int], weight: list[float] | None = None) -> Batch:
    label_B = torch.tensor(labels)
    return Batch(
        torch.zeros(len(labels), 1),
        label_B,
        torch.arange(len(labels)),
        None if weight is None else torch.tensor(weight),
    )


# -- the server --------------------------------------------------------------------------------------


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


def test_absent_classes_keep_their_row_and_only_the_last_round_is_left_out():
    method = FD()
    server = server_of(method, {0: [0, 1], 1: [0], 2: [1]})
    method.server_update(server, {0: up([4.0, 0.0], [6.0, 6.0]), 1: up([2.0, 2.0])})
    method.server_update(server, {1: up([8.0, 0.0])})  # no client owns class 1 now
    assert server.state.mean_CC.tolist() == [[8, 0], [6, 6]]
    # Client 0 was absent: plain means, of class 1 the old one. Client 1 sent class 0 alone.
    assert sent(method, server, 0) == {0: [8, 0], 1: [6, 6]}
    assert sent(method, server, 1) == {}
    assert sent(method, server, 2) == {1: [6, 6]}


@given(st.permutations([0, 1, 2]))
def test_the_order_of_clients_does_not_matter(order: list[int]):
    owners = {0: [0, 1], 1: [1], 2: [0, 1]}
    ups = {0: up([0.1, 0.7], [1 / 3, 2.0]), 1: up([0.2, 0.3]), 2: up([7.7, 1e-3], [0.6, 0.9])}
    method = FD()
    first, other = server_of(method, owners), server_of(method, owners)
    method.server_update(first, ups)
    method.server_update(other, {k: ups[k] for k in order})
    assert first.state.mean_CC.equal(other.state.mean_CC)
    assert all(sent(method, first, k) == sent(method, other, k) for k in owners)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000))
def test_ten_of_a_hundred_clients_on_a_hundred_classes_stay_finite(seed: int):
    rng = torch.Generator().manual_seed(seed)
    owners = {k: sorted(torch.randperm(100, generator=rng)[:10].tolist()) for k in range(100)}
    method = FD()
    server = server_of(method, owners, num_classes=100)
    guarded = taught = 0
    for _ in range(8):
        cohort = sorted(torch.randperm(100, generator=rng)[:10].tolist())
        for k in cohort:
            down = method.server_send(server, k)
            assert not nonfinite(down)
            taught += len(down.teacher_KC) if down is not None else 0
        ups = {k: ClassLogits(torch.randn(10, 100, generator=rng)) for k in cohort}
        method.server_update(server, ups)
        for k in cohort:
            guarded += 10 - len(sent(method, server, k))
        assert not nonfinite([server.state.mean_CC, server.state.sum_CC])
    # Both happen: teachers, and classes for which the unguarded formula would be 0 / 0.
    assert taught > 0 and guarded > 0


# -- the client --------------------------------------------------------------------------------------


def test_the_loss_by_hand():
    # Teacher (2/3, 1/3) against (1/2, 1/2): KL = 2/3 ln(4/3) + 1/3 ln(2/3); CE = ln 2. Class 1 has no teacher.
    net = Fixed([[0.0, 0.0], [0.0, 0.0]])
    table = Teachers(torch.tensor([0], dtype=torch.int32), torch.tensor([[math.log(2.0), 0.0]])).table(2)
    kl = 2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3)
    loss = FD(gamma=3.0).loss(net, batch_of([0, 0]), table)
    assert isinstance(loss, Tensor) and loss.item() == pytest.approx(math.log(2) + 3 * kl, abs=1e-6)
    # Of two samples one is masked: the term is still divided by two.
    half = FD(gamma=3.0).loss(net, batch_of([0, 1]), table)
    assert isinstance(half, Tensor) and half.item() == pytest.approx(math.log(2) + 1.5 * kl, abs=1e-6)
    # And padding does not count at all.
    padded = FD(gamma=3.0).loss(net, batch_of([0, 1], [1.0, 0.0]), table)
    assert isinstance(padded, Tensor) and padded.item() == pytest.approx(math.log(2) + 3 * kl, abs=1e-6)


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
    net, table = Fixed([[0.0, 0.0]]), (torch.tensor([[math.log(3.0), 0.0]] * 2), torch.tensor([True, False]))
    method = FD(gamma=2.0, distillation=distillation)
    loss = method.loss(net, batch_of([0]), table)
    assert isinstance(loss, Tensor) and loss.item() == pytest.approx(math.log(2) + 2 * distance, abs=1e-6)
    # Cross-entropy adds softmax(z) - onehot = (-1/2, 1/2).
    (found,) = torch.autograd.grad(loss, net.logits_BC)
    expected = [-0.5 + 2 * gradient[0], 0.5 + 2 * gradient[1]]
    assert_close(found, torch.tensor([expected]), rtol=0, atol=1e-6)
    # Class 1 has no teacher: it adds nothing.
    alone = method.loss(net, batch_of([1]), table)
    assert isinstance(alone, Tensor) and alone.equal(cross_entropy(net, batch_of([1]), None))


def client_of(labels: list[int], arch: str, local: LocalTraining = LOCAL) -> Client:
    task = Task(C, D, (arch,), toy_model, ROUNDS)
    return Client(0, task, toy_samples(labels, 0), toy_model(arch), local, seeded(1, "client", 1, 0), t=1, arch=arch)


def test_which_logits_are_sent():
    evaluated, collected = client_of(FOUR[1], "flat"), client_of(FOUR[1], "flat")
    of_pass = FD().client_update(evaluated, None).logits_SC
    of_steps = FD(collect="last_epoch").client_update(collected, None).logits_SC
    assert digest(weights(evaluated.net)) == digest(weights(collected.net))
    with torch.no_grad():
        expected_SC = class_means(evaluated.net.eval()(evaluated.data.x), evaluated.data.y)[1]
    assert_close(of_pass, expected_SC)
    assert of_steps.shape == of_pass.shape == (2, C) and not of_steps.allclose(of_pass)


# -- whole rounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"collect": "last_epoch"}], ids=str)
def test_without_its_term_it_is_standalone_bit_for_bit(settings: dict[str, Any]):
    standalone = Trial(Standalone()).run(3)
    assert same_weights(Trial(FD(gamma=0.0, **settings)).run(3), standalone)
    assert not same_weights(Trial(FD(**settings)).run(3), standalone)
    # In round 1 no client has a teacher.
    assert same_weights(Trial(FD(**settings)).run(1), Trial(Standalone()).run(1))


def test_each_class_with_one_owner_is_standalone_with_the_guard_alone():
    alone = ([0] * 7, [1] * 9, [2] * 5, [3] * 8)
    standalone = Trial(Standalone(), labels=alone).run(3)
    assert same_weights(Trial(FD(), labels=alone).run(3), standalone)
    assert not same_weights(Trial(FD(leave_one_out=False), labels=alone).run(3), standalone)


# -- HtFLlib -----------------------------------------------------------------------------------------

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


def released_table(rounds: list[dict[int, dict[int, Tensor]]]) -> dict[int, Tensor]:
    """HtFLlib's table after these rounds: of the last one's uploads, class by class, a plain mean."""
    listed: dict[int, list[Tensor]] = {}
    for of_client in rounds[-1].values():
        for c, logits in of_client.items():
            listed.setdefault(c, []).append(logits)
    return {c: torch.stack(rows).mean(0) for c, rows in listed.items()}


def test_official_tables_are_the_released_arithmetic():
    rng = torch.Generator().manual_seed(4)
    owners = {0: [0, 1], 1: [1, 2], 2: [0, 2], 3: [3]}
    server, rounds = server_of(OFFICIAL, owners, num_classes=4), []
    for cohort in ([0, 1, 3], [0, 2], [1], [1, 2, 3]):
        rounds.append({k: {c: torch.randn(4, generator=rng) for c in owners[k]} for k in cohort})
        ups = {k: ClassLogits(torch.stack(list(rows.values()))) for k, rows in rounds[-1].items()}
        OFFICIAL.server_update(server, ups)
        table = released_table(rounds)
        for k, classes in owners.items():
            found = sent(OFFICIAL, server, k)
            assert found.keys() == table.keys() & set(classes)
            for c, row in found.items():
                assert_close(torch.tensor(row), table[c])


RELEASED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared_error": lambda z, target: nn.MSELoss()(z, target),  # until 2024-04-22
    "kl": lambda z, target: nn.CrossEntropyLoss()(z, target.softmax(1)),  # until 2025-11-29
    "raw_logits": lambda z, target: nn.CrossEntropyLoss()(z, target),  # since then
}
"""The distillation loss of PFLlib and HtFLlib over time."""


@pytest.mark.parametrize(
    ("distillation", "known"),
    # Where a class has no row, the released code's target is z itself. With raw logits that has a gradient, which
    # raysim leaves out (deviation 4).
    [("squared_error", [0, 2]), ("kl", [0, 2]), ("raw_logits", [0, 1, 2])],
)
def test_official_gradients_are_the_released_arithmetic(distillation: Any, known: list[int]):
    # The loss is CE(z, y) + lambda * distance(z, target), whose target is the class's row where there is one, else z.
    rows = [[0.3, -1.0, 2.0], [1.0, 0.5, 0.0], [0.0, 0.0, -2.0]]
    labels, table = torch.tensor([0, 1, 2]), torch.tensor([[2.0, 0.0, 1.0], [0.2, -0.4, 0.7], [0.5, 0.0, 3.0]])
    z = torch.tensor(rows, requires_grad=True)
    target = torch.stack([table[c] if c in known else z[i].detach() for i, c in enumerate(labels.tolist())])
    (nn.CrossEntropyLoss()(z, labels) + 10 * RELEASED[distillation](z, target)).backward()
    net = Fixed(rows)
    teachers = Teachers(torch.tensor(known, dtype=torch.int32), table[known])
    method = FD(**FD.profiles["official"], gamma=10.0, distillation=distillation)
    found = method.loss(net, batch_of([0, 1, 2]), teachers.table(3))
    assert isinstance(found, tuple)  # the logits are sent
    found[0].backward()
    assert_close(net.logits_BC.grad, z.grad)


def test_official_sends_the_means_of_the_training_steps():
    client = client_of(FOUR[1], "flat")
    net, taught, listed = toy_model("flat"), client.data, {}
    for batch in taught.shuffled(LOCAL.batch_size, 1, seeded(1, "client", 1, 0)):
        z = net(batch.x)
        for label, row in zip(batch.y.tolist(), z.detach(), strict=True):
            listed.setdefault(label, []).append(row)
        fit_one(FitJob(net, cross_entropy, None, [batch], replace(LOCAL, momentum=0.0)))
    client.local = replace(LOCAL, momentum=0.0)
    sent_SC = OFFICIAL.client_update(client, None).logits_SC
    assert_close(sent_SC, torch.stack([torch.stack(listed[c]).mean(0) for c in sorted(listed)]))


# -- bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_classes", "per_client", "published_kb"), [(10, 2, 0.1563), (100, 10, 7.8125)])
def test_measured_bytes(num_classes: int, per_client: int, published_kb: float):
    # FedGH Table 3 prints 0.16 KB for CIFAR-10. With CIFAR-100 every class has one holder among ten clients, so that
    # only the plain means are sent to all.
    method = FD(leave_one_out=num_classes == 10)
    for up_bytes, down, up_params, down_params in one_round(method, num_classes, per_client, rounds=2):
        assert up_bytes == down == 4 * per_client * num_classes
        assert up_params == down_params == per_client * num_classes
        assert (up_bytes + down) / KB == pytest.approx(published_kb, abs=5e-5)
