"""What the tests on a CUDA device share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each replay of a recorded step."""
    found: list[int] = []

    class Counted(torch.cuda.CUDAGraph):
        def replay(self) -> None:
            found.append(1)
            super().replay()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Counted)
    return found
