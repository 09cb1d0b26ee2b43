"""HeteroFL against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.heterofl import HeteroFL
from raysim.common.inputs import image
from raysim.core import Client, LocalTraining, Model, Server, Task, Weights, tensors, weights
from raysim.core.messages import wire_size
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded
from raysim.models import build_model

WIDTHS = {"half": 1, "whole": 2}


class Net(nn.Module):
    """One number in, a hidden layer of one or two, a representation of one, C = 3 logits."""

    def __init__(self, name: str) -> None:
        super().__init__()
        width = WIDTHS[name]
        self.hidden, self.last, self.header = nn.Linear(1, width), nn.Linear(width, 1), nn.Linear(1, 3)

    def features(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.header(self.features(x))


def numbers(hidden: list[float], hidden_bias: list[float], last: list[float], header_bias: list[float]) -> Weights:
    """The weights of a `Net` whose other numbers are 0."""
    return {
        "hidden.weight": torch.tensor(hidden)[:, None],
        "hidden.bias": torch.tensor(hidden_bias),
        "last.weight": torch.tensor(last)[None],
        "last.bias": torch.zeros(1),
        "header.weight": torch.zeros(3, 1),
        "header.bias": torch.tensor(header_bias),
    }


WHOLE = numbers([1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0, 9.0])


def model(name: str, *key: str) -> Net:
    net = Net(name)
    net.load_state_dict({key: w[tuple(map(slice, net.state_dict()[key].shape))] for key, w in WHOLE.items()})
    return net


TASK = Task(3, 1, ("half", "whole"), model)


def server_of(algorithm: HeteroFL) -> Server[dict[str, Model]]:
    """Client 0 has the whole width, one sample and class 0; client 1 half of it, three samples and classes 0 and 1."""
    classes = {0: torch.tensor([0]), 1: torch.tensor([0, 1])}
    server: Server[dict[str, Model]] = Server(
        TASK, torch.Generator(), {0: 1, 1: 3}, classes=classes, arch={0: "whole", 1: "half"}
    )
    server.state = algorithm.server_start(server, {})
    return server


def client_of(algorithm: HeteroFL, arch: str, labels: list[int], lr: float = 0.3) -> Client:
    """A client whose samples are all 1."""
    net = algorithm.client_model(model(arch), TASK)
    data = tensors(torch.ones(len(labels), 1), torch.tensor(labels))
    return Client(0, TASK, data, net, LocalTraining(lr=lr), seeded(1, "client", 1, 0), t=1, arch=arch)


def is_close(found: Weights, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        assert_close(found[name], torch.tensor(value), rtol=0, atol=1e-6)


def test_a_narrow_client_gets_the_leading_block():
    algorithm = HeteroFL()
    server = server_of(algorithm)
    is_close(algorithm.server_send(server, 0).w, {"hidden.weight": [[1.0], [2.0]], "last.weight": [[5.0, 6.0]]})
    is_close(
        algorithm.server_send(server, 1).w,
        {"hidden.weight": [[1.0]], "hidden.bias": [3.0], "last.weight": [[5.0]], "header.bias": [7.0, 8.0, 9.0]},
    )


UPS = {
    0: Model(numbers([11.0, 12.0], [13.0, 14.0], [15.0, 16.0], [17.0, 18.0, 19.0])),
    1: Model(numbers([21.0], [23.0], [25.0], [27.0, 28.0, 29.0])),
}


def test_each_number_is_averaged_over_those_who_have_it():
    # Both have the first hidden unit: (11 + 21) / 2 = 16. The second is client 0's alone. Row 0 of the header is of a
    # class of both: (17 + 27) / 2 = 22; row 1 is client 1's; class 2 has no holder, and its 9 stays.
    algorithm = HeteroFL()
    server = server_of(algorithm)
    algorithm.server_update(server, UPS)
    is_close(
        server.state["whole"].w,
        {
            "hidden.weight": [[16.0], [12.0]],
            "hidden.bias": [18.0, 14.0],
            "last.weight": [[20.0, 16.0]],
            "header.bias": [22.0, 28.0, 9.0],
        },
    )
    is_close(server.state["half"].w, {"hidden.weight": [[16.0]], "hidden.bias": [18.0], "last.weight": [[20.0]]})


def test_clients_can_count_by_their_samples():
    # One sample and three: (11 + 3 * 21) / 4 = 18.5, (13 + 3 * 23) / 4 = 20.5, (17 + 3 * 27) / 4 = 24.5.
    algorithm = HeteroFL(agg="weighted")
    server = server_of(algorithm)
    algorithm.server_update(server, UPS)
    is_close(
        server.state["whole"].w,
        {"hidden.weight": [[18.5], [12.0]], "hidden.bias": [20.5, 14.0], "header.bias": [24.5, 28.0, 9.0]},
    )


def test_without_the_mask_every_row_of_the_header_counts():
    # (17 + 27) / 2, (18 + 28) / 2, (19 + 29) / 2.
    algorithm = HeteroFL(masked=False)
    server = server_of(algorithm)
    algorithm.server_update(server, UPS)
    is_close(server.state["whole"].w, {"header.bias": [22.0, 23.0, 24.0]})


def test_what_no_participant_has_stays():
    algorithm = HeteroFL()
    server = server_of(algorithm)
    algorithm.server_update(server, {1: UPS[1]})
    found = server.state["whole"].w
    is_close(found, {"hidden.weight": [[21.0], [2.0]], "last.weight": [[25.0, 6.0]], "header.bias": [27.0, 28.0, 9.0]})


@pytest.mark.parametrize("training", [True, False])
def test_a_narrow_layer_is_scaled(training: bool):
    # The hidden layer gives 1 * 1 + 3 = 4, divided by a half: 8. The last has one output in every width: 5 * 8 = 40.
    x = torch.ones(1, 1)
    assert HeteroFL().client_model(model("half"), TASK).train(training).features(x).item() == 40.0
    # 4 * 5 = 20 without the scaler. The widest: 4 * 5 + (2 + 4) * 6 = 56.
    assert HeteroFL(scaler=False).client_model(model("half"), TASK).train(training).features(x).item() == 20.0
    assert HeteroFL().client_model(model("whole"), TASK).train(training).features(x).item() == 56.0


def zeros(client: Client, header_bias: list[float]) -> Model:
    """A message whose numbers are 0, but for the header's bias: logits are that bias."""
    sent = {name: torch.zeros_like(w) for name, w in weights(client.net).items() if name != "owned_C"}
    return Model(sent | {"header.bias": torch.tensor(header_bias)})


def test_classes_that_a_client_lacks_are_masked():
    # The client has classes 0 and 2, and logits (0, 5, 0); masked they are (0, 0, 0).
    algorithm, plain = HeteroFL(), HeteroFL(masked=False)
    for method, loss, logits in (
        (algorithm, math.log(3), [0.0, 0.0, 0.0]),
        (plain, math.log(2 + math.exp(5)), [0.0, 5.0, 0.0]),
    ):
        client = client_of(method, "whole", [0, 2])
        method.client_receive(client, zeros(client, [0.0, 5.0, 0.0]))
        assert client.net.eval()(torch.ones(1, 1)).tolist() == [logits]
        batch = next(client.data.in_order(2))
        assert cross_entropy(client.net, batch, None).item() == pytest.approx(loss, abs=1e-6)


def test_training_leaves_the_header_of_absent_classes():
    # One sample of class 0 and one of class 2, logits (0, 0, 0), p = 1/3 each. Gradients of the logits, averaged:
    # class 0 (1/3 - 1 + 1/3) / 2 = -1/6, class 2 the same, and class 1 is masked. Times the learning rate 0.3: 0.05.
    algorithm = HeteroFL()
    client = client_of(algorithm, "whole", [0, 2])
    down = zeros(client, [0.0, 5.0, 0.0])
    algorithm.client_receive(client, down)
    up = algorithm.client_update(client, down)
    is_close(up.w, {"header.bias": [0.05, 5.0, 0.05]})
    assert up.w.keys() == down.w.keys()


def task_of(names: list[str], shape: tuple[int, int, int], width: int) -> Task:
    def build(name: str, *key: str) -> Any:
        return build_model(name, num_classes=10, input_spec=image(*shape), feature_dim=width)

    return Task(10, width, tuple(names), build)


def test_bytes_are_those_of_the_block():
    # Level e on CIFAR-10 has channels 4, 8, 16, 32 and D = 64. Convolutions 112 + 296 + 1,168 + 4,640, batch norm
    # 2 * 60, the projection 2,112 and the header 650 make 9,098 parameters; running statistics are 2 * 60 more floats,
    # and 4 counters have 8 B: 4 * 9,218 + 32.
    task = task_of(["heterofl_cnn_d", "heterofl_cnn_e"], (3, 32, 32), 64)
    algorithm = HeteroFL()
    server: Server[dict[str, Model]] = Server(task, torch.Generator(), arch={0: "heterofl_cnn_e"})
    server.state = algorithm.server_start(server, {})
    down = algorithm.server_send(server, 0)
    assert wire_size(down).bytes == 36_904
    net = algorithm.client_model(task.model("heterofl_cnn_e"), task)
    data = tensors(torch.rand(2, 3, 32, 32), torch.tensor([0, 1]))
    client = Client(0, task, data, net, LocalTraining(), seeded(1, "client", 1, 0))
    algorithm.client_receive(client, down)
    assert wire_size(algorithm.client_update(client, down)).bytes == 36_904


def test_other_networks_are_refused():
    # The one has more filters, the other more hidden units.
    with pytest.raises(ValueError, match="cnn5 is not a narrower version of cnn2"):
        HeteroFL().check(task_of(["cnn2", "cnn5"], (3, 32, 32), 500))
