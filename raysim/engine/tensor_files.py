"""Functions for both kinds of safetensors files (checkpoints and exports): accepted copies of tensors, and metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def contiguous_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU, because safetensors refuses tensors that share memory (tied weights) or have gaps."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def metadata_of(data: bytes) -> Any:
    """Return the metadata of a file; `safetensors.torch.load` ignores it.

    A file begins with the size of its header, in 8 bytes, and the header, in JSON.
    """
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
