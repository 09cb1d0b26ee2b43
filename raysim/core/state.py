"""State as named tensors: what a client or the server keeps, in a form that can be digested, moved and stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def state_tensors(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor and number inside `state`, by dotted path, in a fixed order.

    Understands tensors, modules, optimizer-free dataclasses, mappings, lists and tuples, numbers, strings and
    `None`. Raises `TypeError` naming the path of anything else, because state that cannot be seen
    could not be checkpointed or compared either.
    """
    if state is None:
        return {}
    if isinstance(state, Tensor):
        return {prefix or "value": state.detach()}
    if isinstance(state, bool | int):
        return {prefix or "value": torch.tensor(state, dtype=torch.int64)}
    if isinstance(state, float):
        return {prefix or "value": torch.tensor(state, dtype=torch.float64)}
    if isinstance(state, str):
        return {prefix or "value": torch.tensor(list(state.encode()), dtype=torch.uint8)}
    if isinstance(state, nn.Module):
        parts: list[tuple[str, Any]] = list(state.state_dict().items())
    elif isinstance(state, Mapping):
        parts = [(str(key), state[key]) for key in sorted(state, key=lambda key: (str(type(key)), key))]
    elif isinstance(state, list | tuple):
        parts = [(str(i), part) for i, part in enumerate(state)]
    elif is_dataclass(state):
        parts = [(field.name, getattr(state, field.name)) for field in fields(state)]
    else:
        raise TypeError(
            f"state {prefix or '(top level)'} is a {type(state).__name__}; keep tensors, modules, dataclasses, "
            "dicts, lists, numbers or strings"
        )
    found: dict[str, Tensor] = {}
    for name, part in parts:
        inner = state_tensors(part, f"{prefix}.{name}" if prefix else name)
        if found.keys() & inner.keys():
            raise TypeError(f"two parts of the state are both called {min(found.keys() & inner.keys())}")
        found |= inner
    return found


def digest(state: Any) -> str:
    """SHA-256 (hex) over names, types, shapes and bytes of `state_tensors(state)`."""
    sha = hashlib.sha256()
    for name, tensor in state_tensors(state).items():
        sha.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        sha.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def combined_digest(digests: Mapping[Any, str]) -> str:
    """One SHA-256 (hex) over several, in key order."""
    sha = hashlib.sha256()
    for key in sorted(digests):
        sha.update(f"{key}={digests[key]};".encode())
    return sha.hexdigest()
