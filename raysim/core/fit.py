"""The local training loop, its settings and its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raysim.core.data import Batch, Shuffled
from raysim.core.precision import Backward, Precision, as_float32, autocast
from raysim.core.replay import replayed
from raysim.core.torch_workarounds import Sgd, named_tensors, repeatable_attention, set_training, without_default_device

Loss = Callable[[Any, Batch, Any], Tensor | tuple[Tensor, Tensor]]
"""(net, batch, given) -> scalar that `Client.fit` minimises, or (scalar, rows); `Client.fit` returns these rows [B,
...]."""


Bounds = tuple[float, float]
"""Least and greatest value of a parameter's elements."""

_NAMED = "give a name from `named_parameters()`"
"""The remedy for a name that is no parameter."""


Batches = Sequence[Batch] | Shuffled
"""The batches of one local training, in order."""


@dataclass(frozen=True)
class LocalTraining:
    """Training settings of a client, for any algorithm; they come from the scenario."""

    epochs: int = 1
    batch_size: int = 64
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None  # maximum norm of a step's gradient over all parameters; None: no limit
    nesterov: bool = False  # use Nesterov's momentum; only for SGD with momentum
    precision: Precision = "float32"  # in forward and backward passes; parameters and messages are float32
    cuda_graphs: bool = True  # record steps on a CUDA device and replay them: see `raysim.core.replay`
    steps: int | None = None  # number of steps, replaces `epochs`; the last epoch may be incomplete


@dataclass(frozen=True)
class FitJob:
    """All inputs of one local training, which any trainer can run."""

    net: nn.Module
    loss: Loss
    given: Any
    batches: Batches
    local: LocalTraining
    num_samples: int = 0  # N
    rates: Mapping[str, float] = field(default_factory=dict)  # parameter -> learning rate, if not `local.lr`
    bounds: Mapping[str, Bounds] = field(default_factory=dict)  # parameter -> bounds of its values after every step


@dataclass(frozen=True)
class FitResult:
    """The result of one local training."""

    loss_sum: float  # sum of the per-sample losses over all samples and epochs
    samples: int  # number of samples used, counted once per epoch
    rows: Tensor | None = None  # [N, ...] last row of the loss for each sample; NaN: sample not used
    alone_because: str = ""  # why the client was trained alone; empty: no reason


Trainer = Callable[[FitJob], FitResult]


Optimizer = Sgd | torch.optim.Adam | torch.optim.AdamW


def make_optimizers(named: Mapping[str, Tensor], local: LocalTraining, rates: Mapping[str, float]) -> list[Optimizer]:
    """Return new optimizers, one per learning rate, so that no momentum remains from an earlier local training."""
    of_rate: dict[float, list[Tensor]] = {}
    for name, parameter in named.items():
        of_rate.setdefault(rates.get(name, local.lr), []).append(parameter)
    decay = local.weight_decay
    if local.optimizer == "sgd":
        return [Sgd(part, lr, local.momentum, decay, local.nesterov) for lr, part in of_rate.items()]
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return [kind(part, lr=lr, weight_decay=decay, fused=True) for lr, part in of_rate.items()]


def check_names(job: FitJob, named: Mapping[str, Tensor]) -> None:
    """Raise `ValueError` if `rates` or `bounds` name anything else than a parameter, for example a buffer."""
    parameters = {name for name, value in named.items() if isinstance(value, nn.Parameter)}
    for kind, of_name in (("rates", job.rates), ("bounds", job.bounds)):
        if unknown := of_name.keys() - parameters:
            raise ValueError(f"{kind}: {min(unknown)} is not a parameter of the network; {_NAMED}")


@torch.no_grad()
def keep_within(bounds: Mapping[str, Bounds], trained: Mapping[str, Tensor]) -> None:
    """Clip the values of trained parameters to their bounds, in place."""
    for name in bounds.keys() & trained.keys():
        trained[name].clamp_(*bounds[name])


@contextmanager
def training_only(net: nn.Module, names: Collection[str] | None) -> Iterator[None]:
    """Train only these parameters during a block; None: change nothing.

    The others require no gradient meanwhile. Raises `ValueError` for a name that is no parameter.
    """
    parameters = {} if names is None else dict(net.named_parameters())
    if names is not None and (unknown := set(names) - parameters.keys()):
        raise ValueError(f"only: {min(unknown)} is not a parameter of the network; {_NAMED}")
    fixed = [one for name, one in parameters.items() if one.requires_grad and name not in set(names or ())]
    for parameter in fixed:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in fixed:
            parameter.requires_grad_(True)


class _Training:
    """The training of one network. Its attributes stay the same objects, so that a step can be recorded and replayed.

    Attributes:
        loss_sum: the sum of the per-sample losses so far, on the device.
        connected: whether any loss depended on the trained parameters.
    """

    def __init__(self, job: FitJob) -> None:
        named = named_tensors(job.net)
        check_names(job, named)
        self.job = job
        self.trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        if not self.trained:
            raise ValueError("no parameter of the network is trained: none requires a gradient, or `only` is empty")
        self.optimizers = make_optimizers(self.trained, job.local, job.rates)
        parameters, limit = list(self.trained.values()), job.local.clip
        self.device = parameters[0].device
        self.lower = autocast(job.local.precision, self.device)
        self.backward = Backward(job.local.precision, self.device)
        self.clip = None if limit is None else lambda: nn.utils.clip_grad_norm_(parameters, limit)
        self.loss_sum, self.connected = torch.zeros((), device=self.device), False
        set_training(job.net, True)
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self, batch: Batch) -> Tensor | None:
        """Train on a batch; return the rows of the loss, if any."""
        with self.lower:
            loss, kept = loss_and_rows(self.job, batch)
        # A constant has no `grad_fn`; a single batch may have a constant loss.
        self.connected = self.connected or loss.grad_fn is not None
        with without_default_device(self.device):
            self.backward(loss, self.optimizers, self.clip)
            for optimizer in self.optimizers:
                # Gradients are dropped after the step, too: they would double the memory of a stored model.
                optimizer.zero_grad()
            if self.job.bounds:
                keep_within(self.job.bounds, self.trained)
            self.loss_sum.add_(loss.detach() * len(batch.y))
        return kept


def fit_one(job: FitJob) -> FitResult:
    """Train one network on its batches, in order."""
    training, samples = _Training(job), 0
    rows: Tensor | None = None
    # torch cannot record a step of Adam.
    may_replay = job.local.cuda_graphs and job.local.optimizer == "sgd"
    rng = job.batches.rng if isinstance(job.batches, Shuffled) else None
    steps, device = len(job.batches) if may_replay else 0, training.device
    with repeatable_attention(device), replayed(training.step, steps, device, rng) as train:
        for batch in job.batches:
            kept = train(batch)
            samples += len(batch.y)
            if kept is not None:
                if rows is None:
                    rows = kept.new_full((job.num_samples, *kept.shape[1:]), torch.nan)
                rows[batch.index] = kept
    if samples and not training.connected:
        name = getattr(job.loss, "__name__", "the loss")
        raise ValueError(f"the values that {name} returned do not depend on the network's trained parameters")
    return FitResult(float(training.loss_sum), samples, rows)


def loss_and_rows(job: FitJob, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return a batch's loss and its rows, detached, if the loss returns rows; both at least in float32."""
    result = job.loss(job.net, batch, job.given)
    loss, rows = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(loss, Tensor) or loss.dim():
        name = getattr(job.loss, "__name__", "the loss")
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise TypeError(f"{name} returned {got}; return a scalar tensor, for example batch.mean(loss_B)")
    return as_float32(loss), None if rows is None else as_float32(rows.detach())


def has_batchnorm(net: nn.Module) -> bool:
    """Return whether a network contains BatchNorm, and so cannot train on a batch of one sample."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
