"""A check that hooks do not change a received message in place, because other clients share the message."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from raysim.common.errors import RunError
from raysim.core.messages import leaves


class ChangedMessageError(RunError):
    """A hook changed the message that it received."""


class Unchanged:
    """Detects in-place changes of a received message by a hook.

    `holds` compares the tensors, and torch's counts of in-place operations, which costs microseconds. Changes through
    `.data`, NumPy or a parameter that shares the message's memory do not raise the count: they are detected only if
    `packed`, the packed message, is given, by comparing values.
    """

    def __init__(self, message: Any, packed: Any = None) -> None:
        self.message = message
        self.leaves = leaves(message)  # keeps tensors alive, so that no other object gets the same id
        self.before = _signature(message)
        self.packed = [] if packed is None else leaves(packed)

    def holds(self) -> bool:
        """Return whether the message is unchanged."""
        if _signature(self.message) != self.before:
            return False
        pairs = zip(self.leaves, self.packed, strict=True) if self.packed else ()
        return all(packed.holds(leaf) for leaf, packed in pairs if isinstance(leaf, Tensor))


def _signature(message: Any) -> list[Any]:
    """Return a message's numbers, and the id and number of in-place operations of each tensor."""
    return [(id(leaf), leaf._version) if isinstance(leaf, Tensor) else leaf for leaf in leaves(message)]
