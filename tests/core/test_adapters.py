"""Frozen modules and adapters: what a network keeps, shares and refuses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from raysim import SplitNet
from raysim.common.inputs import InputSpec, image
from raysim.core import Frozen, Task, lora
from raysim.core.adapters import check_ranks
from raysim.core.messages import Model, weights, wire_size
from raysim.models import build_model


def body() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5))


def test_a_frozen_module_is_no_part_of_the_state_and_stays_as_it_is():
    net = nn.Sequential(Frozen(body()), nn.Linear(5, 2)).train()
    assert list(net.state_dict()) == ["1.weight", "1.bias"] == [name for name, _ in net.named_parameters()]
    inside = net[0].get_submodule("1")
    x = torch.randn(8, 4)
    first = net[0](x)
    net(x).sum().backward()
    assert not inside.training and not inside.running_mean.any() and net[0](x).equal(first)


def test_copies_of_a_network_have_its_frozen_weights():
    net, x = nn.Sequential(Frozen(body()), nn.Linear(5, 2)), torch.randn(3, 4)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other(x).equal(net(x))


def test_networks_of_a_process_share_equal_frozen_weights():
    one, two = (nn.Sequential(Frozen(body()[0])).to("cpu") for _ in range(2))
    other = body()[0]
    other.weight.data[0, 0] += 1
    assert one[0].weight is two[0].weight is not nn.Sequential(Frozen(other)).to("cpu")[0].weight
    assert one.double()[0].weight.dtype == torch.float64 != two[0].weight.dtype


def test_an_adapter_adds_its_scaled_product():
    linear = nn.Linear(2, 3)
    net, x = lora(copy.deepcopy(linear), rank=1, alpha=4), torch.tensor([[1.0, 2.0]])
    assert net(x).equal(linear(x))  # B is 0
    net.load_state_dict({"lora_A": torch.tensor([[1.0, 1.0]]), "lora_B": torch.tensor([[1.0], [0.0], [2.0]])})
    # (1 + 2) B times 4 / 1.
    assert_close(net(x) - linear(x), torch.tensor([[12.0, 0.0, 24.0]]))


def test_layers_choose_where_adapters_are():
    assert list(lora(body(), rank=2).state_dict()) == ["0.lora_A", "0.lora_B", "3.lora_A", "3.lora_B"]
    assert list(lora(body(), rank=2, layers="3").state_dict()) == ["3.lora_A", "3.lora_B"]
    assert list(lora(body(), rank=2, layers="nowhere").state_dict()) == []


def test_uploads_have_the_size_of_adapters_and_header():
    # Four layers with two matrices of 128 x 128 each: 8 r (128 + 128) numbers; a header of 10 * 128 + 10.
    for rank, size in ((2, 21_544), (8, 70_696)):
        layers = [nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)) for _ in range(4)]
        net = SplitNet(lora(nn.Sequential(*layers), rank), nn.Linear(128, 10))
        assert wire_size(Model(weights(net))).bytes == size == 4 * (8 * rank * 256 + 1290)


@pytest.mark.parametrize(
    ("name", "reads"), [("digits_vit", image(1, 8, 8)), ("transformer", InputSpec("tokens", (6,), 9))]
)
def test_all_ranks_of_a_family_have_one_base(name: str, reads: InputSpec):
    def model(name: str, *key: str) -> Any:
        torch.manual_seed(len(name) + hash(key))
        return build_model(name, num_classes=3, input_spec=reads, feature_dim=16)

    check_ranks(Task(3, 16, (f"{name}_lora2", f"{name}_lora8"), model))
