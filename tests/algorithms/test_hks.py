"""HKS against numbers worked out by hand, and its laws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor
from torch.testing import assert_close

from raysim.algorithms.hks import HKS, Knowledge, Logits, Teachers, distances_gb
from raysim.algorithms.standalone import Standalone
from raysim.contract import check_algorithm
from raysim.contract.toy import FOUR, SEED, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, ScenarioError, Server, Task
from raysim.core.fit import FitJob, FitResult, fit_one
from raysim.core.messages import wire_bytes
from raysim.core.seeds import seeded
from raysim.core.state import digest

FIVE = [0.0, 1.0, 10.0, 12.0, 13.0]  # one class: 1-D "logits"; two clusters are to be left
GRANULARITIES = ("top", "middle", "bottom", "all")


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


def server_of(sizes: Mapping[int, int], t: int = 1, num_classes: int = 4) -> Server[Knowledge]:
    task = Task(num_classes, 8, ("norm",), toy_model)
    return Server(task, seeded(SEED, "server_update", t), sizes, t, Knowledge())


# -- the tree and its levels -------------------------------------------------------------------------


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
    # In the chain below, 3 has two clusters, 10 none; 0 has three and itself: index 4 // 2 is {0, 1, 3}.
    chain = torch.tensor([0.0, 1.0, 3.0, 6.0, 10.0])[:, None]
    found = taught(HKS(linkage="single", granularity="middle", leaf=True), chain, 2)[:, 0]
    assert_allclose(found, [4 / 3, 4 / 3, 4 / 3, 2.5, 10.0])
    # One more class, all 0: softmax of (z / 3, 0) is sigmoid(z / 3), averaged over the same lists.
    found = taught(HKS(leaf=True), torch.tensor([[z, 0.0] for z in FIVE]))[:, 0]
    of_0, of_12 = np.array([0.0, 0.5]), np.array([12.0, 12.5, 35 / 3])
    assert found[0] == pytest.approx((1 / (1 + np.exp(-of_0 / 3))).mean())
    assert found[3] == pytest.approx((1 / (1 + np.exp(-of_12 / 3))).mean())


def test_kat_1_path_lengths():
    tree = HKS().tree(torch.tensor(FIVE)[:, None], 2)
    assert tree.length_N.tolist() == [1, 1, 1, 2, 2]


def test_the_middle_of_longer_paths():
    # 0, 1, 3, 6, 10 with single linkage make a chain; two are left: the path of 0 is {0,1}, {0,1,3}, {0,1,3,6}.
    chain = torch.tensor([0.0, 1.0, 3.0, 6.0, 10.0])[:, None]
    tree = HKS(linkage="single").tree(chain, 2)
    assert tree.length_N.tolist() == [3, 3, 2, 1, 0]
    found = taught(HKS(linkage="single", granularity="middle"), chain, 2)[:, 0]
    # Of 3: index 1; of 2: index 1; of 1: index 0; 10 is alone and taught by itself.
    assert_allclose(found, [4 / 3, 4 / 3, 2.5, 2.5, 10.0])


def test_the_flat_cut_keeps_the_square_root_of_n_times_c():
    logits_NC = mixture(62, 3, 0)
    found = taught(HKS(granularity="middle", middle="cut"), logits_NC)
    assert len(torch.unique(found, dim=0)) == 14  # round(sqrt(186)) = round(13.6)
    assert len(torch.unique(taught(HKS(granularity="top"), logits_NC), dim=0)) == 3
    from scipy.cluster.hierarchy import fcluster, linkage

    at_N = fcluster(linkage(logits_NC.numpy(), "ward"), 14, "maxclust")
    expected = np.stack([logits_NC.numpy()[at_N == at_N[i]].mean(0) for i in range(62)])
    assert_allclose(found.numpy(), expected)


def test_all_is_the_mean_of_the_distributions_along_the_path():
    # One more class, all 0. 12: clusters of means 12.5 and 35/3; softmax of (z/3, 0) is sigmoid(z/3).
    found = taught(HKS(), torch.tensor([[z, 0.0] for z in FIVE]))
    of_12 = (torch.sigmoid(torch.tensor(12.5 / 3)) + torch.sigmoid(torch.tensor(35 / 9))) / 2
    assert_close(found[3], torch.tensor([of_12, 1 - of_12]).double(), rtol=0, atol=1e-7)
    assert_close(found[2, 0], torch.sigmoid(torch.tensor(35 / 9, dtype=torch.float64)))  # only one cluster around 10
    assert_close(found[0, 0], torch.sigmoid(torch.tensor(0.5 / 3, dtype=torch.float64)))


def test_kat_2_all_has_the_gradients_of_the_averaged_loss():
    logits_NC, temperature = mixture(80, 4, 1), 2.0
    tree = HKS().tree(logits_NC, 4)
    mean_VC = torch.from_numpy(tree.means(logits_NC.numpy()))
    i = int(tree.length_N.argmax())
    path, node = [], i
    while tree.parent_V[node] >= 0:
        node = int(tree.parent_V[node])
        path.append(node)
    assert len(path) == tree.length_N[i] > 3
    z_C = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    log_p_C = F.log_softmax(z_C / temperature, 0)
    q_LC = (mean_VC[path] / temperature).softmax(1)
    averaged = (q_LC * (q_LC.log() - log_p_C)).sum(1).mean()
    (expected,) = torch.autograd.grad(averaged, z_C, retain_graph=True)
    sent_C = taught(HKS(temperature=temperature), logits_NC)[i]
    (found,) = torch.autograd.grad(-(sent_C * log_p_C).sum(), z_C)
    assert_close(found, expected, rtol=0, atol=1e-15)
    # And the value is that of the averaged loss but for a term without z.
    entropy = (q_LC * q_LC.log()).sum(1).mean()
    assert_close(entropy - (sent_C * log_p_C).sum(), averaged, rtol=0, atol=1e-14)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(2, 60), st.integers(2, 5), st.integers(0, 10**6))
def test_kat_3_permuted_samples_have_permuted_teachers(granularity: Any, n: int, c: int, seed: int):
    logits_NC = mixture(n, c, seed)
    order_N = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    algorithm = HKS(granularity=granularity)
    assert_close(taught(algorithm, logits_NC[order_N]), taught(algorithm, logits_NC)[order_N], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_kat_3_equal_logits_teach_themselves(granularity: Any):
    row_C = torch.tensor([0.1, -2.3, 1.7, 0.0])
    algorithm = HKS(granularity=granularity)
    teacher_NC = taught(algorithm, row_C.expand(37, 4)).float()
    z_BC = row_C.expand(2, 4).clone().requires_grad_()
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 3]), torch.tensor([5, 36]))
    loss, _ = algorithm.loss(lambda _: z_BC, batch, algorithm.distribution(teacher_NC))
    (found,) = torch.autograd.grad(loss - F.cross_entropy(z_BC, batch.y), z_BC)
    assert_close(found, torch.zeros(2, 4), rtol=0, atol=1e-6)
    if granularity != "all":
        assert_close(teacher_NC, row_C.expand(37, 4), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_no_more_samples_than_classes_teach_themselves(granularity: Any):
    algorithm = HKS(granularity=granularity)
    for n in (1, 3, 4):
        logits_NC = mixture(n, 4, n)
        expected = (logits_NC / 3).softmax(1) if granularity == "all" else logits_NC
        assert_close(taught(algorithm, logits_NC), expected, rtol=1e-12, atol=1e-14)
    assert len(torch.unique(taught(algorithm, mixture(5, 4, 0)), dim=0)) == 4  # the first merge


# -- linkages and spaces -----------------------------------------------------------------------------


def test_distances_that_do_not_fit_are_refused_before_round_1():
    server = server_of({0: 30_000, 1: 30_000})
    with pytest.raises(ScenarioError) as caught:
        HKS(linkage="average").server_start(server, {})
    # 60,000 * 59,999 / 2 distances of 8 bytes, twice.
    assert "28.8 GB" in str(caught.value)
    assert HKS(linkage="average", memory_gb=29.0).server_start(server, {}) == Knowledge()
    assert HKS().server_start(server, {}) == Knowledge()


def test_linkages_differ_and_are_scipys():
    logits_NC = mixture(60, 3, 5)
    found = {name: taught(HKS(granularity="top", linkage=name), logits_NC) for name in ("ward", "average", "single")}
    assert not torch.allclose(found["ward"], found["single"])
    assert not torch.allclose(found["average"], found["single"])
    from scipy.cluster.hierarchy import fcluster, linkage

    for name, teacher_NC in found.items():
        at_N = fcluster(linkage(logits_NC.numpy(), name), 3, "maxclust")
        expected = np.stack([logits_NC.numpy()[at_N == at_N[i]].mean(0) for i in range(60)])
        assert_allclose(teacher_NC.numpy(), expected)


def test_softmax_space_joins_what_differs_by_a_shift():
    # The first two say the same with other words; as logits, the first is nearer to the third.
    logits_NC = torch.tensor([[0.0, 1.0, 0.0], [5.0, 6.0, 5.0], [1.0, 0.0, 0.0]])
    for space, partner in (("softmax", 1), ("logits", 2)):
        tree = HKS(space=space).tree(logits_NC, 2)
        assert tree.parent_V[0] == tree.parent_V[partner] == 3
    # What is sent is the mean of the logits all the same.
    found = taught(HKS(space="softmax", granularity="top"), logits_NC, 2)
    assert_allclose(found[0].numpy(), [2.5, 3.5, 2.5])


# -- the loss ----------------------------------------------------------------------------------------


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


# -- a client's round --------------------------------------------------------------------------------


def client_of(k: int = 0, labels: Any = FOUR[0], arch: str = "flat", t: int = 1, trainer: Any = fit_one) -> Client:
    task = Task(4, 8, (arch,), toy_model)
    local = LocalTraining(epochs=2, batch_size=6, lr=0.1)
    return Client(k, task, toy_samples(labels, k), toy_model(arch), local, seeded(SEED, "client", t, k), t, arch,
                  trainer=trainer)  # fmt: skip


def test_what_goes_up_are_the_logits_of_the_last_epochs_steps():
    client, twin = client_of(), client_of()
    up = HKS(warmup=0).client_update(client, None)
    expected = torch.full((16, 4), torch.nan)

    def noted(net: Any, batch: Batch, given: Any) -> Tensor:
        logits_BC = net(batch.x)
        expected[batch.index] = logits_BC.detach()
        return batch.mean(F.cross_entropy(logits_BC, batch.y, reduction="none"))

    twin.fit(noted)
    assert up is not None
    assert_close(up.logits_NC, expected, rtol=1e-5, atol=1e-6)


def test_eval_pass_sends_what_the_trained_network_says():
    client = client_of(arch="norm")
    up = HKS(warmup=0, logits="eval_pass").client_update(client, None)
    assert up is not None
    with torch.no_grad():
        assert_close(up.logits_NC, client.net.eval()(client.data.x), rtol=1e-5, atol=1e-6)
    trained = HKS(warmup=0).client_update(client_of(arch="norm"), None)
    assert trained is not None and not torch.allclose(trained.logits_NC, up.logits_NC, atol=1e-3)


def test_a_sample_that_was_left_out_has_the_logits_of_an_eval_pass():
    # 7 samples in batches of 6, one epoch, BatchNorm: the last one of the epoch is never seen.
    client = client_of(labels=[0, 1, 2, 3, 0, 1, 2], arch="norm")
    client.local = LocalTraining(epochs=1, batch_size=6, lr=0.1)
    seen = []
    seen_trainer = client.trainer

    def watched(job: FitJob) -> FitResult:
        result = seen_trainer(job)
        assert result.rows is not None
        seen.append(~result.rows.isnan().any(1))
        return result

    client.trainer = watched
    up = HKS(warmup=0).client_update(client, None)
    assert up is not None and seen[0].sum() == 6
    with torch.no_grad():
        evaluated_NC = client.net.eval()(client.data.x)
    assert_close(up.logits_NC[~seen[0]], evaluated_NC[~seen[0]], rtol=1e-5, atol=1e-6)
    assert not torch.isclose(up.logits_NC[seen[0]], evaluated_NC[seen[0]]).all(1).any()


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


# -- the timeline ------------------------------------------------------------------------------------


def timeline(algorithm: HKS, rounds: int, cohorts: Any = None) -> dict[str, list[int]]:
    """The rounds in which client 0 gets teachers, and in which it sends logits."""
    toy = Trial(algorithm)
    found: dict[str, list[int]] = {"server_send": [], "client_update": []}
    for t in range(1, rounds + 1):
        already = len(toy.sent)
        toy.round(t, cohorts[t - 1] if cohorts else None)
        for name, k, msg in toy.sent[already:]:
            if k == 0 and msg is not None:
                found[name].append(t)
    return found


@pytest.mark.parametrize(
    ("settings", "down", "up"),
    [
        ({"warmup": 2}, [3, 4], [2, 3, 4]),  # clustered at the end of round 2, taught from round 3
        ({"warmup": 2, "literal_alg1": True}, [4], [3, 4]),
        ({"warmup": 1}, [2, 3, 4], [1, 2, 3, 4]),
        ({"warmup": 0}, [2, 3, 4], [1, 2, 3, 4]),  # there is nothing to be taught in round 1
        ({"warmup": 2, "warmup_extra": True}, [2, 3, 4], [1, 2, 3, 4]),
        ({"warmup": 9}, [], []),
        ({}, [], []),
    ],
)
def test_when_what_is_sent(settings: dict[str, Any], down: list[int], up: list[int]):
    assert timeline(HKS(**settings), 4) == {"server_send": down, "client_update": up}


def test_absent_clients_logits_stay_and_are_clustered_anew():
    server = server_of({0: 6, 1: 5}, t=1)
    logits_0, logits_1 = mixture(6, 4, 0).float(), mixture(5, 4, 1).float()
    algorithm = HKS(granularity="bottom")
    algorithm.server_update(server, {0: Logits(logits_0), 1: Logits(logits_1)})
    first = server.state.teachers[1]
    expected = taught(algorithm, torch.cat([logits_0, logits_1])).float()
    assert torch.equal(torch.cat([server.state.teachers[0], first]), expected)  # in the order of ids
    moved = logits_0 + 1.0
    algorithm.server_update(server, {0: Logits(moved)})
    assert torch.equal(server.state.logits[1], logits_1)
    assert torch.equal(server.state.teachers[1], taught(algorithm, torch.cat([moved, logits_1])).float()[6:])
    assert algorithm.server_send(server, 7) is None
    assert set(server.values) == {"path_length"}


def test_the_server_orders_by_id_and_not_by_arrival():
    states = []
    for order in ([2, 10], [10, 2]):
        server = server_of({2: 6, 10: 5})
        for k in order:
            server.state.logits[k] = mixture(5, 4, 9).float()
        ups = {k: Logits(mixture(6 if k == 2 else 5, 4, k).float()) for k in order}
        HKS().server_update(server, ups)
        states.append(digest(server.state.teachers))
    assert states[0] == states[1]


# -- cost and reduction ------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_both_messages_are_four_bytes_per_sample_and_class(granularity: Any):
    toy = Trial(HKS(granularity=granularity, warmup=1)).run(2)
    for name, k, msg in toy.sent[-8:]:
        assert wire_bytes(msg) == 4 * len(FOUR[k]) * 4, name
    assert wire_bytes(Logits(torch.zeros(60_000, 10))) == 2_400_000


@pytest.mark.parametrize("settings", [{"warmup": 1}, {"warmup": 1, "logits": "eval_pass"}], ids=str)
def test_without_distillation_it_is_standalone_bit_for_bit(settings: dict[str, Any]):
    nets = []
    for algorithm in (HKS(alpha=0.0, **settings), Standalone()):
        toy = Trial(algorithm).run(4)
        nets.append({k: digest(net) for k, net in toy.nets.items()})
    assert nets[0] == nets[1]
    taught_nets = {k: digest(net) for k, net in Trial(HKS(warmup=1)).run(4).nets.items()}
    assert all(taught_nets[k] != nets[0][k] for k in nets[0])


# -- the contract, where teachers are at work --------------------------------------------------------

BUSY: list[dict[str, Any]] = [
    *({"granularity": granularity} for granularity in GRANULARITIES),
    {"literal_alg1": True},
    {"warmup_extra": True},
    {"logits": "eval_pass"},
    {"space": "softmax"},
    {"granularity": "middle", "middle": "cut"},
    *({"granularity": granularity, "leaf": True} for granularity in ("bottom", "middle", "all")),
    *({"linkage": linkage} for linkage in ("average", "complete", "single")),
]


@pytest.mark.large
@pytest.mark.parametrize("settings", BUSY, ids=str)
def test_the_contract_with_a_short_warm_up(settings: dict[str, Any]):
    # With the paper's 10 rounds of warm-up, the contract's few rounds would never see a message.
    check_algorithm(HKS(warmup=1, **settings))


@pytest.mark.parametrize("granularity", ["bottom", "middle", "top", "all"])
def test_ward_with_scipy_and_without_room_for_distances_teaches_the_same(
    granularity: str, monkeypatch: pytest.MonkeyPatch
):
    logits_NC = torch.randn(70, 4, generator=torch.Generator().manual_seed(2))
    found = []
    for memory_gb in (2.0, 1e-9):
        method = HKS(granularity=granularity, memory_gb=memory_gb)
        tree = method.tree(logits_NC, 4)
        found.append(torch.from_numpy(method.teachers(logits_NC.double().numpy(), tree)))
        # Without room, SciPy is not asked.
        monkeypatch.setattr("raysim.algorithms.hks._scipy_linkage", lambda *_: pytest.fail("SciPy was asked"))
    assert_close(*found, rtol=1e-12, atol=1e-12)
    assert distances_gb(2) == 1.6e-8  # 8 bytes, twice
