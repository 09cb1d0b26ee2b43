"""The clause that training clients by one call has the same result as training them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from raysim.contract.toy import PAIRS, UNEVEN, ContractError, Toy
from raysim.core.algorithm import AnyAlgorithm, ClientId
from raysim.core.messages import leaves, mapped
from raysim.grouped.together import ask_to_fit

EXACT = 1e-9
"""Allowed difference of float64 values, relative to a tensor's greatest value: rounding gives 1e-15 per step."""


def trained_together(algorithm: AnyAlgorithm) -> None:
    """Clients trained together and one by one, in float64, get the same models and uploads, to 1e-9."""
    for labels in (PAIRS, UNEVEN):
        toy = Toy(algorithm, "trained_together", labels).start()
        for t in range(1, 4):
            _compare(_clients(toy, t, together=False), _clients(toy, t, together=True))
            toy.round(t)


def _clients(toy: Toy, t: int, together: bool) -> Toy:
    """Return a copy of the run after the clients' part of round `t`, in float64; the server stays in float32."""
    other = toy.fork()
    other.sent = []
    other.clients_only = True
    other.tamper = lambda name, msg: mapped(Tensor, _double, msg)
    for net in other.nets.values():
        net.double()
    if together:
        other.trainer = ask_to_fit
    other.watch = _server_in_float32
    try:
        with _default_dtype(torch.float64):
            return other.round(t, together=together)
    except ContractError as error:
        toy.fork().round(t)  # raises if the hook fails in float32 as well
        problem = str(error).partition(": ")[2].rpartition("; ")[0]
        raise toy.broken(
            f"with float64 networks, in which this clause compares results, {problem}",
            "give new tensors the type of the network's values, for example value.to(logits.dtype) instead of "
            "value.float()",
        ) from error


@contextmanager
def _server_in_float32(toy: Toy, hook: str, client: ClientId | None, msg: Any) -> Iterator[None]:
    """Run `server_send` in float32, in which the networks of `server.state` are."""
    with _default_dtype(torch.float32) if hook == "server_send" else nullcontext():
        yield


def _compare(alone: Toy, together: Toy) -> None:
    remedy = "in the loss function, read data of a client only from the arguments `net`, `batch` and `given`"
    for k, net in alone.nets.items():
        other = together.nets[k].state_dict()
        for name, value in net.state_dict().items():
            if not _close(value, other[name]):
                raise alone.broken(
                    f"{name} of client {k} depends on whether clients are trained together or one by one", remedy
                )
    uploads = {k: msg for hook, k, msg in together.sent if hook == "client_update"}
    for hook, k, msg in alone.sent:
        if hook == "client_update":
            pairs = zip(leaves(msg), leaves(uploads[k]), strict=True)
            if not all(_close(torch.as_tensor(one), torch.as_tensor(other)) for one, other in pairs):
                raise alone.broken(
                    f"the upload of client {k} depends on whether clients are trained together or one by one", remedy
                )


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    # A method may send fewer bits; values that differ in their last bit may then round to different results.
    exact = EXACT if one.dtype == torch.float64 else 2 * torch.finfo(one.dtype).eps
    scale = 1.0 + float(one.abs().nan_to_num().amax()) if one.numel() else 1.0
    return torch.allclose(one, other, rtol=0.0, atol=exact * scale, equal_nan=True)


def _double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
