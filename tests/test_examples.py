"""Each study in `examples/` runs, and its table prints what its run folders say."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import raysim
from examples import budget, leaks, many_clients, personalised, stragglers
from tests.conftest import REPOSITORY

FILES = sorted((REPOSITORY / "examples").glob("*.py"))


def printed(capsys: pytest.CaptureFixture[str], *row: str) -> list[str]:
    """The cells of the printed line that begins with these words, after them."""
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.split()[: len(row)] == list(row))
    return line.split()[len(row) :]


def last_accuracies(folder: Path) -> Any:
    """Each client's last accuracy, from the run's table of clients."""
    clients = raysim.Run(folder).clients
    return clients.dropna(subset=["accuracy"]).groupby("client")["accuracy"].last()


def test_personalised(workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(personalised, "METHODS", {"one": ["standalone"], "five": ["standalone", "fedproto"]})
    runs = personalised.main(rounds=1, seeds=2, folder="out").set_index(["method", "seed"])
    accuracy, gain, _, mib = map(float, printed(capsys, "five", "fedproto")[:4])
    shared, alone = (
        [
            last_accuracies(row["folder"]).mean()
            for _, row in runs[runs["architectures"] == "five"].loc[[method]].iterrows()
        ]
        for method in ("fedproto", "standalone")
    )
    assert accuracy == pytest.approx(sum(shared) / 2, abs=6e-4)
    assert gain == pytest.approx(sum(shared) / 2 - sum(alone) / 2, abs=6e-4)
    sent = [raysim.Run(runs.loc[("fedproto", seed), "folder"]).clients["up_bytes"].sum() for seed in (1, 2)]
    assert mib == pytest.approx(sum(sent) / 2 / 2**20, abs=6e-4)  # in round 1, the server of FedProto sends nothing
    for architectures, models in ("one", personalised.ONE), ("five", personalised.FIVE):
        folder = runs[runs["architectures"] == architectures]["folder"].iloc[0]
        assert raysim.Run(folder).scenario.resolved["clients"]["models"] == models
    assert (workplace / "out" / "personalised.png").stat().st_size > 1000


def test_budget(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = budget.main(rounds=3, methods=["standalone", "lg_fedavg"], folder="out")
    per_round, *accuracies = map(float, printed(capsys, "lg_fedavg"))
    rounds = raysim.Run(table.loc["lg_fedavg", "folder"]).rounds
    mib = rounds["comm/total_bytes"].fillna(0) / 2**20
    assert per_round == pytest.approx(1024 * mib.iloc[-1] / 3, abs=6e-4)
    spent = [max(t for t in range(4) if mib[t] <= budget_mib) for budget_mib in budget.BUDGETS_MIB]
    assert spent[0] < spent[-1] == 3
    expected = [rounds["accuracy/all"][t] for t in spent]
    assert accuracies[: len(spent)] == pytest.approx(expected, abs=6e-4)
    assert (workplace / "out" / "budget.png").stat().st_size > 1000


@pytest.mark.large
def test_stragglers(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = stragglers.main(rounds=2, folder="out")
    assert [name.split()[0] for name in table.index] == ["wait", "deadline", "oversample", "fastest"]
    wait = raysim.Run(table.loc["wait", "folder"])
    accuracy, _, virtual_s, *_, never = printed(capsys, "wait")
    slowest_s = wait.clients.query("participated").groupby("round")["virtual_s"].max()
    assert float(virtual_s) == pytest.approx(slowest_s.sum(), abs=6e-4)
    assert float(accuracy) == pytest.approx(last_accuracies(wait.folder).mean(), abs=6e-4)
    assert int(never) == 30 - len({*wait.clients.query("participated")["client"]})
    late = raysim.Run(table.index.map(table["folder"])[1])
    limit_s = float(table.index[1].split()[1])
    assert late.scenario.resolved["clients"]["deadline_s"] == limit_s
    assert late.rounds["time/virtual_s"].max() <= limit_s
    assert late.rounds["engine/dropped_clients"].sum() > 0
    assert (workplace / "out" / "stragglers.png").stat().st_size > 1000


@pytest.mark.large
def test_leaks(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = leaks.main(rounds=1, images=1, methods=["fedavg"], folder="out")
    accuracy, white, blind = map(float, printed(capsys, "fedavg"))
    assert accuracy == pytest.approx(last_accuracies(table.loc["fedavg", "folder"]).mean(), abs=6e-4)
    assert white == blind > 60  # the upload is the whole model, which reveals the image without any other weights
    level, _ = table.loc["(unrelated images)", ["white, dB", "blind, dB"]]
    assert 5 < level < 12
    assert (workplace / "out" / "leaks.png").stat().st_size > 1000


def test_many_clients(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = many_clients.main(rounds=2, clients=[120, 60], folder="out")
    assert list(table.index) == [60, 120]
    trained, round_s, all_s, memory_mib = map(float, printed(capsys, "120"))
    run = raysim.Run(table.loc[120, "folder"])
    participants = run.clients.query("participated")
    assert trained == participants["client"].nunique() and len(participants) == 2 * many_clients.PARTICIPANTS
    assert round_s == pytest.approx(run.rounds["time/round_s"].median(), abs=6e-4) and all_s > round_s
    assert memory_mib == pytest.approx(run.rounds["memory/host_mb"].iloc[-1], abs=6e-4)
    assert (workplace / "out" / "many_clients.png").stat().st_size > 1000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_a_study_says_about_itself(file: Path) -> None:
    """A docstring with the question, how to run it and how long it takes; imports of raysim's documented names only."""
    tree = ast.parse(file.read_text())
    question, *_ = (text := ast.get_docstring(tree) or "").splitlines()
    assert question.endswith("?")
    default, tiny = re.findall(rf"^    python examples/{file.name}(.*?) +# (.*)$", text, re.MULTILINE)
    assert not default[0] and "minute" in default[1] and "--rounds" in tiny[0] and "seconds" in tiny[1]
    assert f"`{file.stem}.png`" in text
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    inside = {module for module in modules if module and module.startswith("raysim")}
    assert inside <= {"raysim", "raysim.inspection.attack"}  # docs/inspection.md documents the second


def test_the_pages_name_every_study() -> None:
    page = (REPOSITORY / "docs" / "examples.md").read_text()
    for file in FILES:
        assert f"(../examples/{file.name})" in page
        assert re.search(rf"from examples import {file.stem}$", page, re.MULTILINE), "executed when the site is built"
    for name in ("docs/guide.md", "raysim/README.md"):
        assert "examples/" in (REPOSITORY / name).read_text()
