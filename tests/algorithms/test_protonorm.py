"""ProtoNorm against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from raysim.algorithms.fedproto import Prototypes, Table
from raysim.algorithms.protonorm import ProtoNorm, repulsion
from raysim.contract.toy import toy_model
from raysim.core import Server, Task

RIGHT_ANGLE = torch.eye(2, dtype=torch.float64)


def after(method: ProtoNorm, *rounds: dict[int, list[list[float]]]) -> Server[Table]:
    """A server after rounds of uploads. Client 0 owns classes 0 and 1, client 1 class 2."""
    server: Server[Table] = Server(Task(4, 2, ("flat",), toy_model), torch.Generator(), t=1)
    server.classes = {0: torch.tensor([0, 1]), 1: torch.tensor([2])}
    server.state = method.server_start(server, {})
    for ups in rounds:
        method.server_update(server, {k: Prototypes(torch.tensor(rows), None) for k, rows in ups.items()})
    return server


def angles(unit_KD: Tensor) -> Tensor:
    """The cosines between different vectors."""
    return (unit_KD @ unit_KD.T)[~torch.eye(len(unit_KD), dtype=torch.bool)]


def test_a_force_by_hand():
    # (e1 - e2) / |e1 - e2|^2 = (1, -1) / 2
    assert_close(repulsion(RIGHT_ANGLE), torch.tensor([[0.5, -0.5], [-0.5, 0.5]], dtype=torch.float64))


def test_two_steps_by_hand():
    # First: (1, 0) + 0.1 * (0.5, -0.5) = (1.05, -0.05), of norm 1.051190.
    first = ProtoNorm(iterations=1).spread(RIGHT_ANGLE)
    assert_close(first[0], torch.tensor([0.998868, -0.047565], dtype=torch.float64), rtol=0, atol=1e-6)
    # Second, with steps of 0.095: the difference from the other is (1.046433, -1.046433), of square 2.190046, so that
    # the movement is 0.9 * (0.05, -0.05) + 0.095 * (0.477813, -0.477813) = (0.090392, -0.090392).
    second = torch.tensor([0.998868 + 0.090392, -0.047565 - 0.090392], dtype=torch.float64)
    found = ProtoNorm(iterations=2).spread(RIGHT_ANGLE)
    assert_close(found[0], second / second.norm(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_prototypes_end_as_a_regular_simplex(count: int):
    start = torch.randn(count, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = ProtoNorm().spread(start / start.norm(dim=1, keepdim=True))
    assert_close(angles(found), torch.full((count * (count - 1),), -1 / (count - 1), dtype=torch.float64))


def test_prototypes_that_coincide_or_are_zero_stay_finite():
    same = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert bool(ProtoNorm().spread(same).isfinite().all())


def test_without_steps_directions_stay_and_norms_are_the_scale():
    server = after(ProtoNorm(iterations=0, scale=10.0), {0: [[3.0, 4.0], [0.0, 0.5]]})
    assert server.state.prototype_CD.tolist() == [[6.0, 8.0], [0.0, 10.0], [0.0, 0.0], [0.0, 0.0]]
    assert server.state.known_C.tolist() == [True, True, False, False]


def test_a_class_that_no_participant_owns_begins_where_it_was():
    # Both are means of the same two directions, one of them from a round before.
    parted = after(ProtoNorm(iterations=0, scale=1.0), {0: [[1.0, 0.0], [0.0, 1.0]]}, {1: [[-2.0, 0.0]]})
    assert parted.state.prototype_CD.tolist() == [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]]


def test_the_official_profile_is_a_setting_of_fedproto_with_moved_prototypes():
    server = after(ProtoNorm(**ProtoNorm.profiles["official"]), {0: [[1.0, 0.0], [0.0, 1.0]]}, {1: [[-2.0, 0.0]]})
    assert server.state.known_C.tolist() == [False, False, True, False]
    assert_close(server.state.prototype_CD[2], torch.tensor([-5.0, 0.0]))  # 80 * sqrt(2 / 512)
