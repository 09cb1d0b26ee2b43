"""The accelerator of this process, such as a GPU, of any kind that torch supports.

raysim is written for CUDA. ROCm (AMD), which torch also calls `cuda`, and XPU (Intel) are untested. MPS (Apple) and
Intel GPUs without float64 are not used, because raysim sums in float64.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor


def available() -> torch.device | None:
    """Return the accelerator that this process can use; None: it has only CPUs."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or not torch.accelerator.is_available() or _lacks_float64(kind):
        return None
    return kind


def count() -> int:
    """Return how many accelerators this process can use."""
    return torch.accelerator.device_count() if available() else 0


def seed(device: torch.device, key: int) -> None:
    """Seed torch's global generator of the accelerator."""
    torch.get_device_module(device).manual_seed(key)


def random_state() -> list[Tensor]:
    """Return the states of torch's global generators: the CPU's, then those of accelerators that this process uses."""
    module = _module()
    return [torch.get_rng_state(), *(module.get_rng_state_all() if module and module.is_initialized() else [])]


def set_random_state(state: list[Tensor]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state[0])
    if state[1:]:
        _module().set_rng_state_all(state[1:])


def use_deterministic_kernels() -> None:
    """Make torch choose kernels that give the same bits in every run, and warn of operations that have none.

    Call this on accelerators only: it imports torch's compiler (100 MB, seconds), and CPUs are deterministic anyway.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes cuBLAS deterministic
    # By default, deterministic mode also fills each new tensor before a kernel writes to it. This helps only to find
    # errors in kernels, and makes a step of a small network on an H100 take 1.3 times as long.
    set_kernel_choice((True, True, False))


def kernel_choice() -> tuple[bool, bool, bool]:
    """Return three settings of torch: deterministic kernels, warning instead of error, and filling of new tensors."""
    from torch.utils import deterministic

    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills: bool = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return torch.are_deterministic_algorithms_enabled(), only_warns, fills


def set_kernel_choice(choice: tuple[bool, bool, bool]) -> None:
    """Restore what `kernel_choice` returned."""
    from torch.utils import deterministic

    chosen, only_warns, fills = choice
    torch.use_deterministic_algorithms(chosen, warn_only=only_warns)
    deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def limit_memory(device: torch.device, share: float) -> None:
    """Limit this process to a share of the device's memory, if torch supports that for this kind of device."""
    limit = getattr(torch.get_device_module(device), "set_per_process_memory_fraction", None)
    if limit is not None:
        limit(share)


def release_memory(device: torch.device) -> None:
    """Return cached memory of earlier runs in this process to the device, and reset the measured peak."""
    module = torch.get_device_module(device)
    if module.is_initialized():  # without initialisation, no memory is in use, and CUDA would raise an error
        for name in ("empty_cache", "reset_peak_memory_stats"):
            if (function := getattr(module, name, None)) is not None:
                function()


def peak_memory_mb(device: torch.device) -> float:
    """Return the greatest memory of the device since `release_memory`, in MiB; 0 if torch does not measure it."""
    measure = getattr(torch.get_device_module(device), "max_memory_allocated", None)
    return measure(device) / 2**20 if measure is not None else 0.0


@cache
def _module() -> Any:
    """Return torch's module for the accelerator that this process can use, such as `torch.cuda`, or None."""
    kind = available()
    return None if kind is None else torch.get_device_module(kind)


def _lacks_float64(kind: torch.device) -> bool:
    return kind.type == "mps" or (kind.type == "xpu" and not torch.xpu.get_device_properties().has_fp64)
