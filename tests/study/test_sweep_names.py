"""Comparisons of sweeps: names from `runs` in the sweep file, and the baseline and targets of one or several sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.common.errors import ScenarioError
from raysim.study.compare import compare
from raysim.study.sweep_card import CellCard, SweepCard
from tests.study.runs import make_run


def test_a_baseline_is_called_as_in_the_sweeps_runs(tmp_path: Path) -> None:
    """Its names on one axis, where each data set has one; or the whole name of a variant, on whatever clients."""
    cells = {}
    for data in ("digits", "cifar10"):
        for name, rate, last in (("slow", 0.1, 0.5), ("fast", 0.2, 0.75)):
            cell = f"{name}-{data}"
            made = {"algorithm": {"header_lr": rate + (data == "digits")}, "data": {"name": data}}
            make_run(tmp_path / cell / "run", accuracy=[0, last], partition=data, **made)
            cells[cell] = CellCard(f"{name} {data}", runs=(name, data))
    SweepCard("", cells, baseline="slow").write(tmp_path)
    comparison = compare(tmp_path)
    assert comparison.baseline == "slow"
    found = {one.name: comparison.difference(one.name, "last") for one in comparison.variants}
    assert {name: less and less.mean for name, less in found.items()} == {
        "slow digits": None, "fast digits": 0.25, "slow cifar10": None, "fast cifar10": 0.25,
    }  # fmt: skip
    with pytest.raises(ScenarioError, match=r"--baseline: digits given; allowed: slow, fast"):
        compare(tmp_path, baseline="digits")


def swept(folder: Path, names: str, **card: Any) -> None:
    """The runs of a sweep with one cell per letter, in this order, the first letter being its baseline."""
    for name in names:
        make_run(folder / name / "run", f"m_{name}")
    SweepCard("", {name: CellCard(name.upper()) for name in names}, targets=[0.4], **card).write(folder)


def test_a_run_outside_the_sweep_does_not_remove_its_baseline(tmp_path: Path) -> None:
    swept(tmp_path / "study", "ba", baseline="m_b")
    make_run(tmp_path / "study" / "again" / "run", "m_c")
    found = compare(tmp_path / "study")
    assert (found.baseline, found.targets) == ("m_b", [0.4])


def test_two_sweeps_keep_their_order_and_what_they_agree_on(tmp_path: Path) -> None:
    swept(tmp_path / "one", "cb", baseline="m_b")
    swept(tmp_path / "two", "da", baseline="m_b")
    found = compare(tmp_path / "two", tmp_path / "one")
    assert [one.name for one in found.variants] == ["D", "A", "C", "B"]
    assert found.baseline == "m_b"
    swept(tmp_path / "three", "e", baseline="m_e")
    found = compare(tmp_path / "two", tmp_path / "three")
    assert found.baseline is None and found.targets == [0.4]
    assert compare(tmp_path / "two", tmp_path / "three", baseline="m_a").targets == [0.4]
    swept(tmp_path / "two-tuning", "xy", trials=True)
    with_trials = compare(tmp_path)
    assert not any(one.name in "xyXY" for one in with_trials.variants)
    assert [one.name for one in compare(tmp_path / "two-tuning").variants] == ["X", "Y"]
