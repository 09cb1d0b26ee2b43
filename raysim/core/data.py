"""The samples of a client, and the batches that a loss receives.

The data set is one array per node in its stored format, which all actors of the node share. In each round, a client's
samples are copied to the client's device in the same format. Batches are normalised and augmented on this device.

Shapes: N samples of one client, B samples of one batch; an image has C channels of H x W pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from raysim.core.messages import message
from raysim.core.torch_workarounds import without_default_device

Augmentation = Callable[[Tensor], Tensor]
"""Samples of a batch as stored, [B, ...] -> network inputs, like those of `Transform.plain`."""


class Transform(Protocol):
    """A conversion of stored samples into network inputs; raysim/data/transform.py implements it."""

    def plain(self, raw_B: Tensor, /) -> Tensor:
        """Convert without augmentation.

        Returns normalised images [B, C, H, W] float32, channels last in memory; features [B, ...] float32; or tokens
        [B, L] int64.
        """

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator, /) -> Sequence[Augmentation]:
        """Draw from `rng` (a CPU generator) one augmentation for each of these batch sizes.

        like: stored samples [N, ...] of the batches' client. Each augmentation converts the samples of its batch,
        given as stored.
        """

    @property
    def draws(self) -> bool:
        """Whether samples are augmented. If not, augmentations equal `plain`, and no random numbers are drawn."""


@message
class Batch:
    """One batch of samples, as a loss function receives it.

    >>> import torch
    >>> from raysim.core import Batch
    >>> padded = torch.tensor([1.0, 1.0, 0.0])  # the last sample is padding
    >>> batch = Batch(torch.zeros(3, 2), torch.tensor([0, 1, 0]), torch.arange(3), padded)
    >>> batch.mean(torch.tensor([1.0, 3.0, 100.0]))
    tensor(2.)
    """

    x: Tensor  # [B, C, H, W] float32, or features [B, ...] float32, or tokens [B, L] int64
    y: Tensor  # [B] int64 class ids
    index: Tensor  # [B] position of each sample in its client's data, for per-sample teachers
    weight: Tensor | None = None  # [B] 1 for a real sample, 0 for padding; None: all are real
    second: Tensor | None = None  # another augmentation of the same samples, like x, if two views are requested

    def mean(self, per_sample_B: Tensor) -> Tensor:
        """Mean over the real samples, a scalar. Losses reduce with this, never with `.mean()`.

        Raises `ValueError` unless the tensor has one value per sample.
        """
        if per_sample_B.dim() != 1:
            raise ValueError(
                f"batch.mean needs one value per sample, but got a tensor of shape {tuple(per_sample_B.shape)}; pass "
                "losses of shape [B], for example those of reduction='none'"
            )
        if self.weight is None:
            return per_sample_B.mean()
        return (per_sample_B * self.weight).sum() / self.weight.sum()


@dataclass(frozen=True)
class Samples:
    """A client's part of a data set, in a fixed order.

    >>> import torch
    >>> from raysim.core import tensors
    >>> samples = tensors(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> len(samples), [batch.y.tolist() for batch in samples.in_order(2)]
    (3, [[0, 1], [0]])
    >>> samples.subset(torch.tensor([2])).x
    tensor([[0., 0., 1.]])
    >>> samples
    Samples(3 of shape 3, classes 0, 1)
    """

    raw_N: Tensor  # stored on the training device: images [N, H, W, C] uint8, float32 features, tokens
    y: Tensor  # [N] int64 class ids, on the same device
    transform: Transform

    def __len__(self) -> int:
        return self.y.shape[0]

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.raw_N.shape[1:]))
        return f"Samples({len(self)} of shape {shape}, classes {', '.join(map(str, self.y.unique().tolist()))})"

    @property
    def x(self) -> Tensor:
        """All samples as network inputs, without augmentation: [N, ...]. Takes 4 bytes per pixel while it is kept."""
        return self.transform.plain(self.raw_N)

    def subset(self, index: Tensor) -> Samples:
        """The samples at these positions, in this order. For a mask, pass `mask.nonzero()[:, 0]`."""
        index = index.to(self.y.device)
        return Samples(self.raw_N.index_select(0, index), self.y[index], self.transform)

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """Yield batches in data order, without augmentation; the last batch may be smaller."""
        if 0 < len(self) <= batch_size:  # all at once, without a copy
            yield Batch(self.transform.plain(self.raw_N), self.y, torch.arange(len(self), device=self.y.device))
            return
        for index in torch.arange(len(self), device=self.y.device).split(batch_size):
            yield Batch(self.transform.plain(self.raw_N.index_select(0, index)), self.y[index], index)

    def shuffled(
        self,
        batch_size: int,
        epochs: int,
        rng: torch.Generator,
        drop_single: bool = False,
        two_views: bool = False,
        steps: int | None = None,
    ) -> Shuffled:
        """Return augmented batches, in a new random order in each epoch; the last batch of an epoch may be smaller.

        steps: the number of batches, in place of `epochs`; the last epoch may be cut short. drop_single: leave out a
        last batch of one sample, which BatchNorm cannot train on. two_views: fill `second`.
        """
        if not isinstance(epochs, Integral) or epochs < 0:
            raise ValueError(f"epochs: {epochs!r} given; give a whole number of at least 0")
        # `int`, because NumPy's int32 overflows
        return Shuffled(self, batch_size, int(epochs), rng, drop_single, two_views, steps)

    def to(self, device: torch.device | str) -> Samples:
        """Return the same samples on a device."""
        return Samples(self.raw_N.to(device), self.y.to(device), self.transform)


DRAWN_AT_ONCE = 4096
"""Number of samples whose augmentation is drawn at once. An augmentation of 32 x 32 pixels takes 1 KB."""


@dataclass(frozen=True)
class Shuffled:
    """Training batches; each iteration over them draws new random numbers from `rng`. See `Samples.shuffled`."""

    data: Samples
    batch_size: int
    epochs: int
    rng: torch.Generator
    drop_single: bool
    two_views: bool
    steps: int | None = None  # number of batches; replaces `epochs`

    def __len__(self) -> int:
        return sum(self.sizes().values())

    def sizes(self) -> dict[int, int]:
        """Return batch size -> number of batches of this size."""
        full, rest = divmod(len(self.data), self.batch_size)
        last = int(rest > self.drop_single)
        epochs, left = self.epochs, 0
        if self.steps is not None:
            epochs, left = divmod(self.steps, full + last) if full + last else (0, 0)
        return {self.batch_size: epochs * full + left, rest: epochs * last}

    def __iter__(self) -> Iterator[Batch]:
        data, views = self.data, 2 if self.two_views else 1
        at_once, device = max(1, DRAWN_AT_ONCE // self.batch_size), data.y.device
        for epoch in self._epochs():
            for begin in range(0, len(epoch), at_once):
                batches = epoch[begin : begin + at_once]
                sizes = [len(index) for index in batches for _ in range(views)]
                with without_default_device(device):
                    drawn = iter(data.transform.augmentations(sizes, data.raw_N, self.rng))
                for index in batches:
                    with without_default_device(device):
                        # `index_select` is ten times faster than raw_N[index], which visits every value.
                        raw_B = data.raw_N.index_select(0, index)
                        x, second = next(drawn)(raw_B), next(drawn)(raw_B) if self.two_views else None
                        batch = Batch(x, data.y.index_select(0, index), index, None, second)
                    yield batch

    def places(self) -> Iterator[Tensor]:
        """Yield the positions [B] of each batch's samples in the data."""
        for epoch in self._epochs():
            yield from epoch

    def _epochs(self) -> Iterator[Sequence[Tensor]]:
        """Yield, for each epoch, the positions [B] of each batch's samples."""
        size, left = len(self.data), len(self)
        in_epoch = size // self.batch_size + (size % self.batch_size > self.drop_single)
        for _ in range(self.epochs if self.steps is None else -(-left // max(1, in_epoch))):
            order = torch.randperm(size, generator=self.rng, device="cpu").to(self.data.y.device)
            batches = order.split(self.batch_size) if size > self.batch_size else (order,)
            epoch = [index for index in batches if len(index) > self.drop_single][:left]
            left -= len(epoch)
            yield epoch


class AsGiven:
    """Transform for tensors that a network reads unchanged; a subclass may convert them, without augmentation."""

    draws = False

    def plain(self, raw_B: Tensor, /) -> Tensor:
        """Return the same tensor."""
        return raw_B

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator, /) -> Sequence[Augmentation]:
        """Return functions that do not augment."""
        return [self.plain] * len(sizes)


def shared(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares an array's memory. The array may be read-only, since raysim never writes to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def tensors(x_N: Tensor, y: Tensor | None = None) -> Samples:
    """Wrap tensors [N, ...], such as representations that clients sent, as samples. y: class ids [N]; None: zeros."""
    return Samples(x_N, torch.zeros(len(x_N), dtype=torch.int64, device=x_N.device) if y is None else y, AsGiven())
