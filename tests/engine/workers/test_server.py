"""The server's worker: what it remembers between rounds."""

from __future__ import annotations

import pytest

from raysim.engine.inprocess import InProcessBackend
from raysim.engine.workers import server
from tests.engine.scenarios import outcome
from tests.engine.scenarios import plain as loaded


def test_few_operation_counts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """With cohorts of other classes in each round, every set of uploads has other shapes."""
    given = loaded("rounds=6", "clients.participation=0.25", "data.partition={name: dirichlet, alpha: 0.3}")
    many, few = InProcessBackend(), InProcessBackend()
    expected = outcome(given, many)
    assert len(many.server._flops) > 2
    monkeypatch.setattr(server, "MOST_COUNTS", 2)
    assert outcome(given, few) == expected
    assert list(few.server._flops.items()) == list(many.server._flops.items())[-2:]
    _, data = few.server.save(6)
    restored = InProcessBackend()
    outcome(given, restored)
    restored.server._flops.clear()
    restored.server.restore(data)
    assert restored.server._flops == few.server._flops
