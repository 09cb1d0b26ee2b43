"""Floating-point operations, counted by torch once for each kind of work and reused after that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType

from torch import Tensor, nn

from raysim.core.accelerator import random_state, set_random_state
from raysim.core.torch_workarounds import FlopCounterMode

SMALL = 2, 3, 4
"""Batch sizes from which the operations of larger batches are computed; BatchNorm cannot train on one sample."""


DEEPEST = 4
"""Levels of functions and containers, one inside the other, that `kind_of` looks into."""


def flops_of(work: Callable[[], object]) -> int:
    """Run `work` once and return its floating-point operations (2 per multiply-add).

    torch's global generators keep their state, so that counting never changes a result.
    """
    before = random_state()
    try:
        with FlopCounterMode(display=False) as counter:
            work()
    finally:
        set_random_state(before)
    return counter.get_total_flops()


@dataclass
class FlopMeter:
    """Operations of each kind of work. Its key must contain everything that the count depends on."""

    counted: dict[Hashable, int] = field(default_factory=dict)
    small: dict[Hashable, list[int] | None] = field(default_factory=dict)  # counts at `SMALL`; None: not a polynomial

    def of(self, key: Hashable, work: Callable[[], object]) -> int:
        """Return the operations of `work`, which runs only the first time that its key is seen."""
        if key not in self.counted:
            self.counted[key] = flops_of(work)
        return self.counted[key]

    def of_batch(self, key: Hashable, size: int, work: Callable[[int], object], samples: int) -> int:
        """Return the operations of `work(size)` on a batch of `size` samples. samples: number of samples available.

        The count is a polynomial of the batch size: of degree 1, or 2 for a loss that compares the samples of a batch.
        So the counts of three small batches determine those of all sizes. The first larger batch verifies this; if it
        does not hold, or if `work` fails on a small batch, each size is counted separately.
        """
        if (key, size) not in self.counted:
            if size > SMALL[-1] and (known := self.small.get(key)) is not None:
                self.counted[key, size] = _quadratic(known, size)
                return self.counted[key, size]
            flops = self.counted[key, size] = flops_of(partial(work, size))
            if size > SMALL[-1] and key not in self.small and samples >= SMALL[-1]:
                self.small[key] = None
                with suppress(Exception):  # a loss may need more samples, for example five nearest neighbours
                    counts = [flops_of(partial(work, one)) for one in SMALL]
                    self.small[key] = counts if _quadratic(counts, size) == flops else None
        return self.counted[key, size]


def kind_of(value: object, depth: int = 0) -> Hashable:
    """Return what a function's operations depend on, besides its input: its code, and what it refers to.

    Its name is not enough: two lambdas of one hook have the same name, and so has a method of two networks. Floats are
    left out, because they may change in every round, such as a temperature.
    """
    of = partial(kind_of, depth=depth + 1)
    if depth > DEEPEST:
        return type(value).__qualname__
    if isinstance(value, partial):
        return of(value.func), of(value.args), of(value.keywords)
    if isinstance(value, MethodType):
        return of(value.__func__), of(value.__self__)
    if isinstance(value, FunctionType):
        closed = []
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # a variable without a value so far
                closed.append(cell.cell_contents)
        return value.__code__, of(value.__defaults__), of(value.__kwdefaults__), of(closed)
    if isinstance(value, nn.Module):
        return repr(value), of(list(value.state_dict().values()))
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if type(value) in (list, tuple):
        return tuple(map(of, value))  # type: ignore[call-overload]
    if type(value) is dict:
        return tuple((str(name), of(one)) for name, one in value.items())
    if type(value) in (int, bool, str):
        return value
    # Without a `__repr__` of its own, a callable object has another text each time, and is counted each time.
    return repr(value) if callable(value) else type(value).__qualname__


def _quadratic(counts: Sequence[int], size: int) -> int:
    """Return the value at `size` of the polynomial of degree 2 with the values `counts` at `SMALL`."""
    two, three, four = counts
    twice = two * (size - 3) * (size - 4) - 2 * three * (size - 2) * (size - 4) + four * (size - 2) * (size - 3)
    return twice // 2


@dataclass
class ClientStats:
    """Costs and training results of one client's round."""

    flops: float = 0.0
    loss_sum: float = 0.0
    samples: int = 0
    values: dict[str, float] = field(default_factory=dict)  # what the algorithm logged
    apart: str = ""  # why it was not trained together with others

    @property
    def train_loss(self) -> float:
        """Mean loss per sample over the round's training; NaN when nothing was trained."""
        return self.loss_sum / self.samples if self.samples else float("nan")
