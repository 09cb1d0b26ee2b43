"""What a data set's spec says of its samples, found in the samples: kind, shape, vocabulary, mean and deviation.

Shapes: M samples of one data set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.common.inputs import InputSpec
from raysim.data.sources import Decoded
from raysim.data.specs import DatasetSpec


def with_statistics(decoded: Decoded) -> Decoded:
    """The same with mean and deviation of its published train part: per channel of images, per feature of features."""
    train_M = decoded.raw_M[: decoded.num_train]
    if decoded.raw_M.dtype == np.uint8 and decoded.raw_M.ndim == 4:
        level_CL = np.stack([np.bincount(train_M[..., c].ravel(), minlength=256) for c in range(train_M.shape[-1])])
        share_CL, unit_L = level_CL / level_CL.sum(1, keepdims=True), np.arange(256) / 255
        mean = share_CL @ unit_L
        std = np.sqrt(np.maximum(share_CL @ unit_L**2 - mean**2, 0))
    elif decoded.raw_M.dtype == np.float32:
        mean, std = train_M.mean(0, dtype=np.float64).ravel(), train_M.std(0, dtype=np.float64).ravel()
    else:
        return decoded
    std[std == 0] = 1  # a constant is no information, and no infinity either
    return decoded._replace(mean_F=mean, std_F=std)


def completed(spec: DatasetSpec, decoded: Decoded) -> DatasetSpec:
    """A data set's spec with what its files say."""
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


def narrow(token_ML: NDArray[Any], vocabulary: int) -> NDArray[Any]:
    """Tokens as narrow as they fit."""
    return token_ML.astype(np.uint8 if vocabulary <= 256 else np.int32)
