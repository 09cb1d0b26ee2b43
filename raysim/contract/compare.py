"""Comparisons for the clauses of the contract: values bit for bit, states by name, global random states."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.core.seeds import global_seed
from raysim.core.state import digest, state_tensors


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal values: the digest or, for values without one, the pickle or the `repr`."""
    try:
        return digest(value)
    except (TypeError, RuntimeError):
        try:
            return pickle.dumps(value).hex()
        except Exception:
            return repr(value)


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names with different values, and those on one side only."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def identical(one: Any, other: Any) -> bool:
    """Return whether structure, types, shapes and bits are the same; NaN equals NaN."""
    ones, others = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return pytree.tree_structure(one) == pytree.tree_structure(other) and all(
        type(a) is type(b) and fingerprint(a) == fingerprint(b) for a, b in zip(ones, others, strict=True)
    )


def visible_tensors(state: Any) -> list[Tensor]:
    """Return the tensors of a state; none if it contains an object that `state_tensors` does not support."""
    try:
        return list(state_tensors(state).values())
    except TypeError:  # the clause server_state_visible reports it
        return []


@contextmanager
def random_states_kept(seed: int) -> Iterator[None]:
    """Seed torch's global generators for a block, and restore those of NumPy, Python and torch after it."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    with global_seed(seed, "contract"):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
