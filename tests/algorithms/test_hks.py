"""HKS against numbers worked out by hand, and its laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor
from torch.testing import assert_close

from raysim.algorithms.hks import HKS, Teachers
from raysim.contract import check_algorithm
from raysim.contract.toy import FOUR, SEED, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Task
from raysim.core.fit import FitJob, FitResult, fit_one
from raysim.core.seeds import seeded

FIVE = [0.0, 1.0, 10.0, 12.0, 13.0]  # one class: 1-D "logits"; two clusters are to be left


def taught(algorithm: HKS, logits_NC: Tensor, num_classes: int | None = None) -> Tensor:
    """What the server would send for these samples, in float64."""
    tree = algorithm.tree(logits_NC, num_classes or logits_NC.shape[1])
    return torch.from_numpy(algorithm.teachers(logits_NC.double().numpy(), tree))


def five(algorithm: HKS) -> list[float]:
    return taught(algorithm, torch.tensor(FIVE)[:, None], 2)[:, 0].tolist()


def mixture(n: int, c: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    centre_CC = 3 * torch.randn(c, c, generator=rng, dtype=torch.float64)
    return centre_CC[torch.randint(c, (n,), generator=rng)] + torch.randn(n, c, generator=rng, dtype=torch.float64)


def test_kat_1_levels_of_five_points():
    # Merges {0,1}, {12,13}, {10,{12,13}}; then two clusters are left. 35/3 is the mean of 10, 12 and 13.
    assert_allclose(five(HKS(granularity="bottom")), [0.5, 0.5, 35 / 3, 12.5, 12.5])
    assert_allclose(five(HKS(granularity="top")), [0.5, 0.5, 35 / 3, 35 / 3, 35 / 3])
    # Two clusters around 12: index 2 // 2 is the upper one. One around 10: index 0.
    assert_allclose(five(HKS(granularity="middle")), [0.5, 0.5, 35 / 3, 35 / 3, 35 / 3])
    # round(sqrt(5 * 1)) = 2 clusters are left there, as at the top.
    assert_allclose(five(HKS(granularity="middle", middle="cut")), [0.5, 0.5, 35 / 3, 35 / 3, 35 / 3])


def test_paths_that_begin_at_the_sample_itself():
    # Around 12: itself, 12.5, 35/3; index 3 // 2 of 3 is 12.5. Around 10: itself, 35/3; index 2 // 2 of 2 is 35/3.
    assert_allclose(five(HKS(granularity="bottom", leaf=True)), FIVE)
    assert_allclose(five(HKS(granularity="middle", leaf=True)), [0.5, 0.5, 35 / 3, 12.5, 12.5])
    assert_allclose(five(HKS(granularity="top", leaf=True)), five(HKS(granularity="top")))
    # One more class, all 0: softmax of (z / 3, 0) is sigmoid(z / 3), averaged over the same lists.
    found = taught(HKS(leaf=True), torch.tensor([[z, 0.0] for z in FIVE]))[:, 0]
    of_0, of_12 = np.array([0.0, 0.5]), np.array([12.0, 12.5, 35 / 3])
    assert found[0] == pytest.approx((1 / (1 + np.exp(-of_0 / 3))).mean())
    assert found[3] == pytest.approx((1 / (1 + np.exp(-of_12 / 3))).mean())


def test_the_middle_of_longer_paths():
    # 0, 1, 3, 6, 10 with single linkage make a chain; two are left: the path of 0 is {0,1}, {0,1,3}, {0,1,3,6}.
    chain = torch.tensor([0.0, 1.0, 3.0, 6.0, 10.0])[:, None]
    tree = HKS(linkage="single").tree(chain, 2)
    assert tree.length_N.tolist() == [3, 3, 2, 1, 0]
    found = taught(HKS(linkage="single", granularity="middle"), chain, 2)[:, 0]
    # Of 3: index 1; of 2: index 1; of 1: index 0; 10 is alone and taught by itself.
    assert_allclose(found, [4 / 3, 4 / 3, 2.5, 2.5, 10.0])


def means_of_scipy(logits_NC: Tensor, method: str, clusters: int) -> np.ndarray[Any, Any]:
    """The mean of each sample's cluster."""
    at_N = fcluster(linkage(logits_NC.numpy(), method), clusters, "maxclust")
    return np.stack([logits_NC.numpy()[at_N == at].mean(0) for at in at_N])


def test_the_flat_cut_keeps_the_square_root_of_n_times_c():
    logits_NC = mixture(62, 3, 0)
    found = taught(HKS(granularity="middle", middle="cut"), logits_NC)
    assert_allclose(found, means_of_scipy(logits_NC, "ward", 14))  # round(sqrt(186)) = round(13.6)


def test_all_is_the_mean_of_the_distributions_along_the_path():
    # One more class, all 0. 12: clusters of means 12.5 and 35/3; softmax of (z/3, 0) is sigmoid(z/3).
    found = taught(HKS(), torch.tensor([[z, 0.0] for z in FIVE]))
    of_12 = (torch.sigmoid(torch.tensor(12.5 / 3)) + torch.sigmoid(torch.tensor(35 / 9))) / 2
    assert_close(found[3], torch.tensor([of_12, 1 - of_12]).double(), rtol=0, atol=1e-7)
    assert_close(found[2, 0], torch.sigmoid(torch.tensor(35 / 9, dtype=torch.float64)))  # only one cluster around 10
    assert_close(found[0, 0], torch.sigmoid(torch.tensor(0.5 / 3, dtype=torch.float64)))


@pytest.mark.parametrize("name", ["ward", "average", "single"])
def test_linkages_are_scipys(name: Any):
    logits_NC = mixture(60, 3, 5)
    assert_allclose(taught(HKS(granularity="top", linkage=name), logits_NC), means_of_scipy(logits_NC, name, 3))


def test_softmax_space_joins_what_differs_by_a_shift():
    # The first two say the same with other words; as logits, the first is nearer to the third.
    logits_NC = torch.tensor([[0.0, 1.0, 0.0], [5.0, 6.0, 5.0], [1.0, 0.0, 0.0]])
    for space, partner in (("softmax", 1), ("logits", 2)):
        tree = HKS(space=space).tree(logits_NC, 2)
        assert tree.parent_V[0] == tree.parent_V[partner] == 3
    # What is sent is the mean of the logits all the same.
    found = taught(HKS(space="softmax", granularity="top"), logits_NC, 2)
    assert_allclose(found[0].numpy(), [2.5, 3.5, 2.5])


def test_the_loss_by_hand():
    # One sample, z = (0, 0), teacher logits (3, 0), T = 3: q = (e, 1) / (e + 1) = (0.7310586, 0.2689414).
    # CE = ln 2; KL = ln 2 - H(q) = 0.6931472 - 0.5822031 = 0.1109441: 0.6931472 + 1.5 * 0.1109441.
    batch = Batch(torch.zeros(1, 1), torch.tensor([1]), torch.tensor([0]))
    z_BC = torch.zeros(1, 2, requires_grad=True)
    algorithm = HKS(granularity="top")
    given_NC = algorithm.distribution(torch.tensor([[3.0, 0.0]]))
    loss, kept_BC = algorithm.loss(lambda _: z_BC, batch, given_NC)
    assert loss.item() == pytest.approx(0.8595634, abs=1e-6)
    assert kept_BC is z_BC
    # Gradient: softmax - onehot = (1/2, -1/2), and alpha (p - q) / T = 0.5 * (-0.2310586, 0.2310586).
    (found,) = torch.autograd.grad(loss, z_BC)
    assert_close(found, torch.tensor([[0.5 - 0.1155293, -0.5 + 0.1155293]]), rtol=0, atol=1e-6)
    weaker, _ = HKS(granularity="top", alpha=0.5).loss(lambda _: z_BC, batch, given_NC)
    assert weaker.item() == pytest.approx(0.7486193, abs=1e-6)  # 0.6931472 + 0.5 * 0.1109441
    # With FedCache's factor T^2 = 9: 0.6931472 + 1.5 * 9 * 0.1109441, and 9 times the gradient.
    squared, _ = HKS(granularity="top", square_temperature=True).loss(lambda _: z_BC, batch, given_NC)
    assert squared.item() == pytest.approx(2.190893, abs=1e-5)
    (found,) = torch.autograd.grad(squared, z_BC)
    assert_close(found, torch.tensor([[0.5 - 1.0397636, -0.5 + 1.0397636]]), rtol=0, atol=1e-6)


def test_teachers_are_looked_up_by_sample():
    given_NC = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 0]), torch.tensor([2, 1]))
    loss, _ = HKS(temperature=1.0, alpha=1.0).loss(lambda _: torch.zeros(2, 2), batch, given_NC)
    # KL is 0 for the third, ln 2 for the second (0 log 0 = 0): mean ln 2 / 2, beside CE = ln 2.
    assert loss.item() == pytest.approx(1.5 * 0.6931472, abs=1e-6)


def client_of(k: int = 0, labels: Any = FOUR[0], arch: str = "flat", t: int = 1, trainer: Any = fit_one) -> Client:
    task = Task(4, 8, (arch,), toy_model)
    local = LocalTraining(epochs=2, batch_size=6, lr=0.1)
    return Client(k, task, toy_samples(labels, k), toy_model(arch), local, seeded(SEED, "client", t, k), t, arch,
                  trainer=trainer)  # fmt: skip


def test_eval_pass_sends_what_the_trained_network_says():
    client = client_of(arch="norm")
    up = HKS(warmup=0, logits="eval_pass").client_update(client, None)
    assert up is not None
    with torch.no_grad():
        assert_close(up.logits_NC, client.net.eval()(client.data.x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extra", [False, True])
def test_epochs_of_the_first_round(extra: bool):
    epochs = []

    def counted(job: FitJob) -> FitResult:
        result = fit_one(job)
        epochs.append(result.samples // 16)
        return result

    algorithm = HKS(warmup=3, warmup_extra=extra)
    algorithm.client_update(client_of(trainer=counted), None)
    algorithm.client_update(client_of(trainer=counted, t=2), Teachers(torch.full((16, 4), 0.25)) if extra else None)
    assert epochs == ([8, 2] if extra else [2, 2])  # 2 epochs per round, and 3 rounds' worth on top


@pytest.mark.parametrize(
    ("settings", "down", "up"),
    [
        ({"warmup": 2}, [3, 4], [2, 3, 4]),  # clustered at the end of round 2, taught from round 3
        ({"warmup": 2, "literal_alg1": True}, [4], [3, 4]),
        ({"warmup": 0}, [2, 3, 4], [1, 2, 3, 4]),  # there is nothing to be taught in round 1
        ({"warmup": 2, "warmup_extra": True}, [2, 3, 4], [1, 2, 3, 4]),
        ({}, [], []),
    ],
)
def test_when_what_is_sent(settings: dict[str, Any], down: list[int], up: list[int]):
    sent = Trial(HKS(**settings)).run(4).sent
    for hook, rounds in (("server_send", down), ("client_update", up)):
        of_client = [msg for name, k, msg in sent if name == hook and k == 0]
        assert [t for t, msg in enumerate(of_client, 1) if msg is not None] == rounds


@pytest.mark.large
@pytest.mark.parametrize(
    "settings", [{}, {"granularity": "middle"}, {"literal_alg1": True}, {"warmup_extra": True}, {"logits": "eval_pass"}]
)
def test_the_contract_with_a_short_warm_up(settings: dict[str, Any]):
    # With the paper's 10 rounds of warm-up, the contract's few rounds would never see a message.
    check_algorithm(HKS(warmup=1, **settings))


@pytest.mark.parametrize("granularity", ["bottom", "all"])
def test_ward_with_and_without_room_for_distances_teaches_the_same(granularity: Any):
    logits_NC = torch.randn(70, 4, generator=torch.Generator().manual_seed(2))
    found = [taught(HKS(granularity=granularity, memory_gb=room), logits_NC) for room in (2.0, 1e-9)]
    assert_close(*found, rtol=1e-12, atol=1e-12)
