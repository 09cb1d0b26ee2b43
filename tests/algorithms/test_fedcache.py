"""FedCache against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import raysim.algorithms.fedcache as fedcache
from raysim.algorithms.fedcache import (
    Cache,
    FedCache,
    Hashes,
    Logits,
    Means,
    Neighbours,
    nearest_of_label,
)
from raysim.contract.toy import FOUR, toy_encoder, toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from raysim.data.transform import ImageTransform
from tests.scenario.papers import checked

C = 4
A, B, ACROSS = (1.0, 0.0), (0.9, 0.1), (0.0, 1.0)


def hashes(rows: list[tuple[float, ...]], labels: list[int]) -> Hashes:
    return Hashes(torch.tensor(rows), torch.tensor(labels, dtype=torch.int32))


def server_of(method: FedCache, registrations: dict[int, Hashes], num_classes: int = 2) -> Server[Cache]:
    task = Task(num_classes, 8, ("flat",), toy_model)
    server: Server[Cache] = Server(
        task, torch.Generator(), {k: len(registration.label_N) for k, registration in registrations.items()}, t=1
    )
    server.state = method.server_start(server, registrations)
    return server


def client_of(arch: str, labels: list[int], batch_size: int = 64) -> Client:
    task = Task(C, 8, (arch,), toy_model, 1, toy_encoder)
    net, local = toy_model(arch), LocalTraining(batch_size=batch_size)
    return Client(0, task, toy_samples(labels, 0), net, local, seeded(1, "client", 1, 0), t=1, arch=arch)


def up(*rows: list[float], unseen: list[int] | None = None) -> Logits:
    return Logits(torch.tensor(rows), None if unseen is None else torch.tensor(unseen, dtype=torch.int32))


def test_kat_neighbours():
    # cos(c, b) = 0.1104 and cos(c, a) = 0; one client holds a and c, the other b.
    server = server_of(FedCache(neighbours=1), {3: hashes([A, ACROSS], [1, 1]), 7: hashes([B], [1])})
    cache = server.state
    assert cache.span == {3: (0, 2), 7: (2, 3)}
    assert cache.near_NR.tolist() == [[2], [2], [0]]  # a -> b, c -> b, b -> a
    assert cache.near_NR.dtype == torch.int32 and cache.hash_width == 2


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    num_classes=st.integers(1, 3),
    width=st.integers(1, 5),
    count=st.integers(1, 7),
    grid=st.booleans(),
    block=st.sampled_from([1, 20, 1 << 22]),
    seed=st.integers(0, 1000),
)
def test_the_search_equals_brute_force(
    sizes: list[int], num_classes: int, width: int, count: int, grid: bool, block: int, seed: int
):
    rng = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    hash_Nh = torch.randn(total, width, generator=rng)
    if grid:  # many equal cosines, duplicates and zeros
        hash_Nh = hash_Nh.round()
    label_N = torch.randint(num_classes, (total,), generator=rng)
    before, fedcache.BLOCK = fedcache.BLOCK, block
    try:
        near_NR = nearest_of_label(hash_Nh.split(sizes), label_N.split(sizes), count)
    finally:
        fedcache.BLOCK = before
    unit_Nh = nn.functional.normalize(hash_Nh.double(), dim=1)
    cosine_NN = (unit_Nh @ unit_Nh.T * 2**40).round().tolist()  # equal to within rounding is equal
    for i in range(total):
        others = [j for j in range(total) if j != i and label_N[j] == label_N[i]]
        nearest = sorted(others, key=lambda j, i=i: (-cosine_NN[i][j], j))[:count]  # of equals, the earlier is nearer
        assert near_NR[i].tolist() == nearest + [-1] * (count - len(nearest))


class Says(nn.Module):
    """A network whose logits are its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def batch_of(logits: list[list[float]], labels: list[int]) -> Batch:
    return Batch(torch.tensor(logits), torch.tensor(labels), torch.arange(len(labels)))


def test_kat_a_cold_cache_teaches_the_uniform_distribution():
    # z / T = (ln 3, 0), so p = (3/4, 1/4): KL(uniform || p) = 0.5 ln(4/3) = 0.143841, CE = ln(1 + 1/27) = 0.036368.
    batch = batch_of([[3 * math.log(3), 0.0]], [0])
    loss, logits_BC = FedCache().loss(Says(), batch, Means(torch.zeros(1, 2), None))
    assert float(loss) == pytest.approx(0.03636764 + 1.5 * 9 * 0.14384104, abs=1e-6)
    assert logits_BC is batch.x
    alone, _ = FedCache().loss(Says(), batch, None)
    assert float(alone) == pytest.approx(0.03636764, abs=1e-7)


def test_a_sample_without_neighbours_counts_as_zero_in_the_mean():
    batch = batch_of([[3 * math.log(3), 0.0]] * 2, [0, 0])
    means = Means(torch.tensor([[0.0, 0.0], [5.0, -5.0]]), torch.tensor([True, False]))
    loss, _ = FedCache(temperature=3.0, alpha=2.0).loss(Says(), batch, means)
    assert float(loss) == pytest.approx(0.03636764 + 2 * 9 * 0.14384104 / 2, abs=1e-6)


def test_the_scenario_feeds_what_the_released_code_feeds():
    # Black and white: (0 - 0.1307) / 0.3081 and (255 - 0.1307) / 0.3081, on three equal channels.
    found = checked("hks/choices", "FedCache as its code")
    assert found.algorithm.encoder == "pixels"  # named, so that it does not depend on the machine
    transform = ImageTransform.of(found.dataset, False)
    image_BHWC = torch.zeros(2, 28, 28, 1, dtype=torch.uint8)
    image_BHWC[1] = 255
    x = transform.plain(image_BHWC)
    assert x.shape == (2, 3, 28, 28)
    assert x[0].unique().tolist() == pytest.approx([-0.42421], abs=1e-5)
    assert x[1].unique().tolist() == pytest.approx([827.22914], abs=1e-3)


def test_kat_two_rounds_by_hand():
    method = FedCache(neighbours=2)
    server = server_of(method, {0: hashes([A, ACROSS], [1, 1]), 1: hashes([B], [1])})
    assert method.server_send(server, 0).logits_NC.tolist() == [[0, 0], [0, 0]]  # cold: no client has uploaded
    method.server_update(server, {0: up([1.0, 2.0], [3.0, 4.0]), 1: up([5.0, 6.0])})
    assert method.server_send(server, 0).logits_NC.tolist() == [[4, 5], [3, 4]]  # a: of b and c; c: of b and a
    assert method.server_send(server, 1).logits_NC.tolist() == [[2, 3]]
    assert method.server_send(server, 0).known_N is None
    assert server.values == {"hash_width": 2.0, "cache_filled": 1.0}


def test_a_sample_that_was_left_out_keeps_its_old_logits():
    method = FedCache()
    server = server_of(method, {0: hashes([A, B, ACROSS], [0, 0, 0])})
    method.server_update(server, {0: up([1.0, 1.0], [2.0, 2.0], [0.0, 0.0], unseen=[2])})
    assert server.state.written_N.tolist() == [True, True, False]
    assert server.values["cache_filled"] == pytest.approx(2 / 3)
    method.server_update(server, {0: up([0.0, 0.0], [4.0, 4.0], [3.0, 3.0], unseen=[0])})
    assert server.state.logits_NC.tolist() == [[1, 1], [4, 4], [3, 3]]


def test_waiting_for_all_neighbours():
    method = FedCache(neighbours=2, cold="wait")
    # Client 0: two of class 0 and one of class 1; client 1: one of class 0; client 2: one more of class 1.
    registrations = {0: hashes([A, B, A], [0, 0, 1]), 1: hashes([ACROSS], [0]), 2: hashes([B], [1])}
    server = server_of(method, registrations)
    assert [method.server_send(server, k) for k in registrations] == [None, None, None]
    method.server_update(server, {0: up([1.0, 0.0], [2.0, 0.0], [3.0, 0.0])})
    assert method.server_send(server, 0) is None  # its samples wait for client 1's and client 2's
    assert method.server_send(server, 1).logits_NC.tolist() == [[1.5, 0]]
    method.server_update(server, {2: up([7.0, 0.0])})
    down = method.server_send(server, 0)
    assert down.known_N.tolist() == [False, False, True]
    assert down.logits_NC.tolist() == [[0, 0], [0, 0], [7, 0]]


def test_bytes_once_and_per_round():
    # Four clients with 16, 13, 14 and 12 samples; h = 16 pixels, C = 4; every class has more than three samples.
    sizes = [len(labels) for labels in FOUR]
    for averages in (True, False):
        toy = Trial(FedCache(neighbours=3, server_averages=averages)).run(2)
        sent = toy.sent
        once = {k: wire_size(toy.algorithm.client_register(toy.client(k, 0))) for k in range(4)}
        assert [once[k].bytes for k in range(4)] == [4 * n * (16 + 1) for n in sizes]
        for name, k, msg in sent:
            if name == "server_send":
                assert wire_size(msg).bytes == 4 * sizes[k] * C * (1 if averages else 3)
                assert isinstance(msg, Means if averages else Neighbours)
            # Client 1 has BatchNorm and a last batch of a single sample: its position is said too.
            if name == "client_update":
                assert wire_size(msg).bytes == 4 * (sizes[k] * C + (k == 1))


@pytest.mark.parametrize("method", [{"cold": "wait"}, {"neighbours": 40}], ids=str)
def test_who_averages_makes_no_difference(method: dict[str, Any]):
    ours, theirs = (Trial(FedCache(server_averages=one, **method)).run(3) for one in (True, False))
    assert ours.states() == theirs.states()


def test_a_batch_of_one_is_left_out_with_batchnorm():
    found = FedCache().client_update(client_of("norm", [0, 1, 2, 3, 0], batch_size=4), None)
    assert found is not None and found.unseen_U is not None
    assert found.unseen_U.dtype == torch.int32 and len(found.unseen_U) == 1
    assert found.logits_NC[int(found.unseen_U)].tolist() == [0] * C
    assert bool(found.logits_NC.isfinite().all())
    assert FedCache().client_update(client_of("norm", [0]), None) is None


def test_hashes_are_the_named_encoders():
    client = client_of("flat", [0, 1, 3])
    encoders = {"pixels": lambda x: x.flatten(1)[:, :3]}
    client.task = Task(C, 8, ("flat",), toy_model, 1, encoders.__getitem__)
    registration = FedCache().client_register(client)
    assert registration.hash_Nh.equal(client.data.x.flatten(1)[:, :3])
    assert registration.label_N.tolist() == [0, 1, 3] and registration.label_N.dtype == torch.int32
