"""What tests of data sets share."""

from __future__ import annotations

import pytest


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No data folder, an empty cache, and no network."""
    monkeypatch.delenv("RAYSIM_DATA", raising=False)
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("raysim.data.datasets._reachable", lambda url: False)
    return tmp_path
