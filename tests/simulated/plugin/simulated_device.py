"""Registers the simulated device with torch. torch itself calls `load` when it is imported, by an entry point."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

LIBRARY = "RAYSIM_SIMULATED_LIBRARY"
"""Environment variable with the path of the built library."""


def load() -> None:
    """Make `torch.device("simulated")`, and `torch.simulated` with the functions that torch expects of a device."""
    import torch

    torch.ops.load_library(os.environ[LIBRARY])
    torch.utils.rename_privateuse1_backend("simulated")
    ops = torch.ops.raysim_simulated
    module: Any = ModuleType("torch.simulated")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed = module.manual_seed_all = ops.seed
    module.get_rng_state_all = lambda: [ops.rng_state()]
    module.set_rng_state_all = lambda states: ops.set_rng_state(states[0])
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.max_memory_allocated = lambda device=None: ops.peak()
    torch._register_device_module("simulated", module)
