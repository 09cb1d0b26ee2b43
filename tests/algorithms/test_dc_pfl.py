"""DC-PFL against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from raysim.algorithms import dc_pfl
from raysim.algorithms.dc_pfl import DCPFL, ClassStatistics, Gaussian, Global, class_statistics, draw, pool, shares
from raysim.contract.toy import toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task, weights
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen


def f64(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def gaussian_of(value_ND: Tensor) -> Gaussian:
    """What one client says of these samples, all of one class."""
    (found,) = class_statistics(value_ND, torch.zeros(len(value_ND), dtype=torch.long), True).gaussians()
    return found


def covariance(gaussian: Gaussian) -> Tensor:
    factor_RD = gaussian.factor_RD.double()
    return factor_RD.T @ factor_RD


def direct(value_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance by numpy."""
    return torch.from_numpy(value_ND.numpy().mean(0)), torch.from_numpy(np.cov(value_ND.numpy(), rowvar=False))


def server_of(algorithm: DCPFL, num_classes: int = 2, width: int = 2) -> Server[Global]:
    """A server in round 1 whose header is zero."""
    server: Server[Global] = Server(Task(num_classes, width, ("flat",), toy_model), seeded(1, "server_update", 1), t=1)
    start = algorithm.server_start(server, {})
    zero = {name: torch.zeros_like(w) for name, w in start.w.items()}
    server.state = Global(zero, start.class_K, start.mean_KD)
    return server


def upload(features: dict[int, list[list[float]]]) -> ClassStatistics:
    """What a client with these representations per class sends."""
    rows = [(c, row) for c, of_class in features.items() for row in of_class]
    return class_statistics(torch.tensor([row for _, row in rows]), torch.tensor([c for c, _ in rows]), True)


def known(state: Global) -> dict[int, list[float]]:
    assert state.class_K is not None and state.mean_KD is not None
    return dict(zip(state.class_K.tolist(), state.mean_KD.tolist(), strict=True))


def test_kat_1_pooled_moments_of_three_points():
    one, two = gaussian_of(f64([[0, 0], [2, 0]])), gaussian_of(f64([[1, 4]]))
    assert_close(covariance(one), f64([[2, 0], [0, 0]]))
    pooled = pool([one, two])
    assert pooled.size == 3
    assert_close(pooled.mean_D, f64([1, 4 / 3]), rtol=0, atol=1e-15)
    assert_close(covariance(pooled), f64([[1, 0], [0, 16 / 3]]), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("width", "sizes"), [(500, [5, 9, 1, 30]), (6, [150, 44, 6])])
def test_kat_2_pooled_is_direct_to_1e_12(width: int, sizes: list[int]):
    value_ND = torch.randn(sum(sizes), width, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3 + 5
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(4))
    parts = [gaussian_of(value_ND[index]) for index in order.split(sizes)]
    # With more samples than dimensions, the factor is a triangle.
    assert [part.factor_RD.shape for part in parts] == [(min(count, width), width) for count in sizes]
    pooled, (mean_D, covariance_DD) = pool(parts), direct(value_ND)
    assert_close(pooled.mean_D, mean_D, rtol=0, atol=1e-12)
    assert_close(covariance(pooled), covariance_DD, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([10, 20, 5], 10, [3, 6, 1]),  # 2.857, 5.714, 1.429
        ([1, 1, 1], 4, [2, 1, 1]),  # a tie goes to the lower class
        ([3, 4], 0, [0, 0]),
    ],
)
def test_kat_3_allocation(counts: list[int], total: int, expected: list[int]):
    assert shares(counts, total) == expected


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=50), total=st.integers(0, 5000))
def test_allocation_adds_up_and_is_within_one_of_the_quota(counts: list[int], total: int):
    found = shares(counts, total)
    assert sum(found) == total
    assert all(abs(n - total * count / sum(counts)) < 1 for n, count in zip(found, counts, strict=True))


def test_kat_5_moments_of_20000_samples():
    # Rank 2 in R^5: Sigma = u u^T + v v^T; (0, 0, 1, -1, 0) and the last axis are in its null space.
    factor_RD = f64([[2, 1, 1, 1, 0], [0, -1, 2, 2, 0]])
    gaussian = Gaussian(3, f64([1, 2, 3, 4, 5]), factor_RD)
    value_GD = draw(gaussian, 20_000, seeded(7, "test", 0))
    assert value_GD.dtype == torch.float64
    mean_D, covariance_DD = direct(value_GD)
    assert_close(mean_D, gaussian.mean_D, rtol=0, atol=0.06)  # 4 standard errors of the widest, sqrt(5 / 20,000)
    expected_DD = factor_RD.T @ factor_RD
    assert torch.linalg.matrix_norm(covariance_DD - expected_DD) < 0.05 * torch.linalg.matrix_norm(expected_DD)
    across_G = (value_GD - gaussian.mean_D) @ f64([0, 0, 1, -1, 0])
    assert across_G.abs().max() < 1e-13  # rounding; the smallest real direction has a deviation of 2
    assert (value_GD[:, 4] == 5).all()


def loss_and_gradient(algorithm: DCPFL, x: list[list[float]], y: list[int], given: Any) -> tuple[float, Tensor]:
    x_BD = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    batch = Batch(x_BD, torch.tensor(y), torch.arange(len(y)))
    loss = algorithm.pulled_loss(Seen(), batch, given)
    (gradient_BD,) = torch.autograd.grad(loss, x_BD)
    return float(loss.detach()), gradient_BD


CE = 1.0986123  # ln 3: the cross-entropy of zeros
TABLE = (torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([True, True, False]))


@pytest.mark.parametrize(("squared", "term", "gradient"), [(False, 5, [0.6, 0.8]), (True, 25, [6.0, 8.0])])
def test_kat_4_the_term_is_the_norm_or_its_square(squared: bool, term: float, gradient: list[float]):
    loss, gradient_BD = loss_and_gradient(DCPFL(lambda_=1.0, squared=squared), [[3, 4]], [0], TABLE)
    assert loss == pytest.approx(CE + term, abs=1e-4)
    assert_close(gradient_BD, torch.tensor([gradient]))


def test_classes_without_a_mean_add_nothing_and_the_batch_is_divided_by_its_size():
    # Distances 5 (class 0), 5 (class 1 from the origin) and none (class 2), over 4 samples, times 0.1.
    x, y = [[3.0, 4.0], [0.0, 0.0], [30.0, 40.0], [7.0, 7.0]], [0, 1, 2, 2]
    loss, gradient_BD = loss_and_gradient(DCPFL(), x, y, TABLE)
    assert loss == pytest.approx(CE + 0.1 * 10 / 4, abs=1e-6)
    assert_close(gradient_BD, 0.1 / 4 * torch.tensor([[0.6, 0.8], [-0.6, -0.8], [0.0, 0.0], [0.0, 0.0]]))


def client_of(labels: list[int]) -> Client:
    task, local = Task(4, 8, ("norm",), toy_model), LocalTraining(batch_size=3)
    return Client(0, task, toy_samples(labels, 0), toy_model("norm"), local, torch.Generator())


def test_a_client_sends_moments_of_plain_images_in_eval_mode():
    client = client_of([3, 0, 3, 3])
    client.net.extractor[1].running_mean.fill_(0.1)  # of BatchNorm: training mode would give other features
    up = DCPFL().client_update(client, Global(weights(client.net.header), None, None))
    assert up.class_S.tolist() == [0, 3] and up.count_S.tolist() == [1, 3]
    assert up.class_S.dtype == up.count_S.dtype == torch.int32
    assert up.factor_RD is not None and up.factor_RD.shape == (1 + 3, 8)
    with torch.no_grad():
        feature_ND = client.net.eval().features(client.data.x)
    mean_D, covariance_DD = direct(feature_ND[[0, 2, 3]].double())
    assert_close(up.mean_SD, torch.stack([feature_ND[1], mean_D.float()]))
    none, three = up.gaussians()
    assert (none.factor_RD == 0).all()
    assert_close(covariance(three), covariance_DD, rtol=0, atol=1e-9)
    assert covariance_DD.abs().max() > 5e-4


def test_ablations_do_not_send_what_no_hook_reads():
    no_pull = Trial(DCPFL(lambda_=0.0)).run(2)
    assert {wire_size(msg).bytes for name, _, msg in no_pull.sent if name == "server_send"} == {4 * 36}
    no_refit = Trial(DCPFL(virtual_samples=0)).run(2)
    up = [wire_size(msg).bytes for name, _, msg in no_refit.sent if name == "client_update"]
    assert up == [4 * s * (8 + 2) for s in (2, 2, 2, 3)] * 2
    down = [msg for name, _, msg in no_refit.sent if name == "server_send"]
    assert len(down[-1].class_K) == 4  # means are still pooled for the pull


@pytest.mark.parametrize(("stale", "kept"), [("keep", {0: [5, 5], 1: [1, 1]}), ("drop", {0: [5, 5]})])
def test_a_class_that_no_client_holds_in_a_round(stale: Any, kept: dict[int, list[float]]):
    algorithm = DCPFL(virtual_samples=2, stale=stale)
    server = server_of(algorithm)
    algorithm.server_update(server, {0: upload({0: [[2.0, 2.0]], 1: [[1.0, 1.0]]})})
    assert known(server.state) == {0: [2, 2], 1: [1, 1]}
    algorithm.server_update(server, {1: upload({0: [[5.0, 5.0]]})})
    assert known(server.state) == kept


def seen_by_refit(algorithm: DCPFL, monkeypatch: pytest.MonkeyPatch, *rounds: dict[int, ClassStatistics]) -> list[Any]:
    """(values, labels, learning rate) of every step of the refit in the last of these rounds."""
    steps: list[Any] = []
    real = dc_pfl.header_step

    def spy(header: Any, value_ND: Tensor, label_N: Tensor, lr: float) -> Tensor:
        steps.append((value_ND, label_N, lr))
        return real(header, value_ND, label_N, lr)

    monkeypatch.setattr(dc_pfl, "header_step", spy)
    server = server_of(algorithm, num_classes=3)
    for ups in rounds:
        steps.clear()
        algorithm.server_update(server, ups)
    return steps[len(ups) :]


def test_the_refit_sees_every_virtual_sample_once_per_epoch_shuffled(monkeypatch: pytest.MonkeyPatch):
    # Without spread a virtual sample is its class's mean: 10, 20 and 5 samples in shares of 10 are 3, 6 and 1.
    ups = {0: upload({0: [[1.0, 0.0]] * 10, 2: [[3.0, 0.0]] * 5}), 1: upload({1: [[2.0, 0.0]] * 20})}
    algorithm = DCPFL(virtual_samples=10, refit_epochs=3, refit_batch=4, refit_lr=0.5)
    steps = seen_by_refit(algorithm, monkeypatch, ups)
    assert [len(label_N) for _, label_N, _ in steps] == [4, 4, 2] * 3
    assert {lr for _, _, lr in steps} == {0.5}
    epochs = [torch.cat([label_N for _, label_N, _ in steps[i : i + 3]]).tolist() for i in (0, 3, 6)]
    assert [sorted(epoch) for epoch in epochs] == [[0] * 3 + [1] * 6 + [2]] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3  # a fresh order each time
    for value_ND, label_N, _ in steps:
        assert_close(value_ND[:, 0], label_N + 1.0)


def test_only_participants_shape_the_refit(monkeypatch: pytest.MonkeyPatch):
    first, second = {0: upload({1: [[1.0, 1.0], [2.0, 1.0]]})}, {1: upload({0: [[5.0, 5.0]]})}
    steps = seen_by_refit(DCPFL(virtual_samples=5), monkeypatch, first, second)
    # Class 1 keeps its mean, but has no covariance in the second round.
    assert {int(c) for _, label_N, _ in steps for c in label_N} == {0}


def test_virtual_samples_can_be_cut_at_zero(monkeypatch: pytest.MonkeyPatch):
    ups = {0: upload({0: [[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]]})}
    plain = seen_by_refit(DCPFL(virtual_samples=200, refit_epochs=1), monkeypatch, ups)
    cut = seen_by_refit(DCPFL(virtual_samples=200, refit_epochs=1, relu_samples=True), monkeypatch, ups)
    assert min(float(step[0].min()) for step in plain) < -0.1
    for (was_ND, *_), (is_ND, *_) in zip(plain, cut, strict=True):
        assert torch.equal(is_ND, was_ND.clamp(min=0))
