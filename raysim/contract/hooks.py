"""Clauses about what hooks may change and send, and what a loss may do."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.contract.compare import differing, fingerprint
from raysim.contract.source import tree
from raysim.contract.toy import ContractError, Toy, toy_seed
from raysim.core.algorithm import AnyAlgorithm, ClientId
from raysim.core.data import Batch
from raysim.core.fit import FitJob, FitResult, fit_one, loss_and_rows
from raysim.core.messages import DECLARE, counted, nonfinite


def messages(algorithm: AnyAlgorithm) -> None:
    """Messages are `@message` dataclasses of finite tensors and numbers, or None."""

    def check(toy: Toy, name: str, k: ClientId, msg: Any) -> None:
        if msg is None:
            return
        place = f"the return value of {name} for client {k}"
        if type(msg) not in pytree.SUPPORTED_NODES:  # a subclass of a message that is not declared itself
            raise toy.broken(f"{place} has the type {type(msg).__name__}", DECLARE)
        leaves = [leaf for leaf in pytree.tree_leaves(msg) if leaf is not None]
        for leaf in leaves:
            if not isinstance(leaf, Tensor | bool | int | float):
                raise toy.broken(
                    f"{place} contains a value of type {type(leaf).__name__}", "send tensors and numbers only"
                )
        if nonfinite(msg):
            raise toy.broken(
                f"{place} contains NaN or infinity, although all images are finite",
                "check for division by zero, the logarithm of zero and too high learning rates",
            )
        if not isinstance(counted(msg), type(msg)):
            raise toy.broken(
                f"{place} has a method `counted` that does not return a {type(msg).__name__}",
                f"return a {type(msg).__name__} with the tensors whose bytes raysim should count",
            )

    Toy(algorithm, "messages", returned=check).run(2)


def own_state_only(algorithm: AnyAlgorithm) -> None:
    """A client hook changes only its own client, a server hook only the server.

    Clients that skip a round stay unchanged, and can take part again later.
    """

    @contextmanager
    def watch(toy: Toy, name: str, client: ClientId | None, msg: Any) -> Iterator[None]:
        before = toy.states()
        yield
        for changed in differing(before, toy.states()):
            own = "server.state" if client is None else f"the state of client {client}"
            if changed != own:
                place = name if client is None else f"{name} of client {client}"
                raise toy.broken(f"{place} changes {changed}", f"change only {own} in this call of the hook")

    toy = Toy(algorithm, "own_state_only", watch=watch).run(1)
    for t, cohort in enumerate(([0, 1], [1, 2], [3], [0, 3]), 2):
        toy.round(t, cohort)


def down_untouched(algorithm: AnyAlgorithm) -> None:
    """`client_receive` and `client_update` do not change the server's message, which other clients share."""
    _untouched(
        algorithm, "down_untouched", ("client_receive", "client_update"), "down", "copy tensors before you change them"
    )


def ups_untouched(algorithm: AnyAlgorithm) -> None:
    """`server_update` does not change the uploads."""
    _untouched(algorithm, "ups_untouched", ("server_update",), "ups", "add up uploads in a new tensor, such as a clone")


def _untouched(algorithm: AnyAlgorithm, clause: str, hooks: Sequence[str], what: str, remedy: str) -> None:
    @contextmanager
    def watch(toy: Toy, name: str, client: ClientId | None, msg: Any) -> Iterator[None]:
        before = fingerprint(msg) if name in hooks else ""
        yield
        if name in hooks and fingerprint(msg) != before:
            raise toy.broken(f"{name} changes its argument `{what}` in place", remedy)

    Toy(algorithm, clause, watch=watch).run(2)


def losses(algorithm: AnyAlgorithm) -> None:
    """Losses reduce with `batch.mean`, read trained tensors through `net`, and convert no tensor to a number."""
    for function in ast.walk(tree(algorithm, "losses")):
        if isinstance(function, ast.FunctionDef) and (function.name == "loss" or function.name.endswith("_loss")):
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in ("item", "tolist", "numpy"):
                    raise ContractError(
                        algorithm,
                        "losses",
                        f"the loss function {function.name} calls .{node.attr}() in line {node.lineno}",
                        "compute losses with tensor operations only, so that raysim can train clients together",
                    )

    def checked(job: FitJob) -> FitResult:
        batches = list(job.batches)
        if batches:
            _check_loss(toy, job, batches[0])
        return fit_one(replace(job, batches=batches))

    toy = Toy(algorithm, "losses", trainer=checked)
    toy.run(2)


def _check_loss(toy: Toy, job: FitJob, batch: Batch) -> None:
    """Compare the loss of a batch with and without two samples of padding, on a copy of the network."""
    net, name = copy.deepcopy(job.net).eval(), getattr(job.loss, "__name__", "loss")
    ones = torch.ones(len(batch.y))

    def loss(seen: Batch, draw: int) -> Tensor:
        with toy_seed("loss", draw):
            return loss_and_rows(replace(job, net=net), seen)[0]

    plain, again = loss(batch, 0), loss(batch, 1)
    trained = [weight for weight in job.net.parameters() if weight.requires_grad]
    outside = torch.autograd.grad(plain, trained, allow_unused=True, retain_graph=True)
    if any(gradient is not None for gradient in outside):
        raise toy.broken(
            f"the loss function {name} reads trained parameters from client.net instead of its argument `net`",
            "read all trained parameters from `net`",
        )
    if not torch.equal(plain, again):
        return  # the loss draws random numbers, which differ for a longer batch
    two = torch.arange(2) % len(batch.y)
    padded = Batch(
        torch.cat([batch.x, 1 - batch.x[two]]),
        torch.cat([batch.y, batch.y[two]]),
        torch.cat([batch.index, batch.index[two]]),
        torch.cat([ones, torch.zeros(2)]),
        None if batch.second is None else torch.cat([batch.second, 1 - batch.second[two]]),
    )
    if not torch.allclose(loss(padded, 0), plain, rtol=1e-4, atol=1e-6):
        raise toy.broken(
            f"the value of the loss function {name} changes when a batch is padded with samples of weight 0",
            "average per-sample losses with batch.mean(...) instead of .mean() or torch's reduction='mean'",
        )
