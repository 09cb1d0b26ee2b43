"""Several clients trained by one call, against each trained alone."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysim.core.data import Augmentation, Batch, Samples, Shuffled, tensors
from raysim.core.fit import FitJob, FitResult, LocalTraining, Loss, fit_one
from raysim.core.ops import cross_entropy, kl
from raysim.grouped.together import fit_all, outputs_together
from tests.conftest import REPOSITORY

SAME, UNEVEN = (8, 8, 8), (5, 12, 8, 1)


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Noisy:
    """A transform that draws."""

    draws = True

    def plain(self, raw_B: Tensor) -> Tensor:
        return raw_B

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator) -> Sequence[Augmentation]:
        noises = [torch.randn(size, *like.shape[1:], generator=rng) for size in sizes]
        return [partial(lambda noise, raw_B: raw_B + 0.1 * noise, noise) for noise in noises]


def perceptron(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), *between, nn.ReLU(), nn.Linear(4, 2))


def jobs_of(
    sizes: Sequence[int],
    net: Any = perceptron,
    loss: Loss = cross_entropy,
    given: Sequence[Any] | None = None,
    two_views: bool = False,
    transform: Any = None,
    rates: Any = None,
    bounds: Any = None,
    batch_size: int = 4,
    **local: Any,
) -> list[FitJob]:
    """A job per client, with samples, initial weights and draws of its own; the same at each call."""
    made = []
    for k, size in enumerate(sizes):
        torch.manual_seed(k)
        data = tensors(torch.randn(size, 3), torch.randint(2, (size,)))
        if transform is not None:
            data = Samples(data.raw_N, data.y, transform)
        training = LocalTraining(epochs=2, batch_size=batch_size, lr=0.2, **local)
        batches = data.shuffled(batch_size, 2, torch.Generator().manual_seed(k), False, two_views)
        made.append(
            FitJob(net(), loss, given[k] if given else None, batches, training, size, rates or {}, bounds or {})
        )
    return made


def check_alike(*args: Any, **given: Any) -> None:
    """Trained together, jobs end as each alone: weights, loss, number of samples, rows."""
    together, alone = jobs_of(*args, **given), jobs_of(*args, **given)
    found, expected = fit_all(together), [fit_one(job) for job in alone]
    for one, other, job, of in zip(found, expected, together, alone, strict=True):
        assert isinstance(one, FitResult), one
        assert one.samples == other.samples
        assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-6)  # float32 sums
        for (name, value), same in zip(job.net.state_dict().items(), of.net.state_dict().values(), strict=True):
            torch.testing.assert_close(value, same, rtol=0, atol=1e-9, msg=name)
        if other.rows is not None:
            torch.testing.assert_close(one.rows, other.rows, rtol=0, atol=1e-9, equal_nan=True)
        else:
            assert one.rows is None
        assert all(parameter.grad is None for parameter in job.net.parameters())
        assert job.net.training


@pytest.mark.parametrize(
    "local",
    [
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True},
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1},
        {"clip": 0.05},
        {"rates": {"0.weight": 0.01}, "momentum": 0.5},
        {"bounds": {"0.weight": (-0.1, 0.1)}, "momentum": 0.5},
    ],
    ids=str,
)
def test_optimizers(local: dict[str, Any]) -> None:
    check_alike(UNEVEN, **local)


def test_batches_of_equal_sizes() -> None:
    check_alike(SAME)


@pytest.mark.parametrize("loss", [cross_entropy, lambda net, batch, given: kept(net, batch)], ids=["plain", "rows"])
def test_bfloat16(loss: Loss) -> None:
    torch.set_default_dtype(torch.float32)  # autocast leaves float64 as it is
    lower, full = (jobs_of(UNEVEN, loss=loss, precision=precision) for precision in ("bfloat16", "float32"))
    alone = jobs_of(UNEVEN, loss=loss, precision="bfloat16")
    results = fit_all(lower)
    fit_all(full)
    for one, job, other, exact in zip(results, lower, alone, full, strict=True):
        expected = fit_one(other)
        assert isinstance(one, FitResult), one
        assert one.loss_sum == pytest.approx(expected.loss_sum, rel=0.01)
        assert one.rows is None or one.rows.dtype == torch.float32
        for value, same, better in zip(*(one.net.parameters() for one in (job, other, exact)), strict=True):
            assert value.dtype == torch.float32 and not torch.equal(value, better)
            torch.testing.assert_close(value, same, rtol=0, atol=0.02)


def kept(net: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    logits_BC = net(batch.x)
    return batch.mean(-F.log_softmax(logits_BC, 1).gather(1, batch.y[:, None]).squeeze(1)), logits_BC


def test_clients_of_one_call_may_have_different_epochs_and_no_other_settings() -> None:
    def jobs() -> list[FitJob]:
        first, *others = jobs_of(UNEVEN)
        batches = first.batches
        assert isinstance(batches, Shuffled)
        fewer = replace(batches, epochs=1)
        return [replace(first, batches=fewer, local=replace(first.local, epochs=1)), *others]

    together, alone = jobs(), jobs()
    for one, job, other in zip(fit_all(together), together, alone, strict=True):
        assert isinstance(one, FitResult) and one.samples == fit_one(other).samples
        for value, same in zip(job.net.parameters(), other.net.parameters(), strict=True):
            torch.testing.assert_close(value, same, rtol=0, atol=1e-9)
    first, *others = jobs_of(SAME)
    mixed = fit_all([replace(first, local=replace(first.local, lr=0.1)), *others])
    assert mixed == ["the training settings of the clients differ"] * 3


def test_augmentation_draws_from_each_clients_generator() -> None:
    check_alike(UNEVEN, transform=Noisy())
    check_alike(UNEVEN, transform=Noisy(), two_views=True, loss=both_views)


def both_views(net: Any, batch: Batch, given: Any) -> Tensor:
    assert batch.second is not None
    return batch.mean((net(batch.x) - net(batch.second)).square().sum(1)) + cross_entropy(net, batch, None)


def logits_kept(net: Any, batch: Batch, given: Any) -> tuple[Tensor, Tensor]:
    logits_BC = net(batch.x)
    return batch.mean(F.cross_entropy(logits_BC, batch.y, reduction="none")), logits_BC


def test_rows_are_kept_in_data_order() -> None:
    check_alike(UNEVEN, loss=logits_kept)


def taught(net: Any, batch: Batch, given: tuple[Tensor, float]) -> Tensor:
    teacher_NC, weight = given
    return cross_entropy(net, batch, None) + weight * batch.mean(kl(net(batch.x), teacher_NC[batch.index]))


def test_what_a_loss_is_given_per_sample_may_differ_in_length() -> None:
    check_alike(UNEVEN, loss=taught, given=[(torch.arange(2.0 * n).view(n, 2), 0.5) for n in UNEVEN])


def test_clients_with_and_without_an_argument_are_two_groups() -> None:
    jobs = jobs_of((8,) * 4)
    jobs[2:] = [replace(job, given=torch.ones(2)) for job in jobs[2:]]
    assert all(isinstance(result, FitResult) for result in fit_all(jobs))


def test_batchnorm() -> None:
    check_alike(SAME, net=lambda: perceptron(nn.BatchNorm1d(4)))


def frozen() -> nn.Module:
    net = perceptron()
    net[0].requires_grad_(False)
    return net


def test_frozen_and_tied_parameters() -> None:
    check_alike(UNEVEN, net=frozen)
    check_alike(UNEVEN, net=tied)


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(3, 2))


def zero_header() -> nn.Module:
    """Every sample has the same loss."""
    net = perceptron()
    for parameter in net[-1].parameters():
        nn.init.zeros_(parameter)
    return net


def scaled(scale: float) -> Loss:
    def loss(net: Any, batch: Batch, given: Any) -> Tensor:
        return scale * cross_entropy(net, batch, None)

    return loss


def plain_mean(net: Any, batch: Batch, given: Any) -> Tensor:
    return F.cross_entropy(net(batch.x), batch.y)


def reads_a_number(net: Any, batch: Batch, given: Any) -> Tensor:
    return cross_entropy(net, batch, None) * net[0].weight.sum().item()


APART = [
    ({"net": lambda: perceptron(nn.BatchNorm1d(4)), "sizes": (6, 8)}, "BatchNorm needs equal batch sizes"),
    ({"net": lambda: perceptron(nn.Dropout(0.5))}, "randomness"),
    ({"loss": plain_mean, "sizes": (4, 7)}, "batch.mean"),
    ({"loss": plain_mean, "sizes": (12, 5)}, "batch.mean"),  # the smallest batch has one sample
    ({"loss": plain_mean, "sizes": (4, 3), "net": zero_header}, "batch.mean"),
    ({"loss": reads_a_number}, "item"),
    ({"given": [torch.zeros(2), torch.zeros(3), torch.zeros(3)], "loss": cross_entropy}, "differ in shape"),
    ({"given": [(0.1,), (0.2,), (0.3,)]}, "values that are not tensors"),
    ({"rates": {"nothing": 0.1}}, "is not a parameter"),
]


@pytest.mark.parametrize(
    ("changes", "reason"), APART, ids=[f"{reason}-{changes.get('sizes', SAME)}" for changes, reason in APART]
)
def test_what_no_call_can_do_is_left_as_it_was_and_says_why(changes: dict[str, Any], reason: str) -> None:
    changes = {"sizes": SAME, **changes}
    jobs, untouched = jobs_of(**changes), jobs_of(**changes)
    found = fit_all(jobs)
    assert all(isinstance(one, str) and reason in one for one in found), found
    for job, same in zip(jobs, untouched, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(job.net.parameters(), same.net.parameters(), strict=True))
        # The generators are back as well, so that training alone draws what it would have drawn.
        assert [batch.index.tolist() for batch in job.batches] == [batch.index.tolist() for batch in same.batches]


def test_one_sample_beside_more_is_padded_as_any_other_batch() -> None:
    check_alike((40, 17), batch_size=16)
    check_alike((40, 17), batch_size=16, net=zero_header)


def test_different_losses_are_not_mixed() -> None:
    one, two = scaled(1.0), scaled(2.0)
    jobs = [replace(job, loss=loss) for job, loss in zip(jobs_of((8, 8, 8, 8)), [one, two] * 2, strict=True)]
    alone = [replace(job, loss=loss) for job, loss in zip(jobs_of((8, 8, 8, 8)), [one, two] * 2, strict=True)]
    for found, job in zip(fit_all(jobs), alone, strict=True):
        assert isinstance(found, FitResult)
        assert found.loss_sum == pytest.approx(fit_one(job).loss_sum, rel=1e-6)


def test_a_client_without_a_batch_stays_as_it_is() -> None:
    jobs = jobs_of((8, 8, 0))
    before = copy.deepcopy(jobs[2].net.state_dict())
    assert fit_all(jobs)[2] == FitResult(0.0, 0)
    assert all(torch.equal(value, before[name]) for name, value in jobs[2].net.state_dict().items())


def test_outputs() -> None:
    nets = [job.net for job in jobs_of(SAME, net=lambda: perceptron(nn.BatchNorm1d(4)))]
    x_GB = torch.randn(3, 5, 3)
    found = outputs_together(nets, x_GB)
    for net, x_B, output in zip(nets, x_GB, found, strict=True):
        torch.testing.assert_close(output, net.eval()(x_B), rtol=0, atol=1e-12)


LIGHT = """
import sys
from raysim.core.fit import fit_one
from raysim.core.meter import FlopMeter, flops_of
from raysim.grouped.together import fit_all, outputs_together
from tests.grouped.test_together import UNEVEN, jobs_of

for clip in (None, 1.0):
    flops_of(lambda: fit_one(jobs_of(UNEVEN, clip=clip)[0]))
    assert not any(one.alone_because for one in fit_all(jobs_of(UNEVEN, clip=clip)))
jobs = jobs_of((4, 4))
outputs_together([job.net for job in jobs], jobs[0].batches.data.x.expand(2, -1, -1))
print(*sorted({"sympy", "triton", "torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


@pytest.mark.large
def test_training_imports_no_compiler() -> None:
    """Each of these takes 0.4 to 2 s and 30 to 140 MB in every process; see `raysim.core.torch_workarounds`."""
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, cwd=REPOSITORY, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
