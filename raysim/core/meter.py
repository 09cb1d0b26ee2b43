"""Floating-point operations, counted by torch once for each kind of work and reused after that."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import BuiltinMethodType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.core.accelerator import random_state, set_random_state
from raysim.core.torch_workarounds import FlopCounterMode

MOST = 200_000
"""Maximum number of objects that `kind_of` visits, with repetition; more would take longer than counting."""

_CONSTANT = type | ModuleType | CodeType | MethodDescriptorType | torch.dtype | torch.device


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

    def of(self, key: Hashable, work: Callable[[], object]) -> int:
        """Return the operations of `work`, which is run only if its key is new."""
        if key is None:
            return flops_of(work)
        if key not in self.counted:
            self.counted[key] = flops_of(work)
        return self.counted[key]


def kind_of(value: object, given: Sequence[tuple[object, Hashable]] = ()) -> int | None:
    """Return a hash of a function's code and of all that it refers to. Operations depend only on this and the input.

    Its name is not enough: two lambdas of one hook have the same name, and so has a method of two networks. Of a float,
    only the sign is part of the result, because a temperature may change in every round, but a weight of zero may turn
    a term off. Of a tensor, it is the shape and whether it requires a gradient.

    given: objects that are part of the caller's key already, with all that they refer to -> what describes them.
    Returns `None` if the operations may depend on something else: on an object that Python cannot pickle, such as a
    generator. What a function reads from global variables is not seen.
    """
    describer = _Describer(given)
    try:
        describer.dump(value)
    except Exception:  # pickle and the objects themselves raise many kinds of errors
        return None
    return hash(describer.written.getvalue())  # a key is small: the description of a network takes 100 KB


class _Describer(pickle.Pickler):
    """Writes all that an object refers to, except the values of tensors, arrays and floats."""

    def __init__(self, given: Sequence[tuple[object, Hashable]]) -> None:
        self.written = io.BytesIO()
        super().__init__(self.written)
        self.known = {id(one): kind for one, kind in given}
        self.visited = 0

    def persistent_id(self, value: Any) -> object:
        """Return the description of an object; None: pickle visits its parts."""
        self.visited += 1
        if self.visited > MOST:
            raise OverflowError
        if id(value) in self.known:
            return "known", self.known[id(value)]
        if isinstance(value, (float, np.floating)):
            return "float", int(value > 0) - int(value < 0)
        if isinstance(value, Tensor):
            return "tensor", value.requires_grad, tuple(value.shape)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return "array", value.shape
        if isinstance(value, torch.Generator):
            return "generator"
        return (type(value).__name__, hash(value)) if isinstance(value, _CONSTANT) else None

    def reducer_override(self, value: Any) -> Any:
        """Return the parts of a function, of which pickle would write the name only."""
        if isinstance(value, FunctionType):
            closed = [cell.cell_contents for cell in value.__closure__ or ()]
            return object, (), (value.__module__, value.__code__, value.__defaults__, value.__kwdefaults__, *closed)
        if isinstance(value, BuiltinMethodType):
            return object, (), (value.__name__, value.__self__)
        return NotImplemented


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
