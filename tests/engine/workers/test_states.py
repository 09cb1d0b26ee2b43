"""A client's state is its network's parameters and buffers, bit for bit, whatever other clients do between."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from raysim.common.errors import RunError
from raysim.core.messages import Weights, weights
from raysim.engine.records import Broadcast
from raysim.engine.workers.client import ClientWorker
from raysim.engine.workers.state_files import StateFiles, StateLimits
from raysim.engine.workers.states import ClientStates
from tests.engine.scenarios import loaded, planned


class Odd(nn.Module):
    """Tied weights, BatchNorm, a frozen layer, an empty buffer, one that is not kept, and weights channels last."""

    scratch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BC = self.norm(self.conv(x_BCHW)).mean((2, 3)) * self.scratch[0]
        return self.second(self.first(x_BC))


def odd(arch: str = "odd") -> nn.Module:
    torch.manual_seed(len(arch))
    return Odd().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def states(clients: int = 5, own: bool = False) -> ClientStates:
    """Of clients with two architectures."""
    return ClientStates(["odd", "other"], clients, odd, (lambda k: odd("x" * k)) if own else None)


def train(net: nn.Module, seed: int) -> None:
    """Change everything that a method may change, as its training would."""
    rng = torch.Generator().manual_seed(seed)
    net(torch.randn(2, 3, 5, 5, generator=rng)).square().sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter -= 0.001 * parameter.grad
    if seed % 3 == 0:  # it puts other tensors in place of those that it was given
        net.conv.weight = nn.Parameter(net.conv.weight.detach() + 0.1)
        net.norm.weight.data = net.norm.weight.data * 0.9
        net.norm.running_mean = net.norm.running_mean * 0.5
        net.second = copy.deepcopy(net.second)
    net.scratch += 1
    net.eval()
    net.first.bias.requires_grad_(True)


def assert_equal(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("own", [False, True], ids=["one start", "a start each"])
def test_any_order_of_clients_gives_the_bits_of_networks_that_are_kept(own: bool) -> None:
    found, rng = states(own=own), random.Random(3)
    kept = [odd("x" * k) if own else odd(found.models[k % 2]) for k in range(5)]
    for step in range(12):
        ids = rng.sample(range(5), rng.randint(1, 4))  # several are worked on at once
        nets = {k: found.open(k) for k in ids}
        for k in rng.sample(ids, len(ids)):
            before = weights(kept[k])
            assert_equal(weights(nets[k]), before)
            for net in (nets[k], kept[k]):
                train(net, step)
            if rng.random() < 0.3:
                found.undo(k)
                fresh = odd()
                fresh.load_state_dict(before)
                kept[k] = fresh
            else:
                found.close(k)
                fresh = odd()
                fresh.load_state_dict(kept[k].state_dict())
                kept[k] = fresh  # a network keeps nothing but its state
    for k in range(5):
        with found.reading(k) as net:
            assert_equal(weights(net), weights(kept[k]))
    assert sum(map(len, found.free.values())) <= 8  # four of each architecture at most


def test_a_network_looks_as_one_that_was_just_made() -> None:
    found, made = states(), copy.deepcopy(odd())
    for step in (0, 1):
        with found.changing(0) as net:
            train(net, step)
    with found.reading(2) as net:
        assert [module.training for module in net.modules()] == [True] * 5
        for (name, ours), (_, theirs) in zip(net.named_parameters(), made.named_parameters(), strict=True):
            assert (ours.requires_grad, ours.grad, ours.stride()) == (theirs.requires_grad, None, theirs.stride()), name
            assert ours.data_ptr() % 64 == 0
        assert net.second.weight is net.first.weight
        assert net.scratch.tolist() == [1, 1]
        assert_equal(weights(net), weights(made))
    assert found.held == {0}


def test_a_network_with_another_shape_is_refused() -> None:
    found = states()
    with pytest.raises(RunError, match=r"client 3 with model other: .* first\.bias"), found.changing(3) as net:
        net.first = nn.Linear(4, 5)
    assert found.held == set()
    with found.reading(3) as net:
        assert_equal(weights(net), weights(odd("other")))


def test_clients_move_between_workers(tmp_path: Path) -> None:
    """With their rows where files are shared, without where they are not, as on different machines."""
    plan, raw = planned(loaded("algorithm={name: standalone}"))
    files = StateFiles(StateLimits(1e-6, str(tmp_path)))
    one, near, far = (ClientWorker(plan, raw(), files=kept) for kept in (files, files, None))
    found = [
        uploaded
        for uploaded, *_ in one.training.train(1, [(0,), (1,), (2,)], Broadcast((), dict.fromkeys(range(3))), False)
    ]
    assert found == [0, 1, 2] == sorted(one.states.unsaved)
    expected = one.fingerprints([0, 1, 2])
    near.adopt(one.release([0, 7], shared=True))
    moved = one.release([1], shared=False)
    assert moved[1].row is not None and moved[1].unsaved
    far.adopt(moved)
    assert [worker.states.held for worker in (one, near, far)] == [{2}, {0}, {1}]
    assert [worker.states.unsaved for worker in (one, near, far)] == [{2}, {0}, {1}]
    assert {**one.fingerprints([2]), **near.fingerprints([0]), **far.fingerprints([1])} == expected
    assert one.fingerprints([0])[0] == far.fingerprints([0])[0] != expected[0]  # as made again
    for worker in (one, far):
        worker.states.files.close()
