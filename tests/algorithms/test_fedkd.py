"""FedKD against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedkd import (
    Factors,
    FedKD,
    Mentee,
    MentorMentee,
    Shared,
    Update,
    compressed,
    factors,
    floats,
    restored,
)
from raysim.contract.toy import toy_model, toy_samples
from raysim.contract.trial import Trial
from raysim.core import Batch, Client, LocalTraining, Server, Task
from raysim.core.messages import wire_size
from raysim.core.meter import FlopMeter
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded

TASK = Task(4, 8, ("deep", "norm", "flat"), toy_model, num_rounds=4)
ONE = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0]))


def padded(*diagonal: float, side: int = 20) -> Tensor:
    """diag(...) with zeros around it, so that factors are smaller."""
    matrix = torch.zeros(side, side)
    matrix.diagonal()[: len(diagonal)] = torch.tensor(diagonal)
    return matrix


def dense(part: Tensor | Factors, like: Tensor) -> Tensor:
    return restored({"w": part}, {"w": like})["w"]


# -- compression -------------------------------------------------------------------------------------


# Cumulative energies of diag(3, 2, 1): 9/14 = .6429, 13/14 = .9286, 1.
@pytest.mark.parametrize(("energy", "rank"), [(0.64, 1), (0.65, 2), (0.9, 2), (0.93, 3), (0.95, 3), (1.0, 3)])
def test_kat_rank(energy: float, rank: int):
    found = factors(padded(3, 2, 1), energy)
    assert found is not None
    assert_close(found.sigma_R, torch.tensor([3.0, 2.0, 1.0][:rank]))
    assert_close(dense(found, padded(1)), padded(*[3, 2, 1][:rank]))
    assert wire_size(found).params == rank * (20 + 20 + 1)


def test_kat_a_small_matrix_stays_dense():
    # 3 x 3: rank 2 costs 14 > 9, and rank 1 costs 7 < 9.
    matrix = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    assert factors(matrix, 0.9) is None
    assert compressed({"w": matrix}, 0.9)["w"] is matrix
    found = factors(matrix, 0.6)
    assert found is not None and wire_size(found).params == 7
    # 4 x 5 at rank 2 costs 20, as many numbers as it has: dense.
    assert factors(padded(1, 1, side=5)[:4], 0.9) is None
    assert factors(padded(1, side=5)[:4], 0.9) is not None


def test_what_did_not_change_is_not_sent():
    parts = compressed({"w": torch.zeros(4, 4), "b": torch.zeros(4), "c": torch.ones(4)}, 0.95)
    assert list(parts) == ["c"] and wire_size(Update(parts)).bytes == 16
    assert torch.equal(restored(parts, {"w": torch.ones(4, 4)})["w"], torch.zeros(4, 4))


def test_a_convolution_is_a_matrix_of_its_filters():
    weight = torch.outer(torch.arange(1.0, 9.0), torch.arange(27.0)).view(8, 3, 3, 3)
    found = factors(weight.to(memory_format=torch.channels_last), 0.95)
    assert found is not None
    assert found.u_MR.shape == (8, 1) and found.v_RN.shape == (1, 27) and wire_size(found).params == 36
    assert_close(dense(found, weight), weight, rtol=1e-5, atol=1e-4)


def test_energy_grows_to_its_end():
    method = FedKD()
    assert [method.energy(t, TASK) for t in range(1, 5)] == pytest.approx([0.9575, 0.965, 0.9725, 0.98])
    assert method.energy(9, TASK) == pytest.approx(0.98)
    assert FedKD(energy_start=0.5, energy_end=1.0).energy(2, TASK) == 0.75


# -- losses ------------------------------------------------------------------------------------------


class Says(nn.Module):
    """A model whose representation and prediction are given."""

    def __init__(self, feature: list[float], p: list[float]) -> None:
        super().__init__()
        self.feature_1D = nn.Parameter(torch.tensor([feature]))
        self.logits_1C = nn.Parameter(torch.tensor([p]).log())

    def features(self, x: Tensor) -> Tensor:
        return self.feature_1D

    def header(self, feature_1D: Tensor) -> Tensor:
        return self.logits_1C


def says() -> MentorMentee:
    net = MentorMentee(Says([1.0, 0.0], [0.5, 0.5]), Says([0.0, 1.0], [0.9, 0.1]), 2)
    with torch.no_grad():
        net.projection.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return net


def test_kat_losses_and_gradients():
    # CE ln 2 and -ln 0.9, D their sum; KL .368064 and .510826; W_h f_s = [2, 4] and f_t = [1, 0]: MSE 17 / 2, twice.
    net, d = says(), 0.798508
    loss = FedKD().loss(net, ONE, None)
    assert float(loss.detach()) == pytest.approx(d + (0.368064 + 0.510826 + 17) / d, rel=1e-5)
    loss.backward()

    def close(found: Tensor | None, expected: list[list[float]]) -> None:
        assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)

    # (p - e_y) + (p - q) / D of each; 2 / 2 (f_t - W_h f_s) / D; the projection learns once.
    close(net.model.logits_1C.grad, [[-0.5 - 0.4 / d, 0.5 + 0.4 / d]])
    close(net.small.logits_1C.grad, [[-0.1 + 0.4 / d, 0.1 - 0.4 / d]])
    close(net.model.feature_1D.grad, [[-1 / d, -4 / d]])
    close(net.projection.weight.grad, [[0.0, 1 / d], [0.0, 4 / d]])
    close(net.small.feature_1D.grad, [[(1 + 3 * 4) / d, (2 + 4 * 4) / d]])


def test_the_divergence_is_a_sum_or_a_mean_over_the_classes():
    # As in the first case by hand, d = 0.798508; over two classes, the mean is half of 0.368064 + 0.510826.
    d, divergences = 0.798508, 0.368064 + 0.510826
    for detach in (True, False):
        summed = FedKD(detach=detach).loss(says(), ONE, None).item()
        assert summed == pytest.approx(d + (divergences + 17) / d, rel=1e-5)
        mean = FedKD(detach=detach, kl_reduction="mean").loss(says(), ONE, None).item()
        assert mean == pytest.approx(d + (divergences / 2 + 17) / d, rel=1e-5)


def flops(net: nn.Module, loss: Any) -> float:
    """The operations of a client with three samples that trains this network for an epoch."""
    data = toy_samples([0, 1, 2], 0)
    client = Client(0, TASK, data, net, LocalTraining(), seeded(1, "client"), meter=FlopMeter())
    client.fit(loss)
    return client.stats.flops


def test_mentee_and_projection_are_counted():
    # 2 d^2 of the projection, three times in training, for three samples.
    both = flops(FedKD().client_model(toy_model("deep"), TASK), FedKD().loss)
    alone = flops(toy_model("deep"), cross_entropy) + flops(toy_model("flat"), cross_entropy)
    assert both == alone + 3 * 3 * 2 * 8**2


# -- rounds ------------------------------------------------------------------------------------------


def server_of(method: FedKD, samples: dict[int, int], task: Task = TASK) -> Server[Shared]:
    server: Server[Shared] = Server(task, torch.Generator(), samples, t=1)
    server.state = method.server_start(server, {})
    return server


@pytest.mark.parametrize(("agg", "mean"), [("uniform", 2.0), ("weighted", 3.0)])
def test_the_server_averages_changes(agg: str, mean: float):
    method = FedKD(agg=agg)
    server = server_of(method, {0: 1, 1: 3})
    before = server.state.mentee["header.bias"].clone()
    method.server_update(server, {0: Update({}), 1: Update({"header.bias": torch.full((4,), 4.0)})})
    assert torch.equal(server.state.mentee["header.bias"], before + mean)
    assert isinstance(server.state.news, Update) and list(server.state.news.tensors) == ["header.bias"]


def kinds(toy: Trial, members: int) -> list[str]:
    """What the server sent in the last round."""
    sent = [msg for name, _, msg in toy.sent if name == "server_send"]
    return [type(msg).__name__ for msg in sent[-members:]]


@pytest.mark.parametrize("compress", ["update", "parameters"])
def test_participants_have_the_servers_mentee_after_any_absence(compress: str):
    seen = []

    class Watched(FedKD):
        def client_update(self, client: Client, down: Any) -> Any:
            def same() -> bool:
                mine = floats(client.net.small.state_dict())
                return all(torch.equal(w, mine[name]) for name, w in toy.server.state.mentee.items())

            assert same()
            seen.append(client.id)
            up = super().client_update(client, down)
            assert same()
            return up

    toy = Trial(Watched(compress=compress, small="norm"))
    found = []
    for t, cohort in enumerate(([0, 1], [1, 2], [0, 1, 3], [0, 2], [2]), 1):
        first = {name: w.clone() for name, w in toy.server.state.mentee.items()}
        toy.round(t, cohort)
        assert any(not torch.equal(w, first[name]) for name, w in toy.server.state.mentee.items())
        found.append(kinds(toy, len(cohort)))
    assert seen == [0, 1, 1, 2, 0, 1, 3, 0, 2, 2]
    if compress == "update":
        # Client 2 has the first mentee, which round 1's update fits; then 0 and 3 missed round 2's, and 2 round 3's.
        none, update, mentee = "NoneType", "Update", "Mentee"
        assert found == [[none, none], [update] * 2, [mentee, update, mentee], [update, mentee], [update]]
    else:
        assert found[0] == ["NoneType"] * 2 and {kind for part in found[1:] for kind in part} == {"Mentee"}


def test_who_does_not_answer_gets_the_mentee_itself():
    method = FedKD()
    server = server_of(method, {0: 1, 1: 1})
    assert method.server_send(server, 0) is None and method.server_send(server, 1) is None
    method.server_update(server, {0: Update({"header.bias": torch.ones(4)})})  # client 1's upload was not finite
    assert isinstance(method.server_send(server, 0), Update)
    assert isinstance(method.server_send(server, 1), Mentee)
    # No client answers at all: nothing is new, and the server does not know what they have.
    assert isinstance(method.server_send(server, 0), Mentee)
