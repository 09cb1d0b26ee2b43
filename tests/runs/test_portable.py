"""`backend: in_process` needs no Ray: it also runs where Ray cannot be installed or imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.structure import REPOSITORY

PROGRAM = """
import re, sys
from pathlib import Path

sys.modules["ray"] = None  # its import fails
exec(re.search(r"```python\\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)[1])
"""


@pytest.mark.large
def test_a_run_in_this_process_does_not_import_ray(workplace: Path) -> None:
    """The example of docs/trackers.md, in a process in which Ray cannot be imported."""
    (workplace / "scenarios").symlink_to(REPOSITORY / "scenarios")
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", PROGRAM, str(REPOSITORY / "docs" / "trackers.md")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in next(Path("runs").rglob("rounds.jsonl")).read_text().splitlines()]
    assert [one["round"] for one in rounds] == [0, 1, 2] and "accuracy/all" in rounds[2]
