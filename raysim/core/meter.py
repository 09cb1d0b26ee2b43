"""Floating-point operations, counted by torch once per piece of work and multiplied from then on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from raysim.core.torch_workarounds import FlopCounterMode


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

    def of(self, key: Hashable, work: Callable[[], object]) -> int:
        """Operations of `work`, which runs the first time that its key is seen."""
        if key not in self.counted:
            self.counted[key] = flops_of(work)
        return self.counted[key]


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
