"""The memory of a device, which torch counts for a whole process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from raysim.core import accelerator


@pytest.mark.parametrize("used", [True, False])
def test_a_run_measures_its_own_memory(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    device = SimpleNamespace(
        is_initialized=lambda: used,
        empty_cache=lambda: done.append("empty"),
        reset_peak_memory_stats=lambda: done.append("reset"),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: device)
    accelerator.release_memory(torch.device("cuda"))
    assert done == (["empty", "reset"] if used else [])
