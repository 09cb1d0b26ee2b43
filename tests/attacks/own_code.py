"""Attack the commands that read or run a user's own code, with files that are wrong in any way.

A mutant is one of six files that work (a method, a model, data, a partition, a selection policy, a schedule) with some
changes: another value returned, an exception, `sys.exit()`, another annotation, a line too many or too few, damaged
text.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from unittest.mock import patch

from tests.attacks.harness import Outcome, run_command, snapshot
from tests.conftest import REPOSITORY

# A method's and a network's exceptions are shown with their traceback, see README.md.
SHOWN = re.compile(
    r"^raysim: .*(failed in round \d+|client_model failed with model|the test of client \d+ )", re.MULTILINE
)

FILES = {
    "method": (REPOSITORY / "raysim/cli/templates/algorithm.py").read_text().replace("NewMethod", "Mine"),
    "model": (REPOSITORY / "raysim/cli/templates/model.py").read_text().replace("NewModel", "Mine"),
    "data": (REPOSITORY / "raysim/cli/templates/data.py").read_text(),
    "partition": '''"""Halves."""
from dataclasses import dataclass
import numpy as np


@dataclass(frozen=True)
class Mine:
    """The first clients hold the even classes, the others the odd ones."""

    first: int = 2
    """How many are the first."""

    def shares(self, class_count_C, num_clients, rng):
        odd_C = np.arange(len(class_count_C)) % 2
        later_N = np.arange(num_clients) >= self.first
        return (later_N[:, None] == odd_C[None, :]).astype(float)
''',
    "selection": '''"""Last."""
from dataclasses import dataclass
import numpy as np


@dataclass(frozen=True)
class Mine:
    """The last clients."""

    skip: int = 1
    """How many are never selected."""

    def select(self, candidates, size, rng):
        ids = np.array(sorted(candidates.ids)[: len(candidates.ids) - self.skip])
        return rng.permutation(ids)[:size]
''',
    "schedule": '''"""Half."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Mine:
    """The first rate, and then half of it."""

    after: int = 1
    """In which rounds."""

    def factor(self, t, num_rounds):
        return 1.0 if t <= self.after else 0.5
''',
}
SETS = {
    "method": ["algorithm.name=./mine.py"],
    "model": ["clients.models=['./mine.py:Mine', digits_mlp64]"],
    "data": ["data={name: './mine.py:load', partition: {name: iid}}", "clients.models=[mlp_s]"],
    "partition": ["data.partition={name: './mine.py:Mine'}"],
    "selection": ["clients.selection={name: './mine.py:Mine'}"],
    "schedule": ["training.schedule={name: './mine.py:Mine'}"],
}
SCENARIO = """
name: mine
rounds: 1
backend: in_process
algorithm: {name: fedgh}
data: {name: digits, partition: {name: iid}}
clients: {count: 6, participation: 0.5, models: [digits_mlp64]}
training: {epochs: 1, batch_size: 128}
"""

HEAD = """
import itertools, sys
import numpy as np
import torch
class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError
class Nameless:
    def __repr__(self):
        raise RuntimeError
    def __eq__(self, other):
        raise RuntimeError
    def __len__(self):
        return -1
    def __iter__(self):
        sys.exit()
def leave(error):
    raise error
"""
"""What `VALUES` are made of; behind the imports of a mutant's file."""

VALUES = [
    "None", "True", "False", "0", "1", "-1", "3.5", "10**400", "float('nan')", "float('inf')", "1j", "''", "'x'",
    "b'x'", r"'\\x1b[2J'", r"'\\ud800'", "'x' * 5000", "[]", "[0, 0]", "[0, 1, 2]", "[0.0, 1.0, 2.0]", "{}", "set()",
    "()", "object()", "Nameless()", "Nameless", "lambda: 1", "itertools.count()", "(x for x in 'ab')",
    "range(10**12)", "np.float64(0.5)", "np.int64(1)", "np.bool_(True)", "np.array([1, 0, 2])", "np.array([[1.0]])",
    "np.array([None])", "np.array(['a', 'b'])", "np.zeros((6, 10))", "np.full((6, 10), np.nan)", "-np.ones((6, 10))",
    "np.array(['2026-01-01'], 'datetime64[D]')", "torch.zeros(3, requires_grad=True)", "torch.zeros(2, 32)",
    "torch.zeros(0)", "torch.tensor(1)", "torch.nn.Linear(2, 2)", "torch.eye(3).to_sparse()",
    "torch.zeros(2, device='meta')", "np.ma.masked", "type('Mine', (), {})", "sys", "...", "NotImplemented",
    "{'x': np.zeros((9, 4)), 'y': [0, 1, 2] * 3}", "{'x': np.zeros((9, 4)), 'y': None}",
    "{'x': torch.zeros(9, 4, requires_grad=True), 'y': [0, 1, 2] * 3}", "{'x': [[1], [1, 2]], 'y': [0, 1]}",
    "{'x': np.zeros((9, 4)), 'y': [0, 1, 2] * 3, 'num_train': 2.5}", "{'x': Nameless(), 'y': Nameless()}",
    "{'x': np.zeros((9, 4)), 'y': [0, 1, 2] * 3, 'num_train': np.int64(6)}", "{1: 2}", "sys.exit()",
    "sys.exit('bye')", "1 / 0", "leave(WordlessError())", "leave(StopIteration())", "leave(GeneratorExit())",
    "leave(MemoryError())", r"leave(ValueError('x\x1b[2J' * 999))", "leave(KeyError(Nameless()))",
    "leave(RecursionError())", "leave(OSError(2, 'no'))", "leave(SystemExit(Nameless()))",
    "(lambda f: f(f))(lambda f: f(f))", "no_such_name", "self", "self.__class__",
]  # fmt: skip
ANNOTATIONS = [
    "int", "'int'", "float", "str", "list[int]", "dict[str, float]", "'no_such_name'", "no_such_name", "9**9",
    "'9**9'", "list['9**9']", "object", "None", "5", "'x' * 3", "type", "np.ndarray", "torch.Tensor",
    "Nameless", "'Mine'", "int | 'x'", "tuple[int, ...]", "'" + "int|" * 30_000 + "int'", "-" * 3000 + "1",
    "[" * 90 + "]" * 90, "1 / 0", "ClassVar[int]", "'ClassVar[int]'", "Annotated[int, '" + "x" * 9000 + "']",
    "Literal['a', 1, None]", "sys.exit()", "bytes", "complex", "set[int]", "range", "Range(ge=0)",
    "Annotated[int, 5, Nameless()]", "Callable[[int], int]",
]  # fmt: skip
LINES = [
    "raise ValueError('x')", "import no_such_module", "import mine", "from mine import Mine", "import raysim",
    "from . import x", "from mine import *", "import random, json", "sys.exit()", "return 5", "yield 5", "x: int = 5",
    "_x: int = 5", "def x(", "del sys.modules['raysim_own.mine']", "__slots__ = ()", "del Mine", "Mine = 5",
    "load = 5", "load = [load]", "pass", "__all__ = 5", "__name__ = 5", "__file__ = None", "__class__ = 5",
    "def __getattr__(name): sys.exit()", "global x", "def __post_init__(self): raise ValueError('no')",
    "def __post_init__(self): sys.exit()", "model_config: int = 5", "def __init__(self): pass",
    "def __reduce__(self): raise ValueError", "def __eq__(self, other): raise ValueError",
    "def __hash__(self): raise ValueError", "def check(self, task): sys.exit()",
    "def check(self, task): return 1 / 0", "def check(self, task): raise ValueError('no')",
    "def client_model(self, model, task): return None", "name: str = 'x'",
    "def client_model(self, model, task): sys.exit()", "def client_register(self, client): return object()",
    "paper = None", "def client_register(self, client): client.log('../x', 1)", "profiles = {'x': {'y': 1}}",
    "profiles = 5", "profile: int = 1", "paper: ClassVar[str] = 5", "scheduled = True", "one_architecture = True",
    "public_data = True", "x: list = []", "async def x(self): pass", "class Other(Mine): pass", "class Mine: pass",
    "@property", "json: int = 5", "copy: int = 5", "x = " + "1+" * 200_000 + "1", "x = " + "(" * 300,
    "x = '" + "x" * 100_000 + "'", "if True:", "\t x = 5", "é = 5", "\N{RIGHT-TO-LEFT OVERRIDE} = 5", "x = '\ud800'",
    "# -*- coding: utf-16 -*-", "from __future__ import annotations", "from __future__ import braces",
    "warnings.warn('x')", "np.random.seed(1)", "torch.manual_seed(1)", "print('x')",
]  # fmt: skip


class OwnCodeAttack:
    """Mutants of each of `FILES` in turn. All share one MLflow store, whose making takes longer than a mutant."""

    def __init__(self, place: Path) -> None:
        self.store = f"sqlite:///{place / 'mlflow.db'}"

    def __call__(self, number: int, root: Path, outcome: Outcome) -> None:
        rng = random.Random(f"own code {number}")
        kind = list(FILES)[number % len(FILES)]
        here = root / "here"
        (here / "mine.py").write_bytes(mutated(FILES[kind], rng))
        (here / "s.yaml").write_text(SCENARIO)
        sets = [word for one in SETS[kind] for word in ("--set", one)]
        before = snapshot(root, here)
        with ExitStack() as stack:
            stack.enter_context(chdir(here))
            stack.enter_context(patch.dict(os.environ, {"MLFLOW_TRACKING_URI": self.store}))
            stack.enter_context(patch("raysim.runs.execution.Execution._draw"))  # plots take longer than the run
            for words in self._commands(kind, sets):
                run_command(outcome, f"{kind}: {' '.join(words)}", *words, shown=SHOWN)
        if snapshot(root, here) != before:
            raise AssertionError("something outside of the folder changed")

    def _commands(self, kind: str, sets: list[str]) -> Iterator[tuple[str, ...]]:
        if kind == "method":
            yield "describe", "./mine.py"
        yield "validate", "s.yaml", *sets
        yield "launch", "s.yaml", "--quiet", *sets
        for run in sorted(Path("runs").glob("*/*/run.json")):
            yield "resume", str(run.parent), "--quiet", "--set", "rounds=2"


def mutated(text: str, rng: random.Random) -> bytes:
    """The file with one to three changes; one in ten has damaged bytes as well."""
    lines = text.splitlines()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        _change(lines, rng)
    at = next((i for i, line in enumerate(lines) if line.startswith(("@", "class ", "def "))), len(lines))
    data = "\n".join([*lines[:at], *HEAD.splitlines(), *lines[at:], ""]).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice([b"\0", b"\xff", b"\r", b"", b"\xef\xbb\xbf", b"'", b"("]) + data[at + 1 :]
    return data


def _change(lines: list[str], rng: random.Random) -> None:
    """One change of the lines, in place."""
    what = rng.randrange(6)
    returns = [i for i, line in enumerate(lines) if line.lstrip().startswith("return ")]
    fields = [i for i, line in enumerate(lines) if re.match(r"    \w+: ", line)]
    at = rng.randrange(len(lines))
    if what <= 1 and returns:
        i = rng.choice(returns)
        lines[i] = f"{lines[i].partition('return')[0]}return {rng.choice(VALUES)}"
    elif what == 2 and fields:
        i = rng.choice(fields)
        name, _, default = lines[i].partition(":")
        lines[i] = f"{name}: {rng.choice(ANNOTATIONS)} = {rng.choice([default.partition('=')[2], rng.choice(VALUES)])}"
    elif what == 3:  # in place of an argument, or of anything in brackets
        lines[at] = re.sub(r"\(([^()]*)\)", lambda found: f"({rng.choice(VALUES)})", lines[at], count=1)
    elif what == 4:
        indent = re.match(r" *", lines[at])
        lines.insert(at, f"{indent[0] if indent else ''}{rng.choice(LINES)}")
    else:
        lines[at : at + 1] = rng.choice([[], [lines[at]] * 2, [f"{lines[at]} {rng.choice(VALUES)}"]])
