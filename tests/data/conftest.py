"""Keeps the cache of these tests out of the home directory, and finds the real data if it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data sets in Parquet files."""
    tried = [os.environ.get("RAYSIM_DATA"), Path(__file__).parents[3] / "shared" / "data"]
    for folder in tried:
        if folder and (Path(folder) / "fashion_mnist").is_dir():
            return str(folder)
    pytest.skip("no real data: RAYSIM_DATA is not set (or holds no fashion_mnist), ../shared/data is not there")


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No data folder, an empty cache, and no network."""
    monkeypatch.delenv("RAYSIM_DATA", raising=False)
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("raysim.data.datasets._reachable", lambda url: False)
    return tmp_path
