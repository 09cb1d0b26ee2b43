"""What is said of a method's file that is still being written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysim import algorithms
from raysim.cli.main import main
from raysim.common.errors import ScenarioError
from raysim.plugins.registry import algorithm_class, algorithm_names

HALF = """
from raysim.core import Algorithm

class Half(Algorithm):
    "Half a method."
    def client_updated(self, client, down):
        return None
"""
BROKEN = {
    "syntax": ("x = 1\ndef f(:\n    pass\n", r"algorithms/mine\.py: cannot be imported: invalid syntax \(line 2\)"),
    "abstract": (HALF, r"algorithms/mine\.py: Half lacks client_update"),
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of a method called `mine`."""
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    yield tmp_path / "mine.py"
    sys.modules.pop("raysim.algorithms.mine", None)  # else other tests would find a method called `mine`


@pytest.mark.parametrize("what", BROKEN)
def test_a_half_written_method_is_told_in_a_sentence_and_hides_no_other(
    mine: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text, told = BROKEN[what]
    mine.write_text(text)
    assert "mine" in algorithm_names()
    with pytest.raises(ScenarioError, match=told):
        algorithm_class("mine")
    sys.modules.pop("raysim.algorithms.mine", None)
    main(["list", "algorithms"])
    out = capfd.readouterr().out
    assert "algorithms/mine.py" in out and "fedgh" in out
