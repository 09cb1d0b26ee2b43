"""Floating-point operations, counted by torch once for each kind of work and reused after that."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinMethodType, CodeType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.core.accelerator import random_state, set_random_state
from raysim.core.torch_workarounds import FlopCounterMode

SMALL = 2, 3, 4
"""Batch sizes whose counted operations predict those of larger batches. All exceed 1, because of BatchNorm."""


MOST = 20_000
"""Maximum number of objects that `kind_of` visits: a ResNet-152 has about 9,000."""

_CONSTANT = str | bytes | type | ModuleType | CodeType | MethodDescriptorType | torch.dtype | torch.device
_DEFINED_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE in `__flags__` of a class


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
    """A cache of counted operations. The key of a kind of work must contain everything that affects the count.

    A key of `None` means that this is not known: the work is then counted each time.
    """

    counted: dict[Hashable, int] = field(default_factory=dict)
    # Counts at the batch sizes `SMALL`; None: they do not predict others.
    small: dict[Hashable, list[int] | None] = field(default_factory=dict)

    def of(self, key: Hashable, work: Callable[[], object]) -> int:
        """Return the operations of `work`, which is run only if its key is new."""
        if key is None:
            return flops_of(work)
        if key not in self.counted:
            self.counted[key] = flops_of(work)
        return self.counted[key]

    def of_batch(self, key: Hashable, size: int, work: Callable[[int], object], samples: int) -> int:
        """Return the operations of `work(size)` on a batch of `size` samples. samples: number of available samples.

        The count is a polynomial of the batch size: of degree 1, or 2 for a loss that compares the samples of a batch.
        So the counts of three small batches determine those of all sizes. The first larger batch verifies this; if it
        does not hold, or if `work` fails on a small batch, each size is counted separately.
        """
        if key is None:
            return flops_of(partial(work, size))
        if (key, size) not in self.counted:
            if size > SMALL[-1] and (known := self.small.get(key)) is not None:
                self.counted[key, size] = _quadratic(known, size)
                return self.counted[key, size]
            flops = self.counted[key, size] = flops_of(partial(work, size))
            if size > SMALL[-1] and key not in self.small and samples >= SMALL[-1]:
                self.small[key] = None
                # A loss may fail on a small batch, for example if it needs five nearest neighbours.
                with suppress(Exception):
                    counts = [flops_of(partial(work, one)) for one in SMALL]
                    self.small[key] = counts if _quadratic(counts, size) == flops else None
        return self.counted[key, size]


def kind_of(value: object, given: Sequence[tuple[object, Hashable]] = ()) -> int | None:
    """Return a hash of a function's code and of all that it refers to. Operations depend only on this and the input.

    Its name is not enough: two lambdas of one hook have the same name, and so has a method of two networks. Of a float,
    only the sign is part of the result, because a temperature may change in every round, but a weight of zero may turn
    a term off. Of a tensor, it is the shape and whether it requires a gradient.

    given: objects that are part of the caller's key already, with all that they refer to -> what describes them.
    Returns `None` if the operations may depend on something else: on an object that is not made of functions, modules,
    containers, tensors, numbers, strings, and instances of classes written in Python. What a function reads from global
    variables is not seen.
    """
    try:
        # `hash` keeps the key small: the description of a network takes 100 KB
        return hash(_Description(given).of(value))
    except Exception:  # for example from objects that cannot be hashed, or lazy layers, whose attributes raise
        return None


class _NotKnownError(Exception):
    """An object may contain something that `kind_of` cannot describe."""


class _Description:
    """Describes objects for `kind_of`. An object that was described before is replaced by its number."""

    def __init__(self, given: Sequence[tuple[object, Hashable]]) -> None:
        self.known: dict[int, Hashable] = {id(one): kind for one, kind in given}
        self.seen = [one for one, _ in given]  # keeps the objects alive, so that no other object gets the same `id`

    def of(self, value: object) -> Hashable:
        """Describe an object. Raises `_NotKnownError`."""
        if isinstance(value, int):  # as text, because the integers -1 and -2 have the same hash
            return type(value), str(value)
        if value is None or isinstance(value, _CONSTANT):
            return type(value), value
        if isinstance(value, float):
            return "float", (value > 0) - (value < 0)
        if id(value) in self.known:
            return "known", self.known[id(value)]
        if len(self.seen) == MOST:
            raise _NotKnownError
        self.known[id(value)] = len(self.seen)
        self.seen.append(value)
        return type(value), *map(self.of, self._parts(value))

    def _parts(self, value: Any) -> Sequence[object]:
        """Return the objects that determine the operations of an object. Raises `_NotKnownError`."""
        parts: list[object] = []
        if isinstance(value, Tensor):
            return [value.requires_grad, *value.shape]
        if isinstance(value, torch.Generator):
            return ()
        if isinstance(value, partial):
            return value.func, value.args, value.keywords
        if isinstance(value, MethodType):
            return value.__func__, value.__self__
        if isinstance(value, BuiltinMethodType):
            return value.__name__, value.__self__
        if isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # a closure variable may have no value yet
                    parts.append(cell.cell_contents)
            return value.__module__, value.__code__, value.__defaults__, value.__kwdefaults__, *parts
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return value.shape
        if isinstance(value, np.generic):
            return (value.item(),)
        if isinstance(value, dict):
            parts = _flat(value)
        elif isinstance(value, list | tuple | set | frozenset):
            parts = list(value)
        elif not (hasattr(value, "__dict__") and all(map(_is_python, type(value).__mro__))):
            raise _NotKnownError
        if any(getattr(base, "__slots__", ()) for base in type(value).__mro__):
            raise _NotKnownError
        return *parts, *_flat(getattr(value, "__dict__", {}))


def _is_python(base: type) -> bool:
    return base is object or bool(base.__flags__ & _DEFINED_IN_PYTHON)


def _flat(content: Mapping[Any, object]) -> list[object]:
    return [part for item in content.items() for part in item]


def _quadratic(counts: Sequence[int], size: int) -> int:
    """Return the value at `size` of the polynomial of degree 2 through `counts` at the batch sizes `SMALL`."""
    two, three, four = counts
    twice = two * (size - 3) * (size - 4) - 2 * three * (size - 2) * (size - 4) + four * (size - 2) * (size - 3)
    return twice // 2


@dataclass
class ClientStats:
    """Costs and training results of one client's round."""

    flops: float = 0.0
    loss_sum: float = 0.0
    samples: int = 0
    values: dict[str, float] = field(default_factory=dict)  # values that the algorithm logged
    alone_because: str = ""  # why the client was not trained together with others
    single_sample: bool = False  # whether a training of a BatchNorm network had only one sample

    @property
    def train_loss(self) -> float:
        """Mean loss per sample over the round's training; NaN when nothing was trained."""
        return self.loss_sum / self.samples if self.samples else float("nan")
