"""Seeds that depend on purpose, round and client, but not on the process or device that draws.

This is the first of two rules that make a run bit-identical on any number of actors (the second: sums run in client-id
order). No generator is carried from one round to the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_for(run_seed: int, purpose: str, *key: int | str) -> int:
    """Return a 63-bit seed for one purpose of one run, for example `seed_for(7, "client", t, k)`.

    Different purposes and keys give independent seeds; the same ones always give the same seed.
    """
    text = "\x1f".join([str(run_seed), purpose, *map(str, key)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seeded(run_seed: int, purpose: str, *key: int | str) -> torch.Generator:
    """Return a CPU generator that starts at `seed_for(run_seed, purpose, *key)`."""
    import torch  # imported here, because `seed_for` does not need torch

    return torch.Generator().manual_seed(seed_for(run_seed, purpose, *key))


@contextmanager
def global_seed(run_seed: int, purpose: str, *key: int | str) -> Iterator[None]:
    """Seed torch's global generators for a block (initial weights, dropout), then restore them."""
    import torch

    from raysim.core.accelerator import random_state, set_random_state

    before = random_state()
    torch.manual_seed(seed_for(run_seed, purpose, *key))
    try:
        yield
    finally:
        set_random_state(before)
