"""Exceptions that Python treats specially, and state that cannot be kept, are named with their hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim import run
from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.standalone import Standalone
from raysim.common.errors import HookError
from tests.engine.scenarios import plain as loaded


def test_a_stop_iteration(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python swallows it where a generator ends: the round would end early without a word."""

    def raises(self: Standalone, client: Any, down: None) -> None:
        next(iter(()))

    monkeypatch.setattr(Standalone, "client_update", raises)
    with pytest.raises(HookError, match=r"Standalone.client_update of client \d failed in round 1 .*StopIteration"):
        run(loaded("algorithm={name: standalone}"), quiet=True)


def test_server_state_that_no_checkpoint_can_hold(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Standalone, "server_start", lambda self, server, registrations: {1, 2})
    with pytest.raises(HookError, match=r"Standalone.server_start failed in round 0.*set"):
        run(loaded("algorithm={name: standalone}"), quiet=True)


def test_a_state_that_server_update_returns_is_refused(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "server_update", lambda self, server, ups: {"w": 1})
    with pytest.raises(HookError, match=r"server_update failed in round 1.*returned a dict"):
        run(loaded("algorithm={name: fedavg}", "clients.models=[digits_cnn_s]"), quiet=True)
