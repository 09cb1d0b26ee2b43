"""An exception in the user's own code: one line with what was called, file and line, then Python's own traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import raysim
from raysim.cli.main import main
from tests.plugins.own import HELPED


def failed(folder: Path, *sets: str, capsys: pytest.CaptureFixture[str], code: int = 1) -> list[str]:
    """The lines of the error that `raysim launch` ends with, from the line that raysim writes."""
    words = [word for one in sets for word in ("--set", one)]
    with pytest.raises(SystemExit) as ended:
        main(["launch", str(folder / "s.yaml"), "--quiet", *words])
    said = capsys.readouterr().err
    assert ended.value.code == code, said
    lines = said.rstrip().splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("raysim: ")) :]


def broken(folder: Path, hook: str, line: str = "{}['lost']") -> None:
    """Let a hook of the method in `mine.py` raise."""
    text = re.sub(rf"(    def {hook}\(.*:\n)", rf"\1        {line}\n", HELPED)
    assert line in text
    (folder / "mine.py").write_text(text)


class TestHooks:
    @pytest.mark.parametrize("hook", ["client_update", "server_start"])
    def test_the_command_ends_with_the_traceback_of_the_users_file(
        self, hook: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        broken(folder, hook)
        first, *trace = failed(folder, "clients.models=[digits_mlp64]", capsys=capsys)
        client, t = (" of client 0" if hook == "client_update" else ""), (0 if hook == "server_start" else 1)
        assert f"Mine.{hook}{client} failed in round {t}" in first
        assert re.search(r"KeyError: 'lost' \(mine\.py, line \d+\)$", first)
        assert trace[0].startswith("Traceback") and trace[-1] == "KeyError: 'lost'"
        assert f'"{folder / "mine.py"}"' in trace[1]  # no line of raysim

    def test_a_program_catches_it_with_its_cause(self, folder: Path) -> None:
        broken(folder, "client_update")
        with pytest.raises(raysim.HookError) as caught:
            raysim.run(folder / "s.yaml", sets=["clients.models=[digits_mlp64]"], quiet=True)
        error = caught.value
        assert (error.hook, error.client, error.round) == ("client_update", 0, 1)
        assert isinstance(error.__cause__, KeyError)


OWN = """
from dataclasses import dataclass

def model(num_classes, input_spec, feature_dim):
    return {}["lost"]

def data():
    return {}["lost"]

@dataclass(frozen=True)
class Part:
    def shares(self, class_count_C, num_clients, rng):
        return {}["lost"]

class Tracker:
    def open(self, card): ...
    def log(self, t, values, clients):
        return {}["lost"]
    def close(self, status, summary): ...
"""
CALLED = {
    "a model": ("clients.models=['./own.py:model', digits_mlp64]", "own.py:model"),
    "a data function": ("data={name: './own.py:data', partition: {name: iid}}", "own.py:data"),
    "a partition": ("data.partition={name: './own.py:Part'}", "Part.shares"),
    "a tracker": ("tracking.also=['./own.py:Tracker']", "own.py:Tracker: log"),
}


@pytest.mark.parametrize(("sets", "called"), CALLED.values(), ids=CALLED)
def test_code_that_is_no_hook(sets: str, called: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.py").write_text(OWN)
    first, *trace = failed(folder, "algorithm.name=fedgh", "clients.models=[digits_mlp64]", sets, capsys=capsys)
    assert called in first and re.search(r"KeyError: 'lost' \(own\.py, line \d+\)$", first)
    assert f'"{folder / "own.py"}"' in "".join(trace[:4]) and trace[-1] == "KeyError: 'lost'"
