"""Errors about combinations name the `--set` that brought the clash in."""

from __future__ import annotations

import re

import pytest

from raysim.common.errors import ScenarioError
from raysim.launch.check import check
from tests.engine.scenarios import loaded


def test_a_run_that_is_all_warm_up() -> None:
    assert check(loaded("algorithm={name: hks, warmup: 3}")).warnings == (
        "algorithm.warmup: 3 given, so that all 3 rounds are warm-up",
    )
    assert check(loaded("algorithm={name: hks, warmup: 2}")).warnings == ()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "algorithm={name: fedavg}",
            r"clients.models: \d architectures given .* fedavg exchanges whole models; allowed:",
        ),
        ("data.name=cifar10", "clients.models.0: digits_mlp64 needs 1x8x8 images, but cifar10 has 3x32x32"),
    ],
)
def test_the_set_that_clashes_is_named(given: str, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^--set {re.escape(given)}: {sentence}"):
        check(loaded(given))
