"""The context in which hooks run: seeds, device, threads, errors that name hook and client, and unchanged messages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from raysim.common.errors import HookError, RaysimError, RunError
from raysim.core import accelerator
from raysim.core.algorithm import ClientId
from raysim.core.messages import leaves
from raysim.core.seeds import seed_for
from raysim.engine.plan import Plan
from raysim.plugins.calling import own_traceback, where


def set_threads(plan: Plan, k: ClientId) -> None:
    """Set the number of torch's threads for client k."""
    threads = plan.threads[k % len(plan.threads)]
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def hook(plan: Plan, name: str, t: int, client: ClientId | None, device: torch.device) -> errors_from:
    """Seed torch's global generators by hook, round and client, and return the hook's context manager.

    client: None: a hook of the server.
    """
    key = seed_for(plan.seed, name, t, -1 if client is None else client)
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        accelerator.seed(device, key)
    model = "" if client is None else plan.arch(client)
    # The CPU needs no device context: it is the default, and a context makes every torch call slower.
    place = None if device.type == "cpu" else device
    return errors_from(f"{type(plan.algorithm).__name__}.{name}", name, client, t, model, place)


class errors_from:
    """Context manager that converts exceptions to a `HookError` that begins with hook, client, round and model.

    It is a class, since a generator function takes as long as a small model's messages.
    """

    __slots__ = ("client", "device", "model", "name", "round", "what")

    def __init__(
        self,
        what: str,
        name: str,
        client: ClientId | None = None,
        round: int | None = None,
        model: str = "",
        device: torch.device | None = None,
    ) -> None:
        """what: subject of the error. name: see `HookError.hook`. device: the default in the block; None: the CPU."""
        self.what, self.name, self.client = what, name, client
        self.round, self.model, self.device = round, model, device

    def __enter__(self) -> None:
        if self.device is not None:
            self.device.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.device is not None:
            self.device.__exit__(kind, error, trace)
        if not isinstance(error, Exception) or isinstance(error, RaysimError):
            return
        of_client = "" if self.client is None else f" of client {self.client}"
        in_round = "" if self.round is None else f" in round {self.round}"
        of_model = f" (model {self.model})" if self.model else ""
        raise HookError(
            f"{self.what}{of_client} failed{in_round}{of_model}: {where(error)}",
            hook=self.name,
            client=self.client,
            round=self.round,
            trace=own_traceback(error),
        ) from error


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
        self.leaves = [*leaves(message)]  # keeps tensors alive, so that no other object gets the same id
        self.before = _signature(message)
        self.packed = [] if packed is None else [*leaves(packed)]

    def holds(self) -> bool:
        """Return whether the message is unchanged."""
        if _signature(self.message) != self.before:
            return False
        pairs = zip(self.leaves, self.packed, strict=True) if self.packed else ()
        return all(packed.holds(leaf) for leaf, packed in pairs if isinstance(leaf, Tensor))


def _signature(message: Any) -> list[Any]:
    """Return a message's numbers, and the id and number of in-place operations of each tensor."""
    return [(id(leaf), leaf._version) if isinstance(leaf, Tensor) else leaf for leaf in leaves(message)]
