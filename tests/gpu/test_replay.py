"""On a CUDA device: recorded steps give the bits of steps one by one, and what cannot be recorded is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysim.core import replay
from raysim.core.data import Batch, Samples, tensors
from raysim.core.fit import FitJob, FitResult, LocalTraining, Loss, fit_one
from raysim.core.ops import cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

SAMPLES, BATCH, EPOCHS = 20, 8, 10  # batches of 8, 8 and 4; with 9 epochs, those of 4 would not be worth a recording


def samples() -> Samples:
    rng = torch.Generator().manual_seed(1)
    x_N = torch.rand(SAMPLES, 6, generator=rng, device="cpu")
    return tensors(x_N.cuda(), torch.randint(0, 3, (SAMPLES,), generator=rng, device="cpu").cuda())


def fitted(loss: Loss, graphs: bool, **settings: Any) -> tuple[FitResult, list[Tensor]]:
    """Train a network with dropout and BatchNorm; return the result, and its parameters and buffers."""
    torch.manual_seed(3)
    with torch.device("cuda"):
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        local = LocalTraining(EPOCHS, BATCH, **{"momentum": 0.9, "clip": 1.0, **settings}, cuda_graphs=graphs)
        batches = samples().shuffled(BATCH, EPOCHS, torch.Generator().manual_seed(2), two_views=True)
        result = fit_one(FitJob(net, loss, None, batches, local, SAMPLES, {"4.bias": 0.5}, {"0.bias": (-0.1, 0.1)}))
    return result, [value.clone() for value in net.state_dict().values()]


def with_rows(net: Any, batch: Batch, given: Any) -> tuple[Tensor, Tensor]:
    logits_BC = net(batch.x) + net(batch.second)
    return nn.functional.cross_entropy(logits_BC, batch.y), logits_BC


def waiting(net: Any, batch: Batch, given: Any) -> Tensor:
    loss = cross_entropy(net, batch, given)
    return loss * 2 if float(loss) > 1.0 else loss


def drawing(net: Any, batch: Batch, given: Any) -> Tensor:
    return cross_entropy(net, batch, given) * torch.rand((), device="cpu").item()


def same(loss: Loss, **settings: Any) -> None:
    (got, state), (expected, other) = (fitted(loss, graphs, **settings) for graphs in (True, False))
    assert got.loss_sum == expected.loss_sum and got.samples == expected.samples == EPOCHS * SAMPLES
    assert (got.rows is None) == (expected.rows is None)
    assert got.rows is None or torch.equal(got.rows, expected.rows)
    assert all(torch.equal(one, another) for one, another in zip(state, other, strict=True))


def test_rows_dropout_batchnorm_and_bounds_are_replayed(replays: list[int]) -> None:
    same(with_rows)
    # Of 20 batches of 8 and 10 of 4, the first two of each kind run before the recording.
    assert len(replays) == (2 * EPOCHS - replay.BEFORE) + (EPOCHS - replay.BEFORE)


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        (waiting, {}),
        (drawing, {}),
        (cross_entropy, {"optimizer": "adam"}),
        (cross_entropy, {"precision": "float16"}),
    ],
    ids=["waiting", "drawing", "adam", "float16"],
)
def test_steps_that_cannot_be_recorded_run_one_by_one(loss: Loss, settings: dict[str, Any], replays: list[int]) -> None:
    same(loss, **settings)
    assert not replays


def test_many_recordings_take_no_more_memory_than_a_few(replays: list[int]) -> None:
    def reserved_after(times: int) -> int:
        for _ in range(times):
            fitted(cross_entropy, True)
        return torch.cuda.memory_reserved()

    few = reserved_after(5)
    assert reserved_after(50) == few and len(replays) > 50
