"""Clauses about repeatability: the result depends on the seed, but not on client order, resuming or grouping."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.common.errors import RaysimError
from raysim.contract.toy import Labels
from raysim.contract.trial import ContractError, Trial
from raysim.core.algorithm import AnyAlgorithm
from raysim.core.messages import leaves, mapped
from raysim.core.state import digest
from raysim.engine.records import TrainingResult

PAIRS: Labels = ([0, 1] * 6, [1, 2] * 6, [2, 3] * 6, [3, 0, 1] * 4, [0, 2] * 6, [1, 3, 2] * 4)
"""Labels of six clients of equal size, so that two clients have each of three architectures."""
UNEVEN: Labels = ([0, 1] * 8, [1, 2] * 6 + [1], [2, 3] * 7, [3, 0, 1] * 3, [0, 2] * 3, [1, 3])
"""Labels of six clients of different sizes; two clients have each of three architectures."""

EXACT = 1e-9
"""Maximum difference of float64 values, relative to a tensor's greatest value: a step causes rounding errors of
1e-15."""


def deterministic(algorithm: AnyAlgorithm) -> None:
    """The same seed gives bit-identical states and messages, whatever the state of NumPy's and Python's generators.

    The first run also counts operations, which runs each piece of work once more and must change nothing.
    """
    first = Trial(algorithm, counts=True).run(2)
    random.seed(1)
    np.random.seed(1)
    second = Trial(pickle.loads(pickle.dumps(algorithm))).run(2)
    text = (
        "differs when the run is repeated with the same seed; in hooks, draw random numbers only with torch, "
        "client.rng or server.rng, and use neither the time nor values that an earlier run may have left in global "
        "variables"
    )
    for (name, k, one), (_, _, other) in zip(first.sent, second.sent, strict=True):
        if digest([*leaves(one)]) != digest([*leaves(other)]):
            place = f"the return value of {name} for client {k}"
            raise ContractError(algorithm, "deterministic", f"{place} {text}")
    _compare(algorithm, "deterministic", first, second, text)


def any_order(algorithm: AnyAlgorithm) -> None:
    """The result does not depend on which client of a round runs first."""
    text = "depends on the order in which clients run; in client hooks, use only the arguments, and no global variables"
    _compare(algorithm, "any_order", Trial(algorithm).run(3), Trial(algorithm, reverse=True).run(3), text)


def resumable(algorithm: AnyAlgorithm) -> None:
    """A checkpoint contains the whole state, so a run that is resumed from it gives the same result."""
    trial = Trial(algorithm).run(2)
    resumed = trial.resumed()
    text = (
        "is not the same if the run is resumed from a checkpoint; keep all state of a client in parameters or buffers "
        "of the network that client_model returns, and all state of the server in server.state"
    )
    _compare(algorithm, "resumable", trial.round(3), resumed.round(3), text)


def scheduled(algorithm: AnyAlgorithm) -> None:
    """`scheduled` is declared if rounds depend on their total number; such a run cannot be resumed for more rounds."""
    if algorithm.scheduled:
        return
    text = (
        "depends on the total number of rounds; declare scheduled: ClassVar[bool] = True, which tells raysim that a "
        "run of this method cannot be resumed for more rounds"
    )
    _compare(algorithm, "scheduled", Trial(algorithm, num_rounds=3).run(3), Trial(algorithm, num_rounds=6).run(3), text)


def _compare(algorithm: AnyAlgorithm, clause: str, one: Trial, other: Trial, text: str) -> None:
    """Raise `ContractError` with the first state that differs between two trials."""
    others = other.states()
    for name, sha in one.states().items():
        if others[name] != sha:
            raise ContractError(algorithm, clause, f"{name} {text}")


def trained_together(algorithm: AnyAlgorithm) -> None:
    """Training clients together or one by one, in float64, gives the same models and uploads, up to 1e-9."""
    for labels in (PAIRS, UNEVEN):
        # Clients whose network has BatchNorm are only trained together if their batch sizes are equal.
        models = ("flat",) if algorithm.one_architecture and labels is UNEVEN else None
        trial = Trial(algorithm, labels, models)
        for t in range(1, 4):
            alone, _ = _clients_in_float64(trial, t)
            together, trained = _clients_in_float64(trial, t, together=dict.fromkeys(trial.task.architectures, 2))
            with _default_type(torch.float64):
                _compare_together(algorithm, alone, together, trained)
            trial.round(t)


def _clients_in_float64(trial: Trial, t: int, **changes: Any) -> tuple[Trial, TrainingResult]:
    """Return a copy of a trial after its clients ran round `t` in float64; `server_send` still ran in float32."""
    with _default_type(torch.float64):
        other = trial.resumed(tamper=lambda hook, msg: mapped(Tensor, _as_double, msg), **changes)
        cohort = sorted(other.samples)
        with _default_type(torch.float32):
            broadcast = other.backend.send(t, cohort)
        try:
            pending = other.backend.train(t, other.plan.groups(cohort), broadcast, None, (), lambda done: None)
        except RaysimError as error:
            text = "give new tensors the type of the network's values, for example value.to(logits.dtype)"
            raise ContractError(
                trial.algorithm, "trained_together", f"with networks in float64, {error}; {text}"
            ) from error
    return other, pending.result()


_FALLS_BACK = ("BatchNorm", "NoneType", "values that are not tensors")
"""Words in the accepted reasons for training clients one by one, which does not change a result: the network needs
batches of equal size, or some clients have no teacher yet, so that their data in `given` is None."""


def _compare_together(algorithm: AnyAlgorithm, alone: Trial, together: Trial, trained: TrainingResult) -> None:
    for report in trained.reports.values():
        if report.alone_because and not any(word in report.alone_because for word in _FALLS_BACK):
            text = f"clients cannot be trained together, because {report.alone_because}"
            raise ContractError(algorithm, "trained_together", text)
    text = (
        "depends on whether clients are trained together or one by one; in the loss function, read data of a client "
        "only from the arguments `net`, `batch` and `given`"
    )
    uploads = [[(k, up) for hook, k, up in one.sent if hook == "client_update"] for one in (alone, together)]
    for (k, up), (_, other) in zip(*uploads, strict=True):
        if not _close([*leaves(up)], [*leaves(other)]):
            raise ContractError(algorithm, "trained_together", f"the upload of client {k} {text}")
    nets, others = alone.nets, together.nets
    for k, net in nets.items():
        if not _close([*net.state_dict().values()], [*others[k].state_dict().values()]):
            raise ContractError(algorithm, "trained_together", f"the network of client {k} {text}")


def _close(ones: Sequence[Tensor | float], others: Sequence[Tensor | float]) -> bool:
    return all(
        _close_tensors(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(ones, others, strict=True)
    )


def _close_tensors(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    # A method may compress its messages; values that differ in their last bit may then be rounded differently.
    exact = EXACT if one.dtype == torch.float64 else 2 * torch.finfo(one.dtype).eps
    scale = 1.0 + float(one.abs().nan_to_num().amax()) if one.numel() else 1.0
    return torch.allclose(one, other, rtol=0.0, atol=exact * scale, equal_nan=True)


def _as_double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


@contextmanager
def _default_type(dtype: torch.dtype) -> Iterator[None]:
    """Give new networks, samples and tensors this type inside a block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
