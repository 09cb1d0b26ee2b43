"""Test raysim's wheel with the lowest and the newest supported versions, each in an environment of its own.

    make test-versions                                     # every supported Python that this machine has
    make test-versions VERSIONS="--python 3.12 newest"     # one environment

Each environment lies below build/versions and gets the wheel with its extra `dev`. Then the fast tests run, and
`raysim launch quickstart` in an empty folder. An environment takes about 7 GB; it is removed when its row of
build/versions/table.md is written. Its log stays. The exit code is 1 if a row does not pass.

The lowest versions are those that uv finds: the lower bounds in pyproject.toml or, where a bound has no wheel for a
Python or does not fit the others, the lowest version above it that does. Packages that only other packages need have
their newest versions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from uv import find_uv_bin

from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
ENDS = ("lowest", "newest")
SHOWN = ("torch", "torchvision", "ray", "mlflow", "numpy", "pyarrow", "pandas", "scipy")
"""Packages with a column in the table."""
LENIENT = {"lowest": ("-W", "default::DeprecationWarning"), "newest": ()}
"""Old packages warn about newer ones that they use; the tests treat a warning as an error otherwise."""
LEFT_OUT = ("raysim", "raysim.egg-info", "build", "runs")
"""What the fast tests do not need of a checkout, or must not find."""
FOLDER = REPOSITORY / "build" / "versions"


@dataclass
class Row:
    """What one environment had, and how far it came."""

    python: str
    end: str
    versions: Mapping[str, str] = field(default_factory=dict)
    result: str = ""
    minutes: float = 0.0
    gigabytes: float = 0.0

    def cells(self) -> list[str]:
        """The texts of the table's row."""
        versions = [self.versions.get(name, "").partition("+")[0] for name in SHOWN]
        return [self.python, self.end, *versions, self.result, f"{self.minutes:.1f}", f"{self.gigabytes:.1f}"]


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [["Python", "versions", *SHOWN, "result", "minutes", "GB"], ["---"] * (len(SHOWN) + 5)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [*lines, *(row.cells() for row in rows)])


def find_python(version: str) -> str | None:
    """Return the version's interpreter on PATH; None if there is none that works, as with some of pyenv's links."""
    found = shutil.which(f"python{version}")
    works = found and not subprocess.run([found, "-c", ""], capture_output=True).returncode
    return found if works else None


class FailedError(Exception):
    """A command that ended with an error; the text is the row's result."""


@dataclass
class Environment:
    """A virtual environment with a log of the commands that ran in it."""

    python: str
    folder: Path
    log: Path

    def run(self, name: str, *words: str, cwd: Path = REPOSITORY, **settings: str) -> str:
        """Run a program of the environment, with settings as environment variables, and return its output.

        Raises `FailedError` with the name if the program fails.
        """
        # Neither the caller's checkout nor its cluster, store or data decide what happens here.
        theirs = ("PYTHONPATH", "RAY_ADDRESS", "MLFLOW_TRACKING_URI")
        variables = {key: value for key, value in os.environ.items() if key not in theirs} | settings
        done = subprocess.run(
            [str(self.folder / "bin" / words[0]), *words[1:]],
            cwd=cwd, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(words)}\n{done.stdout}\n")
        if done.returncode:
            raise FailedError(f"{name} failed, see {self.log.relative_to(REPOSITORY)}")
        return done.stdout

    def pip(self, name: str, *words: str, **settings: str) -> str:
        """Run pip."""
        return self.run(name, "python", "-m", "pip", "--disable-pip-version-check", *words, **settings)

    def constraints(self) -> Path:
        """Write a constraints file: the lowest versions of raysim's own dependencies that fit together, with wheels."""
        file = self.log.with_suffix(".txt")
        words = ["pip", "compile", "-q", "pyproject.toml", "--extra", "dev", "--resolution", "lowest-direct"]
        words += ["--only-binary", ":all:", "--no-annotate", "--no-header", "--native-tls", "-o", str(file)]
        done = subprocess.run(
            [find_uv_bin(), *words, "--python-version", self.folder.name.partition("-")[0]],
            cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            self.log.write_text(done.stdout, encoding="utf-8")
            raise FailedError(f"finding the lowest versions failed, see {self.log.relative_to(REPOSITORY)}")
        return file

    def installed(self) -> dict[str, str]:
        """Return the versions of the shown packages."""
        code = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {SHOWN}}}))"
        found: dict[str, str] = json.loads(self.run("reading versions", "python", "-c", code).splitlines()[-1])
        return found


def build_wheel() -> Path:
    """Build the wheel from the checkout, without what earlier builds left in build/lib."""
    shutil.rmtree(REPOSITORY / "build" / "lib", ignore_errors=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", str(FOLDER)]
    subprocess.run([*words, str(REPOSITORY)], check=True)
    return next(FOLDER.glob("*.whl"))


def copy_without_raysim(target: Path) -> Path:
    """Copy the checkout without the package, so that the tests there import the wheel's raysim."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        top = Path(folder) == REPOSITORY
        return {name for name in names if name == "__pycache__" or (top and (name in LEFT_OUT or name[0] == "."))}

    return Path(shutil.copytree(REPOSITORY, target, symlinks=True, ignore=ignored))


def try_environment(row: Row, python: str, wheel: Path, tests: Sequence[str], keep: bool) -> None:
    """Make an environment, try raysim there, and complete the row."""
    began = perf_counter()
    name = f"{row.python}-{row.end}"
    place = Environment(python, FOLDER / name, FOLDER / f"{name}.log")
    shutil.rmtree(place.folder, ignore_errors=True)
    place.log.unlink(missing_ok=True)
    try:
        subprocess.run([python, "-m", "venv", str(place.folder)], check=True)
        limits = ["-c", str(place.constraints())] if row.end == "lowest" else []
        place.pip("installing", "install", "-q", "--only-binary", ":all:", *limits, f"{wheel}[dev]")
        row.versions = place.installed()
        row.gigabytes = sum(file.lstat().st_blocks for file in place.folder.rglob("*")) * 512 / 1e9
        empty = place.folder / "empty"
        empty.mkdir()
        place.run("quickstart", "raysim", "launch", "quickstart", cwd=empty)
        checkout = copy_without_raysim(place.folder / "checkout")
        counts = place.run("tests", "python", "-m", "pytest", *LENIENT[row.end], *tests, cwd=checkout).splitlines()[-1]
        row.result = f"passes ({counts.partition(' in ')[0]})"
    except FailedError as error:
        row.result = str(error)
    finally:
        row.minutes = (perf_counter() - began) / 60
        if not keep:
            shutil.rmtree(place.folder, ignore_errors=True)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ends", nargs="*", metavar="lowest|newest", help="which versions; default: both")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="a version of Python; default: all")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--tests", default="tests", help="arguments of pytest")
    given = parser.parse_args(words)
    if unknown := set(given.ends) - set(ENDS):
        parser.error(f"{', '.join(sorted(unknown))} given; allowed: {', '.join(ENDS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel()
    rows = []
    for version in given.python or PYTHONS:
        python = find_python(version)
        if python is None:
            print(f"Python {version}: not on this machine", flush=True)
            continue
        for end in given.ends or ENDS:
            rows.append(row := Row(version, end))
            try_environment(row, python, wheel, shlex.split(given.tests), given.keep)
            print(f"Python {version}, {end} versions: {row.result}, {row.minutes:.1f} minutes", flush=True)
            (FOLDER / "table.md").write_text(table(rows), encoding="utf-8")
    print(table(rows))
    return int(not rows or any(not row.result.startswith("passes") for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
