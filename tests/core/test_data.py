"""Batches: every sample once per epoch, and padding that does not count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from raysim.common.shards import Shards
from raysim.contract.toy import ToyTransform
from raysim.core.data import Augmentation, Batch, Samples
from raysim.core.seeds import seeded
from raysim.data.specs import Augment
from raysim.data.transform import ImageTransform


class Recorder(ToyTransform):
    """Tells augmented images from plain ones by their sign."""

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator) -> Sequence[Augmentation]:
        for size in sizes:
            torch.rand(size, generator=rng)
        return [lambda raw_BHWC: -self.plain(raw_BHWC)] * len(sizes)


def samples(count: int) -> Samples:
    raw = torch.arange(1, count + 1, dtype=torch.uint8).reshape(count, 1, 1, 1).expand(count, 2, 2, 1)
    return Samples(raw, torch.arange(count) % 3, Recorder())


def batch(weight: list[float] | None) -> Batch:
    none = torch.zeros(3, 1)
    return Batch(none, none, none, None if weight is None else torch.tensor(weight))


def test_mean_leaves_padding_out_of_sum_and_count():
    assert batch([1.0, 1.0, 0.0]).mean(torch.tensor([1.0, 2.0, 600.0])).item() == 1.5


@pytest.mark.parametrize("count", [1, 6, 13])
def test_shuffled_shows_every_sample_once_per_epoch(count: int):
    batches = list(samples(count).shuffled(3, 2, seeded(1, "client", 1, 0)))
    half = len(batches) // 2
    assert [len(b.y) for b in batches] == 2 * ([3] * (count // 3) + ([count % 3] if count % 3 else []))
    for epoch in (batches[:half], batches[half:]):
        assert sorted(torch.cat([b.index for b in epoch]).tolist()) == list(range(count))
    for b in batches:
        assert b.y.tolist() == (b.index % 3).tolist()
        assert torch.allclose(b.x[:, 0, 0, 0], -(b.index + 1) / 255)  # augmented, and of the right sample
        assert b.weight is None


def test_shuffled_has_a_new_order_each_epoch_and_the_same_for_the_same_seed():
    def orders(seed: int) -> list[list[int]]:
        return [b.index.tolist() for b in samples(20).shuffled(20, 3, seeded(seed, "client", 1, 0))]

    first = orders(1)
    assert first == orders(1) and first != orders(2)
    assert len({tuple(order) for order in first}) == 3


@pytest.mark.parametrize(("count", "sizes"), [(7, [3, 3]), (8, [3, 3, 2]), (1, []), (3, [3])])
def test_drop_single_leaves_out_a_last_batch_of_one(count: int, sizes: list[int]):
    assert [len(b.y) for b in samples(count).shuffled(3, 1, seeded(1, "x"), drop_single=True)] == sizes


def test_two_views_of_batches_of_different_sizes_are_drawn_batch_by_batch():
    """Of five images in batches of two, the last batch has one; each view is as if its batch were drawn alone."""
    transform = ImageTransform((0.5,), (0.2,), Augment(crop_padding=2))
    data = Samples(torch.randint(0, 256, (5, 8, 8, 1), dtype=torch.uint8), torch.arange(5), transform)
    again = torch.Generator().manual_seed(3)
    order = torch.randperm(5, generator=again)
    batches = list(data.shuffled(2, 1, torch.Generator().manual_seed(3), two_views=True))
    assert [len(batch.y) for batch in batches] == [2, 2, 1]
    for batch, index in zip(batches, order.split(2), strict=True):
        assert torch.equal(batch.index, index)
        for view in (batch.x, batch.second):
            (convert,) = transform.augmentations([len(index)], data.raw_N, again)
            assert torch.equal(view, convert(data.raw_N[index]))


def test_in_order_is_plain_and_in_order():
    batches = list(samples(5).in_order(2))
    assert [b.index.tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    assert torch.allclose(torch.cat([b.x for b in batches])[:, 0, 0, 0], torch.arange(1.0, 6.0) / 255)
    assert [b.y.tolist() for b in batches] == [[0, 1], [2, 0], [1]]


def test_shards_know_their_clients():
    shards = Shards(np.array([3, 8, 1, 2, 9]), np.array([0, 2, 2, 5]))
    assert len(shards) == 3
    assert [shards.of(k).tolist() for k in range(3)] == [[3, 8], [], [1, 2, 9]]
    assert shards.size_N.tolist() == [2, 0, 3]
    assert shards.owner.tolist() == [0, 0, 2, 2, 2]


def test_drawing_in_parts_changes_no_batch(monkeypatch: pytest.MonkeyPatch):
    """An epoch of 13 images in seven batches, drawn three batches at a time, as one of more than 4,096 images is."""
    raw = torch.randint(0, 256, (13, 8, 8, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    data = Samples(raw, torch.arange(13) % 3, ImageTransform((0.5,), (0.2,), Augment(crop_padding=2)))
    whole = list(data.shuffled(2, 2, torch.Generator().manual_seed(3)))
    monkeypatch.setattr("raysim.core.data.DRAWN_AT_ONCE", 6)
    parts = list(data.shuffled(2, 2, torch.Generator().manual_seed(3)))
    assert len(whole) == len(parts) == 14
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one.index, other.index) and torch.equal(one.x, other.x)


@pytest.mark.parametrize(
    ("count", "steps", "sizes"), [(7, 2, [3, 3]), (7, 5, [3, 3, 1, 3, 3]), (6, 3, [3, 3, 3]), (2, 3, [2, 2, 2])]
)
def test_steps_cut_the_last_epoch_short(count: int, steps: int, sizes: list[int]) -> None:
    shuffled = samples(count).shuffled(3, 1, seeded(1, "x"), steps=steps)
    batches = list(shuffled)
    assert [len(batch.y) for batch in batches] == sizes and len(shuffled) == steps
    assert sum(size * times for size, times in shuffled.sizes().items()) == sum(sizes)
    epochs = samples(count).shuffled(3, 3, seeded(1, "x"))
    assert [b.index.tolist() for b in batches] == [b.index.tolist() for b in epochs][:steps]


def test_steps_of_a_single_sample_that_batchnorm_cannot_train_on() -> None:
    assert list(samples(1).shuffled(3, 1, seeded(1, "x"), drop_single=True, steps=4)) == []
