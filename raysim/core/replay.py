"""Replay of training steps on CUDA devices: steps are recorded as CUDA graphs; one call then repeats a whole step.

A step of a small network consists of some 80 kernels of a few microseconds each. Python takes longer to start these
kernels than the GPU takes to run them, but a graph starts them all at once. A replay computes the same bits, because it
runs the same kernels in the same order. Each training records anew, one graph for each shape of batches.

A recording repeats what the device did, not what Python did. So a step is not recorded if the CPU waited for the device
in it, as in `float(loss)`, or if it drew random numbers on the CPU: the values may differ in the next step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.core.data import Batch
from raysim.core.torch_workarounds import waits_for_device

BEFORE = 2
"""Number of steps without recording for each shape of batches. In the first step, libraries allocate the memory that
they use later, and the optimizer creates its state."""

WORTH = 5
"""Minimum number of expected replays for a recording, because a recording takes as long as two or three steps."""

LARGEST = 2**30
"""If a process uses more bytes of the device than this, it does not record. A recording has separate memory, so a large
step would need its memory twice. It would also gain little, because its kernels run longer than Python takes to start
them."""

Step = Callable[[Batch], Tensor | None]
"""Trains on a batch; returns rows of the loss for its samples, if any."""


class RecordingError(RuntimeError):
    """CUDA refused to record a training step. This process then trains later clients without recordings."""


_failed: list[torch.cuda.CUDAGraph] = []
"""Recordings that CUDA could not end. torch's allocator still uses them, so this process makes no new recordings."""


@contextmanager
def replayed(step: Step, steps: int, device: torch.device, rng: torch.Generator | None = None) -> Iterator[Step]:
    """Yield a function that trains as `step` does, but records steps and replays them where this is possible.

    `step` must do the same operations on every batch of one shape, and keep what it changes in the same tensors. steps:
    number of steps of this training. rng: the client's generator.

    Raises `RecordingError` if CUDA refuses to record a step.
    """
    nvidia = device.type == "cuda" and torch.version.hip is None
    if not nvidia or steps < BEFORE + 1 + WORTH or _failed:
        yield step
        return
    # CUDA can record work on any stream except the default stream.
    stream, before = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(before)
    replay = _Replay(step, steps, device, [torch.default_generator, *([rng] if rng else [])])
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
    """Runs steps, and replays recorded ones."""

    step: Step
    steps: int
    device: torch.device
    generators: Sequence[torch.Generator]  # generators of the CPU
    done: int = 0  # number of steps so far
    seen: Counter[Any] = field(default_factory=Counter)  # shape of a batch -> number of steps so far
    recorded: dict[Any, _Recorded] = field(default_factory=dict)  # shape of a batch -> its step
    refused: bool = False  # steps that depend on the CPU, or are large, are not recorded

    def __call__(self, batch: Batch) -> Tensor | None:
        shape = tuple(None if value is None else (value.shape, value.stride()) for value in _parts(batch))
        expected = self.seen[shape] * (self.steps - self.done) / max(self.done, 1)
        self.seen[shape] += 1
        self.done += 1
        recorded = self.recorded.get(shape)
        if recorded is not None:
            for place, value in zip(_parts(recorded.batch), _parts(batch), strict=True):
                if place is not None and value is not None:
                    place.copy_(value)
        else:
            if self.refused or self.seen[shape] < BEFORE:
                return self.step(batch)
            if self.seen[shape] == BEFORE:
                return self._watched(batch)
            if expected < WORTH:
                return self.step(batch)
            recorded = self.recorded[shape] = self._record(batch)
        recorded.graph.replay()
        return recorded.rows

    def _watched(self, batch: Batch) -> Tensor | None:
        """Run a step, and check whether steps of this kind can be recorded."""
        before = self._random_states()
        with waits_for_device() as waits:
            rows = self.step(batch)
        self.refused = bool(waits) or self._random_states() != before
        self.refused |= torch.cuda.memory_reserved(self.device) > LARGEST
        return rows

    def _random_states(self) -> list[object]:
        """Return the states of the CPU's random generators."""
        torchs = [generator.get_state().numpy().tobytes() for generator in self.generators]
        return [*torchs, random.getstate(), repr(np.random.get_state(legacy=False))]

    def _record(self, batch: Batch) -> _Recorded:
        """Record a step without running it."""
        # `clone` keeps the strides. It runs before the recording begins, so the clones are not in the memory that all
        # recordings share.
        x, y, index, *others = [None if value is None else value.clone() for value in _parts(batch)]
        assert x is not None and y is not None and index is not None
        still, graph, pool = Batch(x, y, index, *others), torch.cuda.CUDAGraph(), _first(self.device).pool()
        torch.cuda.current_stream(self.device).synchronize()
        graph.capture_begin(pool, "thread_local")
        try:
            rows = self.step(still)
        except BaseException as error:
            with suppress(Exception):
                _end(graph)
            if _failed and isinstance(error, Exception):
                raise _refusal(error) from error
            raise
        _end(graph)
        return _Recorded(graph, still, rows)


def _parts(batch: Batch) -> tuple[Tensor | None, ...]:
    return batch.x, batch.y, batch.index, batch.weight, batch.second


def _end(graph: torch.cuda.CUDAGraph) -> None:
    """End a recording. Raises `RecordingError` if CUDA refused an operation in it."""
    try:
        graph.capture_end()
    except Exception as error:
        _failed.append(graph)
        raise _refusal(error) from error


def _refusal(error: BaseException) -> RecordingError:
    text = f"a training step cannot be recorded as a CUDA graph: {error}; set training.cuda_graphs to false"
    return RecordingError(text)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@cache
def _first(device: torch.device) -> torch.cuda.CUDAGraph:
    """Return the recording whose memory all recordings of this process share.

    They can share it, because only one of them runs at a time. torch gives the memory up when the last recording that
    uses it is gone, so this one is kept.
    """
    graph, place = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
    graph.capture_begin(capture_error_mode="thread_local")
    place.add_(1)
    graph.capture_end()
    return graph
