"""Errors about combinations name the `--set` that brought the clash in."""

from __future__ import annotations

import re

import pytest
import yaml

from raysim.common.errors import ScenarioError
from raysim.scenario.scenario import Scenario
from tests.engine.scenarios import loaded


def test_a_run_that_is_all_warm_up() -> None:
    (warning,) = Scenario.of(loaded("algorithm={name: hks, warmup: 3}")).warnings
    assert warning.startswith("algorithm.warmup: 3 rounds given")
    assert Scenario.of(loaded("algorithm={name: hks, warmup: 2}")).warnings == ()


@pytest.mark.parametrize(
    ("sets", "may"),
    [
        (["stop.patience=2"], True),
        (["stop.patience=3"], False),
        (["stop.patience=1", "stop.min_rounds=4"], False),
        (["stop.target=0.9"], True),
        (["stop.target=0.9", "evaluation.every=4"], False),
    ],
)
def test_a_stop_that_can_never_end_the_run(sets: list[str], may: bool) -> None:
    """Of four rounds: with patience 2, the run may end after round 3, as the first round sets the value to exceed."""
    scenario = Scenario.of(loaded("rounds=4", "stop.metric=accuracy/all", *sets))
    told = any(text.startswith("stop: the run cannot end early") for text in scenario.warnings)
    assert scenario.may_end_early == may == (not told)


def test_run_folders_are_local() -> None:
    with pytest.raises(ScenarioError, match="output: s3://bucket/runs"):
        Scenario.of(loaded("output=s3://bucket/runs"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("algorithm={name: fedavg}", "clients.models"),
        ("data.name=cifar10", "clients.models: digits_mlp64"),
    ],
)
def test_the_set_that_clashes_is_named(given: str, sentence: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^--set {re.escape(given)}: {sentence}"):
        Scenario.of(loaded(given))


@pytest.mark.parametrize(
    ("sets", "found"),
    [
        ([], {"digits_mlp64": 32, "digits_cnn_s": 32, "digits_resnet": 1}),
        (["training.batch_size=65"], {"digits_mlp64": 32, "digits_cnn_s": 1, "digits_resnet": 1}),
        (["training.together={digits_cnn_s: 4}"], {"digits_mlp64": 1, "digits_cnn_s": 4, "digits_resnet": 1}),
        # Nothing of where clients live may decide bits; that a client may fail by itself does.
        (["resources.clients_per_actor=1"], {"digits_mlp64": 32, "digits_cnn_s": 32, "digits_resnet": 1}),
        (["failure.client_timeout_s=60"], {"digits_mlp64": 1, "digits_cnn_s": 1, "digits_resnet": 1}),
    ],
    ids=str,
)
def test_who_trains_together_is_written_down(sets: list[str], found: dict[str, int]) -> None:
    checked = Scenario.of(loaded(*sets))
    assert checked.together == found
    assert yaml.safe_load(checked.resolved_yaml())["training"]["together"] == found
    assert Scenario.load(checked.resolved).together == found


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["training.together={cnn1: 2}"], "training.together: cnn1 given"),
        (["training.together=2", "failure.max_failed_fraction=0.5"], "training.together: 2 given"),
    ],
)
def test_what_cannot_be_trained_together(sets: list[str], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(sentence)):
        Scenario.of(loaded(*sets))
