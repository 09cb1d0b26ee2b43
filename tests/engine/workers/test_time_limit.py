"""A block that takes too long is cut off, and nothing else of the process changes."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from raysim.engine.workers.time_limit import ClientTimeoutError, limit

WHAT = "client 7 took longer than failure.client_timeout_s (60 s)"


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """Handler and timer are afterwards what they were."""
    handler = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_endless_loop() -> None:
    began = time.monotonic()
    with (
        pytest.raises(ClientTimeoutError, match="client 7"),
        limit(0.1, WHAT),
    ):
        while True:
            pass
    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize("wait", [time.sleep, lambda s: threading.Event().wait(s)], ids=["sleep", "lock"])
def test_a_wait(wait) -> None:
    began = time.monotonic()
    with pytest.raises(ClientTimeoutError), limit(0.1, WHAT):
        wait(60)
    assert time.monotonic() - began < 50


def test_many_that_end_just_in_time() -> None:
    """Wherever the ring falls, the exception is `ClientTimeoutError` and nothing is left behind."""
    for i in range(300):
        with contextlib.suppress(ClientTimeoutError), limit(0.0005, WHAT):
            time.sleep(0.0004 + i % 10 * 0.00002)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
