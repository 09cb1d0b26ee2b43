"""Local training: one loop, described by a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from raysim.core.data import Batch
from raysim.core.torch_workarounds import Sgd, named_tensors, set_training

Loss = Callable[[Any, Batch, Any], Tensor | tuple[Tensor, Tensor]]
"""(net, batch, given) -> scalar: what `Client.fit` minimises. Or (scalar, rows), a row [B, ...] per sample to keep."""


class Batches(Protocol):
    """The batches of one local training, in order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains, whatever the algorithm. Comes from the scenario."""

    epochs: int = 1
    batch_size: int = 64
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None  # greatest norm of a step's gradient over all parameters; None: no limit


@dataclass(frozen=True)
class FitJob:
    """Everything one local training needs, so that any trainer can run it."""

    net: nn.Module
    loss: Loss
    given: Any
    batches: Batches
    local: LocalTraining
    num_samples: int = 0  # N
    rates: Mapping[str, float] = field(default_factory=dict)  # parameter -> its learning rate, if other than `local.lr`


@dataclass(frozen=True)
class FitResult:
    """What one local training did."""

    loss_sum: float  # of per-sample losses over every sample seen
    samples: int  # seen, counted once per epoch
    rows: Tensor | None = None  # [N, ...] what the loss kept of each sample when it was last seen; NaN: never seen
    apart: str = ""  # why it was not trained together with others, where it should have been


Trainer = Callable[[FitJob], FitResult]


Optimizer = Sgd | torch.optim.Adam


def make_optimizers(named: Mapping[str, Tensor], local: LocalTraining, rates: Mapping[str, float]) -> list[Optimizer]:
    """Fresh optimizers of these parameters, one per learning rate, so that no momentum outlives a client's round."""
    of_rate: dict[float, list[Tensor]] = {}
    for name, parameter in named.items():
        of_rate.setdefault(rates.get(name, local.lr), []).append(parameter)
    if local.optimizer == "adam":
        decay = local.weight_decay
        return [torch.optim.Adam(part, lr=lr, weight_decay=decay, fused=True) for lr, part in of_rate.items()]
    return [Sgd(part, lr, local.momentum, local.weight_decay) for lr, part in of_rate.items()]


def check_rates(rates: Mapping[str, float], named: Mapping[str, Tensor]) -> None:
    """Raises `ValueError` when a learning rate is given for what is no parameter, such as a buffer."""
    if unknown := rates.keys() - {name for name, value in named.items() if isinstance(value, nn.Parameter)}:
        raise ValueError(f"rates: {min(unknown)} given, which is no parameter of the network")


def fit_one(job: FitJob) -> FitResult:
    """Train one network on its batches, in order."""
    named = named_tensors(job.net)
    check_rates(job.rates, named)
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    optimizers = make_optimizers(trained, job.local, job.rates)
    parameters = list(trained.values())
    loss_sum, samples = torch.zeros((), device=parameters[0].device), 0
    rows: Tensor | None = None
    set_training(job.net, True)
    for optimizer in optimizers:
        optimizer.zero_grad()
    for batch in job.batches:
        loss, kept = loss_and_rows(job, batch)
        loss.backward()
        if job.local.clip is not None:
            nn.utils.clip_grad_norm_(parameters, job.local.clip)
        for optimizer in optimizers:
            optimizer.step()
            # After the step too: gradients left on a model double its memory for as long as the client lives.
            optimizer.zero_grad()
        loss_sum += loss.detach() * len(batch.y)
        samples += len(batch.y)
        if kept is not None:
            if rows is None:
                rows = kept.new_full((job.num_samples, *kept.shape[1:]), torch.nan)
            rows[batch.index] = kept
    return FitResult(float(loss_sum), samples, rows)


def loss_and_rows(job: FitJob, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """The loss of a batch, and the detached rows it keeps, if any."""
    result = job.loss(job.net, batch, job.given)
    return (result[0], result[1].detach()) if isinstance(result, tuple) else (result, None)


def has_batchnorm(net: nn.Module) -> bool:
    """Whether a network normalises over the batch, so that a batch of one sample cannot be trained on."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
