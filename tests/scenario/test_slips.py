"""A method with a hook or a field that is none is refused before it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raysim import algorithms
from raysim.cli.main import main
from tests.conftest import REPOSITORY

QUICKSTART = str(REPOSITORY / "scenarios" / "quickstart.yaml")
UPDATE = "    def server_update("
SLIPS = {
    "a typo": (
        UPDATE,
        "    def server_updat(",
        "did you mean `server_update`?",
    ),
    "no decorator": ("@dataclass(frozen=True)", "", "put @dataclass(frozen=True) above the class"),
    "syntax": ("@dataclass(frozen=True)", "def f(:", "cannot be imported: invalid syntax"),
    "no hook": ("    def client_update(", "    def updates(", "lacks client_update"),
    "another signature": (
        "def server_send(self, server: Server[Header], to: ClientId)",
        "def server_send(self, server: Server[Header])",
        "write def server_send(self, server, to)",
    ),
}


@pytest.mark.parametrize("what", SLIPS)
def test_a_slip_is_one_sentence(
    what: str,
    tmp_path: Path,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    old, new, told = SLIPS[what]
    text = (REPOSITORY / "algorithms" / "lg_fedavg.py").read_text()
    assert old in text
    (tmp_path / "mine.py").write_text(text.replace(old, new))
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "raysim.algorithms.mine", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["validate", QUICKSTART, "--set", "algorithm.name=mine"])
    first = capfd.readouterr().err.splitlines()[0]  # Python's traceback follows where the file cannot be imported
    assert ended.value.code == 2
    assert "algorithms/mine.py" in first and told in first
    sys.modules.pop("raysim.algorithms.mine", None)
