"""Each study in `examples/` runs, and its table prints what its run folders say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import raysim
from examples import (
    budget,
    leaks,
    lora,
    many_clients,
    new_clients,
    personalised,
    privacy,
    robustness,
    step_size,
    stragglers,
    tree,
    tsne,
)
from raysim.algorithms.hks import HKS
from tests.conftest import REPOSITORY
from tests.engine.scenarios import digits


def printed(capsys: pytest.CaptureFixture[str], *row: str) -> list[str]:
    """The cells of the printed line that begins with these words, after them."""
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.split()[: len(row)] == list(row))
    return line.split()[len(row) :]


def last_accuracies(folder: Path) -> Any:
    """Each client's last accuracy, from the run's table of clients."""
    clients = raysim.Run(folder).clients
    return clients.dropna(subset=["accuracy"]).groupby("client")["accuracy"].last()


@pytest.mark.large
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


@pytest.mark.large
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
    assert [name.split()[0] for name in table.index] == ["wait", "deadline", "oversample", "fastest", "asynchronous"]
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


def finished(method: str, *sets: str, models: Sequence[str] = ("digits_mlp64",)) -> raysim.Run:
    """A finished run of a method on the digits."""
    clients = {"count": 4, "participation": 1.0, "models": list(models)}
    return raysim.run(digits(algorithm={"name": method}, clients=clients), sets=sets, quiet=True)


def test_an_attack_reveals_an_image_that_was_sent_as_a_network(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "CALLS", 15)
    table = leaks.main(finished("fedavg", "rounds=1"), images=1)
    # The upload is the whole model, which reveals the image without any other weights.
    assert list(table["white, dB"]) == list(table["blind, dB"]) and table["white, dB"].item() > 20
    (level,) = (line.split()[-2] for line in capsys.readouterr().out.splitlines() if line.startswith("unrelated"))
    assert 5 < float(level) < 12
    assert (workplace / "leaks.png").stat().st_size > 1000


PAGE = (REPOSITORY / "docs" / "examples.md").read_text(encoding="utf-8")
UPDATE, OUTPUT = (indent(block, "    ") for block in re.findall(r"^```python\n(def exposed.*?)^```", PAGE, re.M | re.S))
OWN = (
    "from dataclasses import dataclass\nfrom raysim.core import OutputOf, UpdateOf\n"
    "from raysim.algorithms.{file} import {name}\n@dataclass(frozen=True)\nclass Mine({name}):\n    'A change.'\n"
)


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("lg_fedavg", 32 * 10 + 10),
        # Trained by the second of two calls of `client.fit`.
        pytest.param("fedrep", 64 * 32 + 32, marks=pytest.mark.large),
        ("fd", 10),
        (OWN.format(file="lg_fedavg", name="LGFedAvg") + UPDATE, 32 * 10 + 10),
        (OWN.format(file="fedgh", name="FedGH") + OUTPUT, 32),
    ],
    ids=["lg_fedavg", "fedrep", "fd", "own-update", "own-output"],
)
def test_the_attacker_matches_the_true_image(workplace: Path, method: str, count: int) -> None:
    """With the client's weights, the true image and label give what the server sees; other pixels do not."""
    if "\n" in method:
        (workplace / "mine.py").write_text(method)
        method = "./mine.py"
    run = finished(method, "rounds=2")
    data = leaks.one_of(run.client(1).data.train, 4)
    label = F.one_hot(data.y, 10).float()
    seen, send = leaks.upload(run, 1, data, blind=False)
    assert len(seen) == count
    torch.testing.assert_close(send(data.x, label).detach(), seen, rtol=1e-3, atol=1e-4)
    assert float((send(torch.zeros_like(data.x), label) - seen).detach().abs().max()) > 1e-3
    seen, send = leaks.upload(run, 1, data, blind=True)
    assert float((send(data.x, label) - seen).detach().abs().max()) > 1e-3


@pytest.mark.large
def test_tsne(workplace: Path) -> None:
    run = finished("fedgh", "rounds=1")
    plane_N2 = tsne.main(run, clients=[0, 2])
    assert plane_N2.shape == (len(run.partition.query("part == 'test' and client in [0, 2]")), 2)
    assert (workplace / "tsne.png").stat().st_size > 1000


@pytest.mark.large
def test_tree(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished("hks", "rounds=2", "algorithm.warmup=1")
    sample = int(run.partition.query("part == 'train' and client == 2")["sample"].iloc[3])
    table = tree.main(run, sample)
    sizes = list(table["samples"])
    assert sizes == sorted(set(sizes)) and sizes[0] >= 2
    assert set(table["predicts"]) <= {str(c) for c in range(10)}
    assert f"sample {sample} of client 2" in capsys.readouterr().out
    assert (workplace / "tree.png").stat().st_size > 1000


def test_the_clusters_around_a_sample_by_hand() -> None:
    """Logits 0, 1, 10, 12, 13 merge as {0, 1}, {12, 13}, {10, {12, 13}} until two clusters are left."""
    parent_V = HKS().tree(torch.tensor([[0.0], [1], [10], [12], [13]]), 2).parent_V
    found = [tree.members(parent_V, 5, node).tolist() for node in tree.path(parent_V, 3)]
    assert found == [[3, 4], [2, 3, 4]]


@pytest.mark.large
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


@pytest.mark.large
def test_lora(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = lora.main(["hetlora", "raflora"], ["2", "2, 4, 8"], rounds=1, folder="out").set_index(["method", "ranks"])
    assert table.loc[("raflora", "2"), "KB"] == pytest.approx(20.648)
    shown = capsys.readouterr().out.split("KB\n")[0].splitlines()
    assert shown[-2].split()[1:] == [f"{table.loc[('raflora', name), 'accuracy']:.3f}" for name in ("2", "2, 4, 8")]
    assert (workplace / "out" / "lora.png").stat().st_size > 1000


@pytest.mark.large
def test_step_size(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = {name: step_size.VARIANTS[name] for name in ("Standalone", "FedRAL, N(0, 1)")}
    table = step_size.main([0.05], rounds=2, folder="out", variants=variants).set_index("variant")
    shown = capsys.readouterr().out
    assert f"{table.loc['Standalone', 'accuracy']:.3f}" in shown
    # Representations have the width 50: the entries of N(0, 1) multiply a representation by the root of 50 = 7.07.
    before = float(shown.split("N(0, 1): ")[1].split()[0])
    assert before == pytest.approx(7.07, rel=0.1)
    assert (workplace / "out" / "step_size.png").stat().st_size > 1000


@pytest.mark.large
def test_privacy(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    table = privacy.main(noise=[0.3, 3.0], rounds=10, folder="out")
    rows = table.set_index("noise")
    assert rows["epsilon"].is_monotonic_decreasing
    assert rows.loc["no section privacy", "accuracy"] > rows.loc["noise 3.0", "accuracy"]
    shown = [float(cell) for cell in printed(capsys, "noise", "0.3")]
    assert shown == pytest.approx(rows.loc["noise 0.3", ["epsilon", "accuracy"]].tolist(), abs=6e-4)
    assert (workplace / "out" / "privacy.png").stat().st_size > 1000


@pytest.mark.large
def test_new_clients(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = new_clients.main(["fedgh"], epochs=[0, 10], rounds=2, folder="out")
    rows = table.set_index("epochs")
    assert rows.loc[10, "accuracy"] > rows.loc[0, "accuracy"]
    shown = [float(cell) for cell in printed(capsys, "fedgh")]
    assert shown == pytest.approx([*rows["accuracy"], rows["others"].mean()], abs=6e-4)
    assert (workplace / "out" / "new_clients.png").stat().st_size > 1000


@pytest.mark.large
def test_robustness(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attacks, rules = ["none", "sign flip"], ["mean", "median"]
    table = robustness.main(["fedproto"], attacks, rules, rounds=1, folder="out")
    rows = table.set_index(["attack", "rule"])["accuracy"]
    assert len(rows) == 4 and rows["none", "mean"] > rows["sign flip", "mean"]
    assert printed(capsys, "none") == [f"{rows['none', rule]:.3f}" for rule in rules]
    assert (workplace / "out" / "robustness.png").stat().st_size > 1000
