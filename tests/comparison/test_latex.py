"""Numbers of tables, and columns that are chosen by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from raysim.common.errors import ScenarioError
from raysim.comparison.compare import Comparison, compare
from raysim.comparison.tables import chosen_columns, number
from tests.cli.command import run
from tests.comparison.runs import make_run


def compared(folder: Path, accuracies: Mapping[str, Sequence[float]]) -> Comparison:
    """A comparison of methods with these last accuracies, one per seed from 1 on."""
    for method, values in accuracies.items():
        for seed, value in enumerate(values, 1):
            make_run(folder / f"{method}{seed}", method, seed, [0.0, 0.2, value])
    return compare(folder, targets=[])


A, B = [0.90, 0.92, 0.94], [0.80, 0.82, 0.841]


@pytest.mark.parametrize(
    ("value", "measure", "sign", "text"),
    [
        (0.12345, "last", False, "12.35"),
        (0.5, "last", True, "+50.00"),
        (-0.5, "last", True, "-50.00"),
        (0.0, "last", True, "0.00"),
        (-1e-17, "last", True, "0.00"),  # an error of rounding has no sign
        (0.00034567, "total_mib", False, "0.0003457"),
        (12.0, "total_mib", False, "12"),
        (10912.29, "total_mib", False, "10912"),
        (-0.3, "total_mib", True, "-0.3"),
        (math.nan, "total_mib", False, "nan"),  # of a run that diverged
        (math.inf, "total_mib", False, "inf"),
    ],
)
def test_numbers(value: float, measure: str, sign: bool, text: str) -> None:
    assert number(value, measure, sign) == text


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare` writes its tables only: drawing takes seconds."""
    monkeypatch.setattr("raysim.comparison.pictures.draw", lambda *_, **__: [])


@pytest.mark.usefixtures("no_pictures")
def test_columns_are_chosen_by_name(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    compared(tmp_path / "runs", {"fedgh": A, "fd": B})
    words = ["compare", str(tmp_path / "runs"), "--baseline", "fd", "-o", str(tmp_path / "out")]
    code, out, _ = run(capfd, *words, "--columns", "worst_decile, last.difference,last.p_holm,n,total_mib")
    assert code == 0
    assert " ".join(out.splitlines()[0].split()) == "variant worst 10% final accuracy vs fd p (Holm) n MiB"
    text = (tmp_path / "out" / "comparison.tex").read_text()
    assert r"worst 10\%" in text and "final accuracy vs fd" in text
    for name, words_of in (
        ("lasst", "did you mean 'last'?"),
        ("last.published", "last.published given"),
        ("", "--columns:  given"),
        ("rounds_to_0.9", "--target"),
    ):
        code, _, error = run(capfd, *words, "--target", "0.99", "--columns", name)
        assert code == 2 and words_of in error and error.count("\n") == 1
    with pytest.raises(ScenarioError, match="--baseline"):
        chosen_columns(compare(tmp_path / "runs", targets=[0.5]), ["rounds_to_0.5.difference"])
