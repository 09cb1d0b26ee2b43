"""Local training: one loop, described by a job, run by whoever holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raysim.core.data import Batch

Loss = Callable[[Any, Batch, Any], Tensor]
"""(net, batch, given) -> scalar: what `Client.fit` minimises."""


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


@dataclass(frozen=True)
class FitResult:
    """What one local training did."""

    loss_sum: float  # of per-sample losses over every sample seen
    samples: int  # seen, counted once per epoch


Trainer = Callable[[FitJob], FitResult]


def make_optimizer(parameters: Iterable[nn.Parameter], local: LocalTraining) -> torch.optim.Optimizer:
    """A fresh optimizer: no momentum outlives a client's round (algorithms.md, section 1.3)."""
    # fused: one pass over the weights instead of one per term, 1.1 to 1.3 times faster steps on CPU.
    if local.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=local.lr, weight_decay=local.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, lr=local.lr, momentum=local.momentum, weight_decay=local.weight_decay, fused=True
    )


def fit_one(job: FitJob) -> FitResult:
    """Train one network on its batches, in order."""
    parameters = [p for p in job.net.parameters() if p.requires_grad]
    optimizer = make_optimizer(parameters, job.local)
    loss_sum, samples = torch.zeros((), device=parameters[0].device), 0
    job.net.train()
    for batch in job.batches:
        optimizer.zero_grad()
        loss = job.loss(job.net, batch, job.given)
        loss.backward()
        if job.local.clip is not None:
            nn.utils.clip_grad_norm_(parameters, job.local.clip)
        optimizer.step()
        loss_sum += loss.detach() * len(batch.y)
        samples += len(batch.y)
    # Gradients left on a model double its memory for as long as the client lives.
    optimizer.zero_grad(set_to_none=True)
    return FitResult(float(loss_sum), samples)


def has_batchnorm(net: nn.Module) -> bool:
    """Whether a network normalises over the batch, so that a batch of one sample cannot be trained on."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
