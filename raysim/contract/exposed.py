"""The clause that an algorithm's `exposed` is true: a wrong one makes attacks fail, which looks like privacy."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from raysim.contract.running import MAX_ROUNDS
from raysim.contract.toy import Labels, Toy
from raysim.core.algorithm import AnyAlgorithm, ClientId, overrides
from raysim.core.exposed import Exposed, OutputOf, Unexposed, UpdateOf
from raysim.core.fit import FitJob, FitResult, fit_one

ALONE: Labels = ([0], [3], [2])
"""Clients with a single sample, one of each architecture."""
WRONG = 0.5
"""Squared error, relative to the true values, above which a declaration is wrong. Compression and noise cause less."""


def exposed(algorithm: AnyAlgorithm) -> None:
    """`exposed` describes uploads truly. An algorithm without `exposed` passes this clause."""
    if not overrides(type(algorithm), "exposed"):
        return
    nets: dict[ClientId, list[nn.Module]] = defaultdict(list)  # as received, after each `client.fit`, and at the end
    uploads: dict[ClientId, Any] = {}

    @contextmanager
    def watch(toy: Toy, name: str, client: ClientId | None, msg: Any) -> Iterator[None]:
        if name == "client_update" and client is not None:
            nets[client] = [copy.deepcopy(toy.nets[client])]
        yield

    def train(job: FitJob) -> FitResult:
        result = fit_one(job)
        (client,) = (k for k, net in toy.nets.items() if net is job.net)
        nets[client].append(copy.deepcopy(job.net))
        return result

    def keep(toy: Toy, name: str, client: ClientId, msg: Any) -> None:
        if name == "client_update" and msg is not None:
            uploads[client] = msg

    toy = Toy(algorithm, "exposed", ALONE, watch, train, returned=keep).start()
    for t in range(1, MAX_ROUNDS + 1):
        if not uploads:
            toy.round(t)
    for client, up in uploads.items():
        _check(toy, client, up, [*nets[client], toy.nets[client]])


def _check(toy: Toy, k: ClientId, up: Any, nets: Sequence[nn.Module]) -> None:
    """Compare the declaration for an upload with the parameters and outputs of the client's networks."""

    def declared(net: nn.Module) -> Exposed:
        client = replace(toy.client(k, toy.server.t), net=copy.deepcopy(net).eval())
        exposed = toy.exposed(client, up)
        if not isinstance(exposed, UpdateOf | OutputOf | Unexposed):
            problem = f"the hook `exposed` returns a value of type {type(exposed).__name__}"
            raise toy.broken(problem, "return an UpdateOf, an OutputOf or an Unexposed")
        if isinstance(exposed, UpdateOf) and not set(exposed.part.parameters()) <= set(client.net.parameters()):
            raise toy.broken(
                "the hook `exposed` returns an UpdateOf whose `part` does not belong to client.net",
                "set `part` to client.net or to one of its modules",
            )
        return exposed

    exposed = declared(nets[0])
    if isinstance(exposed, UpdateOf):
        trained = [one.part.state_dict() for net in nets[1:] if isinstance(one := declared(net), UpdateOf)]
        if not any(_is_near(exposed.after, w) for w in trained):
            raise toy.broken(
                f"the UpdateOf that `exposed` returns for client {k} does not hold the trained parameters in `after`",
                "in `after`, map the name of each parameter of `part` to its value after training, not to its change",
            )
    elif isinstance(exposed, OutputOf):
        outputs = [one for net in nets if isinstance(one := declared(net), OutputOf)]
        with torch.no_grad():
            values = [one.function(toy.samples[k].x).flatten() for one in outputs]
        if not any(_is_near({"": exposed.value.flatten()}, {"": value}) for value in values):
            raise toy.broken(
                f"in the OutputOf that `exposed` returns for client {k}, `value` is not the output of `function`",
                "set `function` to the function of client.net whose output is uploaded, and `value` to this output",
            )


def _is_near(declared: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> bool:
    """Return whether any value is sent (not NaN), and those that are sent are close to the true values."""
    error, size, sent = 0.0, 0.0, 0
    for name, value in declared.items():
        if name not in true or value.shape != true[name].shape:
            return False
        known = ~value.isnan()
        error += float((value - true[name])[known].double().square().sum())
        size += float(true[name][known].double().square().sum())
        sent += int(known.sum())
    return sent > 0 and error <= WRONG * size
