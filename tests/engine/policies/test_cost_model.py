"""What a client round is expected to take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raysim.engine.cost_model import CostModel
from raysim.engine.records import ClientEvaluation

COUNTS = {"train": 8, "val": 1, "test": 10}


def plan() -> Any:
    samples = {name: SimpleNamespace(of=lambda k, n=number: range(n)) for name, number in COUNTS.items()}
    return SimpleNamespace(arch=lambda k: "cnn", trained_samples=lambda t, k: 80 * t, **samples)


def test_a_round_takes_its_training_and_its_test() -> None:
    model = CostModel(plan())
    tested = ClientEvaluation(0, 10, 0.0, 0, 1, None, seconds=5.5)
    model.learn(1, {3: SimpleNamespace(train_s=6.0)}, {3: tested})  # type: ignore[dict-item]
    assert model.expected_s(1, 3) == pytest.approx(11.5)
    assert model.expected_s(2, 3) == pytest.approx(11.5 * (2 * 80 + 12) / (80 + 12))  # twice the epochs


def test_the_newest_measurement_counts_as_much_as_it_should() -> None:
    model = CostModel(plan())
    for train_s in (9.2, 18.4):  # 92 samples in round 1: 0.1 and 0.2 s each
        model.learn(1, {3: SimpleNamespace(train_s=train_s)}, {})  # type: ignore[dict-item]
    assert model.expected_s(1, 3) == pytest.approx(92 * 0.13)  # seven tenths of the old, three of the new
