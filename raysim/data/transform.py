"""Transforms of stored samples to a network's inputs, with the image augmentation of the papers' released code.

Flip, erase and crop act on the normalised image, as in that code, so erased and padded pixels are zero, the mean
colour. All three are one lookup, which gives for every output pixel an input pixel, or none.

Shapes: B samples of one batch, K numbers that describe an augmentation, F features; an image has C channels of H x W
pixels, R = W * C numbers in a row, and L pixels along one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import torch
from torch import Tensor

from raysim.core.data import AsGiven, Augmentation, Transform
from raysim.data.specs import Augment, DatasetSpec

_ERASE_AREA = (0.04, 0.20)
_ERASE_ASPECT = (0.5, 2.0)
_DRAWS = 8  # numbers per image, drawn even if not used, so that switching off one step does not change the other steps


def transform_of(dataset: DatasetSpec, augment: bool) -> Transform:
    """Return the transform for a data set. augment: whether to augment training images."""
    match dataset.input_spec.kind:
        case "image":
            return ImageTransform.of(dataset, augment)
        case "features":
            return FeatureTransform(dataset.mean, dataset.std)
        case "tokens":
            return TokenTransform()


@dataclass(frozen=True)
class FeatureTransform(AsGiven):
    """Standardise features, (x - mean) / std, with one mean and std per feature, or one for all features."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def plain(self, raw_B: Tensor, /) -> Tensor:
        """Return standardised float32 features [B, ...]."""
        mean_F, std_F = self._constants.to(raw_B.device)
        if len(self.mean) > 1:
            mean_F, std_F = mean_F.view(raw_B.shape[1:]), std_F.view(raw_B.shape[1:])
        return (raw_B - mean_F) / std_F

    @cached_property
    def _constants(self) -> Tensor:
        with torch.inference_mode(False):
            return torch.tensor([self.mean, self.std], dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class TokenTransform(AsGiven):
    """Convert tokens to int64 for an embedding; they are stored in the smallest possible type."""

    def plain(self, raw_B: Tensor, /) -> Tensor:
        """Return int64 tokens [B, L]."""
        return raw_B.long()


@dataclass(frozen=True)
class ImageTransform:
    """Normalise images with a mean and std per channel (of pixels in [0, 1]), and augment them if `augment` is set.

    An image of one channel is repeated to the number of channels that `mean` has.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None

    @classmethod
    def of(cls, dataset: DatasetSpec, augment: bool) -> ImageTransform:
        """Create the transform for a data set."""
        return cls(dataset.mean, dataset.std, dataset.augment if augment else None)

    @property
    def draws(self) -> bool:
        """Whether images are augmented."""
        return self.augment is not None

    def plain(self, raw_BHWC: Tensor) -> Tensor:
        """Return normalised float32 images [B, C, H, W], channels last in memory."""
        return self._normalised(raw_BHWC).permute(0, 3, 1, 2)

    def augmentations(self, sizes: Sequence[int], like: Tensor, rng: torch.Generator) -> Sequence[Augmentation]:
        """Return, for each batch, a function that returns normalised images after a random flip, erasing and crop.

        like: images [N, H, W, C] as stored, on the device of the batches. Draws 8 numbers per image from `rng`, a CPU
        generator, for any device and any choice of steps; none without augmentation.
        """
        augment = self.augment
        if augment is None:
            return [self.plain] * len(sizes)
        height, width = like.shape[1:3]
        draw_KB = torch.cat(
            [torch.rand(_DRAWS, size, generator=rng, dtype=torch.float64, device="cpu") for size in sizes], dim=1
        )
        place_B = torch.cat([torch.arange(size, device="cpu") for size in sizes])
        # Rows and columns are computed separately, on the CPU and in double precision. This takes little time, and
        # gives the same integers for every device. A GPU receives one copy for all batches, so that it need not run
        # thirty small operations for each batch.
        plan_BK = torch.cat(_plan(draw_KB, place_B, height, width, augment), dim=1).to(like.device)
        return [partial(self._augmented, plan_BK=part_BK) for part_BK in plan_BK.split(list(sizes))]

    def _augmented(self, raw_BHWC: Tensor, plan_BK: Tensor) -> Tensor:
        """Return the images of a batch, augmented as planned and normalised."""
        _, height, width, channels = raw_BHWC.shape
        row_BH, row_hides_BH, col_BW, col_hides_BW = plan_BK.split([height, height, width, width], dim=1)
        source_BHW = row_BH[:, :, None] + col_BW[:, None, :]
        keep_BHW = row_hides_BH[:, :, None] + col_hides_BW[:, None, :] < 2
        moved = raw_BHWC.reshape(-1, channels).index_select(0, source_BHW.view(-1)).view(raw_BHWC.shape)
        return self._normalised(moved).mul_(keep_BHW[..., None]).permute(0, 3, 1, 2)

    def _normalised(self, raw_BHWC: Tensor) -> Tensor:
        size, height, width, _ = raw_BHWC.shape
        channels = len(self.mean)
        raw_BHWC = raw_BHWC.expand(-1, -1, -1, channels)
        # If the constants are as long as a row of the image, the inner loop uses vector instructions.
        scale_R, shift_R = _constants(self.mean, self.std, width, raw_BHWC.device)
        raw_BHR = raw_BHWC.reshape(size, height, width * channels).to(torch.float32)
        # `addcmul` computes raw / (255 std) - mean / std in one pass over the pixels.
        return torch.addcmul(shift_R, raw_BHR, scale_R).view(size, height, width, channels)


@lru_cache(maxsize=32)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return scale and shift for a row of pixels [W * C] on a device; cached, because copying takes longer than use."""
    with torch.inference_mode(False):
        std_C = torch.tensor(std, dtype=torch.float64, device="cpu")
        shift_C = -torch.tensor(mean, dtype=torch.float64, device="cpu") / std_C
        scale_C = (1 / (255 * std_C)).float()
        return scale_C.repeat(width).to(device), shift_C.float().repeat(width).to(device)


def _plan(
    draw_KB: Tensor, place_B: Tensor, height: int, width: int, augment: Augment
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute, by row and by column, each output pixel's source and whether it is blank; all int64.

    place_B: the place of each image in its batch. Returns, for rows, the start of each in the batch's pixels [B, H] and
    its hiding value [B, H]; for columns, the position of each in its row [B, W] and its hiding value [B, W].
    Padding has the hiding value 2 and the erased box 1: a pixel is blank if the sum over its row and column is at least
    2.
    """
    flip_B, erase_B, area_B, aspect_B, top_B, left_B, down_B, across_B = draw_KB
    low, high = _ERASE_AREA
    area_B = height * width * (low + area_B * (high - low))
    low, high = _ERASE_ASPECT
    aspect_B = low * (high / low) ** aspect_B  # the aspect is log-uniform
    erased_B = (erase_B < 0.5) & augment.erase
    tall_B = (area_B * aspect_B).sqrt().round().clamp(max=height) * erased_B
    wide_B = (area_B / aspect_B).sqrt().round().clamp(max=width) * erased_B

    row_BH, row_hides_BH = _along(height, augment.crop_padding, down_B, top_B, tall_B)
    col_BW, col_hides_BW = _along(width, augment.crop_padding, across_B, left_B, wide_B)
    # Box and crop are positions in the flipped image, but the lookup needs positions in the stored image.
    flipped_B = (flip_B < 0.5) & augment.flip
    col_BW = torch.where(flipped_B[:, None], width - 1 - col_BW, col_BW)
    row_BH = (place_B[:, None] * height + row_BH) * width
    return row_BH, row_hides_BH, col_BW, col_hides_BW


def _along(length: int, pad: int, shift_B: Tensor, start_B: Tensor, cut_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return, along one axis, the source [B, L] of each output position, and a value [B, L] that marks hidden ones.

    shift_B and start_B are draws from [0, 1) for the crop and the erased box; cut_B is the length of the box.
    """
    shift_B = (shift_B * (2 * pad + 1)).floor() - pad
    start_B = (start_B * (length - cut_B + 1)).floor()
    at_BL = torch.arange(length, device=shift_B.device) + shift_B[:, None]
    outside_BL = (at_BL < 0) | (at_BL >= length)
    cut_BL = (at_BL >= start_B[:, None]) & (at_BL < (start_B + cut_B)[:, None])
    return at_BL.clamp(0, length - 1).long(), outside_BL.long() * 2 + cut_BL
