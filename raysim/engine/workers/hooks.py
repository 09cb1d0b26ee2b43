"""The context in which hooks run: seeds, device and threads, and errors that name the hook, client and round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.common.errors import HookError, RaysimError
from raysim.common.text import few
from raysim.core import accelerator
from raysim.core.algorithm import ClientId
from raysim.core.seeds import seed_for
from raysim.engine.plan import Plan
from raysim.plugins.calling import own_traceback, where


def shapes(msg: object) -> str:
    """Describe a message for an error, by its type and the shapes of its first tensors."""
    leaves = [tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in pytree.tree_leaves(msg)]
    return f"{type(msg).__name__}[{few([*map(str, leaves)])}]"


def set_threads(plan: Plan, k: ClientId) -> None:
    """Set the number of torch's threads for client k."""
    threads = plan.threads[k % len(plan.threads)]
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def hook(
    seed: int,
    name: str,
    t: int,
    client: int | None,
    algorithm: object,
    device: torch.device,
    msg: object = None,
    model: str = "",
) -> errors_from:
    """Seed torch's global generators by hook, round and client, and return the hook's context manager.

    If the hook raises, the context manager raises `HookError` with the algorithm, hook, client, model, round and
    message shapes.
    """
    key = seed_for(seed, name, t, -1 if client is None else client)
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        accelerator.seed(device, key)

    def place() -> str:
        of_client = f" of client {client}" if client is not None else ""
        facts = [*([f"model {model}"] if model else []), *_received(name, msg)]
        details = f" ({', '.join(facts)})" if facts else ""
        return f"{type(algorithm).__name__}.{name}{of_client} failed in round {t}{details}"

    # The CPU needs no device context: it is the default, and a context makes every torch call slower.
    return errors_from(place, None if device.type == "cpu" else device, name, client, t)


FROZEN = (
    "; methods and messages cannot be changed: keep values in buffers of client.net or in server.state, and create a "
    "new message"
)
"""The remedy for assigning an attribute of a frozen object."""


class errors_from:
    """Context manager that converts exceptions to a `HookError` that begins with `place()`.

    It is a class, since a generator function takes as long as a small model's messages.
    """

    __slots__ = ("client", "device", "name", "place", "round")

    def __init__(
        self,
        place: Callable[[], str],
        device: torch.device | None = None,
        name: str = "",
        client: int | None = None,
        round: int | None = None,
    ) -> None:
        """device: the default device inside the block; None: the CPU. name, client, round: see `HookError`."""
        self.place, self.device = place, device
        self.name, self.client, self.round = name, client, round

    def __enter__(self) -> None:
        if self.device is not None:
            self.device.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.device is not None:
            self.device.__exit__(kind, error, trace)
        if not isinstance(error, Exception) or isinstance(error, RaysimError):
            return
        remedy = FROZEN if isinstance(error, FrozenInstanceError) else ""
        raise HookError(
            f"{self.place()}: {where(error)}{remedy}",
            hook=self.name,
            client=self.client,
            round=self.round,
            trace=own_traceback(error),
        ) from error


def _received(name: str, msg: object) -> list[str]:
    """Describe the message that a hook received, for an error."""
    if msg is not None:
        return [f"message {shapes(msg)}"]
    return ["no message from the server"] if name == "client_update" else []
