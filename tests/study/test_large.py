"""Which cells need client actors of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from raysim.study.definition import load_sweep
from raysim.study.workers import is_large
from tests.engine.scenarios import digits


def large(folder: Path, parallel: int = 1, **changes: Any) -> bool:
    path = folder / "sweep.yaml"
    base = {key: value for key, value in digits(**changes).items() if value is not None}
    path.write_text(yaml.safe_dump({"base": base}))
    (cell,) = load_sweep(path).cells
    return is_large(cell, parallel)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"backend": None}, False),
        ({"backend": "ray"}, True),
        ({"backend": None, "resources": {"actors": 2}}, True),
        ({"backend": "in_process", "resources": {"actors": 2}}, False),
    ],
)
def test_what_the_scenario_asks_for_counts(tmp_path: Path, changes: dict[str, Any], expected: bool) -> None:
    assert large(tmp_path, **changes) is expected


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = (64 + 1) * 32 + (32 + 1) * 10
    needed = 8 * parameters * 4 + 1797 * 64  # bytes of eight clients' weights, and of the images
    clients = {**digits()["clients"], "models": ["digits_mlp64"]}
    machine = psutil.virtual_memory()
    for total, expected in ((needed + 1, False), (needed - 1, True)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda total=total: machine._replace(total=2 * total))
        assert large(tmp_path, 2, backend=None, clients=clients) is expected
