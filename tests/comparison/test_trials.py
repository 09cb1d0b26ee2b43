"""`raysim compare FOLDER-tuning`: the table of a tuning's trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raysim.comparison.compare import compare
from raysim.comparison.sweep_card import CellCard, SweepCard, TrialCard, TrialsCard
from raysim.comparison.tables import trials_table
from tests.cli.command import run as command
from tests.comparison.runs import make_run

FIRST = TrialCard("FedGH", 0, {"training.lr": "0.1"}, ["a"], 2, 0.71234, False, False)
CARD = TrialsCard(
    "accuracy/val",
    [101],
    [
        FIRST,
        replace(FIRST, number=1, cells=["b"], rounds=3, score=0.9, chosen=True),
        TrialCard("HKS", 0, {"training.lr": "0.2", "algorithm.warmup": "1"}, ["c"], 2, None, True, False),
        TrialCard("HKS", 1, {"training.lr": "0.3", "algorithm.warmup": "2"}, ["d"], 2, None, False, False),
    ],
)


def test_the_table() -> None:
    table = trials_table(CARD)
    assert table.rows == [
        ["method", "trial", "training.lr", "algorithm.warmup", "rounds", "accuracy/val", "chosen"],
        ["FedGH", "0", "0.1", "-", "2", "71.23", ""],
        ["FedGH", "1", "0.1", "-", "3", "90", "chosen"],
        ["HKS", "0", "0.2", "1", "2", "failed or diverged", ""],
        ["HKS", "1", "0.3", "2", "2", "-", ""],
    ]
    assert "in %" in table.legend and "1 seed," in table.legend
    loss = trials_table(TrialsCard("loss/train", [101, 102], [FIRST]))
    assert loss.rows[1][-2] == "0.7123" and "%" not in loss.legend


def test_the_folder_of_a_tuning_is_shown_as_its_trials(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a" / "1", done=2)
    make_run(tmp_path / "b" / "1", algorithm={"header_lr": 0.1})
    cells = {name: CellCard(name) for name in "ab"}
    SweepCard("", cells).write(tmp_path)
    assert any("a, seed 1: interrupted after 2 of 3 rounds" in note for note in compare(tmp_path).notes)
    SweepCard("", cells, trials=CARD).write(tmp_path)
    card = SweepCard.read(tmp_path)
    assert card is not None and card.trials == CARD
    assert not any("interrupted" in note for note in compare(tmp_path).notes)
    code, out, error = command(capfd, "compare", str(tmp_path))
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert (code, error, lines[2]) == (0, "", "FedGH 1 0.1 - 3 90 chosen") and "interrupted" not in out
