"""The context in which hooks run: seeds, device and threads, and errors that name the hook, client and round."""

from __future__ import annotations

from collections.abc import Callable

import torch

from raysim.common.errors import HookError, RaysimError
from raysim.core import accelerator
from raysim.core.algorithm import ClientId
from raysim.core.seeds import seed_for
from raysim.engine.plan import Plan
from raysim.plugins.calling import own_traceback, where


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
    model: str = "",
) -> errors_from:
    """Seed torch's global generators by hook, round and client, and return the hook's context manager.

    If the hook raises, the context manager raises `HookError` with the algorithm, hook, client, model and round.
    """
    key = seed_for(seed, name, t, -1 if client is None else client)
    torch.default_generator.manual_seed(key)
    if device.type != "cpu":
        accelerator.seed(device, key)

    def place() -> str:
        of_client = f" of client {client}" if client is not None else ""
        of_model = f" (model {model})" if model else ""
        return f"{type(algorithm).__name__}.{name}{of_client} failed in round {t}{of_model}"

    # The CPU needs no device context: it is the default, and a context makes every torch call slower.
    return errors_from(place, None if device.type == "cpu" else device, name, client, t)


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
        raise HookError(
            f"{self.place()}: {where(error)}",
            hook=self.name,
            client=self.client,
            round=self.round,
            trace=own_traceback(error),
        ) from error
