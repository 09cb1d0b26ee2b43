"""What tests of data sets share."""

from __future__ import annotations

import pytest


def _no_network(*args, **kwargs):
    raise OSError("Network is unreachable")


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No data folder, an empty cache, and no network."""
    monkeypatch.delenv("RAYSIM_DATA", raising=False)
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    return tmp_path
