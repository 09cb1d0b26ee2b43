"""Exceptions that Python treats specially, and state that cannot be kept, are named with their hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim import run
from raysim.algorithms.standalone import Standalone
from raysim.engine.workers.hooks import HookError
from tests.engine.scenarios import loaded


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit], ids=lambda error: error.__name__)
def test_exceptions_that_end_generators(workplace: Path, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    """Python swallows them where a generator is closed: the round would end early without a word."""

    def raises(self: Standalone, client: Any, down: None) -> None:
        raise error("oh")

    monkeypatch.setattr(Standalone, "client_update", raises)
    with pytest.raises(
        HookError, match=rf"Standalone.client_update of client \d failed in round 1 .*{error.__name__}: oh"
    ):
        run(loaded("algorithm={name: standalone}"), quiet=True)


@pytest.mark.parametrize("state", [{1, 2}, lambda: None], ids=["a set", "a function"])
def test_server_state_that_no_checkpoint_can_hold(workplace: Path, monkeypatch: pytest.MonkeyPatch, state: Any) -> None:
    monkeypatch.setattr(Standalone, "server_start", lambda self, server, registrations: state)
    with pytest.raises(HookError, match=rf"Standalone.server_start failed in round 0.*{type(state).__name__}"):
        run(loaded("algorithm={name: standalone}"), quiet=True)
