"""Around every hook: seed torch, choose the device, and say where it happened when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.core.errors import RaysimError, RunError
from raysim.core.seeds import seed_for


class HookError(RunError):
    """An algorithm's hook raised; the message says which, for whom and when, and carries its traceback."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace

    def __reduce__(self) -> tuple[type[HookError], tuple[str, str]]:
        return type(self), (str(self), self.trace)


def shapes(msg: object) -> str:
    """A message in a few words, for an error: its type and the shapes of its tensors."""
    leaves = [tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in pytree.tree_leaves(msg)]
    return f"{type(msg).__name__}{leaves}" if msg is not None else "nothing"


@contextmanager
def hook(
    seed: int, name: str, t: int, who: int | None, algorithm: object, device: torch.device, msg: object = None
) -> Iterator[None]:
    """Run one hook: torch's global generators start at a seed keyed by hook, round and client.

    Raises `HookError` with the algorithm, hook, client, round and message shapes when the hook raises.
    """
    key = seed_for(seed, name, t, -1 if who is None else who)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)
    try:
        # As a context, a device makes every torch call slower; the CPU is the default anyway.
        with nullcontext() if device.type == "cpu" else device:
            yield
    except (KeyboardInterrupt, SystemExit, RaysimError):
        raise
    except Exception as error:
        import traceback

        place = f"{type(algorithm).__name__}.{name}" + (f" of client {who}" if who is not None else "")
        raise HookError(
            f"{place} failed in round {t} on {shapes(msg)}: {type(error).__name__}: {error}",
            traceback.format_exc(),
        ) from error
