"""Which steps are recorded and replayed, with a stand-in for CUDA; `tests/gpu/test_replay.py` needs a GPU."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from raysim.core import replay
from raysim.core.data import Batch
from raysim.core.replay import BEFORE, WORTH, replayed

CUDA = torch.device("cuda")
FEWEST = BEFORE + 1 + WORTH


class Graph:
    """A recording that only notes its replays; `done` gets what happens, in order."""

    def __init__(self, done: list[str]) -> None:
        self.done = done

    def capture_begin(self, *_: object) -> None:
        self.done.append("record")

    def capture_end(self) -> None:
        self.done.append("end")

    def pool(self) -> tuple[int, int]:
        return 0, 1

    def replay(self) -> None:
        self.done.append("replay")

    def reset(self) -> None:
        self.done.append("reset")


mode: list[str] = []
"""What torch does when the CPU waits for the device: the last entry."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    monkeypatch.setattr(replay, "_stream", lambda device: stream)
    monkeypatch.setattr(replay, "_first", lambda device: Graph([]))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: "default")
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.append)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(replay, "_failed", [])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(found))
    return found


def batch_of(*values: float) -> Batch:
    x = torch.tensor(values)
    return Batch(x, x.long(), x.long())


def run(step: Callable[[Batch], Tensor | None], batches: list[Batch], device: torch.device = CUDA) -> list[Tensor]:
    """The rows that each step returned."""
    with replayed(step, len(batches), device, torch.Generator()) as train:
        return [rows.clone() for batch in batches if (rows := train(batch)) is not None]


def test_the_third_batch_of_a_size_is_recorded_and_later_ones_are_replayed(done: list[str]) -> None:
    def step(batch: Batch) -> Tensor:
        done.append("step")
        return batch.x  # of a recording: the place to which later batches are copied

    batches = [batch_of(i, i) for i in range(20)] + [batch_of(9.0)] * 3
    rows = run(step, batches)
    first = ["step"] * BEFORE + ["record", "step", "end", "replay"] + ["replay"] * (20 - BEFORE - 1)
    assert done == [*first, *["step"] * 3, "reset"]  # the second size comes too late to be recorded
    assert [row.tolist() for row in rows] == [batch.x.tolist() for batch in batches]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_recorded_on_a_cpu_or_for_few_steps(device: str, done: list[str]) -> None:
    batches = [batch_of(1.0)] * (FEWEST - 1 if device == "cuda" else 3 * FEWEST)
    run(lambda batch: None, batches, torch.device(device))
    assert not done


def waits(batch: Batch) -> None:
    if mode and mode[-1] == "warn":
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)


def draws(batch: Batch) -> None:
    torch.rand(())


def draws_in_numpy(batch: Batch) -> None:
    np.random.rand()


def draws_in_python(batch: Batch) -> None:
    random.random()


@pytest.mark.parametrize("step", [waits, draws, draws_in_numpy, draws_in_python])
def test_steps_that_depend_on_the_cpu_are_not_recorded(step: Callable[[Batch], None], done: list[str]) -> None:
    run(step, [batch_of(1.0)] * FEWEST)
    assert not done and mode[-1] == "default"
