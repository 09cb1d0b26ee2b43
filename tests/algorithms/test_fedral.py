"""FedRAL against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from raysim.algorithms.fedral import Angled, FedRAL, Matrix, block_mask
from raysim.contract.toy import toy_model, toy_samples
from raysim.core import Client, LocalTraining, Server, Task
from raysim.core.data import Augmentation
from raysim.core.messages import wire_size
from raysim.core.seeds import seeded
from tests.algorithms.nets import Seen


def task_of(width: int = 4, architectures: tuple[str, ...] = ("flat",)) -> Task:
    return Task(4, width, architectures, toy_model)


def server_of(method: FedRAL, n: dict[int, int], width: int = 4) -> Server[Matrix]:
    server: Server[Matrix] = Server(task_of(width), seeded(1, "server_start", 0), n, t=1)
    server.state = method.server_start(server, {})
    return server


def client_of(method: FedRAL, k: int = 0, arch: str = "flat", width: int = 4) -> Client:
    net = method.client_model(Seen(3, width), task_of(width))
    return Client(k, task_of(width), toy_samples([0, 1], 0), net, LocalTraining(), torch.Generator(), t=1, arch=arch)


def test_kat_1_representations_are_row_vectors():
    net = Angled(Seen(2, 2), 2, "dense", True)
    with torch.no_grad():
        net.matrix_DD.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        net.model.header.weight.copy_(torch.eye(2))
        net.model.header.bias.zero_()
    # [1, 2] A = [7, 10]; a transposed matrix would give [5, 11] and the sum [6, 13].
    assert net(torch.tensor([[1.0, 2.0]])).tolist() == [[8, 12]]
    assert net.eval()(torch.tensor([[1.0, 2.0]])).tolist() == [[8, 12]]


def test_kat_2_masks():
    assert block_mask(4, 2).sum() == 8
    assert torch.equal(block_mask(4, 4), torch.eye(4, dtype=torch.bool))
    assert block_mask(4, 1).all()
    with pytest.raises(ValueError, match="blocks: 3"):
        FedRAL(blocks=3).check(task_of(4))


@pytest.mark.parametrize(
    ("agg", "diagonal", "beside"),
    # Client 0 (n = 1) sends ones in 2 blocks, client 1 (n = 3) twos in 4. Weighted: 1/4 + 6/4 and 1/4.
    [("weighted", 1.75, 0.25), ("naive", 1.5, 1.0)],
)
def test_kat_3_aggregation(agg: str, diagonal: float, beside: float):
    method = FedRAL(blocks=[2, 4], agg=agg)
    server = server_of(method, {0: 1, 1: 3})
    method.server_update(server, {0: Matrix(torch.ones(8)), 1: Matrix(torch.full((4,), 2.0))})
    matrix_DD = method._dense(server.state, task_of())
    assert matrix_DD.diagonal().tolist() == [diagonal] * 4
    assert matrix_DD[0, 1] == matrix_DD[1, 0] == matrix_DD[3, 2] == beside
    assert matrix_DD[0, 2] == 0 and matrix_DD.count_nonzero() == 8
    # Only the union of the two masks goes down, and the two numbers that say which it is.
    assert wire_size(method.server_send(server, 0)).components == {"entry_E": 4 * 8, "blocks": 16}


@pytest.mark.parametrize("matrix_lr", [None, 0.05])
def test_the_matrix_has_a_learning_rate_of_its_own(matrix_lr: float | None):
    # One step on one sample f = [1, 2] of class 0. From A = 0 and W = [[1, 0], [0, 0], [0, 0]] the logits are (1, 0, 0)
    # and p_0 = e / (e + 2). The gradient of A is f^T ((p - e_y) W) = [[p_0 - 1, 0], [2 (p_0 - 1), 0]], that of
    # the first row of W is (p_0 - 1) f.
    method = FedRAL(init="zeros", matrix_lr=matrix_lr)
    client = client_of(method, width=2)
    client.data = replace(toy_samples([0], 0), transform=Fixed())
    client.local = LocalTraining(lr=0.2)
    header = client.net.model.header
    with torch.no_grad():
        header.weight.zero_()[0, 0] = 1.0
        header.bias.zero_()
    method.client_update(client, None)
    p_0 = math.e / (math.e + 2)
    rate = 0.2 if matrix_lr is None else 0.05
    assert_close(client.net.matrix_DD.detach(), -rate * (p_0 - 1) * torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    assert_close(header.weight[0].detach(), torch.tensor([1.0, 0.0]) - 0.2 * (p_0 - 1) * torch.tensor([1.0, 2.0]))


class Fixed:
    """Every image is read as [1, 2]."""

    draws = False

    def plain(self, raw_BHWC: Tensor) -> Tensor:
        return torch.tensor([[1.0, 2.0]]).expand(len(raw_BHWC), 2)

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator) -> Sequence[Augmentation]:
        return [self.plain] * len(sizes)


def test_blocks_per_client_and_per_architecture():
    listed, mapped = FedRAL(blocks=[1, 2]), FedRAL(blocks={"flat": 4, "deep": 2})
    assert [listed._blocks(client_of(listed, k)) for k in range(3)] == [1, 2, 1]
    assert [mapped._blocks(client_of(mapped, arch=arch)) for arch in ("flat", "deep")] == [4, 2]
    with pytest.raises(ValueError, match="norm"):
        mapped.check(task_of(4, ("flat", "norm")))
    # Round 2's matrix arrives as it was averaged, though clients have different blocks.
    server = server_of(mapped, {0: 1, 1: 1})
    mapped.server_update(server, {0: Matrix(torch.arange(1.0, 5.0)), 1: Matrix(torch.arange(1.0, 9.0))})
    client = client_of(mapped, arch="deep")
    mapped.client_receive(client, server.state)
    assert client.net.matrix_DD.tolist() == [[1, 1, 0, 0], [1.5, 3, 0, 0], [0, 0, 4, 3], [0, 0, 3.5, 6]]


def test_the_first_matrix():
    width = 400
    uniform = FedRAL().server_start(server_of(FedRAL(), {0: 1}, width), {}).entry_E
    assert uniform.abs().max() <= 0.05 and uniform.std() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    normal = server_of(FedRAL(init="normal", init_std=0.3), {0: 1}, width).state.entry_E
    assert normal.std() == pytest.approx(0.3, rel=0.02)
    assert server_of(FedRAL(init="normal"), {0: 1}, width).state.entry_E.std() == pytest.approx(0.05, rel=0.02)
    xavier = server_of(FedRAL(init="xavier"), {0: 1}, width).state.entry_E
    assert xavier.abs().max() == pytest.approx((6 / 800) ** 0.5, rel=0.01)
    assert not server_of(FedRAL(init="zeros"), {0: 1}, width).state.entry_E.any()


def test_what_a_client_predicts_with():
    x = torch.rand(2, 4)
    predicted = {}
    for inference in ("dense", "sparse", "global", "none"):
        method = FedRAL(blocks=2, inference=inference)
        client = client_of(method)
        net = client.net
        method.client_receive(client, Matrix(torch.arange(16.0)))
        with torch.no_grad():
            net.model.header.weight.copy_(torch.arange(12.0).view(3, 4))
            net.model.header.bias.zero_()
            net.matrix_DD += 1  # as if trained
            received_DD = torch.arange(16.0).view(4, 4)
            used = {
                "dense": received_DD + 1,
                "sparse": (received_DD + 1) * block_mask(4, 2),
                "global": received_DD,
                "none": torch.zeros(4, 4),
            }[inference]
            predicted[inference] = net.eval()(x)
            assert_close(predicted[inference], (x + x @ used) @ net.model.header.weight.T)
            # Training goes through the whole matrix, whatever predicts.
            assert_close(net.train()(x), (x + x @ (received_DD + 1)) @ net.model.header.weight.T)
