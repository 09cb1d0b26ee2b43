"""The operations of a client's training and outputs. Each kind of work is counted once for all clients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from raysim.core.data import Batch, Samples, Shuffled
from raysim.core.fit import Loss
from raysim.core.messages import leaves
from raysim.core.meter import FlopMeter, kind_of
from raysim.core.torch_workarounds import countable, named_tensors

if TYPE_CHECKING:
    from raysim.core.algorithm import Client


def sample_flops(client: Client, meter: FlopMeter, f: Callable[[Tensor], Tensor], data: Samples) -> int:
    """Return the operations of `f` on one sample."""
    kind = kind_of(f, _described(client))
    key = None if kind is None else (client.arch, kind, "forward")
    with _generator_kept(client), countable(client.net):
        return meter.of(key, lambda: f(_first(data, 1).x))


def fit_flops(client: Client, meter: FlopMeter, loss: Loss, given: Any, batches: Shuffled) -> int:
    """Return the operations of one `Client.fit`, which has full batches and perhaps a smaller last batch per epoch.

    Counts are cached separately for each set of trained parameters, since the others need no gradient, and for each
    combination of shapes in `given`. The number of samples is left out of these shapes: a batch uses only its own rows
    of a tensor with a row per sample.
    """
    data, two_views = batches.data, batches.two_views
    trained = tuple(tensor.requires_grad for tensor in named_tensors(client.net).values())
    tensors = [value for value in leaves(given) if isinstance(value, Tensor)]
    shapes = tuple(value.shape[1:] if value.shape[:1] == (len(data),) else value.shape for value in tensors)
    others = [value for value in leaves(given) if not isinstance(value, Tensor)]
    kind = kind_of([loss, others], _described(client))
    key = None if kind is None else (client.arch, kind, given is None, shapes, two_views, trained)
    flops = 0
    with _generator_kept(client), countable(client.net):
        for size, count in batches.sizes().items():
            if count:
                work = partial(_one_step, client, loss, given, data, two_views, size)
                flops += count * meter.of(None if key is None else (key, size), work)
    return flops


@contextmanager
def _generator_kept(client: Client) -> Iterator[None]:
    """Restore `client.rng` after a block, because `flops_of` restores torch's global generators only."""
    before = client.rng.get_state()
    try:
        yield
    finally:
        client.rng.set_state(before)


def _described(client: Client) -> Sequence[tuple[object, Hashable]]:
    """Return objects that a hook may refer to, each with a short description that `kind_of` hashes instead.

    The keys of operations already contain the architecture. The round is described, because a hook may do other things
    in the first rounds.
    """
    return (client, client.t), (client.net, "net"), (client.task, "task")


def _one_step(client: Client, loss: Loss, given: Any, data: Samples, two_views: bool, size: int) -> None:
    """Run the forward and backward pass of one step and leave the network unchanged."""
    batch = _first(data, size)
    buffers = {name: value.clone() for name, value in client.net.named_buffers()}
    try:
        result = loss(client.net, replace(batch, second=batch.x) if two_views else batch, given)
        (result[0] if isinstance(result, tuple) else result).backward()
    finally:
        with torch.no_grad():
            for name, value in client.net.named_buffers():
                value.copy_(buffers[name])
        client.net.zero_grad(set_to_none=True)


def _first(data: Samples, size: int) -> Batch:
    """Return the first `size` samples as one batch."""
    return next(data.subset(torch.arange(size)).in_order(size))
