"""Exceptions that Python treats specially, and state that cannot be kept, are named with their hook."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from raysim import run
from raysim.algorithms.fedavg import FedAvg
from raysim.algorithms.standalone import Standalone
from raysim.engine.workers.hooks import HookError, errors_from
from tests.engine.scenarios import plain as loaded


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


def test_a_hook_that_calls_exit_fails_and_one_that_ray_ends_does_not() -> None:
    """Ray raises `SystemExit` in an actor that gets a SIGTERM, with a text of its own: that is a death."""
    with pytest.raises(HookError, match=r"^here: SystemExit: 3$"), errors_from(lambda: "here"):
        sys.exit(3)
    of_ray = SystemExit(1)
    of_ray.ray_terminate_msg = "The process receives a SIGTERM."  # type: ignore[attr-defined]
    with pytest.raises(SystemExit), errors_from(lambda: "here"):
        raise of_ray


def test_an_exception_without_text_or_with_too_much_of_it() -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with (
        pytest.raises(HookError, match=r"^here: WordlessError: its text cannot be shown$"),
        errors_from(lambda: "here"),
    ):
        raise WordlessError
    text = "a b " * 5000
    with pytest.raises(HookError) as caught, errors_from(lambda: "here"):
        raise ValueError(text)
    assert len(str(caught.value)) < 250
    assert text.strip() in caught.value.trace


def test_a_message_of_many_tensors_is_cut(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "client_update", lambda self, client, down: 1 / 0)
    with pytest.raises(HookError, match=r"message Model\[\(16, 1, 3, 3\)") as caught:
        run(loaded("algorithm={name: fedavg}", "clients.models=[mobilenet]"), quiet=True)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("state", [{1, 2}, lambda: None], ids=["a set", "a function"])
def test_server_state_that_no_checkpoint_can_hold(workplace: Path, monkeypatch: pytest.MonkeyPatch, state: Any) -> None:
    monkeypatch.setattr(Standalone, "server_start", lambda self, server, registrations: state)
    with pytest.raises(HookError, match=rf"Standalone.server_start failed in round 0.*{type(state).__name__}"):
        run(loaded("algorithm={name: standalone}"), quiet=True)


def test_an_assignment_to_the_method_says_where_values_are_kept(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keeps(self: Standalone, client: Any, down: None) -> None:
        self.previous = client.t  # type: ignore[attr-defined]

    monkeypatch.setattr(Standalone, "client_update", keeps)
    with pytest.raises(HookError, match=r"field 'previous'.*: keep values in buffers of client\.net or in"):
        run(loaded("algorithm={name: standalone}"), quiet=True)


def test_a_state_that_server_update_returns_is_refused(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "server_update", lambda self, server, ups: {"w": 1})
    with pytest.raises(HookError, match=r"server_update failed in round 1.*returned a dict, which raysim ignores"):
        run(loaded("algorithm={name: fedavg}", "clients.models=[digits_cnn_s]"), quiet=True)
