"""Floating-point operations, counted by torch once per piece of work and multiplied from then on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@contextmanager
def _without_triton() -> Iterator[None]:
    """Let an import go without Triton: 7 MB in every process for a compiler of GPU kernels, none of which is used here.

    torch's counter imports it to know its kernels, and warns when it is not there.
    """
    log = logging.getLogger("torch.utils.flop_counter")
    level, absent = log.level, "triton" not in sys.modules
    if absent:
        sys.modules["triton"] = None  # type: ignore[assignment]
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        if absent:
            del sys.modules["triton"]


with _without_triton():
    from torch.utils import flop_counter
    from torch.utils.flop_counter import FlopCounterMode


def _leave_the_compiler_out() -> None:
    """Keep torch's counter from importing torch's compiler: 2 s and 140 MB in every process, never used here.

    torch imports it only to exempt the counter's dispatch function from compilation. A function that carries its own
    exemption is taken as it is; where a version of torch keeps it elsewhere, counting works and costs the import.
    """
    for mode in vars(flop_counter).values():
        dispatch = vars(mode).get("__torch_dispatch__") if isinstance(mode, type) else None
        function = getattr(dispatch, "__wrapped__", None)
        if function is not None and not hasattr(function, "__dynamo_disable"):
            function.__dict__["__dynamo_disable"] = function


_leave_the_compiler_out()


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
    """What one client's turn cost and how its training went."""

    flops: float = 0.0
    loss_sum: float = 0.0
    samples: int = 0
    values: dict[str, float] = field(default_factory=dict)  # what the algorithm logged

    @property
    def train_loss(self) -> float:
        """Mean loss per sample over the turn's training; NaN when nothing was trained."""
        return self.loss_sum / self.samples if self.samples else float("nan")
