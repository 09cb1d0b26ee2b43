"""Pipes and devices in place of files: one sentence and exit code 2, instead of a command that waits for ever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.command import run
from tests.comparison.runs import make_run
from tests.data.own import image_folder, scenario
from tests.engine.scenarios import digits

PIPE = "is a pipe, not a regular file; give a regular file"
DEVICE = "/dev/zero is a device, not a regular file; give a regular file"
LISTED = {"partition": {"name": "listed", "path": "pipe"}}


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """A command that waits for the other end of a pipe fails after some seconds."""

    def too_long(*rest: object) -> None:
        raise AssertionError("the command waits")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def write(name: str, content: Any) -> None:
    Path(name).write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["launch", "pipe"], f"pipe {PIPE}"),
        (["validate", "/dev/zero"], DEVICE),
        (["sweep", "pipe", "--dry-run"], f"pipe {PIPE}"),
        (["sweep", "base.yaml", "--dry-run"], f"base.yaml: base: pipe {PIPE}"),
        (["sweep", "published.yaml", "--dry-run"], f"published.file: pipe {PIPE}"),
        (["compare", "pipe.yaml"], f"pipe.yaml {PIPE}"),
        (["describe", "./pipe.py"], f"pipe.py {PIPE}"),
        (["launch", "plain.yaml", "--set", "algorithm.name=./pipe.py"], f"pipe.py {PIPE}"),
        (["launch", "plain.yaml", "--set", "system.trace=pipe"], f"/pipe {PIPE}"),
    ],
)
def test_files_that_a_user_names(
    words: list[str], sentence: str, workplace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("pipe", "pipe.py", "pipe.yaml"):
        os.mkfifo(name)
    write("plain.yaml", digits())
    write("base.yaml", {"base": "pipe", "seeds": [1]})
    write("published.yaml", {"base": "plain.yaml", "seeds": [1], "published": {"file": "pipe", "rows": {}}})
    code, out, err = run(capfd, *words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert sentence in err


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"name": "csv", "path": "pipe"}, PIPE),
        ({"name": "csv", "path": "folder"}, PIPE),
        ({"name": "csv", "path": "/dev/zero"}, DEVICE),
        ({"name": "parquet", "path": "/dev/stdin"}, "/dev/stdin is a"),
        ({"name": "numpy", "path": "pipe"}, PIPE),
        ({"name": "images", "path": "pipe"}, PIPE),
        ({"name": "images", "path": "pets"}, PIPE),
        ({"name": "images", "path": "cats", "partition": {"name": "natural", "by": "user"}}, PIPE),
        ({"name": "digits", **LISTED}, f"data.partition.path: {{here}}/pipe {PIPE}"),
    ],
)
def test_data(data: dict[str, Any], sentence: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    (workplace / "folder").mkdir()
    os.mkfifo("folder/part.csv")
    image_folder(Path("pets"), ((8, 8), (8, 8)), False)
    os.mkfifo("pets/cat/pipe.png")
    image_folder(Path("cats"), ((8, 8), (8, 8)), False)
    os.mkfifo("cats/metadata.csv")
    read, write_end = os.pipe()
    before = os.dup(0)
    os.dup2(read, 0)  # /dev/stdin is then a pipe into which nothing is written
    try:
        write("mine.yaml", scenario(data))
        code, _, err = run(capfd, "launch", "mine.yaml", "--dry-run")
    finally:
        os.dup2(before, 0)
        for handle in (before, read, write_end):
            os.close(handle)
    assert (code, err.count("\n")) == (2, 1), err
    assert sentence.format(here=workplace) in err


@pytest.mark.parametrize(
    "name", ["summary.json", "resolved.yaml", "scenario.yaml", "rounds.parquet", "clients.parquet"]
)
@pytest.mark.parametrize("command", ["compare", "report"])
def test_run_folders(command: str, name: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = workplace / "runs" / "one"
    make_run(folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    code, _, err = run(capfd, command, "runs")
    if command == "compare" and name in ("scenario.yaml", "clients.parquet"):  # which it does not read
        assert code == 0
    else:
        assert (code, err.count("\n")) == (2, 1), err
        assert f"{name} {PIPE}" in err
