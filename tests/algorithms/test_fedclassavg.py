"""FedClassAvg against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from raysim.algorithms.fedclassavg import FedClassAvg
from raysim.core import Batch


class Given(nn.Module):
    """An extractor that gives what it gets, and a header; it counts what passes through."""

    def __init__(self, width: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.header = nn.Linear(width, classes)
        self.seen: list[int] = []

    def features(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.header(self.features(x))


def batch_of(first_BD: list[list[float]], second_BD: list[list[float]], y: list[int], **extra: Any) -> Batch:
    return Batch(torch.tensor(first_BD), torch.tensor(y), torch.arange(len(y)), second=torch.tensor(second_BD), **extra)


def contrast(method: FedClassAvg, batch: Batch) -> Tensor:
    assert batch.second is not None
    return method.contrast(torch.cat([batch.x, batch.second]), batch)


def slow_contrast(method: FedClassAvg, batch: Batch) -> float:
    """The definition, anchor by anchor."""
    assert batch.second is not None
    feature_AD = torch.cat([batch.x, batch.second]).double()
    if method.normalise:
        feature_AD = feature_AD / feature_AD.norm(dim=1, keepdim=True)
    labels = [*batch.y.tolist(), *batch.y.tolist()]
    losses = []
    for a, anchor in enumerate(feature_AD):
        others = [i for i in range(len(labels)) if i != a]
        similar = {i: math.exp(float(anchor @ feature_AD[i]) / method.temperature) for i in others}
        logs = [math.log(similar[i] / sum(similar.values())) for i in others if labels[i] == labels[a]]
        losses.append(-method.temperature / method.base_temperature * sum(logs) / len(logs))
    return sum(losses) / len(losses)


def test_kat_two_classes_with_orthonormal_features() -> None:
    batch = batch_of([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], [0, 1])
    method = FedClassAvg(temperature=1.0, base_temperature=1.0)
    # Each anchor has similarity 1 to its other view, and 0 to both views of the other sample: -log(e / (e + 2)).
    assert_close(contrast(method, batch), torch.tensor([0.5514, 0.5514]), rtol=0, atol=5e-5)
    assert contrast(method, batch).tolist() == pytest.approx([-math.log(math.e / (math.e + 2))] * 2)
    # Of one class, all three others are positives: mean(1, 0, 0) - log(e + 2) = 1/3 - 1.5514.
    same = batch_of([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], [1, 1])
    assert contrast(method, same).tolist() == pytest.approx([math.log(math.e + 2) - 1 / 3] * 2)


@pytest.mark.parametrize(
    "settings",
    [{}, {"normalise": False, "temperature": 5.0}, {"temperature": 0.5}, {"base_temperature": 1.0}],
    ids=str,
)
def test_the_contrastive_loss_is_its_definition(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    first, second = torch.rand(6, 4).tolist(), torch.rand(6, 4).tolist()
    batch = batch_of(first, second, [0, 1, 0, 2, 1, 0])
    method = FedClassAvg(**settings)
    found = float(contrast(method, batch).mean())
    assert found == pytest.approx(slow_contrast(method, batch), rel=1e-5)
    if settings:
        assert found != pytest.approx(float(contrast(FedClassAvg(), batch).mean()), rel=1e-2)


@pytest.mark.parametrize("padding", [[0, 1], [2, 2]])
def test_padding_is_nobodys_candidate(padding: list[int]) -> None:
    # Padding of known classes would be a positive, of unknown ones another wrong candidate.
    torch.manual_seed(0)
    first, second = torch.rand(5, 4), torch.rand(5, 4)
    real = batch_of(first[:3].tolist(), second[:3].tolist(), [0, 1, 0])
    padded = batch_of(
        first.tolist(), second.tolist(), [0, 1, 0, *padding], weight=torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    )
    assert_close(contrast(FedClassAvg(), padded)[:3], contrast(FedClassAvg(), real))
    assert_close(padded.mean(contrast(FedClassAvg(), padded)), contrast(FedClassAvg(), real).mean())
    counted = batch_of(first.tolist(), second.tolist(), [0, 1, 0, *padding])
    assert not torch.allclose(contrast(FedClassAvg(), counted)[:3], contrast(FedClassAvg(), real), rtol=0.05)


def headers() -> tuple[nn.Linear, dict[str, Tensor]]:
    """A header, and one that differs by 3 in one of six weights and by 4 in one of three biases."""
    header = nn.Linear(2, 3)
    received = {name: value.detach().clone() for name, value in header.named_parameters()}
    received["weight"][1, 0] -= 3
    received["bias"][2] -= 4
    return header, received


def test_the_two_distances() -> None:
    header, received = headers()
    # Half of 9 / 6 + 16 / 3, and the root of 9 + 16.
    assert FedClassAvg().distance(header, received).detach().item() == pytest.approx(0.5 * (9 / 6 + 16 / 3), rel=1e-5)
    assert FedClassAvg(prox="norm").distance(header, received).detach().item() == pytest.approx(5, rel=1e-5)


@pytest.mark.parametrize(("prox", "distance"), [("mean_square", 0.5 * (9 / 6 + 16 / 3)), ("norm", 5.0)])
def test_the_loss_is_the_sum_of_three(prox: Any, distance: float) -> None:
    net = Given()
    net.header, received = headers()
    batch = batch_of([[1.0, 2.0], [3.0, 1.0]], [[2.0, 2.0], [1.0, 0.0]], [0, 1])
    ce = nn.functional.cross_entropy(net.header(batch.x), batch.y)  # of the first view alone
    con = contrast(FedClassAvg(), batch).mean()
    assert_close(FedClassAvg(rho=0.2, prox=prox).loss(net, batch, received), ce + con + 0.2 * distance)
    assert_close(FedClassAvg(contrastive=False, rho=0.2, prox=prox).loss(net, batch, received), ce + 0.2 * distance)
    assert_close(FedClassAvg().loss(net, batch, None), ce + con)
    assert net.seen == [4, 2, 4]  # both views in one pass, or one view


def test_the_official_contrast_is_weighed_for_adam_at_1e_4() -> None:
    # 64 images, all representations alike: every one of 127 others is as likely. CE of 100 equal logits is ln 100.
    batch = batch_of([[1.0, 0.0]] * 64, [[1.0, 0.0]] * 64, [0] * 64)
    net = Given(2, 100)
    nn.init.zeros_(net.header.weight)
    nn.init.zeros_(net.header.bias)
    assert FedClassAvg().loss(net, batch, None).item() == pytest.approx(math.log(127) + math.log(100), rel=1e-4)  # 9.45
    expected = 100 / 0.07 * math.log(127) + math.log(100)
    assert expected == pytest.approx(6924.9, abs=0.1)
    official = FedClassAvg(**FedClassAvg.profiles["official"])
    assert official.loss(net, batch, None).item() == pytest.approx(expected, rel=1e-4)
