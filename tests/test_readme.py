"""What README and docs show is true: their Python runs, all commands parse, and `raysim` has the names it lists."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.cli.main import cli
from tests.conftest import REPOSITORY
from tests.structure import files

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
GUIDE = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")


def blocks(language: str, text: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for of, block in found if of == language]


PAGES = [
    path.read_text(encoding="utf-8")
    for path in (
        REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "cluster" / "README.md"
    )
]  # fmt: skip
COMMANDS = [
    line.split(" #")[0].strip()
    for page in PAGES
    for block in blocks("", page)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("raysim ") and not line.startswith("raysim: ")
]


@pytest.mark.large
def test_the_python_of_the_readme(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "scenarios").symlink_to(REPOSITORY / "scenarios")
    launching, method = blocks("python", README)
    names: dict[str, Any] = {}
    exec(compile(launching, "README.md", "exec"), names)
    assert names["run"].summary["rounds"] == 3
    printed = f"{names['run'].rounds['accuracy/all'].max()} "
    assert printed in capsys.readouterr().out
    assert (REPOSITORY / "algorithms" / "lg_fedavg.py").read_text(encoding="utf-8").endswith(method)


@pytest.mark.large
def test_the_python_of_the_guide(workplace: Path) -> None:
    (workplace / "scenarios").symlink_to(REPOSITORY / "scenarios")
    launching, reading = blocks("python", GUIDE)
    names: dict[str, Any] = {}
    exec(compile(launching, "guide.md", "exec"), names)
    summary = names["run"].summary
    assert summary["rounds"] == 5
    reading = re.sub(r'"runs/quickstart/[\w-]+"', repr(str(names["run"].folder)), reading)
    exec(compile(reading, "guide.md", "exec"), names)
    assert names["curve"]["comm/total_bytes"].tolist()[0] == 0
    accuracy = names["run"].latest["accuracy"]
    assert accuracy.mean() == pytest.approx(summary["final"]["accuracy/all"])
    assert accuracy.std(ddof=0) == pytest.approx(summary["final"]["accuracy/all_std"])


def test_the_results_in_the_readme_are_measured() -> None:
    """The README repeats two columns of the table of CIFAR-100 with 10 epochs, of every method."""
    made = runpy.run_path(str(REPOSITORY / "docs" / "tables.py"))["TABLES"]["cifar100_published"]()
    measured, shown = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
        for text in (made, README)
    )
    assert shown[0] == ["method", "best round", "published"]
    assert shown[2:] == [[method, best, paper] for method, best, *_, paper in measured[2:]]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    name, *rest = shlex.split(command)[1:]
    context = cli.make_context("raysim", [name])  # with its settings, which a command takes over for good
    found = cli.get_command(context, name)
    assert found is not None
    found.make_context(name, rest, parent=context, resilient_parsing=False)


def test_links_lead_somewhere() -> None:
    for page in (REPOSITORY / name for name in files(".md")):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_door() -> None:
    assert set(raysim.__all__) == set(raysim._HOMES)
    for name in raysim.__all__:
        assert getattr(raysim, name) is not None
    with pytest.raises(AttributeError, match="nope"):
        _ = raysim.nope
