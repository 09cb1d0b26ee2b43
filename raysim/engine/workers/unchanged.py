"""A guard against hooks that change a received message in place: other clients share the message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from raysim.common.errors import RunError
from raysim.core.messages import leaves


class ChangedMessageError(RunError):
    """A hook changed a message that it received."""


class Unchanged:
    """Checks that a message is still as it arrived.

    Every check compares keys, lengths and torch's counts of in-place operations, which costs microseconds. Changes
    through `.data`, NumPy or a parameter that shares the message's memory do not raise the count: they are detected
    only if `packed`, the packed message, is given, by comparing values.
    """

    def __init__(self, message: Any, packed: Any = None) -> None:
        self.message = message
        self.outline = _outline(message)
        self.before = [(leaf, _count(leaf)) for leaf in leaves(message)]
        self.packed = [] if packed is None else leaves(packed)

    def check(self, problem: str) -> None:
        """Raise `ChangedMessageError` with this sentence if the message is no longer as it arrived."""
        now = leaves(self.message)
        same = self.outline == _outline(self.message) and all(
            leaf is then and _count(leaf) == count for leaf, (then, count) in zip(now, self.before, strict=True)
        )
        if same and self.packed:
            pairs = zip(now, self.packed, strict=True)
            same = all(packed.holds(leaf) for leaf, packed in pairs if isinstance(leaf, Tensor))
        if not same:
            raise ChangedMessageError(problem)


def _count(leaf: Any) -> int:
    return leaf._version if isinstance(leaf, Tensor) else 0


def _outline(message: Any) -> Any:
    """Return the keys and lengths of a message's parts, and the positions of `None`, which is no leaf."""
    if isinstance(message, Mapping):
        return tuple((key, _outline(value)) for key, value in message.items())
    if isinstance(message, tuple | list):
        return tuple(map(_outline, message))
    if is_dataclass(message):
        # Fields only: a cached property adds an entry to `vars` without changing the message.
        return tuple((field.name, _outline(getattr(message, field.name, None))) for field in fields(message))
    return message is None
