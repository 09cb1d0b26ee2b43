"""The clause that `exposed` is correct: after a wrong declaration, attacks fail, which looks like privacy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raysim.contract.definition import MAX_ROUNDS
from raysim.contract.toy import Labels
from raysim.contract.trial import ContractError, Trial, disguised
from raysim.core.algorithm import AnyAlgorithm, Client, overrides
from raysim.core.exposed import Exposed, OutputOf, Unexposed, UpdateOf
from raysim.core.fit import FitJob, FitResult

ALONE: Labels = ([0], [3], [2])
"""Labels of clients with a single sample each, one client per architecture."""
WRONG = 0.5
"""A declaration is wrong if its squared error, relative to the true values, exceeds this number. Compression and noise
cause smaller errors."""


class Upload(NamedTuple):
    """An upload of a client, and copies of its network as received, after each call of `client.fit`, and at the end."""

    client: Client
    up: Any
    nets: list[nn.Module]


def exposed(algorithm: AnyAlgorithm) -> None:
    """`exposed` describes uploads correctly. An algorithm that does not define `exposed` passes this clause."""
    if not overrides(type(algorithm), "exposed"):
        return
    uploads: list[Upload] = []

    class WithWatchedUploads(type(algorithm)):  # type: ignore[misc]
        def client_update(self, client: Client, down: Any) -> Any:
            nets, trainer = [copy.deepcopy(client.net)], client.trainer

            def train(job: FitJob) -> FitResult:
                result = trainer(job)
                nets.append(copy.deepcopy(client.net))
                return result

            client.trainer = train
            up = super().client_update(client, down)
            nets.append(copy.deepcopy(client.net))
            if up is not None:
                uploads.append(Upload(client, copy.deepcopy(up), nets))
            return up

    trial = Trial(disguised(algorithm, WithWatchedUploads), ALONE)
    for t in range(1, MAX_ROUNDS + 1):
        if not uploads:
            trial.round(t)
    for upload in uploads:
        _check(algorithm, upload)


def _check(algorithm: AnyAlgorithm, upload: Upload) -> None:
    """Compare the declaration for an upload with the parameters and outputs of the client's network."""

    def declared(net: nn.Module) -> Exposed:
        client = replace(upload.client, net=copy.deepcopy(net).eval())
        exposed = algorithm.exposed(client, upload.up)
        if not isinstance(exposed, UpdateOf | OutputOf | Unexposed):
            kind = type(exposed).__name__
            text = f"`exposed` returns a value of type {kind}; return an UpdateOf, an OutputOf or an Unexposed"
            raise ContractError(algorithm, "exposed", text)
        if isinstance(exposed, UpdateOf) and not set(exposed.part.parameters()) <= set(client.net.parameters()):
            text = "the `part` of an UpdateOf is not in client.net; set it to client.net or to one of its modules"
            raise ContractError(algorithm, "exposed", text)
        return exposed

    exposed, k = declared(upload.nets[0]), upload.client.id
    if isinstance(exposed, UpdateOf):
        trained = [one.part.state_dict() for net in upload.nets[1:] if isinstance(one := declared(net), UpdateOf)]
        if not any(_is_near(exposed.after, w) for w in trained):
            raise ContractError(
                algorithm,
                "exposed",
                f"the UpdateOf that `exposed` returns for client {k} does not hold the trained parameters; in `after`, "
                "map the name of each parameter of `part` to its value after training, not to its change",
            )
    elif isinstance(exposed, OutputOf):
        outputs = [one for net in upload.nets if isinstance(one := declared(net), OutputOf)]
        with torch.no_grad():
            values = [one.function(upload.client.data.x).flatten() for one in outputs]
        if not any(_is_near({"": exposed.value.flatten()}, {"": value}) for value in values):
            raise ContractError(
                algorithm,
                "exposed",
                f"in the OutputOf that `exposed` returns for client {k}, `value` is not the output of `function`; set "
                "`function` to the function of client.net whose output is uploaded, and `value` to this output",
            )


def _is_near(declared: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> bool:
    """Return whether some declared values are not NaN (not sent), and all such values are close to the true values."""
    error, size, sent = 0.0, 0.0, 0
    for name, value in declared.items():
        if name not in true or value.shape != true[name].shape:
            return False
        known = ~value.isnan()
        error += float((value - true[name])[known].double().square().sum())
        size += float(true[name][known].double().square().sum())
        sent += int(known.sum())
    return sent > 0 and error <= WRONG * size
