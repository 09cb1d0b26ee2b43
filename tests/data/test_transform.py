"""The vectorised transform against one image at a time, done in the published order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raysim.core.data import Transform
from raysim.data.specs import DATASETS, Augment
from raysim.data.transform import FeatureTransform, ImageTransform

ALL = [Augment(flip=True, erase=True, crop_padding=4), Augment(flip=False)]
SHAPES = [(4, 8, 8, 1), (3, 12, 20, 3)]


def raw(shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def transform(channels, augment=None):
    return ImageTransform((0.5, 0.4, 0.3)[:channels], (0.2, 0.3, 0.25)[:channels], augment)


def one_by_one(transform, raw_BHWC, rng):
    """Normalise, flip, erase, then pad and crop, each image alone."""
    augment, out = transform.augment, []
    draw_KB = torch.rand(8, len(raw_BHWC), generator=rng, dtype=torch.float64).numpy()
    for image, (flip, erase, area, aspect, top, left, down, across) in zip(raw_BHWC.numpy(), draw_KB.T, strict=True):
        x_HWC = (image.astype(np.float64) / 255 - transform.mean) / transform.std
        height, width, _ = x_HWC.shape
        if augment.flip and flip < 0.5:
            x_HWC = x_HWC[:, ::-1].copy()
        if augment.erase and erase < 0.5:
            size = height * width * (0.04 + 0.16 * area)
            ratio = math.exp(math.log(0.5) + aspect * (math.log(2.0) - math.log(0.5)))
            tall = min(round(math.sqrt(size * ratio)), height)
            wide = min(round(math.sqrt(size / ratio)), width)
            row, col = int(top * (height - tall + 1)), int(left * (width - wide + 1))
            x_HWC[row : row + tall, col : col + wide] = 0
        pad = augment.crop_padding
        x_HWC = np.pad(x_HWC, ((pad, pad), (pad, pad), (0, 0)))
        row, col = int(down * (2 * pad + 1)), int(across * (2 * pad + 1))
        out.append(x_HWC[row : row + height, col : col + width].transpose(2, 0, 1))
    return torch.from_numpy(np.stack(out)).float()


@pytest.mark.parametrize("shape", SHAPES)
def test_plain_is_totensor_and_normalize(shape):
    made = transform(shape[3])
    got = made.plain(raw(shape))
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (made.mean, made.std))
    want = (raw(shape).permute(0, 3, 1, 2).float() / 255 - mean) / std
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert got.dtype == torch.float32 and got.is_contiguous(memory_format=torch.channels_last)


def augmented(made: Transform, raw_B: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """One batch, augmented."""
    (convert,) = made.augmentations([len(raw_B)], raw_B, rng)
    return convert(raw_B)


@pytest.mark.parametrize("augment", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_augmented_is_the_same_one_image_at_a_time(augment, shape):
    made = transform(shape[3], augment)
    for seed in range(4):
        mine, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
        got = augmented(made, raw(shape, seed), mine)
        torch.testing.assert_close(got, one_by_one(made, raw(shape, seed), theirs), rtol=1e-5, atol=1e-6)
        assert got.is_contiguous(memory_format=torch.channels_last) and got.dtype == torch.float32
        assert torch.equal(mine.get_state(), theirs.get_state())  # always 8 draws per image


def test_batches_drawn_at_once_are_those_drawn_one_after_another():
    made, images = ImageTransform.of(DATASETS["cifar100"], augment=True), raw((11, 32, 32, 3))
    mine, theirs = (torch.Generator().manual_seed(3) for _ in range(2))
    parts = images.split([4, 4, 3])
    together = made.augmentations([4, 4, 3], images, mine)
    for convert, part in zip(together, parts, strict=True):
        assert torch.equal(convert(part), augmented(made, part, theirs))
    assert torch.equal(mine.get_state(), theirs.get_state())


def test_rates_are_the_published_ones():
    grey = torch.full((4000, 32, 32, 1), 255, dtype=torch.uint8)
    grey[:, :, :16] = 200
    rng = torch.Generator().manual_seed(0)
    flipped = augmented(ImageTransform((0.0,), (1.0,), Augment()), grey, rng)[:, 0, 0, 0] == 1
    assert 0.46 < flipped.float().mean() < 0.54
    erased = augmented(ImageTransform((0.0,), (1.0,), Augment(flip=False, erase=True)), grey, rng)
    share = (erased == 0).float().mean((1, 2, 3))
    assert 0.46 < (share > 0).float().mean() < 0.54
    assert share[share > 0].min() > 0.03 and share.max() < 0.22 and 0.11 < share[share > 0].mean() < 0.13


@pytest.mark.parametrize("augment", [None, Augment(erase=True, crop_padding=4)])
def test_grey_images_are_repeated_to_as_many_channels_as_there_are_means(augment):
    made, grey = ImageTransform((0.5, 0.4, 0.3), (0.2, 0.3, 0.25), augment), raw((6, 28, 28, 1))
    found = augmented(made, grey, torch.Generator().manual_seed(1))
    assert torch.equal(found, augmented(made, grey.repeat(1, 1, 1, 3), torch.Generator().manual_seed(1)))
    assert found.shape == (6, 3, 28, 28) and found.is_contiguous(memory_format=torch.channels_last)


def test_recipes_of_the_data_sets():
    assert ImageTransform.of(DATASETS["cifar10"], True).augment == Augment(flip=True, erase=True, crop_padding=4)
    # ImageNet's constants, and said so: white is (1 - 0.485) / 0.229 in red, not (1 - 0.4914) / 0.2023 = 2.5141.
    white = ImageTransform.of(DATASETS["cifar10"], True).plain(torch.full((1, 32, 32, 3), 255, dtype=torch.uint8))
    assert white[0, :, 0, 0].tolist() == pytest.approx([0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225])
    assert "ImageNet" in DATASETS["cifar10"].summary
    assert ImageTransform.of(DATASETS["tiny_imagenet"], True).augment == Augment(flip=True, erase=False, crop_padding=8)
    assert ImageTransform.of(DATASETS["cifar100"], False).augment is None


@pytest.mark.gpu
def test_every_device_makes_the_same_choices():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    made, images = ImageTransform.of(DATASETS["cifar100"], True), raw((64, 32, 32, 3))
    here = augmented(made, images, torch.Generator().manual_seed(3))
    there = augmented(made, images.cuda(), torch.Generator().manual_seed(3))
    assert there.is_cuda and there.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(here, there.cpu(), rtol=1e-5, atol=1e-6)
    assert torch.equal(here == 0, there.cpu() == 0)


def test_features_are_standardised_each_by_its_own_constants():
    transform = FeatureTransform((1.0, 10.0), (2.0, 5.0))
    raw_B = torch.tensor([[3.0, 0.0], [1.0, 20.0]])
    assert transform.plain(raw_B).tolist() == [[1.0, -2.0], [0.0, 2.0]]
    assert torch.equal(augmented(transform, raw_B, torch.Generator()), transform.plain(raw_B))
    one = FeatureTransform((1.0,), (2.0,)).plain(torch.ones(3, 2, 4))  # one constant for features of any shape
    assert one.shape == (3, 2, 4) and not one.any()
    shaped = FeatureTransform((0.0, 1.0, 2.0, 3.0), (1.0,) * 4).plain(torch.arange(4.0).reshape(1, 2, 2))
    assert shaped.shape == (1, 2, 2) and not shaped.any()
