"""Attack the commands that take, keep or show names: of runs, cells, labels, classes, files and folders.

A mutant puts hostile names in place of the ones that a scenario, a sweep file, own code, own data or a command line
holds, and sends the result through launch, sweep, compare, report and the commands that explain names.
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from tests.attacks.harness import Outcome, limited, run_command, snapshot
from tests.comparison.runs import make_run
from tests.data.own import image_folder, scenario, table

NAMES = [
    "", " ", ".", "..", "...", "/", "//", "a/b", "../x", "a/../../x", "\\", "a\\b", "C:\\x", "-", "--", "-rf", "--help",
    "--set", "-o", "\0", "a\0b", "\n", "a\nb", "\r", "a\rb", "\t", "a\x07b", "\x7f", "\x85", "\x1b[2J", "\x1b]0;x\x07",
    "\x1b[31mred\x1b[0m", "\u202egnp.exe", "\u2066x\u2069", "\u200b", "\ufeff", "\u2028", "\U0001f600",
    "\U0001f468\u200d\U0001f469", "\ud800", "\udc80", "a\udfffb", "\ufffe", "x" * 100, "x" * 101, "x" * 255,
    "\xe9" * 255, "x" * 4096, "x" * 70_000, " a", "a ", "a  b", "'", '"', "it's", '"a" "b"', "`id`", "a;b", "a&b",
    "a|b", "a>b", "a*b", "*", "?", "[", "]", "[a]", "{}", "{0}", "{name}", "{a: 1}", "%", "%s", "%(x)s", "%n%n",
    "%2e%2e%2f", "$HOME", "${HOME}", "$(id)", "$x$", "$\\frac{", "~", "~root", "~/x",
    "<script>alert('raysim')</script>", "<img src=x onerror=alert(1)>", "&lt;b&gt;", "</title><b>", "{{7*7}}",
    "{% raw %}", "\\input{/etc/passwd}", "\\", "_", "__", "_a", "a_b^c", "#", "# a", "a # b", "a: b", "- a", "! a",
    "!!python/object:os.system x", "&a", "*a", "@a", "=1+1", "+1", "=cmd|' /C calc'!A0", "'; DROP TABLE runs; --",
    "' OR '1'='1", "no", "yes", "on", "null", "~null", "true", "1e5", "0x10", "010", "1_000", "1:30", ".inf", ".nan",
    "nan", "inf", "2026-01-01", "2026-01-01T00:00:00Z", "\xe9", "e\u0301", "\ufb01", "fi", "\u212b", "\xc5", "\u0130",
    "\xdf", "CON", "nul", "con.txt", "aux", "a.", "a..b", ".hidden", "raysim", "fedgh", "standalone", "mlflow",
    "__init__", "__main__", "os", "sys", "class", "None", "lambda", "summary.json", "sweep.json", "runs",
    "http://u:p@127.0.0.1:9", "file:///etc", "s3://x/y", "memory://x", "1..5", "1,2", "a,b", "a=b", "=", "a=", "0",
    "-1", "00", "\u0661\u0662", "\u00b2", "| a | b |", "[x](javascript:alert(1))", "![x](http://127.0.0.1:9)", "**a**",
    "```", "a\\\\b", "a\\", "\u0300" * 50,
]  # fmt: skip
"""What takes the place of a name."""

SCENARIO: dict[str, Any] = {
    "name": "tiny",
    "rounds": 1,
    "backend": "in_process",
    "algorithm": {"name": "standalone"},
    "data": {"name": "digits", "partition": {"name": "iid"}},
    "clients": {"count": 2, "models": ["digits_mlp64"]},
    "training": {"batch_size": 512},
}

METHOD = (Path(__file__).parents[2] / "raysim/cli/templates/algorithm.py").read_text()
MODEL = (Path(__file__).parents[2] / "raysim/cli/templates/model.py").read_text()

Words = tuple[str, ...]


class NamesAttack:
    """All mutants share one MLflow store, whose making takes longer than a mutant."""

    def __init__(self, place: Path) -> None:
        import raysim.runs.start  # before the limit: Torch's libraries take much address space
        import raysim.sweeps.loop  # noqa: F401

        self.store = f"sqlite:///{place / 'mlflow.db'}"

    def __call__(self, number: int, root: Path, outcome: Outcome) -> None:
        """One mutant."""
        rng = random.Random(f"names {number}")
        here = root / "here"
        before = snapshot(root, here)
        kind = KINDS[number % len(KINDS)]
        environment = {"MLFLOW_TRACKING_URI": self.store, "RAYSIM_CACHE": str(here / "cache")}
        with ExitStack() as stack:
            stack.enter_context(chdir(here))
            stack.enter_context(patch.dict(os.environ, environment))
            stack.enter_context(patch("raysim.engine.ray.task_pool.task_pool", _pool))
            if rng.random() < 0.8:  # plots take longer than the run
                stack.enter_context(patch("raysim.runs.execution.Execution._draw"))
                stack.enter_context(patch("raysim.comparison.pictures.draw", lambda *rest, **options: []))
                stack.enter_context(patch("raysim.sweeps.loop.draw", lambda *rest, **options: [], create=True))
            stack.enter_context(limited())
            for words in kind(rng):
                run_command(outcome, f"{kind.__name__}: {words!r}"[:300], *words)
        check_outputs(here)
        if snapshot(root, here) != before:
            raise AssertionError(f"{kind.__name__}: something outside of the folder changed")


class _InProcess:
    """A `TaskPool` whose tasks run in this process when they are waited for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.running, self.has_room = function, [], True
        self.tasks: list[tuple[str, Any]] = []

    def start(self, name: str, task: Any) -> None:
        self.tasks.append((name, task))
        self.has_room, self.running = False, [(name, 0)]

    def wait(self) -> list[Any]:
        from raysim.engine.ray.task_pool import Ended
        from raysim.engine.stop import Stop

        name, task = self.tasks.pop()
        self.has_room, self.running = True, []
        return [Ended(name, self.function(task, Stop(), lambda done: None))]

    def end(self) -> None:
        self.tasks.clear()


@contextmanager
def _pool(function: Callable[..., Any], size: int | None) -> Iterator[_InProcess]:
    yield _InProcess(function)


def _stays(name: str) -> bool:
    """Whether a path of this name, which a user gives for a command's output, lies in the current folder."""
    return ".." not in name.split("/") and not name.startswith("/") and "://" not in name


def _write(name: str, content: Any) -> None:
    """As YAML or, where YAML cannot hold it, as the JSON that is nearly YAML."""
    try:
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        text.encode()
    except (UnicodeEncodeError, yaml.YAMLError):
        text = json.dumps(content)
    Path(name).write_text(text)


def of_scenario(rng: random.Random) -> Iterator[Words]:
    """A name in a scenario, or given by --set."""
    sections: list[tuple[str, ...]] = [
        ("name",), ("name",), ("output",), ("algorithm", "name"), ("algorithm", "profile"), ("data", "name"),
        ("data", "root"), ("data", "partition", "name"), ("clients", "models"), ("clients", "selection", "name"),
        ("checkpoint", "folder"), ("training", "schedule", "name"), ("tracking", "experiment"),
        ("tracking", "experiment"), ("tracking", "tags"), ("tracking", "uri"), ("system", "trace"),
        ("data", "public", "name"), ("resources", "head"), (),
    ]  # fmt: skip
    key = rng.choice(sections)
    places = key in (("output",), ("checkpoint", "folder"), ("tracking", "uri"))
    name = rng.choice([one for one in NAMES if _stays(one)] if places else NAMES)
    value: Any = [name] if key[-1:] == ("models",) else name
    if key[-1:] == ("tags",):
        value = rng.choice([{name: "x"}, {"x": name}])
    content = json.loads(json.dumps(SCENARIO))
    if rng.random() < 0.5 and key:
        _write("s.yaml", content)
        text = rng.choice([f"{name}", json.dumps(value), yaml.safe_dump(value, default_flow_style=True).strip()])
        words: Words = ("--set", f"{'.'.join(key)}={text}")
    else:
        inner = content
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
        inner[key[-1] if key else name] = value
        _write("s.yaml", content)
        words = ()
    yield ("validate", "s.yaml", *words)
    yield ("launch", "s.yaml", "--quiet", *words)
    yield from _looked_at(rng)


def _looked_at(rng: random.Random) -> Iterator[Words]:
    """What came of `launch`."""
    folders = sorted({str(path.parent) for path in Path().rglob("summary.json")})
    for folder in folders[:1]:
        yield rng.choice([("compare", folder), ("report", folder), ("resume", folder, "--quiet", "--set", "rounds=2")])


def _made(file: str, called: str | None) -> list[str]:
    """Finished runs in place of all cells of a sweep file, if it is valid; returns the labels of its cells."""
    from raysim.common.errors import RaysimError
    from raysim.sweeps.definition import load_sweep

    with suppress(RaysimError, OSError):
        sweep = load_sweep(file)
        sweep.output.mkdir(parents=True)
        sweep.card().write(sweep.output)
        for number, cell in enumerate(sweep.cells):
            seed = cell.scenario.seed
            accuracy = (0.1, 0.3, 0.5 + number / 100, 0.6)
            make_run(sweep.output / cell.folder_name / "r", "fedgh", seed, accuracy, called=called)
        return [cell.label for cell in sweep.cells]
    return []


def of_sweep(rng: random.Random) -> Iterator[Words]:
    """The name of a sweep, the names of its runs, values of its grid."""
    names = rng.sample(NAMES, 2)
    content: dict[str, Any] = {"base": SCENARIO, "seeds": [1, 2] if rng.random() < 0.5 else [1]}
    what = rng.choice(
        ["name", "name", "runs", "runs", "runs", "axes", "grid", "grid", "file", "twins", "baseline", "key"]
    )
    file, is_run = "s.yaml", rng.random() < 0.3
    if what == "name":
        content["name"] = names[0]
    elif what == "runs":
        content["runs"] = {one: [f"training.lr=0.{number}"] for number, one in enumerate(names, 1)}
    elif what == "twins":
        content["runs"] = {"\xe9": ["training.lr=0.1"], "e\u0301": ["training.lr=0.2"]}
    elif what == "axes":
        content["runs"] = {names[0]: {names[1]: ["training.lr=0.1"], "b": ["training.lr=0.2"]}}
    elif what == "grid":
        key = rng.choice(
            ["name", "tracking.experiment", "output", "tracking.tags", "algorithm.name", "data.root", names[1]]
        )
        values: list[Any] = [one for one in names if _stays(one) or key != "output"] or ["x"]
        content["grid"] = {key: [{one: one} for one in values] if key == "tracking.tags" else values}
        content["grid"]["training.lr"] = [0.1]
    elif what == "baseline":
        content["runs"] = {names[0]: ["training.lr=0.1"], "b": ["training.lr=0.2"]}
        content["baseline"] = rng.choice([names[0], names[1]])
    elif what == "key":
        content[names[0]] = names[1]
    else:
        file = f"{names[0]}.yaml"
        content["runs"] = {"a": ["training.lr=0.1"]}
    try:
        _write(file, content)
    except (OSError, ValueError):
        file = "s.yaml"
        _write(file, content)
    if not is_run:
        _made(file, rng.choice([None, names[0]]))
    words: Words = ()
    if rng.random() < 0.3:
        words = rng.choice(
            [("--grid", f"{names[0]}={names[1]}"), ("--grid", f"name={names[0]}"), ("--seeds", names[0])]
        )
    yield ("sweep", *words, "--", file)
    yield ("sweep", "--status", *words, "--", file)
    baseline = rng.choice([(), ("--baseline", rng.choice(names)), ("--baseline", "b")])
    yield ("compare", *baseline, "-o", "out", "--", file)
    yield ("report", *baseline, "-o", "page.html", "--", file)


def of_runs(rng: random.Random) -> Iterator[Words]:
    """Foreign run folders: names of folders, of a scenario, a method, a class, keys, and of a sweep's card."""
    names = rng.sample(NAMES, 3)
    changes: dict[str, Any] = rng.choice([
        {"name": names[0]}, {"algorithm": {names[0]: names[1]}}, {"data": {"name": names[0]}},
        {names[0]: {names[1]: 1}}, {"clients": {"count": 2, "models": names}},
    ])  # fmt: skip
    folder = Path("runs")
    with suppress(OSError, ValueError):
        if _stays(names[2]):
            (folder / names[2]).mkdir(parents=True)
            folder = folder / names[2]
    for seed in (1, 2):
        for method in ("fedgh", rng.choice(["standalone", *names])):
            called = rng.choice([None, *names])
            with suppress(FileExistsError, UnicodeEncodeError):
                make_run(
                    folder / f"{NAMES.index(method) if method in NAMES else 0}-{seed}",
                    method,
                    seed,
                    called=called,
                    **changes,
                )
    if rng.random() < 0.3:
        card = {
            "about": names[0], "cells": {"runs": {"label": names[1], "published": [], "runs": [names[2]]}},
            "baseline": rng.choice([None, *names]), "targets": None, "notes": names,
            "targets_on": rng.choice(["all", names[0]]),
        }  # fmt: skip
        (Path("runs") / "sweep.json").write_text(json.dumps(card))
    baseline = rng.choice([(), ("--baseline", rng.choice(names)), ("--baseline", "standalone")])
    output = next((one for one in names if _stays(one) and not one.startswith("-")), "out")
    yield ("compare", "runs", *baseline)
    yield ("compare", "runs", "-o", rng.choice(["out", output]))
    yield ("report", *baseline, "-o", rng.choice(["page.html", f"{output}.html"]), "--", str(folder))
    yield ("report", "-o", "page.html", "--", rng.choice(names))


def of_code(rng: random.Random) -> Iterator[Words]:
    """Names of own code's files, classes and fields."""
    name = rng.choice(NAMES)
    cls = rng.choice(
        [
            *(one for one in NAMES if one.isidentifier()),
            "Mine",
            "M" * 70_000,
            "\xc9",
            "E\u0301",
            "\u212b",
            "_",
            "M\u0345",
        ]
    )
    file = rng.choice([name, "mine", cls])
    kind = rng.choice(["method", "method", "model"])
    text = (METHOD if kind == "method" else MODEL).replace("NewMethod", cls).replace("NewModel", cls)
    if rng.random() < 0.3:
        text = text.replace("class ", f"x: str = {name!r}\nclass ", 1)
    try:
        Path(f"{file}.py").write_text(text)
    except (OSError, ValueError, UnicodeEncodeError):
        with suppress(UnicodeEncodeError):
            Path("mine.py").write_text(text)
    content = json.loads(json.dumps(SCENARIO))
    reference = rng.choice([f"./{file}.py", f"./{file}.py:{cls}", f"./mine.py:{name}", f"{file}.py", f"{name}:{cls}"])
    if kind == "method":
        content["algorithm"]["name"] = reference
    else:
        content["clients"]["models"] = [reference]
    _write("s.yaml", content)
    yield ("describe", "--", reference)
    yield ("validate", "s.yaml")
    yield ("launch", "s.yaml", "--quiet")
    yield from _looked_at(rng)


def of_data(rng: random.Random) -> Iterator[Words]:
    """Names of own data's files, folders, columns, classes and users."""
    name, other = rng.sample(NAMES, 2)
    suffix = rng.choice([".csv", ".parquet"])
    data: dict[str, Any] = {"name": suffix[1:]}
    what = rng.choice(["file", "column", "classes", "users", "images", "keys"])
    path = Path(f"mine{suffix}")
    label = [(name, other)[row % 2] for row in range(60)] if what == "classes" and suffix == ".parquet" else None
    with suppress(OSError, ValueError):  # a name that no file can have, or that is in no file's text
        if what == "file" and _stays(name):
            path = Path(f"{name}{suffix}")
        if what == "images":
            image_folder(Path("pets"), ((8, 8), (8, 8)))
            data = {"name": "images", "path": "pets"}
            if _stays(name) and "/" not in name:
                (Path("pets") / "cat").rename(Path("pets") / name)
        else:
            table(path, label=label)
    if what == "users":
        data["partition"] = {"name": "natural", "by": rng.choice(["user", name])}
    if what == "column":
        with suppress(OSError, ValueError):
            text = path.read_bytes()
            path.write_bytes(text.replace(b"user", name.encode(), 1) if suffix == ".csv" else text)
        data["features"] = rng.choice([["a", name], name, ["a", "b"]])
    if what == "keys":
        data[rng.choice(["label", "features", "path", "root", name])] = name
    data.setdefault("path", str(path))
    _write("s.yaml", {**scenario(data), "rounds": 1, "algorithm": {"name": "standalone"}})
    yield ("launch", "s.yaml", *(["--quiet"] if rng.random() < 0.5 else ["--dry-run"]))
    yield from _looked_at(rng)


def of_commands(rng: random.Random) -> Iterator[Words]:
    """Names on the command line."""
    name = rng.choice(NAMES)
    end = rng.choice([(), ("--",)])
    inside = name if _stays(name) else "x"
    _write("s.yaml", SCENARIO)
    commands: list[Words] = [
        ("describe", *end, name), ("list", *end, name), ("validate", *end, name), ("launch", *end, name),
        ("launch", "s.yaml", "--set", name), ("launch", "s.yaml", "--resume", name), ("resume", *end, name),
        ("sweep", *end, name), ("compare", *end, name), ("report", "-o", "page.html", *end, name), ("tsne", *end, name),
        ("tree", *end, name), ("attack", *end, name), ("init", *end, inside), ("new", "algorithm", *end, inside),
        ("new", *end, name, "x"), ("new", "model", *end, inside), ("new", "data", *end, inside),
        ("schema", "-o", inside), ("completion", *end, name), ("verify", "s.yaml", "--actors", name), (*end, name),
        ("sweep", "s.yaml", "--grid", name, "--dry-run"),
        ("submit", "s.yaml", "--id", name, "--address", "http://127.0.0.1:9"), ("ui", "--uri", name, "--port", "0"),
        ("fetch", "--address", name, "--", name), ("status", "--address", name, "--", name),
    ]  # fmt: skip
    yield from rng.sample(commands, 5)


KINDS: Sequence[Callable[[random.Random], Iterator[Words]]] = (
    of_scenario, of_sweep, of_runs, of_code, of_sweep, of_data, of_commands, of_runs,
)  # fmt: skip


def check_outputs(here: Path) -> None:
    """No name is markup in a page, a command in LaTeX or a formula in a CSV file."""
    for page in here.rglob("*.html"):
        text = page.read_text()
        for name in NAMES:
            if name.startswith("<") and name in text:
                raise AssertionError(f"{page.name} holds {name}")
    for file in here.rglob("*.tex"):
        if "\\input{/" in file.read_text():
            raise AssertionError(f"{file.name} holds a command of LaTeX")
    for file in here.glob("out/*.csv"):
        with file.open(newline="") as lines:
            for cell in (cell for row in csv.reader(lines) for cell in row):
                if cell[:1] in ("=", "@") or "\x1b" in cell:
                    raise AssertionError(f"{file.name} holds {cell[:80]!r}")
