"""Operations are counted right, once, and counting leaves no trace."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysim.contract.toy import toy_model, toy_samples
from raysim.core.algorithm import Client, Task
from raysim.core.data import Batch
from raysim.core.fit import LocalTraining
from raysim.core.meter import FlopMeter
from raysim.core.ops import cross_entropy
from raysim.core.seeds import seeded
from raysim.core.state import digest
from raysim.models.split import SplitNet


def client(arch: str, labels: list[int], meter: FlopMeter | None) -> Client:
    task = Task(4, 8, (arch,), toy_model)
    rng = seeded(7, "client", 1, 0)
    return Client(0, task, toy_samples(labels, 0), toy_model(arch), LocalTraining(2, 3), rng, 1, arch, meter=meter)


def test_fit_is_charged_per_sample_it_saw():
    # flat: 16 -> 8 -> 4. Forward 2 * (128 + 32) = 320; backward: the first layer's weights 256, the header's
    # weights and input 64 each. 704 per sample; 7 samples, 2 epochs.
    one = client("flat", [0, 1, 2, 3, 0, 1, 2], FlopMeter())
    one.fit(cross_entropy)
    assert one.stats.samples == 14
    assert one.stats.flops == 14 * 704


def test_a_loss_that_compares_samples_costs_more_in_a_larger_batch():
    def pairs(net: Any, batch: Batch, given: Any) -> Tensor:
        feature_BD = net.features(batch.x)
        return (feature_BD @ feature_BD.T).mean()

    # flat: of each sample 256 forward and 256 for the first layer's weights; of each batch 2 B B 8 for the products,
    # and as much for the gradient of either factor. Batches of 3, 3 and 1, twice; other clients' are of other sizes.
    meter = FlopMeter()
    for labels, batches in (([0, 1, 2, 3, 0, 1, 2], [3, 3, 1]), ([0, 1], [2]), ([0, 1, 2], [3])):
        one = client("flat", labels, meter)
        one.fit(pairs)
        assert one.stats.flops == 2 * sum(512 * size + 3 * 2 * size * size * 8 for size in batches)


def test_a_loss_is_charged_for_the_client_whose_argument_it_uses():
    """Clients share a meter: the order in which they train must not change what they are charged."""

    def pull(net: Any, batch: Batch, given: Any) -> Tensor:
        mean_SD, weight_N = given
        return ((net.features(batch.x) @ mean_SD.T).square().mean(1) * weight_N[batch.index]).mean()

    # flat, per sample: 256 forward and 256 for the first layer's weights; 2 S 8 for the product with S class means,
    # and as much for the gradient of the features. One weight per sample costs the same with 2 samples as with 6.
    for order in ([2, 5, 3], [5, 3, 2]):
        meter = FlopMeter()
        for classes, labels in ((classes, [0, 1] * (1 + classes % 3)) for classes in order):
            one = client("flat", labels, meter)
            one.fit(pull, (torch.ones(classes, 8), torch.ones(len(labels))))
            assert one.stats.flops == 2 * len(labels) * (512 + 2 * 2 * classes * 8)


def test_only_what_trains_is_charged_its_gradient():
    # flat, per sample: 320 forward; backward 256 (first layer's weights), 64 (header's weights), 64 (its input).
    meter = FlopMeter()
    for frozen, flops in ((None, 704), ("extractor", 320 + 64), ("header", 320 + 64 + 256)):
        one = client("flat", [0, 1, 2], meter)
        if frozen:
            getattr(one.net, frozen).requires_grad_(False)
        one.fit(cross_entropy)
        assert one.stats.flops == 2 * 3 * flops, frozen


def test_what_a_second_view_costs_is_charged_where_there_is_one():
    def loss(net: Any, batch: Batch, given: Any) -> Tensor:
        return net(batch.x if batch.second is None else torch.cat([batch.x, batch.second])).mean()

    meter = FlopMeter()
    for two_views in (False, True):
        one = client("flat", [0, 1, 2], meter)
        one.fit(loss, two_views=two_views)
        assert one.stats.flops == (1 + two_views) * 2 * 3 * 704


def test_a_batch_that_batchnorm_cannot_train_on_is_not_charged():
    one = client("norm", [0, 1, 2, 3, 0, 1, 2], FlopMeter())
    one.fit(cross_entropy)
    assert one.stats.samples == 12  # 3 + 3, twice; the seventh sample was left out


def test_outputs_are_charged_forward_only():
    one = client("flat", [0, 1, 2, 3, 0], FlopMeter())
    one.outputs(one.net.features)
    assert one.stats.flops == 5 * 2 * 16 * 8


def test_functions_of_one_name_are_charged_separately() -> None:
    wide, narrow, flat = nn.Linear(16, 30), nn.Linear(16, 5), nn.Flatten()
    meter = FlopMeter()

    def applied(net: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = net(flat(x))
        return out

    for both in (
        [lambda x, net=net: net(flat(x)) for net in (wide, narrow)],  # one line of code, two networks
        [partial(applied, net) for net in (wide, narrow)],
        [nn.Sequential(flat, net) for net in (wide, narrow)],
        [SplitNet(nn.Sequential(flat, net), nn.Linear(net.out_features, 4)).features for net in (wide, narrow)],
    ):
        found = []
        for function in both:
            one = client("flat", [0], meter)
            one.outputs(function)
            found.append(one.stats.flops)
        assert found == [2 * 16 * 30, 2 * 16 * 5]


def test_numbers_among_the_arguments_are_part_of_a_kind_of_work() -> None:
    def loss(net: Any, batch: Batch, given: Any) -> Tensor:
        return sum(net(batch.x).sum() for _ in range(given))

    meter = FlopMeter()
    for times in (1, 3, 2):
        one = client("flat", [0, 1], meter)
        one.fit(loss, times)
        assert one.stats.flops == 2 * 2 * 704 * times


def test_what_is_not_known_is_counted_each_time_and_not_kept() -> None:
    meter, held = FlopMeter(), (number for number in range(99))
    for width in (1, 2, 3):
        one = client("flat", [0, 1], meter)
        one.fit(lambda net, batch, given: net(batch.x).repeat(1, next(held) + 1).sum())
        assert one.stats.flops == 2 * 2 * 704, width
    assert not meter.counted


def test_a_loss_that_reads_the_round_is_counted_in_each_round() -> None:
    meter = FlopMeter()
    for t in (1, 2):
        one = client("flat", [0, 1], meter)
        one.t = t
        one.outputs(lambda x: one.net(x) if one.t == 1 else x)  # noqa: B023
        assert one.stats.flops == (2 * 320 if t == 1 else 0)


def test_counting_changes_neither_the_network_nor_any_draw():
    digests, after = [], []
    for meter in (None, FlopMeter()):
        torch.manual_seed(3)
        one = client("norm", [0, 1, 2, 3, 0, 1], meter)
        one.fit(cross_entropy)
        one.outputs(one.net.features)
        one.fit(cross_entropy, given=torch.zeros(1))
        digests.append(digest(one.net))
        after.append((torch.rand(1).item(), torch.rand(1, generator=one.rng).item()))
        assert all(parameter.grad is None for parameter in one.net.parameters())
    assert digests[0] == digests[1]
    assert after[0] == after[1]


def test_outputs_are_in_data_order_and_in_eval_mode():
    one = client("norm", [0, 1, 2, 3, 0], None)
    frozen = next(module for module in one.net.modules() if isinstance(module, nn.BatchNorm2d))
    frozen.eval()
    found = one.outputs(one.net.features)
    assert found.shape == (5, 8) and not found.requires_grad
    assert one.net.training and not frozen.training  # the modes before the call
    with torch.no_grad():
        expected = one.net.eval().features(one.data.x)
    assert torch.allclose(found, expected, atol=1e-6)
    assert one.stats.flops == 0.0


class Rows(nn.Module):
    """A layer for sequences, which reads the four rows of a toy image; its outputs are averaged."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_BCHW: Tensor) -> Tensor:
        found = self.layer(x_BCHW.squeeze(1))
        return (found[0] if isinstance(found, tuple) else found).mean(1)


@pytest.mark.parametrize(
    ("layer", "width", "macs"),
    [
        (nn.GRU(4, 8, batch_first=True), 8, 4 * 3 * 8 * (4 + 8)),
        (nn.LSTM(4, 8, batch_first=True), 8, 4 * 4 * 8 * (4 + 8)),
        # Attention in and out and the MLP for each row, and each row with each, as key and as value.
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 4, 4 * (4 * 16 + 2 * 32) + 2 * 16 * 4),
    ],
)
def test_layers_that_torch_computes_by_one_operation_are_charged(layer: nn.Module, width: int, macs: int) -> None:
    before = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()
    one = client("flat", [0, 1, 2, 3, 0], FlopMeter())
    one.net = SplitNet(Rows(layer), nn.Linear(width, 4))
    one.outputs(one.net.features)
    assert one.stats.flops == 5 * 2 * macs
    one.stats.flops = 0.0
    one.fit(cross_entropy)
    # Two epochs; the backward pass computes at least the gradients of the weights.
    assert one.stats.flops >= 2 * 5 * 2 * 2 * (macs - 2 * 16 * 4)
    after = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled()
    assert after == before
