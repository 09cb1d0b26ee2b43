"""What is created on a worker's device; torch's device `meta` stands for a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from raysim.engine.workers.client_samples import ClientSamples
from raysim.engine.workers.evaluation import ClientTester
from tests.engine.scenarios import loaded, planned

META = torch.device("meta")


class Creates(nn.Module):
    """Creates a tensor in `forward`, without naming a device."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x_B: Tensor) -> Tensor:
        return x_B.flatten(1)[:, :1] + torch.zeros(len(x_B), self.classes)


def test_a_network_is_tested_with_its_device_as_the_default() -> None:
    plan, raw = planned(loaded("algorithm={name: standalone}"))
    evaluation = ClientTester(plan, cast(Any, None), ClientSamples(plan, raw(), META))
    nets = [Creates(plan.num_classes) for _ in range(2)]
    assert evaluation._outputs(nets[0], np.arange(3)[None]).is_meta
    assert evaluation._stacked_outputs(nets, np.arange(6).reshape(2, 3)).is_meta
    assert torch.zeros(()).device.type == "cpu"


def test_a_model_has_the_same_weights_on_every_device() -> None:
    """A GPU's generator would draw other ones."""
    drawn: list[str] = []

    def build(name: str, **width: int) -> nn.Module:
        drawn.append(torch.zeros(()).device.type)
        return nn.Linear(1, 1)

    plan, _ = planned(loaded("algorithm={name: standalone}"))
    task = replace(plan, build_model=build).task
    with META:
        assert task.model("digits_mlp64").weight.is_meta
    assert not task.model("digits_mlp64").weight.is_meta
    assert drawn == ["cpu", "cpu"]
