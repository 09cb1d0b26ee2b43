"""`backend: in_process` needs neither Ray nor what only Linux has, so that it runs on macOS and Windows, too."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.structure import REPOSITORY

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules that Windows lacks."""

NAMES = re.compile(
    r"\b(?:os\.(?:fork\w*|get[ge]?uid|geteuid|getpgid|getpriority|kill|killpg|mkfifo|nice|O_DIRECTORY|O_NOFOLLOW|posix_\w+|"
    r"sched_\w+|set\w*[gu]id|setsid|statvfs|sync|sysconf|uname|wait\w*|WNOHANG)|signal\.(?:SIG(?:ALRM|CHLD|HUP|KILL|PIPE|"
    r"QUIT|USR\d)|alarm|pause|pthread_\w+|setitimer|sigwait\w*)|mmap\.(?:MAP|PROT|MADV)_\w+|ctypes\.CDLL)\b"
)
"""Names that Windows or macOS lacks."""

PROGRAM = """
import builtins, re, sys
from pathlib import Path

load = builtins.__import__

def refuse(name, globals=None, *args, **more):
    importer = (globals or {}).get("__name__", "")
    if name.split(".")[0] == "ray" or name in BLOCKED and importer.split(".")[0] == "raysim":
        raise ImportError(f"{importer} imports {name}")
    return load(name, globals, *args, **more)

builtins.__import__ = refuse
exec(re.search(r"```python\\n(.*?)```", Path(PAGE).read_text(), re.DOTALL)[1])
print(*(name for name in sys.modules if name.split(".")[0] in ("raysim", "algorithms")))
"""


def test_a_run_in_this_process_imports_neither_ray_nor_posix(workplace: Path) -> None:
    """The example of docs/trackers.md, in a process in which these modules cannot be imported."""
    (workplace / "scenarios").symlink_to(REPOSITORY / "scenarios")
    program = f"BLOCKED, PAGE = {MODULES!r}, {str(REPOSITORY / 'docs' / 'trackers.md')!r}\n{PROGRAM}"
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in next(Path("runs").rglob("rounds.jsonl")).read_text().splitlines()]
    assert [one["round"] for one in rounds] == [0, 1, 2] and "accuracy/all" in rounds[2]

    used = done.stdout.splitlines()[-1].split()
    assert "raysim.engine.inprocess" in used and not any(name.startswith("raysim.engine.ray") for name in used)
    for name in used:
        source = _code(_file(name))
        for found in NAMES.findall(source):
            assert f'hasattr({found.partition(".")[0]}, "' in source, f"{name} uses {found} and does not ask for it"


def _file(name: str) -> Path:
    path = REPOSITORY / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _code(path: Path) -> str:
    """A module without comments and docstrings."""
    return ast.unparse(ast.parse(path.read_text())).replace("'", '"')
