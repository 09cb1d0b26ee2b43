"""What code a run was computed with is written down, and a run does not go on with other code by accident."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysim import algorithms
from raysim.common.errors import ScenarioError
from raysim.results.in_memory import MemoryTracker
from raysim.runs import code
from raysim.runs.code import Code
from raysim.runs.run import Run, run
from tests.engine.scenarios import plain as loaded

METHOD = '''"""Trains alone, with a loss from a file of its own."""
from dataclasses import dataclass
from raysim.core import Algorithm, Client
from raysim.algorithms import my_losses


@dataclass(frozen=True)
class Mine(Algorithm[None, None, None]):
    """Trains alone."""

    def client_update(self, client: Client, down: None) -> None:
        client.fit(my_losses.scaled)
'''
LOSS = """from .my_factor import FACTOR
from raysim.core.ops import cross_entropy

def scaled(net, batch, given):
    return FACTOR * cross_entropy(net, batch, given)
"""
FILES = {"mine.py": METHOD, "my_losses.py": LOSS, "my_factor.py": "FACTOR = 1\n"}

Write = Callable[[str, str], None]


def forget() -> None:
    """As in a new process: the files are read again."""
    for name in FILES:
        module = name.removesuffix(".py")
        sys.modules.pop(f"raysim.algorithms.{module}", None)
        vars(algorithms).pop(module, None)


@pytest.fixture
def write(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a file of the method `mine`, which is there already, as for a new process."""
    folder = workplace / "own"
    folder.mkdir()
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(folder)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions within a second would be one to the cache

    def write(name: str, text: str) -> None:
        (folder / name).write_text(text)
        forget()

    for name, text in FILES.items():
        write(name, text)
    yield write
    forget()


def mine(*sets: str) -> Any:
    return loaded("algorithm={name: mine}", *sets)


def test_a_run_goes_on_with_other_code_only_where_one_says_so(write: Write) -> None:
    short = run(mine("rounds=2"), quiet=True)
    had = short.summary["code"]["files"]
    before = {path: path.read_bytes() for path in short.folder.rglob("*") if path.is_file()}
    write("my_factor.py", "FACTOR = 5\n")
    write("other.py", "# another method")  # is no change
    with pytest.raises(ScenarioError, match=r"algorithms/my_factor\.py.*--code-changed") as caught:
        Run(short.folder).resume(sets=["rounds=4"], quiet=True)
    assert "other.py" not in str(caught.value)
    assert {path: path.read_bytes() for path in short.folder.rglob("*") if path.is_file()} == before
    assert Run(short.folder).resume(sets=["rounds=2"], quiet=True).summary["nothing_to_do"]
    longer = Run(short.folder).resume(sets=["rounds=4"], code_changed=True, quiet=True)
    (change,) = longer.summary["code"]["changes"]
    assert change["after_round"] == 2
    assert [text.partition(" ")[0] for text in change["files"]] == ["algorithms/my_factor.py"]
    known = json.loads((short.folder / "run.json").read_text())
    assert known["code"]["files"] == longer.summary["code"]["files"] != had
    again = Run(short.folder).resume(sets=["rounds=5"], quiet=True)  # it is the run's code now
    assert again.summary["code"]["changes"] == [change]


def test_a_file_that_is_edited_under_a_process_does_not_run_as_it_was(write: Write, workplace: Path) -> None:
    """As in a notebook: Python keeps what it imported, while Ray's new processes would import the new file."""
    run(mine("rounds=1"), quiet=True)
    (workplace / "own" / "my_factor.py").write_text("FACTOR = 5\n")
    with pytest.raises(ScenarioError, match="my_factor"):
        run(mine("rounds=1"), quiet=True)
    forget()
    run(mine("rounds=1"), quiet=True)


def test_a_run_goes_on_with_other_versions_and_a_warning(workplace: Path, caplog: pytest.LogCaptureFixture) -> None:
    short = run(loaded("rounds=1"), quiet=True)
    known = json.loads((short.folder / "run.json").read_text())
    (short.folder / "run.json").write_text(json.dumps({**known, "versions": {**known["versions"], "torch": "1.0"}}))
    Run(short.folder).resume(sets=["rounds=2"], quiet=True)
    assert "torch 1.0 before" in caplog.text


def test_mlflow_is_told(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "checkout", lambda: ("c" * 40, True))
    seen = MemoryTracker()
    result = run(loaded("rounds=1"), quiet=True, trackers=[seen])
    assert seen.card is not None
    assert seen.card.tags["mlflow.source.git.commit"] == "c" * 40
    assert seen.card.tags["mlflow.source.git.dirty"] == "true"
    assert seen.card.tags["raysim.code"] == Code.of(loaded().algorithm).method
    assert (result.summary["code"]["commit"], result.summary["code"]["dirty"]) == ("c" * 40, True)
