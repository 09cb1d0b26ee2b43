"""Local training against steps worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.contract.toy import toy_model, toy_samples
from raysim.core.algorithm import Client, Server, Task
from raysim.core.data import Batch, tensors
from raysim.core.fit import FitJob, FitResult, LocalTraining, fit_one, make_optimizers
from raysim.core.ops import cross_entropy
from raysim.core.torch_workarounds import eval_mode


class One(nn.Module):
    """A single weight."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value]))


def square(net: Any, batch: Batch, given: Any) -> Tensor:
    """w^2 / 2 per sample, whose gradient is w."""
    return batch.mean(net.w.square().expand(len(batch.y)) / 2)


def two_squares(net: Any, batch: Batch, given: Any) -> Tensor:
    """The same for a network of two weights."""
    return (net[0].w.square() + net[1].w.square()).sum() / 2


def steps(count: int, size: int = 2) -> list[Batch]:
    return [Batch(torch.zeros(size, 1), torch.zeros(size), torch.arange(size))] * count


def test_a_mean_of_more_than_one_value_per_sample_is_refused() -> None:
    """With weights, a table [B, C] of as many classes as samples would give a wrong number without a word."""
    (batch,) = steps(1, size=3)
    with pytest.raises(ValueError, match=r"batch\.mean"):
        replace(batch, weight=torch.ones(3)).mean(torch.ones(3, 3))


def fit(net: nn.Module, loss: Any = square, batches: Sequence[Batch] = (), **local: Any) -> FitResult:
    return fit_one(FitJob(net, loss, None, batches or steps(2), LocalTraining(**local)))


def test_the_result_has_losses_before_each_step():
    # Times two samples: 2 * (0.5 + 0.405).
    assert fit(One(), lr=0.1) == FitResult(pytest.approx(1.81), 4)


STEPS = [
    (2, {}, 0.81),  # 1 - 0.1 * 1 = 0.9; 0.9 - 0.1 * 0.9 = 0.81
    # v = 1, step 1 + 0.5 * 1, w = 0.85; v = 0.5 * 1 + 0.85 = 1.35, step 0.85 + 0.5 * 1.35 = 1.525, w = 0.6975.
    (2, {"momentum": 0.5, "nesterov": True}, 0.6975),
    # g = 1 + 0.2 = 1.2, w = 0.88; g = 0.88 * 1.2 = 1.056, v = 0.6 + 1.056 = 1.656, w = 0.88 - 0.1656 = 0.7144.
    (2, {"momentum": 0.5, "weight_decay": 0.2}, 0.7144),
    # Before weight decay: clip(1) = 0.5, + 0.2 = 0.7, w = 0.93; clip(0.93) = 0.5, + 0.186 = 0.686, w = 0.8614.
    (2, {"clip": 0.5, "weight_decay": 0.2}, 0.8614),
    (1, {"optimizer": "adam"}, 0.9),  # the first step of Adam is the rate, whatever the gradient
    (1, {"optimizer": "adamw", "weight_decay": 0.5}, 0.85),  # 1 * (1 - 0.1 * 0.5) = 0.95, minus the rate
]


@pytest.mark.parametrize(("count", "local", "weight"), STEPS)
def test_steps_by_hand(count: int, local: dict[str, Any], weight: float):
    net = One()
    fit(net, batches=steps(count), lr=0.1, **local)
    assert net.w.item() == pytest.approx(weight, abs=1e-5)


def test_a_parameter_with_a_learning_rate_of_its_own():
    net = nn.Sequential(One(), One())
    job = FitJob(net, two_squares, None, steps(2), LocalTraining())
    fit_one(replace(job, local=LocalTraining(lr=0.1, momentum=0.5), rates={"1.w": 0.2}))
    # Both: v = 1; v = 0.5 * 1 + w. At 0.1: 0.9, then v = 1.4, 0.76. At 0.2: 0.8, then v = 1.3, 0.54.
    assert [net[0].w.item(), net[1].w.item()] == pytest.approx([0.76, 0.54])
    # The norm that is clipped is that of all parameters: (0.76, 0.54) of length 0.9323 becomes (0.4076, 0.2896).
    fit_one(replace(job, batches=steps(1), local=LocalTraining(lr=0.1, clip=0.5), rates={"1.w": 0.2}))
    assert [net[0].w.item(), net[1].w.item()] == pytest.approx([0.76 - 0.04076, 0.54 - 0.05792], abs=1e-5)
    for optimizer in ("adam", "adamw"):  # whose first step is the rate
        net = nn.Sequential(One(), One())
        local = LocalTraining(lr=0.1, optimizer=optimizer)  # type: ignore[arg-type]
        fit_one(replace(job, net=net, batches=steps(1), local=local, rates={"1.w": 0.2}))
        assert [net[0].w.item(), net[1].w.item()] == pytest.approx([0.9, 0.8])


def test_a_step_leaves_a_parameter_within_its_bounds():
    net = nn.Sequential(One(), One())
    job = FitJob(net, two_squares, None, steps(2), LocalTraining(lr=0.2))
    fit_one(replace(job, bounds={"1.w": (0.9, 2.0)}))
    # 0.8 and 0.64; 0.8, which is put on 0.9, and 0.72 from there, likewise.
    assert [net[0].w.item(), net[1].w.item()] == pytest.approx([0.64, 0.9])
    net[1].w.requires_grad_(False)
    fit_one(replace(job, batches=steps(1), bounds={"1.w": (2.0, 3.0)}))
    assert net[1].w.item() == pytest.approx(0.9)  # it is not trained


def test_no_momentum_outlives_a_turn():
    net = One()
    fit(net, batches=steps(1), lr=0.1, momentum=0.5)
    fit(net, batches=steps(1), lr=0.1, momentum=0.5)
    assert net.w.item() == pytest.approx(0.81)  # 0.76 if it did


def test_frozen_parameters_stay():
    net = nn.Sequential(One(), One())
    net[1].w.requires_grad_(False)
    fit(net, lambda n, batch, given: (n[0].w * n[1].w).sum(), steps(1), lr=0.1)
    assert [net[0].w.item(), net[1].w.item()] == pytest.approx([0.9, 1.0])


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.4, False), (0.4, True)])
def test_sgd_is_torchs_sgd_bit_for_bit(momentum: float, nesterov: bool):
    local = LocalTraining(lr=0.3, momentum=momentum, weight_decay=0.05, nesterov=nesterov)
    ours, theirs = ([nn.Parameter(torch.linspace(-1, 1, 7)), nn.Parameter(torch.ones(2))] for _ in range(2))
    (mine,) = make_optimizers(dict(zip("ab", ours, strict=True)), local, {})
    reference = torch.optim.SGD(theirs, lr=0.3, momentum=momentum, weight_decay=0.05, nesterov=nesterov, fused=True)
    for step in range(4):
        for parameters in (ours, theirs):
            parameters[0].grad = torch.cos(parameters[0].detach() * (step + 1))
            # The second has no gradient in the second step, as a part of a network that was not used.
            parameters[1].grad = None if step == 1 else parameters[1].detach() ** 2
        mine.step()
        reference.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    mine.zero_grad()
    assert ours[0].grad is None


class Line(nn.Module):
    """A weight by which samples of one feature are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w)


def ones(count: int) -> list[Batch]:
    return [Batch(torch.ones(2, 1), torch.zeros(2), torch.arange(2))] * count


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_networks_compute_in_a_lower_precision_and_nothing_else_does(precision: str):
    net, seen = Line(), []

    def loss(net: Any, batch: Batch, given: Any) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            net(batch.x)
        output_B1 = net(batch.x)  # after a pass without gradients, which must not take them from this one
        seen.append(output_B1.dtype)
        return batch.mean(output_B1.flatten()), output_B1

    job = FitJob(net, loss, None, ones(1), LocalTraining(lr=0.1, precision=precision), num_samples=2)
    result = fit_one(job)
    assert seen == [getattr(torch, precision)]
    assert net.w.dtype == torch.float32 and net.w.item() == pytest.approx(0.9)
    assert result.rows is not None and result.rows.dtype == torch.float32 and result.loss_sum == pytest.approx(2.0)


def test_a_small_gradient_survives_in_float16():
    net = Line()
    # 1e-8 is 0 in float16, whose smallest number is 6e-8.
    local = LocalTraining(lr=1e7, precision="float16")
    fit_one(FitJob(net, lambda n, batch, given: n(batch.x).float().mean() * 1e-8, None, ones(1), local))
    assert net.w.item() == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_step_beyond_float16_is_left_out_and_the_scale_is_halved(optimizer: str):
    seen = []

    def loss(net: Any, batch: Batch, given: Any) -> Tensor:
        seen.append(net.w.item())
        return net(batch.x).float().mean() * 10

    # Scales of 2^15, 2^14 and 2^13 make a gradient of 10 greater than 65504.
    local = LocalTraining(optimizer=optimizer, lr=0.01, precision="float16")  # type: ignore[arg-type]
    fit_one(FitJob(Line(), loss, None, ones(5), local))
    assert seen[:4] == [1.0] * 4 and seen[4] < 1.0


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", torch.bfloat16), ("float16", torch.float32)])
def test_the_server_trains_in_bfloat16_too(precision: str, dtype: torch.dtype):
    seen = []

    def loss(net: Any, batch: Batch, given: Any) -> Tensor:
        logits_BC = net(batch.x)
        seen.append(logits_BC.dtype)
        return logits_BC.square().mean()

    task = Task(4, 8, ("flat",), toy_model)
    server: Server[Any] = Server(task, torch.Generator(), local=LocalTraining(precision=precision))  # type: ignore[arg-type]
    for local in (None, LocalTraining(optimizer="adam")):
        server.fit(toy_model("flat"), loss, data=toy_samples([0, 1], 0), local=local)
    assert seen == [dtype, dtype]


def logits_kept(net, batch, given):
    logits_BC = net(batch.x)
    return batch.mean(F.cross_entropy(logits_BC, batch.y, reduction="none")), logits_BC


def test_rows_are_kept_in_data_order_and_are_those_before_the_last_step():
    samples = toy_samples([0, 1, 2, 3, 0, 1, 2], 0)

    def client(net, epochs):
        local = LocalTraining(epochs=epochs, batch_size=3, lr=0.5)
        task = Task(4, 8, ("flat",), toy_model)
        return Client(0, task, samples, net, local, torch.Generator().manual_seed(3))

    # A row is the output in the last epoch, as it was before the step that saw the sample.
    first, net = client(toy_model("flat"), 1), toy_model("flat")
    rows_NC = first.fit(logits_kept)
    for batch in samples.shuffled(3, 1, torch.Generator().manual_seed(3)):
        assert torch.equal(rows_NC[batch.index], net(batch.x).detach())
        loss, _ = logits_kept(net, batch, None)
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in net.parameters():
                weight -= 0.5 * weight.grad
    assert not rows_NC.requires_grad and rows_NC.shape == (7, 4)
    # Two epochs asked for are two epochs, whatever the scenario says.
    one, two = client(toy_model("flat"), 2), client(toy_model("flat"), 1)
    assert torch.equal(one.fit(logits_kept), two.fit(logits_kept, epochs=2))
    assert two.stats.samples == 14


def test_a_sample_that_is_left_out_has_no_row():
    samples = toy_samples([0, 1, 2, 3], 0)
    task = Task(4, 8, ("norm",), toy_model)
    client = Client(0, task, samples, toy_model("norm"), LocalTraining(batch_size=3), torch.Generator())
    missing_N = client.fit(logits_kept).isnan().all(1)
    assert missing_N.sum() == 1  # BatchNorm cannot train on the last batch, of one sample
    assert client.fit(cross_entropy) is None


def test_fit_and_outputs_on_a_part_of_the_data():
    samples, seen = toy_samples([0, 1, 2, 3, 0], 0), []
    client = Client(0, Task(4, 8, ("flat",), toy_model), samples, toy_model("flat"), LocalTraining(), torch.Generator())

    def loss(net, batch, given):
        seen.append(batch.y)
        return cross_entropy(net, batch, given)

    part = samples.subset(torch.tensor([1, 4]))
    client.fit(loss, data=part)
    assert sorted(torch.cat(seen).tolist()) == [0, 1]
    assert torch.equal(client.outputs(client.net, part), client.outputs(client.net)[[1, 4]])


def test_missing_rows_are_completed() -> None:
    samples = toy_samples([0, 1, 2], 0)
    client = Client(0, Task(4, 8, ("flat",), toy_model), samples, toy_model("flat"), LocalTraining(), torch.Generator())

    row = torch.ones(3, 2)
    row[1] = torch.nan
    assert client.complete(row, lambda x_B: torch.full((len(x_B), 2), 7.0)).tolist() == [[1, 1], [7, 7], [1, 1]]


def test_only_some_parameters_are_trained():
    net = nn.Sequential(One(), One())

    data = toy_samples([0, 1], 0)
    local = LocalTraining(lr=0.1, weight_decay=0.5)
    client = Client(0, Task(2, 1, ("one",), toy_model), data, net, local, torch.Generator())
    client.fit(two_squares, only=["1.w"])
    assert [net[0].w.item(), net[1].w.item()] == pytest.approx([1.0, 0.85])  # 1 - 0.1 * (1 + 0.5 * 1)
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_sample_left_out_of_the_last_epoch_keeps_its_row_of_an_earlier_one() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data, seen = tensors(torch.randn(9, 3), torch.tensor([0, 1] * 4 + [0])), []

    def loss(net: Any, batch: Batch, given: Any) -> tuple[Tensor, Tensor]:
        logits_BC = net(batch.x)
        seen.append(dict(zip(batch.index.tolist(), logits_BC.detach(), strict=True)))
        return batch.mean(nn.functional.cross_entropy(logits_BC, batch.y, reduction="none")), logits_BC

    batches = data.shuffled(8, 2, torch.Generator().manual_seed(1), drop_single=True)
    rows = fit_one(FitJob(net, loss, None, batches, LocalTraining(batch_size=8, lr=0.1, epochs=2), 9)).rows
    (left_out,) = set(range(9)) - seen[1].keys()
    assert left_out in seen[0] and rows is not None and torch.equal(rows[left_out], seen[0][left_out])


def test_a_module_that_was_assigned_after_a_training_is_trained() -> None:
    """As by `client.net.header = ...` in a hook."""
    net = nn.ModuleList([One(), nn.Identity()])

    def loss(net: Any, batch: Batch, given: Any) -> Tensor:
        return square(net[0], batch, given)

    fit(net, loss, lr=0.1)
    net[0], net[1] = One(2.0), nn.Dropout()
    fit(net, loss, lr=0.1)
    assert net[0].w.item() == pytest.approx(1.62)  # 2 - 0.2 = 1.8; 1.8 - 0.18
    with eval_mode(net):
        assert not net[1].training
    assert net[1].training
