"""Replay of training steps on a CUDA device: a step is recorded once as a CUDA graph, and then repeated by one call.

A step of a small network is some 80 kernels of a few microseconds each. Python takes five times as long to start them
as the GPU takes to run them; a graph starts them all at once. A replay computes the same bits, because it runs the same
kernels in the same order.

A recording repeats what the device did, not what Python did. So a step is not recorded if the CPU waited for the device
in it, as in `float(loss)`, or if it drew random numbers on the CPU: the values may differ in the next step.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from raysim.core.data import Batch

FEWEST = 8
"""Number of steps of a training from which recording is worth it: a recording takes as long as two or three steps."""

BEFORE = 2
"""Number of steps that run before a step with batches of the same size is recorded. In the first one, libraries choose
and allocate what they use later, and the optimizer creates its state."""

Step = Callable[[Batch], Tensor | None]
"""Trains on a batch; returns rows of the loss for its samples, if any."""


@contextmanager
def replayed(step: Step, steps: int, device: torch.device, rng: torch.Generator | None = None) -> Iterator[Step]:
    """Yield a function that does what `step` does, but repeats recorded steps where it can.

    `step` must do the same operations on every batch of one shape, and keep what it changes in the same tensors. steps:
    number of steps of this training. rng: the client's generator.

    Raises `RuntimeError` if CUDA refuses to record a step.
    """
    if device.type != "cuda" or steps < FEWEST:
        yield step
        return
    # CUDA records work on any stream but the default one.
    stream, before = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(before)
    replay = _Replay(step, device, [torch.default_generator, *([rng] if rng else [])])
    try:
        with torch.cuda.stream(stream):
            yield replay
    finally:
        before.wait_stream(stream)
        for recorded in replay.recorded.values():
            recorded.graph.reset()


@dataclass
class _Recorded:
    """A recorded step: the batch that it reads, and the rows that it writes."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    rows: Tensor | None


@dataclass
class _Replay:
    """Runs steps, and repeats recorded ones."""

    step: Step
    device: torch.device
    generators: Sequence[torch.Generator]  # of the CPU
    seen: Counter[Any] = field(default_factory=Counter)  # form of a batch -> number of steps
    recorded: dict[Any, _Recorded] = field(default_factory=dict)  # form of a batch -> its step
    refused: bool = False  # whether the steps depend on the CPU, so that none is recorded

    def __call__(self, batch: Batch) -> Tensor | None:
        form = tuple(None if value is None else (value.shape, value.stride()) for value in _parts(batch))
        self.seen[form] += 1
        if self.refused or self.seen[form] < BEFORE:
            return self.step(batch)
        if self.seen[form] == BEFORE:
            return self._watched(batch)
        if form in self.recorded:
            for place, value in zip(_parts(self.recorded[form].batch), _parts(batch), strict=True):
                if place is not None and value is not None:
                    place.copy_(value)
        else:
            self.recorded[form] = self._record(batch)
        self.recorded[form].graph.replay()
        return self.recorded[form].rows

    def _watched(self, batch: Batch) -> Tensor | None:
        """Run a step, and set `refused` if it depends on the CPU."""
        before = [generator.get_state() for generator in self.generators]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                rows = self.step(batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waited = any("called a synchronizing CUDA operation" in str(one.message) for one in caught)
        drew = any(
            not torch.equal(state, generator.get_state())
            for state, generator in zip(before, self.generators, strict=True)
        )
        self.refused = waited or drew
        return rows

    def _record(self, batch: Batch) -> _Recorded:
        """Record a step, which does not run it."""
        # `clone` keeps strides. The copy is outside the memory of recordings, which they share.
        x, y, index, *others = [None if value is None else value.clone() for value in _parts(batch)]
        assert x is not None and y is not None and index is not None
        still, graph, pool = Batch(x, y, index, *others), torch.cuda.CUDAGraph(), _first(self.device).pool()
        torch.cuda.current_stream(self.device).synchronize()
        graph.capture_begin(pool, "thread_local")
        try:
            rows = self.step(still)
            graph.capture_end()
        except Exception as error:
            with suppress(Exception):
                graph.capture_end()
            raise RuntimeError(
                f"a training step cannot be recorded as a CUDA graph: {error}; set training.cuda_graphs to false"
            ) from error
        return _Recorded(graph, still, rows)


def _parts(batch: Batch) -> tuple[Tensor | None, ...]:
    return batch.x, batch.y, batch.index, batch.weight, batch.second


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@cache
def _first(device: torch.device) -> torch.cuda.CUDAGraph:
    """Return a recording whose memory all recordings of this process use, as only one runs at a time.

    It is kept, because torch gives up the memory of recordings when the last one is gone.
    """
    graph, place = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
    graph.capture_begin(capture_error_mode="thread_local")
    place.add_(1)
    graph.capture_end()
    return graph
