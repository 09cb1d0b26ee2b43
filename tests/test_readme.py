"""What README and docs show is true: the README's Python runs, all commands parse, its door is the whole door."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.cli.main import cli
from tests.conftest import REPOSITORY
from tests.structure import files

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


PAGES = [README, *(path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").glob("*.md")))]
COMMANDS = [
    line.split(" #")[0].strip()
    for page in PAGES
    for block in blocks("", page)
    for line in block.splitlines()
    if line.startswith("raysim ") and not line.startswith("raysim: ")
]


def test_the_python_runs(workplace: Path) -> None:
    (workplace / "scenarios").symlink_to(REPOSITORY / "scenarios")
    launching, reading = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(launching, "README.md", "exec"), names)
    summary = names["result"].summary
    assert summary["rounds"] == 3
    reading = re.sub(r'"runs/quickstart/[\w-]+"', repr(str(names["result"].folder)), reading)
    exec(compile(reading, "README.md", "exec"), names)
    assert names["curve"]["comm/total_bytes"].tolist()[0] == 0
    accuracy = names["last"]["accuracy"]
    assert accuracy.mean() == pytest.approx(summary["final"]["accuracy/all"])
    assert accuracy.std(ddof=0) == pytest.approx(summary["final"]["accuracy/all_std"])


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    name, *rest = shlex.split(command)[1:]
    context = cli.make_context("raysim", [name])  # with its settings, which a command takes over for good
    found = cli.get_command(context, name)
    assert found is not None
    found.make_context(name, rest, parent=context, resilient_parsing=False)


def test_the_sentence_about_a_typo_is_the_real_one(capfd: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    shown = next(line for line in README.splitlines() if line.startswith("raysim: "))
    typed = next(line for line in README.splitlines() if line.startswith("$ raysim "))
    monkeypatch.chdir(REPOSITORY)
    from raysim.cli.main import main

    with pytest.raises(SystemExit, match="2"):
        main(shlex.split(typed)[2:])
    assert capfd.readouterr().err.strip() == shown


def test_links_lead_somewhere() -> None:
    for page in (REPOSITORY / name for name in files(".md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_door() -> None:
    assert set(raysim.__all__) == set(raysim._HOMES)
    for name in raysim.__all__:
        assert getattr(raysim, name) is not None
    with pytest.raises(AttributeError, match="nope"):
        _ = raysim.nope
