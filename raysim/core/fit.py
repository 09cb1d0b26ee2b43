"""Local training: one loop, described by a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raysim.core.data import Batch
from raysim.core.torch_workarounds import Sgd, set_training

Loss = Callable[[Any, Batch, Any], Tensor | tuple[Tensor, Tensor]]
"""(net, batch, given) -> scalar: what `Client.fit` minimises. Or (scalar, rows), a row [B, ...] per sample to keep."""


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
    batches: Iterable[Batch]
    local: LocalTraining
    num_samples: int = 0  # N; asked for where the loss keeps rows
    rates: Mapping[str, float] = field(default_factory=dict)  # parameter -> its learning rate, if other than `local.lr`


@dataclass(frozen=True)
class FitResult:
    """What one local training did."""

    loss_sum: float  # of per-sample losses over every sample seen
    samples: int  # seen, counted once per epoch
    rows: Tensor | None = None  # [N, ...] what the loss kept of each sample when it was last seen; NaN: never seen


Trainer = Callable[[FitJob], FitResult]


def make_optimizer(parameters: Sequence[nn.Parameter], local: LocalTraining) -> Sgd | torch.optim.Adam:
    """A fresh optimizer, so that no momentum outlives a client's round."""
    if local.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=local.lr, weight_decay=local.weight_decay, fused=True)
    return Sgd(parameters, local.lr, local.momentum, local.weight_decay)


def fit_one(job: FitJob) -> FitResult:
    """Train one network on its batches, in order."""
    if unknown := job.rates.keys() - dict(job.net.named_parameters()).keys():
        raise ValueError(f"rates: {min(unknown)} given, which is no parameter of the network")
    of_rate: dict[float, list[nn.Parameter]] = {}
    for name, parameter in job.net.named_parameters():
        if parameter.requires_grad:
            of_rate.setdefault(job.rates.get(name, job.local.lr), []).append(parameter)
    optimizers = [make_optimizer(group, replace(job.local, lr=lr)) for lr, group in of_rate.items()]
    parameters = [parameter for group in of_rate.values() for parameter in group]
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
    found = job.loss(job.net, batch, job.given)
    return (found[0], found[1].detach()) if isinstance(found, tuple) else (found, None)


def has_batchnorm(net: nn.Module) -> bool:
    """Whether a network normalises over the batch, so that a batch of one sample cannot be trained on."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
