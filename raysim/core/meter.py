"""Floating-point operations, counted by torch once per piece of work and multiplied from then on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch

from raysim.core.torch_workarounds import FlopCounterMode

SMALL = 2, 3, 4
"""Sizes of the batches whose operations tell those of others; BatchNorm cannot train on one sample."""


def flops_of(work: Callable[[], object]) -> int:
    """Run `work` once and return its floating-point operations (2 per multiply-add).

    torch's global generators are left as they were, so that counting never changes a result.
    """
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cuda), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@dataclass
class FlopMeter:
    """Operations of each kind of work; a key says all that they depend on."""

    counted: dict[Hashable, int] = field(default_factory=dict)
    small: dict[Hashable, list[int] | None] = field(default_factory=dict)  # of batches of `SMALL` samples

    def of(self, key: Hashable, work: Callable[[], object]) -> int:
        """Operations of `work`, which runs the first time that its key is seen."""
        if key not in self.counted:
            self.counted[key] = flops_of(work)
        return self.counted[key]

    def of_batch(self, key: Hashable, size: int, work: Callable[[int], object], samples: int) -> int:
        """Operations of `work(size)`, which works on a batch of so many samples. samples: how many there are.

        They are a polynomial of the size: of degree 1, or 2 for a loss that compares the samples of a batch. So those
        of three small batches tell those of any. Whether they do is seen on the first larger batch; if not, or where
        `work` fails on a small one, each size is counted by itself.
        """
        if (key, size) not in self.counted:
            if size > SMALL[-1] and (known := self.small.get(key)) is not None:
                self.counted[key, size] = _quadratic(known, size)
                return self.counted[key, size]
            flops = self.counted[key, size] = flops_of(partial(work, size))
            if size > SMALL[-1] and key not in self.small and samples >= SMALL[-1]:
                self.small[key] = None
                with suppress(Exception):  # a loss may need more samples, as for the five most alike
                    counts = [flops_of(partial(work, one)) for one in SMALL]
                    self.small[key] = counts if _quadratic(counts, size) == flops else None
        return self.counted[key, size]


def _quadratic(counts: Sequence[int], size: int) -> int:
    """The value at `size` of the polynomial of degree 2 that has these values at `SMALL`."""
    two, three, four = counts
    twice = two * (size - 3) * (size - 4) - 2 * three * (size - 2) * (size - 4) + four * (size - 2) * (size - 3)
    return twice // 2


@dataclass
class ClientStats:
    """The cost of one client's round, and how its training went."""

    flops: float = 0.0
    loss_sum: float = 0.0
    samples: int = 0
    values: dict[str, float] = field(default_factory=dict)  # what the algorithm logged
    apart: str = ""  # why it was not trained together with others

    @property
    def train_loss(self) -> float:
        """Mean loss per sample over the round's training; NaN when nothing was trained."""
        return self.loss_sum / self.samples if self.samples else float("nan")
