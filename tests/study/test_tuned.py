"""What a comparison says about the tuning of its sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raysim.common.errors import ScenarioError
from raysim.study.compare import compare
from raysim.study.sweep_card import CellCard, ChosenValue, SweepCard, TunedVariant, TuningCard
from tests.study.runs import make_run

A = TunedVariant("A", 16, 84, 0, 3, 0.91234, [ChosenValue("training.lr", "0.3", "upper")])
B = TunedVariant("B", 16, 84, 2, 5, 0.5, [ChosenValue("training.lr", "0.1"), ChosenValue("x", "1", "lower")])
CARD = TuningCard("random", "accuracy/val", False, [101, 102], [A, B])


def test_a_choice_at_an_edge_has_a_mark() -> None:
    assert "training.lr=0.3 (at the upper end" in A.sentence and "score 0.9123" in A.sentence
    assert "training.lr=0.1, x=1 (at the lower end" in B.sentence and "2 trials failed" in B.sentence
    assert "no values" in replace(A, trial=None, score=None, chosen=[]).sentence


def test_unequal_budgets_and_test_samples_are_noted() -> None:
    assert not any("unequal" in note or "optimistic" in note for note in CARD.notes)
    other = replace(CARD, variants=[A, replace(B, trials=4)], uses_test=True).notes
    assert any("16 trials of A, 4 trials of B" in note for note in other) and "optimistic" in other[-1]


def test_a_comparison_shows_the_tuning_of_its_sweep(tmp_path: Path) -> None:
    for name, method, rate in (("A", "fedgh", 0.3), ("B", "standalone", 0.1), ("old", "fedgh", 0.7)):
        training = {"epochs": 1, "batch_size": 8, "lr": rate}
        make_run(tmp_path / name / "1", method, algorithm={}, training=training)
    SweepCard("", {"old": CellCard("A")}).write(tmp_path)
    SweepCard("", {name: CellCard(name) for name in "AB"}, tuning=CARD).write(tmp_path)
    found = compare(tmp_path)
    assert [variant.name for variant in found.variants] == ["A", "B"]
    assert found.frame.groupby("variant")["tuned"].first().to_dict() == {
        "A": "training.lr=0.3", "B": "training.lr=0.1, x=1",
    }  # fmt: skip
    assert list(found.notes[: len(CARD.notes)]) == CARD.notes
    assert not any(note.startswith("unequal settings: training.lr") for note in found.notes)
    SweepCard("", {"C": CellCard("C")}, tuning=CARD).write(tmp_path)
    with pytest.raises(ScenarioError, match="run the sweep again"):
        compare(tmp_path)


def test_a_method_that_was_not_tuned_is_named(tmp_path: Path) -> None:
    """Also if it is in another sweep, whose value of a tuned key was not tuned."""
    for name, method, rate in (("A", "fedgh", 0.3), ("B", "standalone", 0.1)):
        make_run(tmp_path / "s" / name / "1", method, training={"epochs": 1, "batch_size": 8, "lr": rate})
    SweepCard("", {name: CellCard(name) for name in "AB"}, tuning=CARD).write(tmp_path / "s")
    make_run(tmp_path / "t" / "C" / "1", "fedproto", training={"epochs": 1, "batch_size": 8, "lr": 0.05})
    notes = compare(tmp_path / "s", tmp_path / "t").notes
    assert "unequal tuning: not tuned: fedproto" in notes
    assert "unequal settings: training.lr is tuned (fedgh, standalone) or 0.05 (fedproto)" in notes


def test_values_that_were_tuned_for_each_task_do_not_split_a_method(tmp_path: Path) -> None:
    cells, tuned = {}, []
    for method, rates in (("fedgh", (0.3, 0.02, 0.05)), ("standalone", (0.1, 0.07, 0.01))):
        for alpha, rate in zip((0.1, 0.5, 1.0), rates, strict=True):
            name = f"{method} alpha={alpha}"
            data = {"name": "digits", "partition": {"name": "dirichlet", "alpha": alpha}}
            training = {"epochs": 1, "batch_size": 8, "lr": rate}
            make_run(tmp_path / name / "1", method, algorithm={}, data=data, training=training)
            tuned.append(replace(A, label=name, chosen=[ChosenValue("training.lr", str(rate))]))
            cells[name] = CellCard(name)
    card = replace(CARD, variants=tuned)
    SweepCard("", cells, baseline="standalone", tuning=card).write(tmp_path)
    found = compare(tmp_path)
    assert found.baseline == "standalone" and {one.method for one in found.variants} == {"fedgh", "standalone"}
    frame = found.over_tasks()
    assert frame is not None and list(frame["method"]) == ["fedgh", "standalone"]


def test_a_choice_that_equals_another_variant_is_a_row_of_its_own(tmp_path: Path) -> None:
    """As of a method with its default settings and the same method tuned, if tuning chooses the defaults."""
    cells = {}
    for name in ("default", "tuned"):
        for seed in (1, 2, 3):
            make_run(tmp_path / f"{name}{seed}" / "1", seed=seed, accuracy=[0, 0.1 * seed])
            cells[f"{name}{seed}"] = CellCard(name, runs=(name,))
    variants = [replace(A, label="tuned", chosen=[ChosenValue("training.epochs", "1")])]
    card = replace(CARD, variants=variants)
    SweepCard("", cells, baseline="default", tuning=card).write(tmp_path)
    found = compare(tmp_path)
    assert [(one.name, len(one.runs)) for one in found.variants] == [("default", 3), ("tuned", 3)]
    assert found.baseline == "default"
    gain = found.difference("tuned", "last")
    assert gain is not None and (gain.n, gain.mean) == (3, 0.0)
    assert found.p_values["last"] == {"tuned": 1.0}
