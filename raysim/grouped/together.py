"""Local training of several clients at once: one stacked network, and every step a single call for all of them.

Every call of torch has a fixed cost of some microseconds, and a step of a small network makes a hundred calls.
`torch.func.vmap` makes each call once for all clients: the loss is written for one client, torch computes all.

Shapes: G clients, M of them with a batch in this step, B samples in the largest of these batches, N samples of the
client with the most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import FunctionType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from raysim.common.text import cause
from raysim.core.data import Batch, Shuffled
from raysim.core.fit import (
    FitJob,
    FitResult,
    Optimizer,
    check_names,
    fit_one,
    has_batchnorm,
    keep_within,
    make_optimizers,
)
from raysim.core.precision import as_float32, autocast
from raysim.core.torch_workarounds import (
    Sgd,
    eval_mode,
    lacks_memory,
    named_tensors,
    repeatable_attention,
    set_training,
    tensors_replaced,
)
from raysim.grouped.lockstep import ask

TOLERANCE = 1e-4
"""Maximum relative change of a loss by padding with weight 0. Rounding errors cause 1e-6."""


class CannotGroupError(Exception):
    """These clients cannot be trained by one call. The message contains the reason."""


def fit_all(jobs: Sequence[FitJob]) -> list[FitResult | str]:
    """Train jobs together if one call can do it. Return a reason for each job that needs `fit_one` instead.

    The reason is empty if no other job has the same loss. The grouping depends on the jobs alone.
    """
    alike: dict[Hashable, list[int]] = {}
    for i, job in enumerate(jobs):
        alike.setdefault(_kind(job), []).append(i)
    results: dict[int, FitResult | str] = {}
    for places in alike.values():
        part = [jobs[i] for i in places]
        results |= zip(places, _attempt(part) if len(part) > 1 else [""], strict=True)
    return [results[i] for i in range(len(jobs))]


def ask_to_fit(job: FitJob) -> FitResult:
    """Train a client inside `in_lockstep(..., fit_all)`: together with others if possible, else alone."""
    result = ask(job)
    return result if isinstance(result, FitResult) else replace(fit_one(job), alone_because=result)


def fit_together(jobs: Sequence[FitJob]) -> list[FitResult]:
    """Train networks of one architecture on their batches. Results equal those of `fit_one`, up to rounding.

    Raises `CannotGroupError`, or an exception of torch or the loss, if that is not possible; the networks then stay
    unchanged.
    """
    # Clients are sorted by their number of batches, so that the clients still training are the first M of the stack.
    order = sorted(range(len(jobs)), key=lambda i: -len(jobs[i].batches))
    ordered = [jobs[i] for i in order]
    stack, source = Stack(ordered), _source(ordered)
    steps = [len(job.batches) for job in ordered]
    for step in range(steps[0]):
        active = sum(count > step for count in steps)
        stack.narrow(active)
        stack.step(*source(active))
    results = dict(zip(order, stack.results(), strict=True))
    return [results[i] for i in range(len(jobs))]


class Stack:
    """The networks of several clients, stacked: a tensor [G, ...] contains the same tensor of all clients."""

    def __init__(self, jobs: Sequence[FitJob]) -> None:
        first = jobs[0]
        self.jobs, self.clip = jobs, first.local.clip
        self.tensors = [named_tensors(job.net) for job in jobs]
        for job in jobs:
            set_training(job.net, True)
        # The batches include all epochs; clients may have different numbers of batches.
        settings = [(replace(job.local, epochs=1), job.rates, job.bounds) for job in jobs]
        if any(one != settings[0] for one in settings):
            raise CannotGroupError("the training settings of the clients differ")
        if first.local.precision == "float16":
            raise CannotGroupError("with float16, each client needs its own loss scaling")
        check_names(first, self.tensors[0])
        self.whole = {name: self._stacked(name) for name in self.tensors[0]}
        trained = {name: stacked for name, stacked in self.whole.items() if self.tensors[0][name].requires_grad}
        self.fixed = {name: stacked for name, stacked in self.whole.items() if name not in trained}
        self.trained = {name: stacked.detach().requires_grad_() for name, stacked in trained.items()}
        self.optimizers = make_optimizers(self.trained, first.local, first.rates)
        self.given = Given(jobs)
        self.norm_by_batch = has_batchnorm(first.net)
        self.device = next(iter(self.trained.values())).device
        self.active = len(jobs)
        self.seen = [0] * len(jobs)
        self.loss_sum_G = torch.zeros(len(jobs), device=self.device)
        self.row_GN: Tensor | None = None
        self.padding_checked = False

    def narrow(self, active: int) -> None:
        """Continue with only the first `active` clients, because the others have no batches left."""
        if active == self.active:
            return
        self.active = active
        before = self.trained
        self.trained = {name: stacked.detach()[:active].requires_grad_() for name, stacked in before.items()}
        self.fixed = {name: stacked[:active] for name, stacked in self.fixed.items()}
        self.given.narrow(active)
        instead = {old: self.trained[name] for name, old in before.items()}
        for optimizer in self.optimizers:
            _narrow(optimizer, instead, active)

    def step(self, batch: Batch, sizes: Sequence[int]) -> None:
        """Train every active client for one step on its part of `batch`. sizes: real samples of each client."""
        if batch.weight is not None and self.norm_by_batch:
            raise CannotGroupError("BatchNorm needs equal batch sizes, but those of the clients differ")
        loss_M, kept_MB = self._losses(batch)
        if batch.weight is not None and not self.padding_checked:
            self._check_padding(batch, sizes)
        loss_M.sum().backward()
        if self.clip is not None:
            clip_each([stacked.grad for stacked in self.trained.values() if stacked.grad is not None], self.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if self.jobs[0].bounds:
            keep_within(self.jobs[0].bounds, self.trained)
        size_M = torch.tensor(sizes, device=loss_M.device)
        self.loss_sum_G[: self.active] += loss_M.detach() * size_M
        self.seen = [seen + size for seen, size in zip(self.seen, sizes, strict=False)] + self.seen[self.active :]
        if kept_MB is not None:
            self._keep(kept_MB.detach(), batch, size_M)

    @torch.no_grad()
    def results(self) -> list[FitResult]:
        """Copy the trained tensors into the clients' networks, and return each client's result."""
        for name, stacked in self.whole.items():
            torch._foreach_copy_([one[name] for one in self.tensors], list(stacked.unbind()))
        rows: Sequence[Tensor | None] = [None] * len(self.jobs)
        if self.row_GN is not None:
            rows = [row_N[: job.num_samples] for row_N, job in zip(self.row_GN.unbind(), self.jobs, strict=True)]
        return [
            FitResult(loss_sum, seen, rows[g] if seen else None)
            for g, (loss_sum, seen) in enumerate(zip(self.loss_sum_G.tolist(), self.seen, strict=True))
        ]

    # -- inside ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _stacked(self, name: str) -> Tensor:
        try:
            each = [one[name] for one in self.tensors]
        except KeyError:
            raise CannotGroupError("the networks of the clients differ") from None
        if any(one.requires_grad != each[0].requires_grad or one.shape != each[0].shape for one in each):
            raise CannotGroupError("the networks of the clients differ")
        return torch.stack(each)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        def of_one(trained: Any, fixed: Any, x: Any, y: Any, index: Any, weight: Any, second: Any, given: Any) -> Any:
            batch = Batch(x, y, index, weight, second)
            return self._loss({**trained, **fixed}, batch, self.given.of_one(given))

        optional = [None if value is None else 0 for value in (batch.weight, batch.second)]
        with repeatable_attention(self.device), autocast(self.jobs[0].local.precision, self.device):
            result = vmap(of_one, in_dims=(0, 0, 0, 0, 0, *optional, 0))(
                self.trained, self.fixed, batch.x, batch.y, batch.index, batch.weight, batch.second, self.given.stacked
            )
        if isinstance(result, tuple):
            return as_float32(result[0]), as_float32(result[1])
        return as_float32(result), None

    def _loss(self, tensors: Mapping[str, Tensor], batch: Batch, given: Any) -> Any:
        """Return the loss of one client, computed with these tensors in its network."""
        first = self.jobs[0]
        with tensors_replaced(first.net, tensors):
            return first.loss(first.net, batch, given)

    @torch.no_grad()
    def _check_padding(self, batch: Batch, sizes: Sequence[int]) -> None:
        """Raise `CannotGroupError` if samples with weight 0 change the loss.

        Distinct samples of the largest batch get weight 0 here: padding repeats one sample, and a plain mean
        over copies of a single sample is that sample's loss. Parameters are perturbed first, since a header of zeros
        gives every sample the same loss.
        """
        assert batch.weight is not None
        self.padding_checked = True
        g, real = sizes.index(max(sizes)), min(sizes)
        perturbed = {name: _perturbed(stacked[g]) for name, stacked in self.trained.items()}
        own = {**perturbed, **{name: stacked[g].clone() for name, stacked in self.fixed.items()}}
        weight = torch.ones_like(batch.weight[g])
        weight[real:] = 0
        second = None if batch.second is None else batch.second[g]
        full = Batch(batch.x[g], batch.y[g], batch.index[g], weight, second)
        cut = None if second is None else second[:real]

        def loss(batch: Batch) -> float:
            result = self._loss(own, batch, self.jobs[g].given)
            return float(result[0] if isinstance(result, tuple) else result)

        alone = loss(Batch(full.x[:real], full.y[:real], full.index[:real], None, cut))
        if abs(loss(full) - alone) > TOLERANCE * (1 + abs(alone)):
            raise CannotGroupError(
                "the clients' batch sizes differ, and the loss would count the padding of smaller batches; average the "
                "loss with batch.mean"
            )

    def _keep(self, kept_MB: Tensor, batch: Batch, size_M: Tensor) -> None:
        if self.row_GN is None:
            longest = max(job.num_samples for job in self.jobs)
            self.row_GN = kept_MB.new_full((len(self.jobs), longest, *kept_MB.shape[2:]), torch.nan)
        real_MB = torch.arange(batch.y.shape[1], device=size_M.device) < size_M[:, None]
        client_MB = torch.arange(self.active, device=size_M.device)[:, None].expand(batch.y.shape)
        self.row_GN[client_MB[real_MB], batch.index[real_MB]] = kept_MB[real_MB]


def outputs_together(nets: Sequence[nn.Module], x_GB: Tensor) -> Tensor:
    """Return each network's outputs [G, B, ...] on its samples x_GB [G, B, ...], in eval mode, without gradients."""
    net = nets[0]
    each = [named_tensors(one) for one in nets]

    def of_one(tensors: dict[str, Tensor], x_B: Tensor) -> Tensor:
        with tensors_replaced(net, tensors):
            output: Tensor = net(x_B)
            return output

    with torch.no_grad(), eval_mode(net):
        stacked = {name: torch.stack([one[name] for one in each]) for name in each[0]}
        return vmap(of_one)(stacked, x_GB)


class Given:
    """The argument `given` of all losses, stacked. Shared values stay single; per-sample tensors are padded."""

    def __init__(self, jobs: Sequence[FitJob]) -> None:
        each = [pytree.tree_flatten(job.given) for job in jobs]
        self.leaves, self.tree = each[0]
        if any(tree != self.tree for _, tree in each):
            raise CannotGroupError("the loss arguments of the clients differ in structure")
        sizes = [job.num_samples for job in jobs]
        self.stacked: dict[int, Tensor] = {}
        for i, first in enumerate(self.leaves):
            values = [leaves[i] for leaves, _ in each]
            if isinstance(first, Tensor) and any(value is not first for value in values):
                self.stacked[i] = _stacked_given(values, sizes)
            elif any(value is not first and not _equal_numbers(value, first) for value in values):
                raise CannotGroupError("the loss arguments of the clients differ in values that are not tensors")

    def of_one(self, stacked: Mapping[int, Tensor]) -> Any:
        """Return one client's `given`, with its part of the stacked tensors."""
        leaves = [stacked.get(i, leaf) for i, leaf in enumerate(self.leaves)]
        return pytree.tree_unflatten(leaves, self.tree)

    def narrow(self, active: int) -> None:
        """Continue with only the first `active` clients."""
        self.stacked = {i: value[:active] for i, value in self.stacked.items()}


def clip_each(gradients: Sequence[Tensor], limit: float) -> None:
    """Apply `torch.nn.utils.clip_grad_norm_` to each client's gradients separately, in place: [M, ...]."""
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    norm_M = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    scale_M = (limit / (norm_M + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale_M.view(-1, *[1] * (gradient.dim() - 1)))


def _attempt(jobs: Sequence[FitJob]) -> Sequence[FitResult | str]:
    """Call `fit_together`. If it fails, restore the generators, and return the reason for each job."""
    shuffled = [job.batches for job in jobs if isinstance(job.batches, Shuffled)]
    states = [one.rng.get_state() for one in shuffled]
    try:
        return fit_together(jobs)
    except Exception as error:
        if lacks_memory(error):
            raise
        for one, state in zip(shuffled, states, strict=True):
            one.rng.set_state(state)
        text = str(error) if isinstance(error, CannotGroupError) else cause(error)
        return [text] * len(jobs)


PLAIN = (bool, int, float, str, NoneType)
"""Types that are compared by value, because a loss treats equal values alike, even if they are different objects."""


def _kind(job: FitJob) -> Hashable:
    """Return a key that is equal for jobs with equal loss functions."""
    function = getattr(job.loss, "__func__", job.loss)
    key: tuple[Hashable, ...] = (id(getattr(job.loss, "__self__", None)), str(type(job.given)))
    if not isinstance(function, FunctionType):
        return (*key, id(function))
    # A function defined inside a hook is a new object for each client. It is an equal loss if its closure is equal.
    try:
        closed = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a closure variable may have no value yet
        return (*key, id(function))
    named = [part for item in (function.__kwdefaults__ or {}).items() for part in item]
    held = [*closed, *(function.__defaults__ or ()), *named]
    # Numbers are compared as text, which distinguishes 0.0 from -0.0, and 1 from True.
    return (*key, function.__code__, *(repr(one) if type(one) in PLAIN else id(one) for one in held))


def _narrow(optimizer: Optimizer, instead: Mapping[Tensor, Tensor], active: int) -> None:
    """Replace an optimizer's parameters by those of the first `active` clients. instead: old parameter -> new one."""
    if isinstance(optimizer, Sgd):
        optimizer.buffers = {instead[old]: buffer[:active] for old, buffer in optimizer.buffers.items()}
        optimizer.parameters = [instead[old] for old in optimizer.parameters]
        return
    for old, state in list(optimizer.state.items()):
        optimizer.state[instead[old]] = {key: value[:active] if value.dim() else value for key, value in state.items()}
        del optimizer.state[old]
    for group in optimizer.param_groups:
        group["params"] = [instead[old] for old in group["params"]]


def _source(jobs: Sequence[FitJob]) -> Callable[[int], tuple[Batch, list[int]]]:
    """Return a function that stacks the next batches of the first M jobs. It is called with M.

    It returns the stacked batch, and the number of each job's samples without padding. Shorter batches are padded by
    repeating their first sample with weight 0.
    """
    kinds = {(type(job.batches), getattr(getattr(job.batches, "data", None), "transform", None)) for job in jobs}
    first = jobs[0].batches
    if len(kinds) > 1 or not isinstance(first, Shuffled) or first.data.transform.draws:
        batches = [iter(job.batches) for job in jobs]

        def drawn(active: int) -> tuple[Batch, list[int]]:
            each = [next(one) for one in batches[:active]]
            sizes = [len(one.y) for one in each]
            x, y, index = (_filled([getattr(one, name) for one in each], sizes) for name in ("x", "y", "index"))
            seconds = [one.second for one in each if one.second is not None]
            return Batch(x, y, index, _weight(sizes, x), _filled(seconds, sizes) if seconds else None), sizes

        return drawn

    # The order of samples is random, but nothing else, so one lookup fetches the samples of all clients.
    data = [job.batches.data for job in jobs if isinstance(job.batches, Shuffled)]
    places = [job.batches.places() for job in jobs if isinstance(job.batches, Shuffled)]
    raw, y_all = torch.cat([one.raw_N for one in data]), torch.cat([one.y for one in data])
    begin_G = torch.tensor([0, *accumulate(len(one) for one in data)][:-1], device=y_all.device)

    def looked_up(active: int) -> tuple[Batch, list[int]]:
        each = [next(one) for one in places[:active]]
        sizes = [len(one) for one in each]
        index_MB = _filled(each, sizes)
        flat = (index_MB + begin_G[:active, None]).flatten()
        x = data[0].transform.plain(raw.index_select(0, flat)).unflatten(0, index_MB.shape)
        y_MB = y_all.index_select(0, flat).view(index_MB.shape)
        return Batch(x, y_MB, index_MB, _weight(sizes, x), x if first.two_views else None), sizes

    return looked_up


def _filled(each: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Stack tensors [B_m, ...] to [M, B, ...], padding shorter ones with their first entry."""
    longest = max(sizes)
    if min(sizes) == longest:
        return torch.stack(list(each))
    return torch.stack([torch.cat([one, one[:1].expand(longest - len(one), *one.shape[1:])]) for one in each])


def _weight(sizes: Sequence[int], x: Tensor) -> Tensor | None:
    """Return weights [M, B], 1 for real samples and 0 for padding; None if there is no padding."""
    if min(sizes) == max(sizes):
        return None
    real_MB = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    return real_MB.to(x.device, x.dtype if x.is_floating_point() else torch.get_default_dtype())


def _stacked_given(values: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    shapes = {value.shape for value in values}
    if len(shapes) == 1:
        return torch.stack(list(values))
    if any(value.dim() == 0 or len(value) != size for value, size in zip(values, sizes, strict=True)):
        raise CannotGroupError("the loss arguments of the clients differ in shape")
    return nn.utils.rnn.pad_sequence(list(values), batch_first=True)


def _perturbed(weight: Tensor) -> Tensor:
    """Return a copy of a parameter whose values each have another small number added."""
    ramp = torch.linspace(-0.1, 0.1, weight.numel(), dtype=weight.dtype, device=weight.device)
    return weight + ramp.view(weight.shape)


def _equal_numbers(value: object, other: object) -> bool:
    return isinstance(value, bool | int | float | str) and type(value) is type(other) and value == other
