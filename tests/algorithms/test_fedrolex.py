"""FedRolex against numbers worked out by hand, and against HeteroFL."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedrolex import FedRolex, moves, rolled
from raysim.common.inputs import image
from raysim.core import Model, Server, Task, Weights, weights
from raysim.models import build_model

WIDTHS = {"third": 1, "two": 2, "whole": 3}


class Net(nn.Module):
    """One number in, a hidden layer of one to three, two entries of each, a representation of one, C = 2 logits."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width = WIDTHS[name]
        self.hidden, self.last, self.header = nn.Linear(1, width), nn.Linear(2 * width, 1), nn.Linear(1, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x).repeat_interleave(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.header(self.features(x))


def numbers(hidden: list[float], hidden_bias: list[float], last: list[float]) -> Weights:
    """The weights of a `Net` whose other numbers are 0."""
    return {
        "hidden.weight": torch.tensor(hidden)[:, None],
        "hidden.bias": torch.tensor(hidden_bias),
        "last.weight": torch.tensor(last)[None],
        "last.bias": torch.zeros(1),
        "header.weight": torch.zeros(2, 1),
        "header.bias": torch.zeros(2),
    }


# Unit i has weight 10 i, bias 10 i + 1, and the two entries 10 i + 2 and 10 i + 3 of the next layer.
WHOLE = numbers([0.0, 10.0, 20.0], [1.0, 11.0, 21.0], [2.0, 3.0, 12.0, 13.0, 22.0, 23.0])


def model(name: str, *key: str) -> Net:
    net = Net(name)
    net.load_state_dict({key: w[tuple(map(slice, net.state_dict()[key].shape))] for key, w in WHOLE.items()})
    return net


TASK = Task(2, 1, ("third", "two"), model)
PLAIN: dict[str, Any] = {"server_model": "whole", "masked": False}


def server_of(algorithm: FedRolex, task: Task = TASK) -> Server[dict[str, Model]]:
    """Client 0 has one sample and a third of the width, client 1 three samples and two thirds."""
    server: Server[dict[str, Model]] = Server(task, torch.Generator(), {0: 1, 1: 3}, arch={0: "third", 1: "two"})
    server.state = algorithm.server_start(server, {})
    return server


def units(sent: Model) -> list[float]:
    """Which units a message holds, after a look at all their numbers."""
    first = sent.w["hidden.weight"][:, 0]
    assert sent.w["hidden.bias"].equal(first + 1)
    assert sent.w["last.weight"][0].equal(torch.stack([first + 2, first + 3], 1).flatten())
    return (first / 10).tolist()


@pytest.mark.parametrize(("step", "starts"), [(1, [0, 1, 2, 0]), (2, [0, 2, 1, 0]), (0, [0, 0, 0, 0])])
def test_windows_roll_and_wrap_around(step: int, starts: list[int]):
    # Clients send back what they got, so that the numbers tell which unit they are of.
    algorithm = FedRolex(step=step, **PLAIN)
    server = server_of(algorithm)
    for start in starts:
        sent = {k: algorithm.server_send(server, k) for k in (0, 1)}
        assert units(sent[0]) == [start]
        assert units(sent[1]) == [start, (start + 1) % 3]
        algorithm.server_update(server, sent)


def test_numbers_are_averaged_where_the_windows_are():
    # Round 1: unit 0 is of both, (1 + 5) / 2 = 3; unit 1 is client 1's alone; unit 2 stays.
    algorithm = FedRolex(**PLAIN)
    server = server_of(algorithm)
    first = {
        0: Model(numbers([1.0], [1.0], [1.0, 1.0])),
        1: Model(numbers([5.0, 6.0], [5.0, 6.0], [5.0, 5.0, 6.0, 6.0])),
    }
    algorithm.server_update(server, first)
    # Round 2: unit 1 is client 0's window, units 1 and 2 are client 1's.
    assert algorithm.server_send(server, 0).w["hidden.weight"].tolist() == [[6.0]]
    assert algorithm.server_send(server, 1).w["last.weight"].tolist() == [[6.0, 6.0, 22.0, 23.0]]
    second = {
        0: Model(numbers([2.0], [2.0], [2.0, 2.0])),
        1: Model(numbers([8.0, 9.0], [8.0, 9.0], [8.0, 8.0, 9.0, 9.0])),
    }
    algorithm.server_update(server, second)
    # Unit 1 is (2 + 8) / 2 = 5, unit 2 is 9, unit 0 keeps its 3. Round 3 begins at unit 2.
    assert server.state["whole"].w["hidden.weight"].flatten().tolist() == [9.0, 3.0, 5.0]
    assert server.state["whole"].w["last.weight"].flatten().tolist() == [9.0, 9.0, 3.0, 3.0, 5.0, 5.0]


def test_clients_can_count_by_their_samples():
    # One sample and three: (1 + 3 * 5) / 4 = 4 for unit 0, which stands last in round 2.
    algorithm = FedRolex(agg="weighted", **PLAIN)
    server = server_of(algorithm)
    ups = {0: Model(numbers([1.0], [1.0], [1.0, 1.0])), 1: Model(numbers([5.0, 6.0], [5.0, 6.0], [5.0] * 4))}
    algorithm.server_update(server, ups)
    assert server.state["whole"].w["hidden.weight"].flatten().tolist() == [6.0, 20.0, 4.0]


def test_a_narrow_client_scales_by_its_share_of_the_server_s_network():
    # The hidden layer gives 1 * 0 + 1 = 1, divided by 1/3: 3; twice 3, times 2 and 3: 15.
    x = torch.ones(1, 1)
    net = FedRolex(**PLAIN).client_model(model("third"), TASK)
    assert net.features(x).item() == pytest.approx(15.0)
    # Without a wider server, the widest has two units: divided by 1/2.
    assert FedRolex(masked=False).client_model(model("third"), TASK).features(x).item() == pytest.approx(10.0)


FAMILIES = [
    ([f"fmnist_cnn{i}" for i in range(1, 6)], (1, 28, 28), 50),
    ([f"heterofl_cnn_{level}" for level in "bcde"], (1, 8, 8), 64),
]


def task_of(names: list[str], shape: tuple[int, int, int], width: int) -> Task:
    def build(name: str, *key: str) -> Any:
        torch.manual_seed(1)
        return build_model(name, num_classes=10, input_spec=image(*shape), feature_dim=width)

    return Task(10, width, tuple(names), build)


@pytest.mark.parametrize(("names", "shape", "width"), FAMILIES)
def test_rolling_moves_units_with_all_their_numbers(names: list[str], shape: tuple[int, int, int], width: int):
    # The whole network computes the same, in another order, whichever unit is the first.
    task = task_of(names, shape, width)
    FedRolex().check(task)
    nets = {name: weights(task.model(name)) for name in names}
    net, images = task.model(names[0]).eval(), torch.rand(4, *shape)
    expected = net(images)
    other = rolled(nets[names[0]], moves(nets), 3)
    assert sum(not other[name].equal(w) for name, w in nets[names[0]].items()) >= 3
    net.load_state_dict(other)
    assert_close(net(images), expected)
