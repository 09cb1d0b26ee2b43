"""Specification of a data set from its samples: kind, shape, vocabulary, mean and deviation.

Shapes: M samples of one data set, S of these, B samples of a piece, H x W pixels, C channels, L = 256 pixel levels,
F features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.inputs import InputSpec
from raysim.data.sources import Decoded
from raysim.data.specs import DatasetSpec

_PIECE = 4096
"""Maximum number of samples that are processed at a time."""
_NUMBERS = 1 << 26
"""Maximum number of pixels or features that are processed at a time. Each takes 8 or 16 bytes then, instead of 1 or
4."""


def with_statistics(decoded: Decoded) -> Decoded:
    """Add the mean and deviation of the published train part to data that has a test part."""
    if decoded.num_train == len(decoded.label_M):
        return decoded  # without a test part, the partition decides which samples are for training
    mean_F, std_F = _mean_and_deviation(decoded.raw_M, np.arange(decoded.num_train))
    return replace(decoded, mean_F=mean_F, std_F=std_F)


def normalised_by(spec: DatasetSpec, raw_M: NDArray[Any], sample_S: NDArray[np.int64]) -> DatasetSpec:
    """Return the specification with the mean and deviation of these samples, unless it already has them."""
    if spec.mean:
        return spec
    mean_F, std_F = _mean_and_deviation(raw_M, sample_S)
    return replace(spec, mean=tuple(mean_F.tolist()), std=tuple(std_F.tolist()))


def _mean_and_deviation(
    raw_M: NDArray[Any], sample_S: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and deviation of some samples, per channel or per feature; empty for tokens."""
    count = len(sample_S)
    step = max(1, min(_PIECE, _NUMBERS // max(1, math.prod(raw_M.shape[1:]))))

    def pieces() -> Iterator[NDArray[Any]]:
        return (raw_M[sample_S[begin : begin + step]] for begin in range(0, count, step))

    if raw_M.dtype == np.uint8 and raw_M.ndim == 4:
        level_CL = sum(map(_levels, pieces()), np.zeros((raw_M.shape[3], 256), np.int64))
        share_CL, unit_L = level_CL / level_CL.sum(1, keepdims=True), np.arange(256) / 255
        mean = share_CL @ unit_L
        std = np.sqrt(np.maximum(share_CL @ unit_L**2 - mean**2, 0))
    elif raw_M.dtype == np.float32:
        mean = np.sum([piece_B.sum(0, dtype=np.float64) for piece_B in pieces()], axis=0) / count
        std = np.sqrt(np.sum([np.square(piece_B - mean).sum(0) for piece_B in pieces()], axis=0) / count).ravel()
        mean = mean.ravel()
    else:
        return np.zeros(0), np.zeros(0)
    std[std == 0] = 1  # a constant feature then becomes 0, not infinity
    return mean, std


def _levels(piece_BHWC: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the number of pixels with each level, per channel: [C, 256]."""
    channels = np.moveaxis(piece_BHWC, 3, 0)
    return np.stack([np.bincount(level_BHW.ravel(), minlength=256) for level_BHW in channels])


def completed(spec: DatasetSpec, decoded: Decoded) -> DatasetSpec:
    """Complete a data set's specification by the values that are only known from its files."""
    raw_M = decoded.raw_M
    if raw_M.dtype == np.uint8 and raw_M.ndim == 4:
        height, width, channels = raw_M.shape[1:]
        reads = InputSpec("image", (channels, height, width))
    elif raw_M.dtype == np.float32:
        reads = InputSpec("features", raw_M.shape[1:])
    else:
        reads = InputSpec("tokens", raw_M.shape[1:], decoded.vocabulary)
    return replace(
        spec,
        num_classes=len(decoded.class_names),
        input_spec=reads,
        train_size=decoded.num_train,
        test_size=len(raw_M) - decoded.num_train,
        mean=tuple(decoded.mean_F.tolist()),
        std=tuple(decoded.std_F.tolist()),
    )
